"""The settings of one process. Read once by the composition root; nothing else reads the environment."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Final, Literal

from dotenv import dotenv_values
from pydantic import AliasChoices, Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.core.connection_string import for_driver
from app.core.fairness import share_of

ENV_FILE: Final = Path(".env")
_LISTED = {
    "cors_origins": (
        re.compile(r"https?://[a-z0-9.-]+(:\d{1,5})?"),
        "an origin like https://chat.example.org; there is no wildcard",
    ),
    "allowed_hosts": (
        re.compile(r"\*|[\w.-]+|\[?[\da-fA-F:.]+\]?"),
        "a host name like chat.example.org, without a port; * alone accepts any",
    ),
}
"""What an entry of a list looks like; an entry of another form would never match."""
_MOST = 2**40
"""Largest count, or number of bytes or tokens."""
_LONGEST_S = 86_400.0


def _named(variable: str, default: Any, **bounds: Any) -> Any:
    """A setting whose variable has no prefix; from code its name is the same in lower case."""
    return Field(default=default, validation_alias=AliasChoices(variable, variable.lower()), **bounds)


def variables() -> dict[str, str]:
    """All variables of `.env` and of the environment, which overrides it: the catalogue names those that hold keys."""
    return {name: value for name, value in dotenv_values(ENV_FILE).items() if value is not None} | os.environ


class Settings(BaseSettings):
    """Every variable of `.env.example`, with its default. Frozen: a process never changes its settings."""

    model_config = SettingsConfigDict(
        env_file=ENV_FILE, env_prefix="PLIMSOLL_", extra="ignore", frozen=True, populate_by_name=True
    )

    database_url: SecretStr | None = _named("DATABASE_URL", None)
    data_dir: Path | None = None
    demo: bool = True
    embedded_restart_s: float = Field(default=120.0, ge=0, le=_LONGEST_S)
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    workers: int = Field(default=1, ge=1, le=64)
    allowed_hosts: str = ""
    cors_origins: str = ""
    max_connections: int = Field(default=2048, ge=1, le=_MOST)
    max_connections_per_address: int = Field(default=1024, ge=1, le=_MOST)
    models_file: Path | None = _named("MODELS_FILE", None)

    context_max_output_tokens: int = _named("CONTEXT_MAX_OUTPUT_TOKENS", 2048, ge=1, le=_MOST)
    context_summary_trigger_ratio: float = _named("CONTEXT_SUMMARY_TRIGGER_RATIO", 0.70, gt=0, le=1)
    context_prune_trigger_ratio: float = _named("CONTEXT_PRUNE_TRIGGER_RATIO", 0.90, gt=0, le=1)
    context_mandatory_summary_turn: int = _named("CONTEXT_MANDATORY_SUMMARY_TURN", 8, ge=1, le=_MOST)
    context_protected_turns: int = _named("CONTEXT_PROTECTED_TURNS", 4, ge=0, le=_MOST)
    context_fallback_limit: int = _named("CONTEXT_FALLBACK_LIMIT", 8192, ge=1, le=_MOST)
    context_summary_model: str = _named("CONTEXT_SUMMARY_MODEL", "")
    context_embedding_model: str = _named("CONTEXT_EMBEDDING_MODEL", "")
    context_embedding_wait_ms: int = _named("CONTEXT_EMBEDDING_WAIT_MS", 150, ge=0, le=5_000)
    context_summary_role: Literal["system", "user"] = _named("CONTEXT_SUMMARY_ROLE", "system")
    summarize_ahead: bool = True
    recognize_sessions: bool = True

    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=_MOST)
    max_import_bytes: int = Field(default=64 * 1024 * 1024, ge=1024, le=_MOST)
    turn_lease_s: float = Field(default=30.0, ge=1, le=_LONGEST_S)  # renewed three times, each a write that may wait
    heartbeat_s: float = Field(default=15.0, ge=0.05, le=_LONGEST_S)
    on_disconnect: Literal["finish", "cancel"] = "finish"
    shutdown_delay_s: float = Field(default=0.0, ge=0, le=_LONGEST_S)
    drain_s: float = Field(default=20.0, ge=0, le=_LONGEST_S)
    db_pool_size: int = Field(default=10, ge=1, le=_MOST)
    db_heavy_pool_size: int = Field(default=2, ge=1, le=_MOST)
    db_lock_timeout_s: float = Field(default=5.0, ge=0.001, le=_LONGEST_S)  # in Postgres 0 ms is no timeout
    max_event_streams: int = Field(default=500, ge=1, le=_MOST)
    max_bodies_bytes: int = Field(default=256 * 1024 * 1024, ge=1024, le=_MOST)
    max_windows_bytes: int = Field(default=256 * 1024 * 1024, ge=1024, le=_MOST)
    max_exports_bytes: int = Field(default=4 * 1024**3, ge=1024, le=_MOST)
    session_cache_bytes: int = Field(default=64 * 1024 * 1024, ge=0, le=_MOST)
    tenant_share: float = Field(default=0.75, gt=0, le=1)
    db_pooler: Literal["none", "transaction"] = "none"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["json", "console"] = "json"
    log_content: bool = False
    traces: Literal["off", "otlp"] = "off"
    traces_to_providers: bool = False

    @property
    def data_folder(self) -> Path:
        """The absolute path of the embedded Postgres and other data of this installation; it need not exist yet.

        Unless it is set, this is `./var` if an earlier version made that, else the user's data folder (XDG Base
        Directory Specification).
        """
        user = Path(os.environ.get("XDG_DATA_HOME", ""))
        if not user.is_absolute():  # the specification says to ignore a relative path
            with contextlib.suppress(RuntimeError):  # a user without a home folder
                user = Path("~/.local/share").expanduser()
        before = Path("var")
        if self.data_dir is None and user.is_absolute() and not (before / "postgres").is_dir():
            return user / "plimsoll"
        return (self.data_dir or before).resolve()

    @property
    def origins(self) -> tuple[str, ...]:
        """Origins of the pages, besides the service's own, from which browsers may call the service."""
        return tuple(origin.strip() for origin in self.cors_origins.split(",") if origin.strip())

    @field_validator("data_dir", "models_file", "port", mode="before")
    @classmethod
    def _default_if_unset(cls, value: object, info: ValidationInfo) -> object:
        # An empty path would be the current folder. Kubernetes sets PLIMSOLL_PORT=tcp://… beside a Service `plimsoll`.
        is_unset = str(value).startswith("tcp://") if info.field_name == "port" else value == ""
        return cls.model_fields[str(info.field_name)].default if is_unset else value

    @field_validator("database_url")
    @classmethod
    def _is_for_the_driver(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        if not value.get_secret_value():  # libpq would look for a server on this machine
            raise ValueError("it is empty: give a connection string, or unset it for the embedded Postgres")
        return SecretStr(for_driver(value.get_secret_value()))

    @field_validator("*", mode="before")
    @classmethod
    def _is_text(cls, value: object) -> object:
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                # From None: the cause would quote the value.
                raise ValueError("it is not UTF-8") from None
        return value

    @field_validator(*_LISTED)
    @classmethod
    def _has_entries_of_its_form(cls, value: str, info: ValidationInfo) -> str:
        form, described = _LISTED[str(info.field_name)]
        for number, entry in enumerate(map(str.strip, value.split(",")), start=1):
            if entry and not form.fullmatch(entry):  # not quoted: an address can have a password
                raise ValueError(f"entry {number} is not {described}")
        return value

    @model_validator(mode="after")
    def _one_body_fits(self) -> Settings:
        largest = max(self.max_body_bytes, self.max_import_bytes)
        if share_of(self.max_bodies_bytes, self.tenant_share) < largest:
            raise ValueError(
                f"PLIMSOLL_MAX_BODIES_BYTES times PLIMSOLL_TENANT_SHARE must hold one body of {largest} bytes"
            )
        return self
