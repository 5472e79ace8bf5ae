"""A turn as clients read it, in answers and in events."""

from __future__ import annotations

from app.api import problems
from app.api.records import as_json
from app.domain.content import tool_call_json
from app.domain.types import JsonObject, TurnRecord


def turn_json(turn: TurnRecord) -> JsonObject:
    """The turn's JSON."""
    return as_json(
        turn,
        tool_calls=[tool_call_json(tool_call) for tool_call in turn.tool_calls],
        error=problems.complete(turn.error),
        cost_usd=None if turn.cost_usd is None else float(turn.cost_usd),
    )
