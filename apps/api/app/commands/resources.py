"""What commands work with: the settings, the database of this installation, and a progress bar."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from difflib import get_close_matches
from typing import TypeVar

from dotenv.parser import Binding, parse_stream
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.core.config import ENV_FILE, Settings, variables
from app.db import embedded
from app.db.database import Database
from app.db.schema import reach
from app.domain.errors import OperatorError

T = TypeVar("T")
_PREFIX = "PLIMSOLL_"
_LEAST_RATIO = 0.85
"""From which a name is taken for a misspelled one: one letter wrong or missing, or two of a long name."""


@contextmanager
def database_url(settings: Settings, *, keep_running: bool = False) -> Generator[str]:
    """The connection string of the configured database, or of the embedded one, started and migrated for the block.

    With `keep_running`, the embedded one is restarted if it ends meanwhile. Raises `EmbeddedPostgresError` and
    `MigrationFailed`, for the embedded one only.
    """
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    restart_s = settings.embedded_restart_s if keep_running else None
    with embedded.migrated(settings.data_folder, restart_s=restart_s) as dsn:
        yield dsn


def with_database(work: Callable[[Database], Awaitable[T]]) -> T:
    """Runs `work` on the configured database, if its schema can be served."""

    async def run(dsn: str) -> T:
        if not (state := await reach(dsn, transaction_pooler=True)).can_be_served:
            raise OperatorError(f"the database's schema is {state}: run `plimsoll migrate` first")
        return await on_database(dsn, work)

    with database_url(read_settings()) as dsn:
        return asyncio.run(run(dsn))


async def on_database(dsn: str, work: Callable[[Database], Awaitable[T]]) -> T:
    """Runs `work` on the database at this address, over one connection."""
    database = Database(dsn, pool_size=1, transaction_pooler=True)  # safe with or without a pooler
    async with aclosing(database):
        return await work(database)


def progress_bar(unit: str) -> Progress:
    """A progress bar that counts `unit` on standard error. It shows nothing if that is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    return Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    )


def read_settings() -> Settings:
    """The settings of the environment and `.env`. Raises `OperatorError`, which never quotes a value, also for a name
    that is nearly that of a setting and a line that sets none: without the setting another database could be served."""
    try:
        if faulty := [line for line, read in _env_lines() if read.error]:
            raise OperatorError("; ".join(f"{ENV_FILE}, line {line}: this is not NAME=value" for line in faulty))
        settings = Settings()
        misspelled = [*map(_misspelled, variables())]
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False)
        named = [(_variable(problem["loc"]), problem["msg"].removeprefix("Value error, ")) for problem in problems]
        raise OperatorError("; ".join(f"{name}{_place(name)}: {message}" for name, message in named)) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OperatorError(f".env cannot be read: {reason}") from error
    if any(misspelled):
        raise OperatorError("; ".join(filter(None, misspelled)))
    return settings


def _env_lines() -> list[tuple[int, Binding]]:
    """What the parser of `.env` reads, each with the number of its line: its text begins with blank lines before it."""
    if not ENV_FILE.is_file():
        return []
    with ENV_FILE.open(encoding="utf-8") as text:
        read = [(binding.original.line, binding.original.string, binding) for binding in parse_stream(text)]
    return [(line + own.count("\n", 0, len(own) - len(own.lstrip())), binding) for line, own, binding in read]


def _misspelled(variable: str) -> str:
    """What is wrong with a variable that has our prefix, or that of the context settings, and nearly a setting's name.
    Others are let through: Kubernetes sets such variables beside a Service `plimsoll`."""
    settings = {_variable((name,)): name for name in Settings.model_fields}
    name = variable.upper()
    if name in settings or not name.startswith((_PREFIX, "CONTEXT_")):
        return ""
    own = {setting.removeprefix(_PREFIX): setting for setting in settings}
    near = get_close_matches(name.removeprefix(_PREFIX), own, 1, _LEAST_RATIO)
    return f"{variable}{_place(variable)} is not a setting: the name is {own[near[0]]}" if near else ""


def _place(variable: str) -> str:
    """The line of `.env` that sets a variable, unless the environment overrides it."""
    if variable in map(str.upper, os.environ):
        return ""
    own = [line for line, read in _env_lines() if (read.key or "").upper() == variable.upper()]
    return "".join(f" ({ENV_FILE}, line {line})" for line in own)


def _variable(location: tuple[int | str, ...]) -> str:
    name = str(location[0]).upper() if location else "settings"
    own = name.lower() in Settings.model_fields and Settings.model_fields[name.lower()].validation_alias is None
    return f"{_PREFIX}{name}" if own else name


def as_text(value: str | None) -> str | None:
    """The value of an argument that the database gets. Bytes that are no UTF-8 come as half surrogates."""
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        import typer  # noqa: PLC0415 - workers import this module, and have no command line

        raise typer.BadParameter("it is not UTF-8 text") from None
    return value
