"""The command line: `plimsoll serve | migrate | keys | limits | windows | …`. A failure is one line and exit code 2."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from typing import Annotated

import typer

from app.commands.administration import distribute_command, keys, limits, purge_command, windows
from app.commands.resources import CommandRefused, database_url, read_settings
from app.commands.simulate import simulate_command
from app.db.embedded import EmbeddedPostgresError
from app.db.migrate import DatabaseUnreachable, MigrationFailed, reach, upgrade
from app.domain.errors import PlimsollError
from app.providers.catalogue_file import CatalogueError
from plimsoll_demo.conversations import first_session

EXIT_UNUSABLE = 2

command_line = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Typer's boxes give every flag the type <bool>, as if it took a value
    context_settings={"max_content_width": 120},
    help="Keeps LLM conversations inside the model's context window. Settings come from the environment and .env.",
)
command_line.add_typer(keys, name="keys")
command_line.add_typer(limits, name="limits")
command_line.add_typer(windows, name="windows")
command_line.command("distribute")(distribute_command)
command_line.command("purge")(purge_command)
command_line.command("simulate")(simulate_command)
if find_spec("plimsoll_sdk"):  # the extra `demo`
    from plimsoll_demo.cli import replay

    command_line.command("replay")(replay)


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
    from app.serving import serve  # noqa: PLC0415 - the whole application: half a second that other commands need not wait

    # The application, in this process or in workers, reads its settings itself, so these have to be in the environment.
    for name, value in {"HOST": host, "PORT": port, "WORKERS": workers}.items():
        if value is not None:
            os.environ[f"PLIMSOLL_{name}"] = str(value)
    serve(read_settings(), first_session)


@command_line.command("migrate")
def migrate_command() -> None:
    """Brings the database to this version's schema. Safe to run several times and at once."""
    with database_url(read_settings()) as dsn:
        asyncio.run(reach(dsn))
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
        raise CommandRefused(
            f"the package {error.name} is missing: `make setup` installs it in a clone, elsewhere the extra mcp of "
            "plimsoll-server"
        ) from error
    try:
        server = make_server(url, write=write)
    except ValueError as error:
        raise CommandRefused(str(error)) from error
    server.run("stdio")


_REFUSALS = (CatalogueError, CommandRefused, DatabaseUnreachable, EmbeddedPostgresError, MigrationFailed, PlimsollError)


def main() -> None:
    """The console script `plimsoll`."""
    try:
        command_line()
    except (*_REFUSALS, OSError) as error:  # the second where standard output cannot be written
        sys.stderr.write(f"plimsoll: {' '.join(str(error).split())}\n")
        sys.exit(EXIT_UNUSABLE)
