"""The command line: `plimsoll serve | migrate | keys | limits | windows | …`. A failure is one line and exit code 2."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperGroup
from typer.main import get_group

from app.core.memory import collect_seldom
from app.domain.errors import OperatorError, PlimsollError

EXIT_UNUSABLE = 2

_IMPORTED_LATER: Final[Mapping[str, str]] = {
    **dict.fromkeys(("keys", "limits", "windows", "distribute", "purge"), "app.commands.administration"),
    "simulate": "app.commands.simulate",
    **({"replay": "plimsoll_demo.cli"} if find_spec("plimsoll_sdk") else {}),  # the extra `demo`
}


class _Commands(TyperGroup):
    """Imports a command when it is run or listed: the application takes a second to import, for which neither
    `--version` nor a wrong argument has to wait. Typer does not export the types of its own copy of Click."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_IMPORTED_LATER]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (module := _IMPORTED_LATER.get(cmd_name)) is None:
            return super().get_command(ctx, cmd_name)
        commands = typer.Typer(rich_markup_mode=_PLAIN)
        commands.add_typer(import_module(module).commands)
        return get_group(commands).commands[cmd_name]


_PLAIN: Final = None
"""Typer's boxes give every flag the type <bool>, as if it took a value."""

command_line = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=_PLAIN,
    context_settings={"max_content_width": 120},
    help="Keeps LLM conversations inside the model's context window. Settings come from the environment and .env.",
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"plimsoll {version('plimsoll-server')}")
        raise typer.Exit


@command_line.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself, before any subcommand."""


@command_line.command("serve")
def serve_command(
    host: Annotated[str | None, typer.Option(help="Address to listen on (PLIMSOLL_HOST).")] = None,
    port: Annotated[int | None, typer.Option(help="Port, 0 for a free one (PLIMSOLL_PORT).")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes (PLIMSOLL_WORKERS).")] = None,
) -> None:
    """Serves the API. Without DATABASE_URL it starts, or joins, the embedded Postgres and migrates it."""
    from app.commands.resources import read_settings  # noqa: PLC0415
    from app.serving import serve  # noqa: PLC0415
    from plimsoll_demo.conversations import first_session  # noqa: PLC0415

    # The application, in this process or in workers, reads its settings itself, so these have to be in the environment.
    for name, value in {"HOST": host, "PORT": port, "WORKERS": workers}.items():
        if value is not None:
            os.environ[f"PLIMSOLL_{name}"] = str(value)
    serve(read_settings(), first_session)


@command_line.command("migrate")
def migrate_command() -> None:
    """Brings the database to this version's schema. Safe to run several times and at once."""
    from app.commands.resources import database_url, read_settings  # noqa: PLC0415
    from app.db.migrate import upgrade  # noqa: PLC0415
    from app.db.schema import reach  # noqa: PLC0415

    with database_url(read_settings()) as dsn:
        asyncio.run(reach(dsn, transaction_pooler=True))
        asyncio.run(upgrade(dsn))
    typer.echo("The schema is current.")


@command_line.command("mcp")
def mcp_command(
    url: Annotated[
        str, typer.Option(envvar="PLIMSOLL_URL", help="Where the service listens.", show_envvar=True)
    ] = "http://127.0.0.1:8000",
    write: Annotated[bool, typer.Option("--write", help="Also serve tools that change pins.")] = False,
) -> None:
    """Serves sessions of a running service to a host of the Model Context Protocol, over standard input and output.

    The API key is PLIMSOLL_API_KEY of the environment; the tools see only its tenant's sessions.
    """
    try:
        from app.commands.mcp import make_server  # noqa: PLC0415 - an extra, which other commands do without
    except ModuleNotFoundError as error:
        if error.name not in {"mcp", "plimsoll_sdk"}:
            raise
        raise OperatorError(
            f"the package {error.name} is missing: `make setup` installs it in a clone, elsewhere the extra mcp of "
            "plimsoll-server"
        ) from error
    try:
        server = make_server(url, write=write)
    except ValueError as error:
        raise OperatorError(str(error)) from error
    server.run("stdio")


def _open_closed_streams() -> None:
    """Opens the standard streams that were closed before this process began, for the worker processes too: else a
    socket or file gets the number of one, and what a library or another program writes there goes into it.
    `sys.__stdout__` still says that it was."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123 - for the whole process
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def main() -> None:
    """The console script `plimsoll`."""
    collect_seldom()  # nearly all objects that an import makes stay
    _open_closed_streams()
    cast(TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")  # a tenant's name may need it in this locale
    try:
        command_line()
    except (OperatorError, PlimsollError, OSError) as error:  # the last where standard output cannot be written
        sys.stderr.write(f"plimsoll: {' '.join(str(error).split())}\n")
        sys.exit(EXIT_UNUSABLE)
    finally:
        collect_seldom()  # else the interpreter looks at all objects once more before it ends
