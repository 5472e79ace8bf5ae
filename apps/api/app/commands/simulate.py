"""`plimsoll simulate`: stored turns under other policies and models, as tables or JSON. No model is called.

A table has a column for what happened, for the full history, and for each policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, get_args
from uuid import UUID

import orjson
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from app.commands.resources import as_text, progress_bar, read_settings, with_database
from app.composition import command_runtime
from app.db.database import Database
from app.domain.audit import DroppedKind, ShortenedKind
from app.domain.errors import NotFound, OperatorError
from app.domain.types import JsonObject, SessionId, SessionRef, TenantId
from app.services.keys import OPEN_TENANT
from app.services.views.simulation import THRESHOLDS, Variant, simulate, variant_of

commands = typer.Typer()

_SHOWN_SEQS = 4


@commands.command("simulate")
def simulate_command(
    sessions: Annotated[list[UUID], typer.Argument(metavar="SESSION…", help="Ids of stored sessions.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A preset, or JSON of overrides over the session's policy; NAME=… names its column. May be repeated. "
            "Without any: summaries at 70, 80, 90 and 95 % of the budget."
        ),
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="Use this alias for every turn. May be repeated.")] = None,
    tenant: Annotated[str, typer.Option(callback=as_text, help="The tenant of the sessions.")] = OPEN_TENANT,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as one JSON object instead of tables.")] = False,
) -> None:
    """Computes stored turns under other policies and models, side by side. Calls no model and writes nothing."""
    variants = [read_policy(text) for text in policy] if policy else THRESHOLDS
    refs = [SessionRef(TenantId(tenant), SessionId(session)) for session in sessions]
    simulations = with_database(lambda database: _simulate_all(database, refs, variants, model or []))
    if as_json:
        typer.echo(orjson.dumps({"sessions": simulations}, default=str, option=orjson.OPT_INDENT_2).decode())
        return
    console = Console(highlight=False, markup=False, emoji=False)  # names of policies are shown as they are
    for one in simulations:
        console.print(table(f"session {one['session_id']}, {one['turns']:,} turns", [one]))
    if len(simulations) > 1:
        console.print(table(f"all {len(simulations)} sessions", simulations))
    for note in notes(simulations):
        console.print(note, style="dim")


def read_policy(text: str) -> Variant:
    """`rolling`, `{"protected_turns": 2}`, or either behind `NAME=`. Raises `OperatorError` for invalid JSON, and
    `BadParameter` for what is not UTF-8."""
    as_text(text)
    name, separator, value = text.partition("=") if not text.lstrip().startswith("{") else ("", "", text)
    given = value if separator or not name else name
    try:
        variant = variant_of(orjson.loads(given) if given.lstrip().startswith("{") else given)
    except ValueError as error:
        raise OperatorError(f"--policy {text}: this is not JSON ({error})") from error
    return Variant(name.strip(), variant.overrides) if separator else variant


async def _simulate_all(
    database: Database, sessions: Sequence[SessionRef], variants: Sequence[Variant], models: Sequence[str]
) -> list[JsonObject]:
    simulations: list[JsonObject] = []
    with progress_bar("turns") as bar:
        async with command_runtime(read_settings(), database) as rt:
            for session in sessions:
                task = bar.add_task(str(session.id), total=None)
                try:
                    simulated = await simulate(
                        rt,
                        session,
                        variants,
                        models,
                        progress=lambda done, of, task=task: bar.update(task, completed=done, total=of),
                    )
                except NotFound as error:
                    raise OperatorError(
                        f"the tenant {session.tenant_id} (--tenant) has no such session: {session.id}"
                    ) from error
                simulations.append(simulated)
    return simulations


def table(title: str, simulations: Sequence[JsonObject]) -> Table:
    columns: list[tuple[str, list[JsonObject]]] = [("what happened", [one["happened"] for one in simulations])]
    for at, history in enumerate(simulations[0]["full_history"]):
        columns.append((_name("full history", history), [one["full_history"][at] for one in simulations]))
    for at, policy in enumerate(simulations[0]["policies"]):
        columns.append((_name(policy["name"], policy), [one["policies"][at] for one in simulations]))
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("")
    for name, _ in columns:
        drawn.add_column(name, justify="right", overflow="fold")
    for heading, path, show in _ROWS:
        drawn.add_row(heading, *(_cell(path, show, figures) for _, figures in columns))
    return drawn


def notes(simulations: Sequence[JsonObject]) -> list[str]:
    found = [f"Summaries are made by {simulations[0]['summaries_from']}.", *simulations[0]["assumed"]]
    gone = dict.fromkeys(alias for one in simulations for alias in one["gone_aliases"])
    found += [f"{alias} is no longer in the catalogue; the session's own model stands in." for alias in gone]
    return found


def _name(name: str, column: JsonObject) -> str:
    alias = column["model_alias"]
    return f"{name}\n{alias}" if alias else name


def _cell(path: tuple[str, ...], show: Callable[[list[Any]], str], figures: list[Any]) -> str:
    """What the figures of a column have at the path, as it is shown; nothing where they have no such member."""
    for name in path:
        if any(name not in each for each in figures):
            return ""
        figures = [each[name] for each in figures]
    return show(figures)


def _sum(values: list[float | None], form: str = ",", unknown: str = "") -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known):{form}}" if len(known) == len(values) else unknown


def _tokens_of_a_turn(values: list[list[JsonObject]]) -> str:
    sent = [turn["wire_tokens"] for turns in values for turn in turns if turn["calls"]]
    return f"{sum(sent) / len(sent):,.0f}" if sent else "0"


def _turns(values: list[list[int]]) -> str:
    """The number of turns, and for a single session also the first few of them."""
    seqs = [seq for each in values for seq in each]
    if not seqs or len(values) > 1:
        return f"{len(seqs):,}"
    shown = ", ".join(map(str, seqs[:_SHOWN_SEQS])) + (" …" if len(seqs) > _SHOWN_SEQS else "")
    return f"{len(seqs):,} ({shown})"


def _targets(kinds: tuple[str, ...], values: list[JsonObject]) -> str:
    return f"{sum(actions.get(kind, {}).get('targets', 0) for actions in values for kind in kinds):,}"


def _mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.0%}"


def _over(values: list[int | None]) -> str:
    over = [seq for seq in values if seq]
    return "never" if not over else f"from turn {over[0]:,}" if len(values) == 1 else f"{len(over):,} sessions"


_ROWS: tuple[tuple[str, tuple[str, ...], Callable[[list[Any]], str]], ...] = (
    ("model calls", ("calls",), _sum),
    ("prompt tokens sent", ("wire_tokens",), _sum),
    ("  a turn", ("per_turn",), _tokens_of_a_turn),
    ("summaries (at turns)", ("summaries",), _turns),
    ("  after the answer", ("later_summaries",), _turns),
    ("  tokens read for them", ("summarizer_prompt_tokens",), _sum),
    ("  tokens written", ("summarizer_completion_tokens",), _sum),
    ("prunes", ("prunes",), _turns),
    ("refusals", ("rejections",), _turns),
    ("over the window", ("first_turn_over_the_window",), _over),
    ("cost, US dollars", ("cost_usd",), partial(_sum, form=",.4f", unknown="unknown")),
    ("turns summarized", ("lost", "turns_folded"), _sum),
    ("messages dropped", ("lost", "actions"), partial(_targets, get_args(DroppedKind))),
    ("messages shortened", ("lost", "actions"), partial(_targets, get_args(ShortenedKind))),
    ("user's words verbatim", ("lost", "users_words_verbatim_mean"), _mean),
    ("  in the last prompt", ("lost", "users_words_verbatim_at_end"), _mean),
)
"""The heading of each row, where its value is in the figures of a column, and how it is shown."""
