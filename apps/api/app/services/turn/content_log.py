"""What is said to models and by them, in the log: only where the deployment sets `PLIMSOLL_LOG_CONTENT`.

One line a prompt and one an answer. A line holds a bounded part of what was said, the newest first; the whole is in the
database (`GET …/turns/{tid}/prompt`). Keys and connection strings are hidden in it as in every other line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from app.core.logging import without_secrets
from app.domain.content import content_text
from app.domain.errors import ProviderError
from app.domain.types import Completion, CompletionRequest, JsonObject, SessionId

MOST_CHARACTERS = 16_384
"""Of content in a line."""
MOST_CHARACTERS_OF_A_TEXT = 4_096
"""Of a single text in it."""

log = structlog.get_logger()


def log_prompt(session_id: SessionId, model_alias: str, request: CompletionRequest) -> None:
    """A line with the messages of a prompt, in their order; of the oldest only how many are left out."""
    room = MOST_CHARACTERS
    shown: list[JsonObject] = []
    for message in reversed(request.messages):
        told = _message(message)
        room -= sum(len(text) for text in told.values())
        if room < 0:
            break
        shown.insert(0, told)
    _write(
        "model_prompt",
        session_id,
        model_alias,
        request,
        messages=shown,
        left_out=len(request.messages) - len(shown),
        tools=len(request.tools),
    )


def log_reply(session_id: SessionId, model_alias: str, request: CompletionRequest, completion: Completion) -> None:
    """A line with what a model answered: its words, its reasoning, the tools it called."""
    calls = "\n".join(f"{call.name} {call.arguments}" for call in completion.tool_calls)
    said = {"text": completion.text, "reasoning": completion.reasoning, "tool_calls": calls}
    told = {name: _shortened(text) for name, text in said.items() if text}
    _write("model_reply", session_id, model_alias, request, finish_reason=completion.finish_reason, **told)


def log_failure(session_id: SessionId, model_alias: str, request: CompletionRequest, error: ProviderError) -> None:
    """A line with what had been streamed before an answer failed."""
    told = {"text": _shortened(error.partial)} if error.partial else {}
    _write("model_reply", session_id, model_alias, request, error=error.code, **told)


def _write(event: str, session_id: SessionId, model_alias: str, request: CompletionRequest, **fields: Any) -> None:
    log.info(event, session_id=str(session_id), model_alias=model_alias, purpose=request.purpose, **fields)


def _message(message: Mapping[str, Any]) -> JsonObject:
    calls = "\n".join(
        f"{call['function']['name']} {call['function']['arguments']}" for call in message.get("tool_calls") or ()
    )
    said = {"text": content_text(message.get("content")), "tool_calls": calls}
    return {"role": message["role"], **{name: _shortened(text) for name, text in said.items() if text}}


def _shortened(text: str) -> str:
    """Its beginning, without secrets. A key is known by how it begins, so also when its end is cut off."""
    more = len(text) - MOST_CHARACTERS_OF_A_TEXT
    shown = without_secrets(text[:MOST_CHARACTERS_OF_A_TEXT])
    return f"{shown}… ({more} more characters)" if more > 0 else shown
