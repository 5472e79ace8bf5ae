"""The window of a session over its turns: what was sent, against which thresholds, and what changed it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from app.db.audits import all_regions
from app.db.database import Record, Transaction, record_of
from app.db.sessions import get_prompt_view
from app.db.timeline import summaries_between, timeline_ranges, timeline_turns
from app.domain.errors import InvalidRequest, NotFound
from app.domain.figures import EventCounts, PointWindow, TimelineEvent, TimelineRange, TurnPoint
from app.domain.types import JsonObject, SessionId, SummaryId, TenantId
from app.engine.window.triggers import trigger_tokens
from app.services.paging import LAST_SEQ, Page, after_seq, in_order, page_of
from app.services.runtime import Runtime
from app.services.turn.gather import session_policy


async def read_timeline(
    rt: Runtime,
    tenant_id: TenantId,
    session_id: SessionId,
    limit: int,
    cursor: str | None,
    *,
    newest_first: bool = True,
) -> Page[TurnPoint]:
    """The session's turns with their windows. Raises `NotFound`, `InvalidRequest`.

    Thresholds are those of the session's policy as it is now, with the policy of the turn's own request over it.
    """
    scope = in_order(f"timeline:{session_id}", newest_first=newest_first, by_default=True)
    position = after_seq(scope, cursor)
    async with rt.database.autocommit() as tx:
        session = await _session(tx, tenant_id, session_id)
        last = session["last_turn_seq"]
        if newest_first:
            newest = min((position or LAST_SEQ) - 1, last)
            first = max(1, newest - limit)
        else:
            first = (position or 0) + 1
            newest = min(first + limit, last)
        rows = await timeline_turns(tx, session_id, range(first, newest + 1))
        made = await summaries_between(tx, session_id, rows[-1]["seq"], newest) if rows else []
    oldest_first = rows[::-1]
    by_turn = _by_turn(oldest_first, made)
    page = page_of(scope, rows if newest_first else oldest_first, limit, lambda row: row["seq"])
    turns = [_turn(rt, session["policy"], row, by_turn.get(row["seq"], ())) for row in page.items]
    return Page(turns, page.next_cursor)


async def read_overview(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, *, points: int, first_seq: int, last_seq: int | None
) -> Page[TimelineRange]:
    """The session's turns, or a range of them, in time order and in at most `points` runs of as many turns each, on
    one page; every run has the turn with its largest prompt. Raises `NotFound`."""
    async with rt.database.autocommit() as tx:
        session = await _session(tx, tenant_id, session_id)
        last: int = min(last_seq or LAST_SEQ, session["last_turn_seq"])
        turns_each = max(1, -(-(last - first_seq + 1) // points))
        runs = await timeline_ranges(tx, session_id, first_seq=first_seq, last_seq=last, turns_each=turns_each)
        peaks = await timeline_turns(tx, session_id, [run["peak_seq"] for run in runs])
        made = await summaries_between(tx, session_id, first_seq, last)
    began = [run["began"] for run in runs]
    later = Counter(bisect_right(began, each["created_at"]) - 1 for each in made if not each["created_by_turn_id"])
    # What was made between turns belongs to a run, and to its peak only where that is all of the run.
    of_peaks = _by_turn(peaks[::-1], [each for each in made if turns_each == 1 or each["created_by_turn_id"]])
    by_seq = {row["seq"]: _turn(rt, session["policy"], row, of_peaks.get(row["seq"], ())) for row in peaks}
    return Page([_range(run, by_seq[run["peak_seq"]], later[at]) for at, run in enumerate(runs)], None)


def _range(run: Record, peak: TurnPoint, later_summaries: int) -> TimelineRange:
    return record_of(TimelineRange, run, events=record_of(EventCounts, run, later_summary=later_summaries), peak=peak)


async def _session(tx: Transaction, tenant_id: TenantId, session_id: SessionId) -> Record:
    session = await get_prompt_view(tx, tenant_id, session_id)
    if session is None:
        raise NotFound("session")
    return session


def _by_turn(turns: Sequence[Record], made: Sequence[Record]) -> dict[int, list[Record]]:
    """Each summary at the turn that it was made for, else at the last that had begun by then."""
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
        events=[event.public() for event in _events(row, made)],
    )


def _window(rt: Runtime, stored: JsonObject, row: Record) -> PointWindow:
    limit, budget = row["model_context_limit"], row["input_budget"]
    summary_trigger_tokens = prune_trigger_tokens = None
    with suppress(InvalidRequest):  # stored when this deployment allowed it
        policy = session_policy(rt, stored, row["policy"])
        summary_trigger_tokens = trigger_tokens(policy, limit, budget)
        prune_trigger_tokens = int(policy.prune_from(budget))
    return record_of(
        PointWindow,
        row,
        model_alias=row["asked_alias"],
        regions=all_regions(row["regions"]),
        summary_trigger_tokens=summary_trigger_tokens,
        prune_trigger_tokens=prune_trigger_tokens,
    )


def _events(row: Record, made: Sequence[Record]) -> Iterator[TimelineEvent]:
    if row["summary"]:
        own = next((summary for summary in made if summary["created_by_turn_id"] == row["turn_id"]), None)
        details = _details(own) if own else (None, None, None)
        yield TimelineEvent("summary", _int(row["folded_tokens"]), _int(row["folded"]), *details)
    for summary in made:
        if summary["created_by_turn_id"] is None:
            yield TimelineEvent("later_summary", None, None, *_details(summary))
    if row["prune"] and row["pruned"]:  # an emergency cut triggers like a prune and takes whole turns
        yield TimelineEvent("prune", _int(row["pruned_tokens"]), _int(row["pruned"]))
    if row["recalled"]:
        yield TimelineEvent("recall", _int(row["recalled_tokens"]), _int(row["recalled"]))
    if row["dropped"]:
        yield TimelineEvent("emergency", _int(row["dropped_tokens"]), _int(row["dropped"]))
    if row["overflow"]:
        yield TimelineEvent("overflow")


def _details(summary: Record) -> tuple[SummaryId, str, str]:
    return summary["id"], summary["origin"], summary["status"]


def _int(value: Any) -> int | None:
    """Sums of counts are numeric in the database, and an answer's numbers have 64 bits."""
    return None if value is None else max(-LAST_SEQ, min(int(value), LAST_SEQ))
