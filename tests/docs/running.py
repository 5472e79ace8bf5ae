"""Runs the fenced blocks of a page, in order, the way its reader would: each kind by what really reads that kind."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import asyncpg
import httpx
import yaml
from dotenv import dotenv_values

from app.api.problems import KINDS
from app.core.config import Settings
from app.providers.registry import load_catalogue
from app.telemetry.metrics import Telemetry
from app.tokenizers.counters import encoding_for_model
from tests.api.conftest import PATIENCE_S
from tests.deploy.promql import exported, reads
from tests.docs.answers import agrees, shown
from tests.docs.checkout import environment
from tests.docs.fences import Block
from tests.docs.pages import ROOT

SHOWN_ADDRESS = "http://127.0.0.1:8000"
_TIMEOUT_S = 300
# Citus' functions, which this Postgres lacks, as far as names go: the table and its column must be there.
_CITUS = """
CREATE FUNCTION create_distributed_table(regclass, text, colocate_with text DEFAULT 'default') RETURNS void
LANGUAGE plpgsql AS $$ BEGIN
    PERFORM 1 FROM pg_attribute WHERE attrelid = $1 AND attname = $2 AND attnum > 0;
    IF NOT FOUND THEN RAISE EXCEPTION 'no column % in %', $2, $1; END IF;
    IF colocate_with <> 'default' THEN PERFORM colocate_with::regclass; END IF;
