"""`plimsoll limits`: what each tenant may use."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import typer

from app.db.database import Database
from app.domain.types import TenantId
from app.own_database import CommandRefused, with_database
from app.services import limits as service

limits = typer.Typer(no_args_is_help=True, help="What a tenant may use by minute, day or month (UTC), or in total.")

Tenant = Annotated[str, typer.Argument(help="The tenant of the keys, or `default` while no key exists.")]
CountOption = Annotated[int | None, typer.Option(min=0)]
Usd = Annotated[float | None, typer.Option(min=0)]


@limits.command("set")
def set_command(
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
    """Sets the limits that are named; the tenant's others stay. They hold from the next turn on, in every worker."""
    given = {
        "turns_per_minute": turns_per_minute,
        "turns_per_day": turns_per_day,
        "turns_total": turns_total,
        "tokens_per_minute": tokens_per_minute,
        "tokens_per_day": tokens_per_day,
        "tokens_total": tokens_total,
        "usd_per_day": usd_per_day,
        "usd_per_month": usd_per_month,
        "usd_total": usd_total,
    }
    values = {name: Decimal(str(value)) for name, value in given.items() if value is not None}
    if not values:
        raise CommandRefused("name at least one limit, for example --turns-per-minute 60")

    async def work(database: Database) -> None:
        await service.set_limits(database, TenantId(tenant), values)

    with_database(work)
    typer.echo(f"{tenant}: " + ", ".join(f"{name} {value.normalize():f}" for name, value in values.items()))


@limits.command("list")
def list_command(tenant: Annotated[str | None, typer.Argument(help="One tenant; all without it.")] = None) -> None:
    """Lists limits with what is used of them in the running minute, day or month."""

    async def work(database: Database) -> list[service.TenantLimit]:
        return await service.list_limits(database, None if tenant is None else TenantId(tenant))

    found = with_database(work)
    typer.echo(f"{'limit':18}  {'value':>14}  {'used':>14}  {'starts anew (UTC)':17}  tenant")
    for row in found:
        resets = f"{row.resets_at:%Y-%m-%d %H:%M}" if row.resets_at else "-"
        typer.echo(f"{row.name:18}  {_plain(row.value):>14}  {_plain(row.used):>14}  {resets:17}  {row.tenant_id}")


@limits.command("clear")
def clear_command(tenant: Tenant) -> None:
    """Takes all limits of a tenant away, with what was counted for them."""

    async def work(database: Database) -> int:
        return await service.clear_limits(database, TenantId(tenant))

    typer.echo(f"{tenant}: {with_database(work)} limits were taken away.")


def _plain(value: Decimal) -> str:
    return f"{value.normalize():f}"
