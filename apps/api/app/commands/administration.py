"""`plimsoll keys`, `limits`, `windows`, `purge` and `distribute`: the commands for operators."""

from __future__ import annotations

import os
import re
import sys
from datetime import timedelta
from decimal import Decimal
from typing import Annotated
from uuid import UUID

import typer
from uuid_utils.compat import uuid7

from app.commands.resources import as_text, progress_bar, with_database
from app.db.database import Database
from app.db.distribution import PLACEMENTS, distribute
from app.domain.errors import DatabaseUnavailable, OperatorError
from app.domain.types import TenantId
from app.services import keys as key_service
from app.services import learned as window_service
from app.services import limits as limit_service
from app.services.background import Purged, purge

commands = typer.Typer()
keys = typer.Typer(no_args_is_help=True, help="API keys. Once one was made, every request under /v1 needs one.")
limits = typer.Typer(no_args_is_help=True, help="Limits of a tenant by minute, day or month (UTC), or in total.")
windows = typer.Typer(no_args_is_help=True, help="Context windows that providers stated when they rejected prompts.")
commands.add_typer(keys, name="keys")
commands.add_typer(limits, name="limits")
commands.add_typer(windows, name="windows")

Tenant = Annotated[
    str, typer.Argument(callback=as_text, help="The tenant of the keys, or `default` while no key exists.")
]
CountOption = Annotated[int | None, typer.Option(min=0)]
_NONE_MADE = "There is a key already; none was made."
Usd = Annotated[float | None, typer.Option(min=0)]


@keys.command("create")
def create_key(
    tenant: Annotated[str, typer.Option(help="Whose sessions the key gives access to.")],
    name: Annotated[str, typer.Option(help="What the key is for.")],
    if_none: Annotated[bool, typer.Option("--if-none", help="Do nothing if a key was ever created.")] = False,
    secret_env: Annotated[
        str | None, typer.Option(help="Name of a variable that has the secret; it is stored once and not printed.")
    ] = None,
) -> None:
    """Creates a key and prints its secret, which is shown only once: KEY=$(plimsoll keys create …)."""
    given = None if secret_env is None else os.environ.get(secret_env, "").strip()

    async def work(database: Database) -> str:
        if if_none and await key_service.any_key_exists(database):
            return _NONE_MADE
        if given is None:
            await key_service.create_key(database, uuid7, TenantId(tenant), name, _show)
            return "Keep it: only its hash is stored."
        if not given:  # not named here: a secret may have been given in its place
            raise OperatorError("the variable that --secret-env names is not set or empty")
        stored = await key_service.store_key(database, uuid7, TenantId(tenant), name, given)
        return _NONE_MADE if stored is None else "The key is stored, as a hash."

    typer.echo(with_database(work), err=True)


def _show(secret: str) -> None:
    if sys.__stdout__ is None:  # it was closed before this process began
        raise OperatorError("no key was made, as its secret cannot be printed: standard output is closed")
    try:
        typer.echo(secret)
    except OSError as error:
        raise OperatorError(f"no key was made, as its secret cannot be printed: {error.strerror}") from error


@keys.command("list")
def list_keys() -> None:
    """Lists the keys, without their secrets."""
    found = with_database(key_service.list_keys)
    typer.echo(f"{'id':36}  {'prefix':12}  {'created':16}  {'revoked':16}  tenant / name")
    for key in found:
        revoked = f"{key.revoked_at:%Y-%m-%d %H:%M}" if key.revoked_at else "-"
        line = f"{key.id}  {key.prefix:12}  {key.created_at:%Y-%m-%d %H:%M}  {revoked:16}  {key.tenant_id} / {key.name}"
        typer.echo(line)


@keys.command("revoke")
def revoke_key(key_id: Annotated[UUID, typer.Argument(help="The id that `keys list` shows.")]) -> None:
    """Ends a key. Running services refuse it within seconds."""
    revoked = with_database(lambda database: key_service.revoke_key(database, key_id))
    typer.echo(f"Revoked: {revoked.name}")


@limits.command("set")
def set_limits(
    tenant: Tenant,
    turns_per_minute: CountOption = None,
    turns_per_day: CountOption = None,
    turns_total: CountOption = None,
    tokens_per_minute: CountOption = None,
    tokens_per_day: CountOption = None,
    tokens_total: CountOption = None,
    usd_per_day: Usd = None,
    usd_per_month: Usd = None,
    usd_total: Usd = None,
) -> None:
    """Sets the given limits, and leaves the others. They apply from the next turn on, in every worker."""
    options: dict[str, float | None] = {name: value for name, value in locals().items() if name != "tenant"}
    values = {name: Decimal(str(value)) for name, value in options.items() if value is not None}
    if not values:
        raise OperatorError("name at least one limit, for example --turns-per-minute 60")
    with_database(lambda database: limit_service.set_limits(database, TenantId(tenant), values))
    typer.echo(f"{tenant}: " + ", ".join(f"{name} {value.normalize():f}" for name, value in values.items()))


