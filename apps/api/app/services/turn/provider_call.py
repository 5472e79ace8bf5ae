"""One call of a model, for a turn or a summary: measured, traced, priced, and logged with a bounded part of its content
if the deployment sets `PLIMSOLL_LOG_CONTENT`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any, Final

import structlog
from structlog.typing import FilteringBoundLogger as BoundLogger

from app.core.logging import without_secrets
from app.domain.content import JsonMessages, canonical_bytes, content_text
from app.domain.errors import ProviderDown, ProviderError, ProviderOutOfQuota, ProviderRateLimited, ProviderTimeout
from app.domain.frozen import replace, values_of
from app.domain.types import Completion, CompletionRequest, JsonObject, Purpose, SessionId, ToolCall, Usage
from app.providers.base import DeltaSink
from app.providers.registry import Model
from app.services.runtime import Runtime
from app.services.turn.steps import of_completion, of_request

FALLS_BACK: Final = (ProviderDown, ProviderTimeout, ProviderRateLimited, ProviderOutOfQuota)
"""The errors after which an alias's fallback is called, for a turn or a summary."""
MOST_CHARACTERS = 16_384
"""Most characters of content in one log line."""
MOST_CHARACTERS_OF_A_TEXT = 4_096
"""Most characters of a single text in a log line."""

log = structlog.get_logger()


async def call_model(
    rt: Runtime, session_id: SessionId, model: Model, request: CompletionRequest, on_delta: DeltaSink | None = None
) -> Completion:
    """Calls the model with its retries and under its deadline. With `on_delta` the answer is streamed into it. The
    caller must hold no database connection. Raises a `ProviderError`."""
    with rt.tracer.span(f"chat {model.model}", calls_out=True) as span:
        span.set(of_request, session_id, model, request, stream=on_delta is not None)
        if headers := rt.tracer.outgoing():
            request = replace(request, headers=headers)
        content_log = None
        if rt.log_content:
            content_log = log.bind(session_id=str(session_id), model_alias=model.alias, purpose=request.purpose)
            _log_prompt(content_log, request)
        try:
            with rt.telemetry.measured_call(model.alias, request.purpose):
                completion = await rt.catalogue.provider(model.alias).complete(request, on_delta)
        except ProviderError as error:
            if content_log:
                shown = {"text": _shortened(error.partial)} if error.partial else {}
                content_log.info("model_reply", error=error.code, **shown)
            raise
        if content_log:
            _log_reply(content_log, completion)
        span.set(of_completion, completion)
        return completion


def used_row(rt: Runtime, model: Model, purpose: Purpose, usage: Usage, round_number: int | None = None) -> JsonObject:
    """The usage row of a call in a round of its turn, by column, which is also counted in the metrics. `cost_usd` is
    None if no price is known."""
    cost = model.cost_of(usage)
    rt.telemetry.model_usage(alias=model.alias, purpose=purpose, usage=usage, cost_usd=cost)
    return {
        "id": rt.new_id(),
        "purpose": purpose,
        "model_alias": model.alias,
        **values_of(usage),
        "cost_usd": cost,
        "round": round_number,
    }


def with_own_ids(completion: Completion, request: CompletionRequest, marks: Sequence[str]) -> Completion:
    """The answer with ids of tool calls that no other call in its prompt has: their own, or with the first of the marks
    that makes them so. The last mark is in the ids of no other answer.

    Some servers give no id, or the same ones in every answer ("call_0"); clients and Anthropic tell calls apart by id.
    The ids of a recorded reply are kept if they differ from each other, because its outputs have them too.
    """
    messages = request.messages
    is_recorded = request.recorded_reply is not None
    prompt = messages.pieces if isinstance(messages, JsonMessages) and not is_recorded else ()
    own: list[ToolCall] = []
    of_blocks: dict[object, str] = {}

    def is_taken(call_id: str) -> bool:
        written = canonical_bytes(call_id)
        return any(call_id == each.id for each in own) or any(written in piece for piece in prompt)

    for at, call in enumerate(completion.tool_calls):
        ids = [each for each in (call.id, *(f"call_{mark}_{at}" for mark in marks)) if each]
        call_id = next((each for each in ids if not is_taken(each)), ids[-1])
        own.append(call if call_id == call.id else replace(call, id=call_id))
        of_blocks.setdefault(call.id, call_id)
    if tuple(own) == completion.tool_calls:
        return completion
    blocks = completion.reasoning_blocks
    renamed = [{**each, "id": of_blocks[each["id"]]} if each.get("id") in of_blocks else each for each in blocks]
    return replace(completion, tool_calls=tuple(own), reasoning_blocks=tuple(renamed))


def sum_of(usages: Sequence[Usage]) -> Usage | None:
    """The sum of the usages; None if there are none."""
    return Usage(*map(sum, zip(*map(astuple, usages), strict=True))) if usages else None


def _log_prompt(content_log: BoundLogger, request: CompletionRequest) -> None:
    """Logs a line with the newest messages of a prompt, in their order, and the number of older ones left out."""
    room = MOST_CHARACTERS
    shown: list[JsonObject] = []
    for message in reversed(request.messages):
        line = _message(message)
        room -= sum(len(text) for text in line.values())
        if room < 0:
            break
        shown.insert(0, line)
    left_out = len(request.messages) - len(shown)
    content_log.info("model_prompt", messages=shown, left_out=left_out, tools=len(request.tools))


def _log_reply(content_log: BoundLogger, completion: Completion) -> None:
    calls = "\n".join(f"{call.name} {call.arguments}" for call in completion.tool_calls)
    texts = {"text": completion.text, "reasoning": completion.reasoning, "tool_calls": calls}
    shown = {name: _shortened(text) for name, text in texts.items() if text}
    content_log.info("model_reply", finish_reason=completion.finish_reason, **shown)


def _message(message: Mapping[str, Any]) -> JsonObject:
    calls = "\n".join(
        f"{call['function']['name']} {call['function']['arguments']}" for call in message.get("tool_calls") or ()
    )
    texts = {"text": content_text(message.get("content")), "tool_calls": calls}
    return {"role": message["role"], **{name: _shortened(text) for name, text in texts.items() if text}}


def _shortened(text: str) -> str:
    """The beginning of the text, without secrets. A key is recognized by its first characters, even if it is cut."""
    more = len(text) - MOST_CHARACTERS_OF_A_TEXT
    shown = without_secrets(text[:MOST_CHARACTERS_OF_A_TEXT])
    return f"{shown}… ({more} more characters)" if more > 0 else shown
