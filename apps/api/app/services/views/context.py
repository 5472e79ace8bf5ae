"""The window of a session, read without a turn: as the next turn would find it, and the timeline of its turns with what
was sent, the thresholds, and what changed the window."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from app.db.audits import all_regions
from app.db.database import Fetched, record_of
from app.db.driver import Record
from app.db.figures import summaries_between, timeline_ranges, timeline_turns
from app.domain.errors import InvalidRequest
from app.domain.figures import CurrentWindow, EventCounts, PinFigures, PointWindow, TimelineRange, TurnPoint
from app.domain.frozen import values_of
from app.domain.recalled import reasons_of
from app.domain.types import JsonObject, SessionRef
from app.engine.messages.turns import no_turn
from app.engine.recall.relevance import question_of, relevances
from app.engine.window.prompt import goal_text, pin_text
from app.engine.window.triggers import trigger_tokens, turns_to_next_summary
from app.engine.window.window import lay_out
from app.services.paging import BY_SEQ, LAST_SEQ, Page, PageRequest, bounds_of, page_of
from app.services.policies import session_policy
from app.services.runtime import Runtime
from app.services.sessions import session_state
from app.services.turn.gather import session_window, snapshot_of
from app.services.turn.planning import planned
from app.services.turn.recall import meaning_of_pins


async def window_now(rt: Runtime, session: SessionRef) -> CurrentWindow:
    """The figures of the stored window, before the next message and what its turn compresses. Raises `NotFound`."""
    rows = await session_window(rt, session)
    snapshot = await snapshot_of(rt, rows, no_turn(rows.turn_seq))
    window = await planned(lay_out, snapshot, rows.estimate)
    policy, budget, regions = snapshot.policy, snapshot.budget, window.prompt.regions()
    return record_of(
        CurrentWindow,
        values_of(budget),
        model_alias=rows.model.alias,
        model_context_limit=budget.limit,
        context_limit_source=budget.limit_source,
        estimated_input_tokens=window.input_tokens,
        estimated_wire_tokens=window.wire_tokens,
        regions=regions,
        history_budget=budget.history_budget(regions),
        raw_turns=snapshot.past.turn_count,
        active_summary_id=snapshot.summary.id if snapshot.summary else None,
        turns_to_next_summary=turns_to_next_summary(snapshot),
        summary_trigger_tokens=trigger_tokens(policy, budget.limit, budget.input_budget),
        prune_trigger_tokens=policy.prune_from(budget.input_budget),
    )


async def pin_figures(rt: Runtime, session: SessionRef) -> dict[str, PinFigures]:
    """By name, each pin's tokens in a prompt, and its relevance to the text of the newest turn. Raises `NotFound`."""
    rows = await session_window(rt, session)
    pins = rows.pins
    newest = rows.turns[-1] if rows.turns else no_turn(rows.turn_seq)
    goal = goal_text(rows.session.room_goal, rows.session.mode)
    meaning = meaning_of_pins(rt, session.tenant_id, pins, newest)

    def figures() -> dict[str, PinFigures]:
        found = relevances(pins, question_of(goal, newest), meaning)
        return {
            pin.name: record_of(
                PinFigures,
                reasons_of(relevance.matched),
                tokens=rows.estimate(pin_text(pin)),
                relevance=relevance.value,
                relevance_from="computed" if pin.relevance is None else "given",
            )
            for pin, relevance in zip(pins, found, strict=True)
        }

    return await rt.tokenizers.off_loop(figures)


async def read_timeline(rt: Runtime, session: SessionRef, wanted: PageRequest) -> Page[TurnPoint]:
    """The session's turns with their windows. Thresholds follow the session's current policy, overridden by that of the
    turn's own request. Raises `NotFound`, `InvalidRequest`."""
    scope, bounds = bounds_of(BY_SEQ, f"timeline:{session.id}", wanted, newest_by_default=True)
    async with rt.database.autocommit() as tx:
        state = await session_state(tx, session)
        first, newest = bounds.after + 1, min(bounds.before - 1, state.last_turn_seq)
        if wanted.newest_first:
            first = max(first, newest - wanted.limit)
        else:
            newest = min(first + wanted.limit, newest)
        rows = await timeline_turns(tx, session.id, range(first, newest + 1))
        made = await summaries_between(tx, session.id, rows[-1]["seq"], newest) if rows else []
    oldest_first = rows[::-1]
    by_turn = _by_turn(oldest_first, made)
    listed = (rows if wanted.newest_first else oldest_first)[: wanted.limit]
    turns = [_turn(rt, state.policy, row, by_turn.get(row["seq"], ())) for row in listed]
    return page_of(BY_SEQ, scope, Fetched(turns, len(rows) > wanted.limit))