@limits.command("list")
def list_limits(
    tenant: Annotated[str | None, typer.Argument(callback=as_text, help="One tenant; all without it.")] = None,
) -> None:
    """Lists limits with their use in the current minute, day or month."""
    whose = None if tenant is None else TenantId(tenant)
    found = with_database(lambda database: limit_service.list_limits(database, whose))
    typer.echo(f"{'limit':18}  {'value':>14}  {'used':>14}  {'resets at (UTC)':17}  tenant")
    for row in found:
        resets = f"{row.resets_at:%Y-%m-%d %H:%M}" if row.resets_at else "-"
        typer.echo(f"{row.name:18}  {_plain(row.value):>14}  {_plain(row.used):>14}  {resets:17}  {row.tenant_id}")


@limits.command("clear")
def clear_limits(tenant: Tenant) -> None:
    """Removes all limits of a tenant, with their counts."""
    cleared = with_database(lambda database: limit_service.clear_limits(database, TenantId(tenant)))
    typer.echo(f"{tenant}: removed {_amount(cleared, 'limit')}.")


@windows.command("list")
def list_windows() -> None:
    """Lists stated windows and for whom they count: their tenant after two turns, all tenants after two tenants."""
    found = with_database(window_service.list_windows)
    counting = window_service.windows_of(found)
    typer.echo(f"{'tokens':>9}  {'turns':>5}  {'counts for':10}  {'since':16}  {'until (UTC)':16}  alias / tenant")
    for row in sorted(found, key=lambda each: (each.model_alias, each.tenant_id)):
        since, until = (f"{instant:%Y-%m-%d %H:%M}" for instant in (row.first_stated_at, row.expires_at))
        counts_for = window_service.counts_for(row, counting)
        typer.echo(
            f"{row.context_window:>9}  {row.statements:>5}  {counts_for:10}  {since}  {until}  "
            f"{row.model_alias} / {row.tenant_id}"
        )


@windows.command("forget")
def forget_windows(
    alias: Annotated[str, typer.Argument(callback=as_text, help="An alias that `windows list` shows.")],
) -> None:
    """Deletes the stated windows of an alias, for every tenant. Running services apply this within 30 seconds."""
    forgotten = with_database(lambda database: window_service.forget(database, alias))
    typer.echo(f"{alias}: deleted {_amount(forgotten, 'stated window')}.")


def _plain(value: Decimal) -> str:
    return f"{value.normalize():f}"


def _amount(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


EXIT_INTERRUPTED = 130
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_LONGEST = timedelta(days=365 * 100)


@commands.command("purge")
def purge_command(
    older_than: Annotated[str, typer.Option(help="Hours, days or weeks since the last activity: 36h, 30d, 8w.")],
    tenant: Annotated[
        str | None, typer.Option(callback=as_text, help="Only this tenant's sessions; all without it.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
) -> None:
    """Permanently deletes sessions without activity for this time, with everything that belongs to them.

    Sessions with a running turn are kept. It can be interrupted, repeated, and run while the service runs.
    """
    age = read_age(older_than)
    newest: list[Purged] = []
    with progress_bar("sessions") as bar:
        task = bar.add_task("counting" if dry_run else "deleting", total=None)

        def show(purged: Purged) -> None:
            newest[:] = [purged]
            bar.update(task, completed=purged.done, total=purged.sessions)

        whose = None if tenant is None else TenantId(tenant)
        try:
            with_database(lambda database: purge(database, age, whose, dry_run=dry_run, progress=show))
        except (KeyboardInterrupt, DatabaseUnavailable) as error:
            bar.stop()
            if newest and not dry_run:
                typer.echo(f"Interrupted; run it again to continue. {_summary(newest[0], dry_run=False)}", err=True)
            if isinstance(error, KeyboardInterrupt):
                raise typer.Exit(EXIT_INTERRUPTED) from error
            raise
    typer.echo(_summary(newest[0], dry_run=dry_run))
    for name, rows in newest[0].rows.items():
        typer.echo(f"{rows:>12,}  {name}")


def read_age(text: str) -> timedelta:
    """The age that a text such as `30d` states. Raises `OperatorError`."""
    found = re.fullmatch(r"([0-9]{1,6})([hdw])", text.strip())
    age = timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else None
    if age is None or age > _LONGEST:
        raise OperatorError(f"--older-than {text}: give hours, days or weeks, for example 36h, 30d or 8w")
    return age


def _summary(purged: Purged, *, dry_run: bool) -> str:
    kept = f" Kept {_amount(purged.kept_running, 'session')} with a running turn." if purged.kept_running else ""
    return f"{'Would delete' if dry_run else 'Deleted'} {_amount(purged.done, 'session')}.{kept}"


@commands.command("distribute")
def distribute_command() -> None:
    """Distributes the tables over the nodes of a Citus cluster: after every `migrate`, and safe to run again.

    Says of each table what it is there, and why. Writers wait while a table that holds rows is distributed.
    """

    async def work(database: Database) -> list[str]:
        async with database.begin() as tx:
            return await distribute(tx)

    new = set(with_database(work))
    for name, placement in PLACEMENTS.items():
        typer.echo(f"{name:22}{'new' if name in new else '':5}{placement.spread}: {placement.why}")
