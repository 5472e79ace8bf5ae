"""A turn with its tools, round by round: decided here for both clients, which send the calls and run the functions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from plimsoll_sdk.call import Call
from plimsoll_sdk.errors import ToolLoopTooLong
from plimsoll_sdk.models import ToolCall, TurnAnswer
from plimsoll_sdk.operations import Content, Json, cancel_turn, post_tool_outputs, post_turn

Functions: TypeAlias = Mapping[str, Callable[..., Any]]
"""What the model may call, by name: each is given the call's arguments by name; text is sent as it is, else JSON."""

_UNSENDABLE = re.compile("[\\0\\ud800-\\udfff]")
"""What the service can not store: NUL, and halves of characters, as in names of files. Refused outputs would leave the
turn open for good."""


@dataclass(frozen=True)
class Ask:
    """Send this call."""

    call: Call[Any]


@dataclass(frozen=True)
class Invoke:
    """Call this function, and wait for it where it is a coroutine's."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]


ToolStep: TypeAlias = Ask | Invoke


def run_turn(
    session_id: str,
    content: Content,
    functions: Functions,
    *,
    tools: Sequence[Json],
    max_rounds: int = 16,
    tool_choice: str | Json | None = None,
    max_output_tokens: int | None = None,
    instructions: str | None = None,
    options: Json | None = None,
    model_alias: str | None = None,
    policy: Json | None = None,
    name: str | None = None,
    said_at: str | None = None,
    idempotency_key: str | None = None,
) -> Generator[ToolStep, Any, TurnAnswer]:
    """Sends a message, runs the functions that the model calls, and answers when the model has no more calls.

    `tools` describe the functions in the OpenAI form. A call of a function that is not there, arguments that are no
    JSON object, and an exception of a function (its type and its message) go to the model as the call's output. A
    character of an output that can not be stored (NUL, half a character) is replaced by U+FFFD.
    After `max_rounds` rounds of tools the turn is cancelled: `ToolLoopTooLong`.
    """
    answer: TurnAnswer = yield Ask(
        post_turn(
            session_id,
            content,
            tools=tools,
            tool_choice=tool_choice,
            max_output_tokens=max_output_tokens,
            instructions=instructions,
            options=options,
            model_alias=model_alias,
            policy=policy,
            name=name,
            said_at=said_at,
            idempotency_key=idempotency_key,
        )
    )
    for _ in range(max_rounds):
        if answer.turn.status != "awaiting_tools":
            return answer
        outputs: dict[str, Content] = {}
        for call in answer.turn.tool_calls:
            outputs[call.id] = _UNSENDABLE.sub("\N{REPLACEMENT CHARACTER}", (yield from _output(call, functions)))
        answer = yield Ask(post_tool_outputs(session_id, answer.turn.id, outputs))
    if answer.turn.status != "awaiting_tools":
        return answer
    raise ToolLoopTooLong((yield Ask(cancel_turn(session_id, answer.turn.id))), max_rounds)


def _output(call: ToolCall, functions: Functions) -> Generator[ToolStep, Any, str]:
    function = functions.get(call.function.name)
    if function is None:
        return json.dumps({"error": f"There is no function {call.function.name}."})
    try:
        arguments: Any = json.loads(call.function.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return json.dumps({"error": "The arguments are no JSON object."})
    try:
        value = yield Invoke(function, cast("dict[str, Any]", arguments))
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    except Exception as error:  # the model sees it, and can do something else
        return json.dumps({"error": f"{type(error).__name__}: {error}"}, ensure_ascii=False)