async def read_overview(
    rt: Runtime, session: SessionRef, *, points: int, first_seq: int, last_seq: int | None
) -> Page[TimelineRange]:
    """The session's turns, or a range of them, on one page: at most `points` runs of equally many turns, in time order.
    Each run has the turn with its largest prompt. Raises `NotFound`."""
    async with rt.database.autocommit() as tx:
        state = await session_state(tx, session)
        last = min(last_seq or LAST_SEQ, state.last_turn_seq)
        turns_each = max(1, -(-(last - first_seq + 1) // points))
        runs = await timeline_ranges(tx, session.id, first_seq=first_seq, last_seq=last, turns_each=turns_each)
        peaks = await timeline_turns(tx, session.id, [run["peak_seq"] for run in runs])
        made = await summaries_between(tx, session.id, first_seq, last)
    began = [run["began"] for run in runs]
    later = Counter(bisect_right(began, each["created_at"]) - 1 for each in made if not each["created_by_turn_id"])
    # A summary made between turns belongs to a run. It belongs to the run's peak only if the run is a single turn.
    of_peaks = _by_turn(peaks[::-1], [each for each in made if turns_each == 1 or each["created_by_turn_id"]])
    by_seq = {row["seq"]: _turn(rt, state.policy, row, of_peaks.get(row["seq"], ())) for row in peaks}
    events = [record_of(EventCounts, run, later_summary=later[at]) for at, run in enumerate(runs)]
    ranges = zip(runs, events, strict=True)
    return Page([record_of(TimelineRange, run, events=of, peak=by_seq[run["peak_seq"]]) for run, of in ranges], None)


def _by_turn(turns: Sequence[Record], made: Sequence[Record]) -> dict[int, list[Record]]:
    """The summaries by turn number: of the turn that each was made for, else of the last turn that began before it."""
    began = [turn["created_at"] for turn in turns]
    seq_of = {turn["turn_id"]: turn["seq"] for turn in turns}
    found: dict[int, list[Record]] = {}
    for summary in made:
        for_turn = summary["created_by_turn_id"]
        at = bisect_right(began, summary["created_at"])
        seq = seq_of.get(for_turn) if for_turn else turns[at - 1]["seq"] if at else None
        if seq is not None:
            found.setdefault(seq, []).append(summary)
    return found


def _turn(rt: Runtime, policy: JsonObject, row: Record, made: Sequence[Record]) -> TurnPoint:
    return record_of(
        TurnPoint,
        row,
        window=None if row["regions"] is None else _window(rt, policy, row),
        events=list(_events(row, made)),
    )


def _window(rt: Runtime, stored: JsonObject, row: Record) -> PointWindow:
    limit, budget = row["model_context_limit"], row["input_budget"]
    summary_trigger_tokens = prune_trigger_tokens = None
    with suppress(InvalidRequest):  # a stored policy may no longer be allowed
        policy = session_policy(rt, stored, row["policy"])
        summary_trigger_tokens = trigger_tokens(policy, limit, budget)
        prune_trigger_tokens = policy.prune_from(budget)
    return record_of(
        PointWindow,
        row,
        model_alias=row["requested_alias"],
        regions=all_regions(row["regions"]),
        summary_trigger_tokens=summary_trigger_tokens,
        prune_trigger_tokens=prune_trigger_tokens,
    )


def _events(row: Record, made: Sequence[Record]) -> Iterator[JsonObject]:
    """The events of a turn, in the form of answers, each with the members that it has."""
    if row["summary"]:
        own = next((summary for summary in made if summary["created_by_turn_id"] == row["turn_id"]), None)
        yield _counted("summary", row, "folded") | (_made(own) if own else {})
    yield from ({"kind": "later_summary", **_made(each)} for each in made if each["created_by_turn_id"] is None)
    if row["prune"] and row["pruned"]:  # an emergency sets `prune` too, but drops whole turns
        yield _counted("prune", row, "pruned")
    if row["recalled"]:
        yield _counted("recall", row, "recalled")
    if row["dropped"]:
        yield _counted("emergency", row, "dropped")
    if row["overflow"]:
        yield {"kind": "overflow"}


def _counted(kind: str, row: Record, name: str) -> JsonObject:
    return {"kind": kind, "count": _int(row[name]), "tokens": _int(row[f"{name}_tokens"])}


def _made(summary: Record) -> JsonObject:
    return {"summary_id": summary["id"], "origin": summary["origin"], "status": summary["status"]}


def _int(value: Any) -> int | None:
    """The value within 64 bits, as an answer's numbers are. Sums of counts are numeric in the database."""
    return None if value is None else max(-LAST_SEQ, min(int(value), LAST_SEQ))