END $$;
CREATE FUNCTION create_reference_table(regclass) RETURNS void LANGUAGE sql AS 'SELECT';
"""


class UnknownBlock(Exception):
    """Nobody knows how to run a block of this kind."""


class BlockFailed(Exception):
    """A block does not do what its page says."""


@dataclass
class Reader:
    """Somebody who reads a page and types its commands: a folder, a shell's variables, a running service.

    `placeholders` are words of the page that stand for something of the reader's own.
    """

    folder: Path
    address: str
    database_url: str
    placeholders: Mapping[str, str] = field(default_factory=dict[str, str])
    printed: str | None = None
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        settings = {"DATABASE_URL": self.database_url, "MODELS_FILE": str(self.folder / "own-models.toml")}
        self.variables = environment(self.folder, **settings) | {"PWD": str(self.folder)}

    def read(self, block: Block) -> None:
        """Does what the block says. Raises `BlockFailed`, or `UnknownBlock` for a kind that nobody runs."""
        printed, self.printed = self.printed, None
        if block.is_output:
            compare(block, printed)
            return
        run = _KINDS.get((block.language, block.role[0] if block.role else ""))
        if run is None:
            raise UnknownBlock(f"{block}: nobody runs a block of the kind {' '.join(block.info) or '(none)'!r}")
        run(self, block)

    def own(self, text: str) -> str:
        """The block's text with this reader's address and things in the place of the page's."""
        for word, value in self.placeholders.items():
            text = re.sub(rf"(?<![\w-]){word}(?![\w-])", value, text)
        return text.replace(SHOWN_ADDRESS, self.address)

    def shell(self, block: Block) -> None:
        """The commands, in a shell that keeps its variables and its folder from block to block."""
        state = self.folder / "state"
        script = f"set -euo pipefail\nset -a\n{self.own(block.text)}\nset +a\nenv -0 >'{state}'\n"
        self.printed = self._run(block, ["bash", "-c", script])
        kept = [entry.partition("=") for entry in state.read_text().split("\0") if entry]
        self.variables = {name: value for name, _, value in kept}

    def python(self, block: Block) -> None:
        """The program, with the shell's variables in its environment."""
        self.printed = self._run(block, [sys.executable, "-W", "error::SyntaxWarning", "-c", self.own(block.text)])

    def _run(self, block: Block, command: list[str]) -> str:
        ended = subprocess.run(
            command,
            cwd=self.variables["PWD"],
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if ended.returncode:
            raise BlockFailed(f"{block} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    def request(self, block: Block) -> None:
        """Sends the JSON where the block says; a session that the path wants is a new one."""
        method, path = block.role
        with httpx.Client(base_url=self.address, timeout=PATIENCE_S) as client:
            if "{sid}" in path:
                path = path.replace("{sid}", client.post("/v1/sessions", json={}).json()["id"])
            answer = client.request(method, path, json=json.loads(block.text))
        if not answer.is_success:
            raise BlockFailed(f"{block}: {answer.status_code} {answer.text}")
        self.printed = answer.text

    def problem(self, block: Block) -> None:
        """A problem as a client sees it: its code is one of ours, with its own status."""
        documented: dict[str, Any] = shown(block.text)
        code = str(documented.get("code"))
        if code not in KINDS or documented.get("status", KINDS[code].status) != KINDS[code].status:
            raise BlockFailed(f"{block}: no problem of ours has the code {code!r} and that status")

    def catalogue(self, block: Block) -> None:
        """A catalogue of models, by the reader that the service starts with; every key it names is set."""
        path = self.folder / "shown-models.toml"
        path.write_text(block.text)
        models: dict[str, dict[str, Any]] = tomllib.loads(block.text).get("models", {})
        catalogue = load_catalogue(
            path,
            environ={model["api_key_env"]: "sk-shown" for model in models.values() if "api_key_env" in model},
            fallback_window=8192,
            now=lambda: datetime.now(UTC),
            encoding_for_model=encoding_for_model,
            estimator=lambda _: len,
        )
        asyncio.run(catalogue.aclose())

    def settings(self, block: Block) -> None:
        """Settings, by the reader of the service; a variable that it does not know is a mistake."""
        path = self.folder / "shown.env"
        path.write_text(block.text)
        fields = Settings.model_fields.items()
        known = {
            str(cast(Any, of.validation_alias).choices[0]) if of.validation_alias else f"PLIMSOLL_{name.upper()}"
            for name, of in fields
        }
        unknown = dotenv_values(path).keys() - known
        if unknown:
            raise BlockFailed(f"{block}: no such settings: {', '.join(sorted(unknown))}")
        Settings(_env_file=path)  # type: ignore[call-arg] # known to pydantic-settings

    def chart_values(self, block: Block) -> None:
        """Values of the chart: each is one that the chart has."""
        has = yaml.safe_load((ROOT / "deploy" / "helm" / "values.yaml").read_text())
        unknown = sorted(_not_in(yaml.safe_load(block.text), has))
        if unknown:
            raise BlockFailed(f"{block}: the chart has no such values: {', '.join(unknown)}")

    def sql(self, block: Block) -> None:
        """The statements, on the service's own database."""

        async def run() -> None:
            connection = await cast(Any, asyncpg).connect(self.database_url)
            try:
                if "create_distributed_table" in block.text:
                    await connection.execute(_CITUS)
                await connection.execute(block.text)
            except asyncpg.PostgresError as error:
                raise BlockFailed(f"{block}: {error}") from error
            finally:
                await connection.close()

        asyncio.run(run())

    def promql(self, block: Block) -> None:
        """Expressions, a line each: they parse, and ask for series that are exported."""
        text = Telemetry(["main"]).render()[0].decode()
        # A histogram or a counter with labels has no series before its first event; that it is there is declared.
        names = exported(text).keys() | set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
        for line in filter(None, map(str.strip, block.text.splitlines())):
            for read in reads(line):
                if not {read.name, re.sub("_(bucket|count|sum)$", "", read.name)} & names:
                    raise BlockFailed(f"{block}: {read.name} is not exported")


def _not_in(given: Mapping[str, Any], has: Mapping[str, Any], at: str = "") -> list[str]:
    unknown: list[str] = []
    for name, value in given.items():
        if name not in has:
            unknown.append(f"{at}{name}")
        elif isinstance(value, dict) and has[name]:
            unknown += _not_in(cast("dict[str, Any]", value), has[name], f"{at}{name}.")
    return unknown


_KINDS: Mapping[tuple[str, str], Callable[[Reader, Block], None]] = {
    ("sh", ""): Reader.shell,
    ("python", ""): Reader.python,
    **{("json", method): Reader.request for method in ("POST", "PUT", "PATCH")},
    ("json", "problem"): Reader.problem,
    ("toml", ""): Reader.catalogue,
    ("env", ""): Reader.settings,
    ("yaml", "values"): Reader.chart_values,
    ("sql", ""): Reader.sql,
    ("promql", ""): Reader.promql,
}


def compare(block: Block, printed: str | None) -> None:
    """Raises `BlockFailed` unless the block shows what was printed; `…` stands for what is left out."""
    if printed is None:
        raise BlockFailed(f"{block} shows the output of nothing that ran")
    if block.language == "json":
        if not agrees(shown(block.text), json.loads(printed)):
            raise BlockFailed(f"{block} shows another answer than\n{printed}")
    elif block.language == "text":
        pattern = ".*".join(re.escape(part) for part in block.text.strip().split("…"))
        if not re.fullmatch(pattern, printed.strip(), re.DOTALL):
            raise BlockFailed(f"{block} shows something else than\n{printed}")
    else:
        raise UnknownBlock(f"{block}: output is `json output` or `text output`")


def lint(block: Block) -> None:
    """What can be said of commands that are not run: the shell parses them, and what they call of ours is there."""
    parsed = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=10, check=False)
    if parsed.returncode:
        raise BlockFailed(f"{block}: {parsed.stderr}")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    missing = [f"make {name}" for name in re.findall(r"\bmake ([a-z-]+)", block.text) if name not in targets]
    modules = re.findall(r"python -m ([\w.]+)", block.text)
    missing += [f"python -m {name}" for name in modules if importlib.util.find_spec(name) is None]
    missing += [path for path in re.findall(r"\bdeploy/[\w./-]+", block.text) if not (ROOT / path).exists()]
    if missing:
        raise BlockFailed(f"{block}: not there: {', '.join(missing)}")
