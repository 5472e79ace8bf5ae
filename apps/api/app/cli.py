"""The command line: `plimsoll serve | migrate | keys | limits | windows | …`. A failure is one line and exit code 2."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from typing import Annotated, TypeVar
from uuid import UUID

import typer
from uuid_utils.compat import uuid7

from app.db.database import Database
from app.db.embedded import EmbeddedPostgresError
from app.db.migrate import DatabaseUnreachable, MigrationFailed, reach, upgrade
from app.domain.errors import PlimsollError
from app.domain.types import TenantId
from app.limits_cli import limits
from app.mcp.cli import mcp_command
from app.own_database import CommandRefused, database_url, read_settings, with_database
from app.providers.catalogue_file import CatalogueError
from app.purge_cli import purge_command
from app.services import keys as key_service
from app.simulate.cli import simulate_command
from app.windows_cli import windows

EXIT_UNUSABLE = 2
T = TypeVar("T")

command_line = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Keeps LLM conversations inside the model's context window. Settings come from the environment and .env.",
)
keys = typer.Typer(no_args_is_help=True, help="API keys. Once one was ever made, every request needs one.")
command_line.add_typer(keys, name="keys")
command_line.add_typer(limits, name="limits")
command_line.add_typer(windows, name="windows")
command_line.command("purge")(purge_command)
command_line.command("simulate")(simulate_command)
command_line.command("mcp")(mcp_command)
if find_spec("plimsoll_sdk"):  # the extra `demo`
    from plimsoll_demo.cli import replay

    command_line.command("replay")(replay)


def _print_version(asked: bool) -> None:
    if asked:
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

    # The application, in this process or in workers, reads its settings itself, so it has to find these there too.
    for name, value in {"HOST": host, "PORT": port, "WORKERS": workers}.items():
        if value is not None:
            os.environ[f"PLIMSOLL_{name}"] = str(value)
    serve(read_settings())


@command_line.command("migrate")
def migrate_command() -> None:
    """Brings the database to this version's schema. Safe to run several times and at once."""
    with database_url(read_settings()) as dsn:
        asyncio.run(reach(dsn))
        asyncio.run(upgrade(dsn))
    typer.echo("The schema is current.")


@keys.command("create")
def create_command(
    tenant: Annotated[str, typer.Option(help="Whose sessions the key gives access to.")],
    name: Annotated[str, typer.Option(help="What the key is for, in your words.")],
    if_none: Annotated[bool, typer.Option("--if-none", help="Do nothing when a key was ever made.")] = False,
) -> None:
    """Makes a key and prints its secret, which is shown only this once: KEY=$(plimsoll keys create …)."""

    async def work(database: Database) -> str | None:
        if if_none and await key_service.any_key_exists(database):
            return None
        _, secret = await key_service.create_key(database, uuid7, TenantId(tenant), name)
        return secret

    secret = with_database(work)
    if secret is None:
        typer.echo("There is a key already; none was made.", err=True)
    else:
        typer.echo("Keep it: only its hash is stored.", err=True)
        typer.echo(secret)


@keys.command("list")
def list_command() -> None:
    """Lists the keys, without their secrets."""
    found = with_database(key_service.list_keys)
    typer.echo(f"{'id':36}  {'prefix':12}  {'created':16}  {'revoked':16}  tenant / name")
    for key in found:
        revoked = f"{key.revoked_at:%Y-%m-%d %H:%M}" if key.revoked_at else "-"
        line = f"{key.id}  {key.prefix:12}  {key.created_at:%Y-%m-%d %H:%M}  {revoked:16}  {key.tenant_id} / {key.name}"
        typer.echo(line)


@keys.command("revoke")
def revoke_command(key_id: Annotated[UUID, typer.Argument(help="The id that `keys list` shows.")]) -> None:
    """Ends a key. Running services refuse it within seconds."""

    async def work(database: Database) -> str:
        return (await key_service.revoke_key(database, key_id)).name

    typer.echo(f"Revoked: {with_database(work)}")


def main() -> None:
    """The console script `plimsoll`."""
    try:
        command_line()
    except PlimsollError as error:
        _fail(error.detail)
    except (CatalogueError, CommandRefused, EmbeddedPostgresError, MigrationFailed, DatabaseUnreachable) as error:
        _fail(str(error))


def _fail(sentence: str) -> None:
    sys.stderr.write(f"plimsoll: {' '.join(sentence.split())}\n")
    sys.exit(EXIT_UNUSABLE)
