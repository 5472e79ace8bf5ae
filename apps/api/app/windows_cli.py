"""`plimsoll windows`: what providers stated of their windows when they refused prompts."""

from __future__ import annotations

from typing import Annotated

import typer

from app.db.database import Database
from app.db.learned_windows import StatedWindow
from app.own_database import with_database
from app.services.upkeep import learned_windows as service

windows = typer.Typer(no_args_is_help=True, help="Context windows that providers stated when they refused prompts.")


@windows.command("list")
def list_command() -> None:
    """Lists what was stated, to whom, and for whom it counts: its tenant after two turns, all after two tenants."""

    async def work(database: Database) -> list[StatedWindow]:
        return await service.list_windows(database)

    found = with_database(work)
    counting = service.windows_of(found)
    typer.echo(f"{'tokens':>9}  {'turns':>5}  {'counts for':10}  {'since':16}  {'until (UTC)':16}  alias / tenant")
    for row in sorted(found, key=lambda each: (each.model_alias, each.tenant_id)):
        since, until = (f"{instant:%Y-%m-%d %H:%M}" for instant in (row.first_stated_at, row.expires_at))
        counts_for = service.counts_for(row, counting)
        typer.echo(
            f"{row.context_window:>9}  {row.statements:>5}  {counts_for:10}  {since}  {until}  "
            f"{row.model_alias} / {row.tenant_id}"
        )


@windows.command("forget")
def forget_command(alias: Annotated[str, typer.Argument(help="An alias that `windows list` shows.")]) -> None:
    """Forgets what was stated of an alias, to every tenant. Running services follow within half a minute."""

    async def work(database: Database) -> int:
        return await service.forget(database, alias)

    typer.echo(f"{alias}: {with_database(work)} statements were forgotten.")
