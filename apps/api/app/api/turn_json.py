"""A turn as clients read it, in answers and in events."""

from __future__ import annotations

from app.api import problems
from app.domain.types import JsonObject, TurnRecord
from app.engine.window.prompt import tool_call_json


def turn_json(turn: TurnRecord) -> JsonObject:
    """The turn's JSON; `tool_calls` are those that wait for their outputs."""
    return {
        "id": turn.id,
        "session_id": turn.session_id,
        "seq": turn.seq,
        "status": turn.status,
        "user_input": turn.user_input,
        "assistant_output": turn.assistant_output,
        "tool_calls": [tool_call_json(tool_call) for tool_call in turn.tool_calls],
        "finish_reason": turn.finish_reason,
        "error": problems.complete(turn.error),
        "model_alias": turn.model_alias,
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.completion_tokens,
        "cost_usd": None if turn.cost_usd is None else float(turn.cost_usd),
        "idempotency_key": turn.idempotency_key,
        "created_at": turn.created_at,
        "completed_at": turn.completed_at,
    }
