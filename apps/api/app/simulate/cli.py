"""`plimsoll simulate`: the turns of stored sessions under other policies and models. No model is called."""

from __future__ import annotations

import json
import sys
from typing import Annotated
from uuid import UUID

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.db.database import Database
from app.domain.types import JsonObject, SessionId, TenantId
from app.own_database import CommandRefused, read_settings, with_database
from app.services.keys import OPEN_TENANT
from app.services.views.simulation import THRESHOLDS, Variant, simulate, variant_of
from app.simulate.render import notes, table


def simulate_command(
    sessions: Annotated[list[UUID], typer.Argument(metavar="SESSION…", help="Ids of stored sessions.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A preset, or JSON of overrides over the session's policy; NAME=… names its column. May be repeated. "
            "Without any: summaries at 70, 80, 90 and 95 % of the budget."
        ),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Ask every turn of this alias instead. May be repeated.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Whose sessions they are.")] = OPEN_TENANT,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as one JSON object instead of tables.")] = False,
) -> None:
    """Replays stored turns under other policies and models, side by side. Calls no model and writes nothing."""
    variants = [read_policy(text) for text in policy] if policy else THRESHOLDS
    tenant_id, session_ids = TenantId(tenant), [SessionId(session) for session in sessions]
    told = with_database(lambda database: _simulate_all(database, tenant_id, session_ids, variants, model or []))
    if as_json:
        typer.echo(orjson.dumps({"sessions": told}, default=str, option=orjson.OPT_INDENT_2).decode())
        return
    console = Console(highlight=False)
    for one in told:
        console.print(table(f"session {one['session_id']}, {one['turns']:,} turns", [one]))
    if len(told) > 1:
        console.print(table(f"all {len(told)} sessions", told))
    for note in notes(told):
        console.print(note, style="dim", markup=False)


def read_policy(text: str) -> Variant:
    """`rolling`, `{"protected_turns": 2}`, or either behind `NAME=`. Raises `CommandRefused` for JSON that is none."""
    name, separator, value = text.partition("=") if not text.lstrip().startswith("{") else ("", "", text)
    given = value if separator or not name else name
    if not given.lstrip().startswith("{"):
        variant = variant_of(given)
    else:
        try:
            overrides = json.loads(given)
        except ValueError as error:
            raise CommandRefused(f"--policy {text}: this is no JSON ({error})") from error
        variant = variant_of(overrides)
    return Variant(name.strip(), variant.overrides) if separator else variant


async def _simulate_all(
    database: Database,
    tenant_id: TenantId,
    session_ids: list[SessionId],
    variants: list[Variant] | tuple[Variant, ...],
    models: list[str],
) -> list[JsonObject]:
    from app.main import command_runtime  # noqa: PLC0415 - the whole application: other commands need not wait for it

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("turns"))
    told: list[JsonObject] = []
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        async with command_runtime(read_settings(), database) as rt:
            for session_id in session_ids:
                task = bar.add_task(str(session_id), total=None)
                told.append(
                    await simulate(
                        rt,
                        tenant_id,
                        session_id,
                        variants,
                        models,
                        progress=lambda done, of, task=task: bar.update(task, completed=done, total=of),
                    )
                )
    return told
