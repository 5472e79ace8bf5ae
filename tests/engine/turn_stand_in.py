"""The decisions of one turn as a service takes them: plan, make the summary that is due, plan again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

from app.domain.types import Summary, SummaryBody, SummaryId
from app.engine.summary.extractive import fallback_summary
from app.engine.summary.fold import Fold
from app.engine.window.past import past_of
from app.engine.window.plan import Ready, Refused, SummaryDue, plan, with_summary
from app.engine.window.snapshot import Snapshot
from tests.engine.histories import estimate


@dataclass(frozen=True)
class Taken:
    """How the turn ended: the last decision, the snapshot it was made on, and the fold between, if there was one."""

    decision: Ready | Refused
    snapshot: Snapshot
    fold: Fold | None
    summarized: bool


def new_snapshot(snapshot: Snapshot, fold: Fold, body: SummaryBody) -> Snapshot:
    """What is gathered once the summary is stored: the turns after it, the count at nought."""
    first, last = fold.messages[0], fold.messages[-1]
    previous = fold.previous
    summary = Summary(
        SummaryId(UUID(int=2**100 + last.seq)),
        body,
        previous.from_message_id if previous else first.id,
        last.id,
        last.seq,
        "fallback",
    )
    turns = tuple(turn for turn in snapshot.past.turns if turn.messages and turn.messages[-1].seq > last.seq)
    return replace(snapshot, summary=summary, past=past_of(turns), completed_since_summary=0)


def decide(snapshot: Snapshot) -> Taken:
    """Takes the turn's decisions with the deterministic summary."""
    first = plan(snapshot, estimate)
    if not isinstance(first, SummaryDue):
        return Taken(first, snapshot, None, summarized=False)
    fold = first.fold
    body = fallback_summary(fold, estimate)
    if body is None:
        second = plan(first.snapshot, estimate, may_summarize=False)
        return Taken(second, snapshot, fold, summarized=False)
    after = new_snapshot(snapshot, fold, body)
    if after.summary is None:
        raise AssertionError("the new snapshot has the new summary")
    after = replace(after, log=with_summary(first.snapshot, first.fold, after.summary, estimate).log)
    return Taken(plan(after, estimate, may_summarize=False), after, fold, summarized=True)
