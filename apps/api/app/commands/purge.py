"""`plimsoll purge`: retention, to be run by a timer."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

import typer

from app.commands.resources import CommandRefused, progress_bar, with_database
from app.db.database import Database
from app.domain.errors import DatabaseUnavailable
from app.domain.types import TenantId
from app.services.upkeep.purge import Purged, purge

EXIT_INTERRUPTED = 130
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_LONGEST = timedelta(days=365 * 100)


def purge_command(
    older_than: Annotated[str, typer.Option(help="Hours, days or weeks since the last activity: 36h, 30d, 8w.")],
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's sessions; all without it.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
) -> None:
    """Permanently deletes sessions without activity for this time, with everything that belongs to them.

    Sessions with a running turn are kept. It can be interrupted, repeated, and run while the service runs.
    """
    age = read_age(older_than)
    newest: list[Purged] = []
    with progress_bar("sessions") as bar:
        task = bar.add_task("counting" if dry_run else "erasing", total=None)

        def show(purged: Purged) -> None:
            newest[:] = [purged]
            bar.update(task, completed=purged.done, total=purged.sessions)

        async def work(database: Database) -> Purged:
            return await purge(
                database, age, None if tenant is None else TenantId(tenant), dry_run=dry_run, progress=show
            )

        try:
            with_database(work)
        except (KeyboardInterrupt, DatabaseUnavailable) as error:
            bar.stop()
            if newest and not dry_run:
                typer.echo(f"Broken off; run it again to go on. {_summary(newest[0], dry_run=False)}", err=True)
            if isinstance(error, KeyboardInterrupt):
                raise typer.Exit(EXIT_INTERRUPTED) from error
            raise
    typer.echo(_summary(newest[0], dry_run=dry_run))
    for name, rows in newest[0].rows.items():
        typer.echo(f"{rows:>12,}  {name}")


def read_age(text: str) -> timedelta:
    """`30d` and the like. Raises `CommandRefused`."""
    found = re.fullmatch(r"([0-9]{1,6})([hdw])", text.strip())
    age = timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else None
    if age is None or age > _LONGEST:
        raise CommandRefused(f"--older-than {text}: give hours, days or weeks, for example 36h, 30d or 8w")
    return age


def _summary(purged: Purged, *, dry_run: bool) -> str:
    kept = f" {purged.kept_running:,} more run a turn and stay." if purged.kept_running else ""
    return f"{purged.done:,} sessions {'would be' if dry_run else 'were'} erased.{kept}"
