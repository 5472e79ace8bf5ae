"""The window of a session over its turns: what was sent, against which thresholds, and what changed it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from app.db.database import Record, record_of
from app.db.sessions import get_session
from app.db.timeline import summaries_since, timeline_turns
from app.domain.errors import InvalidRequest, NotFound
from app.domain.figures import PointWindow, TurnPoint
from app.domain.types import JsonObject, SessionId, TenantId
from app.engine.window.triggers import trigger_tokens
from app.services.paging import Page, after_seq, page_of
from app.services.runtime import Runtime
from app.services.turn.gather import session_policy

_LARGEST = 2**63 - 1


async def read_timeline(
    rt: Runtime, tenant_id: TenantId, session_id: SessionId, limit: int, cursor: str | None
) -> Page[TurnPoint]:
    """The session's turns with their windows, newest first. Raises `NotFound`, `InvalidRequest`.

    Thresholds are those of the session's policy as it is now, with the policy of the turn's own request over it.
    """
    scope = f"timeline:{session_id}"
    before = after_seq(scope, cursor) or _LARGEST
    async with rt.database.autocommit() as tx:
        session = await get_session(tx, tenant_id, session_id)
        if session is None:
            raise NotFound("session")
        rows = await timeline_turns(tx, session_id, before_seq=before, limit=limit + 1)
        made = await summaries_since(tx, session_id, rows[-1]["created_at"]) if rows else []
    by_turn = _by_turn(rows[::-1], made)
    return page_of(
        scope,
        rows,
        limit,
        lambda row: _turn(rt, session.policy, row, by_turn.get(row["seq"], ())),
        lambda row: row["seq"],
    )


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
        events=_events(row, made),
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
        summary_trigger_tokens=summary_trigger_tokens,
        prune_trigger_tokens=prune_trigger_tokens,
    )


def _events(row: Record, made: Sequence[Record]) -> list[JsonObject]:
    events: list[JsonObject] = []
    own = next((summary for summary in made if summary["created_by_turn_id"] == row["turn_id"]), None)
    if row["summary"]:
        details = _summary(own) if own else {}
        events.append(
            {"kind": "summary", "count": _int(row["folded"]), "tokens": _int(row["folded_tokens"]), **details}
        )
    events += [
        {"kind": "later_summary", **_summary(summary)} for summary in made if summary["created_by_turn_id"] is None
    ]
    if row["prune"] and row["pruned"]:  # an emergency cut triggers like a prune and takes whole turns
        events.append({"kind": "prune", "count": _int(row["pruned"]), "tokens": _int(row["pruned_tokens"])})
    if row["recalled"]:
        events.append({"kind": "recall", "count": row["recalled"], "tokens": _int(row["recalled_tokens"])})
    if row["dropped"]:
        events.append({"kind": "emergency", "count": _int(row["dropped"]), "tokens": _int(row["dropped_tokens"])})
    if row["overflow"]:
        events.append({"kind": "overflow"})
    return events


def _summary(summary: Mapping[str, Any]) -> JsonObject:
    return {"summary_id": summary["id"], "origin": summary["origin"], "status": summary["status"]}


def _int(value: Any) -> int | None:
    """Sums of counts are numeric in the database, and an answer's numbers have 64 bits."""
    return None if value is None else max(-_LARGEST, min(int(value), _LARGEST))
