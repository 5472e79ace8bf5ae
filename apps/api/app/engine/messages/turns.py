"""Turn boundaries and tool groups: which messages of a stored turn may be sent, and which belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, assert_never

from app.domain.types import Message, Turn, TurnStatus
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS

UnitKind: TypeAlias = Literal["user", "assistant", "tool_group", "look_back"]


class Unit(NamedTuple):
    """Messages that are kept or dropped together: a user message, an assistant message, or a tool call with all its
    results. The results come from the client or, in a `look_back`, from the service."""

    kind: UnitKind
    messages: tuple[Message, ...]


def units_of(messages: Sequence[Message]) -> tuple[Unit, ...]:
    """Cut a turn's messages into units.

    A tool group with missing results, or a result without a call, gives no unit: every provider would reject it.
    """
    units: list[Unit] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if message.role == "user":
            units.append(Unit("user", (message,)))
        elif message.role == "assistant" and not message.tool_calls:
            units.append(Unit("assistant", (message,)))
        elif message.role == "assistant":
            results: list[Message] = []
            while at < len(messages) and messages[at].role == "tool":
                results.append(messages[at])
                at += 1
            called = {call.id for call in message.tool_calls}
            answered = [result.tool_call_id for result in results]
            if called == set(answered) and len(answered) == len(called):
                kind = "look_back" if message.is_look_back else "tool_group"
                units.append(Unit(kind, (message, *results)))
    return tuple(units)


def sendable_units(turn: Turn) -> tuple[Unit, ...]:
    """The units of a turn that later prompts may contain (contract.md, decision 7).

    A rejected turn gives none. A failed or cancelled turn gives its user messages and complete tool groups. A
    completed or open turn gives all its units.
    """
    match turn.status:
        case TurnStatus.REJECTED:
            return ()
        case TurnStatus.FAILED | TurnStatus.CANCELLED:
            return tuple(unit for unit in units_of(turn.messages) if unit.kind != "assistant")
        case TurnStatus.COMPLETED | TurnStatus.RUNNING | TurnStatus.AWAITING_TOOLS:
            return units_of(turn.messages)
    assert_never(turn.status)


def sendable_messages(turns: Sequence[Turn]) -> tuple[Message, ...]:
    """The messages of the turns that later prompts may hold, in time order."""
    return tuple(message for turn in turns for unit in sendable_units(turn) for message in unit.messages)


def wire_tokens_of(turns: Sequence[Turn]) -> int:
    """The wire tokens of the sendable messages of the turns."""
    return framed_tokens(sendable_messages(turns))


def framed_tokens(messages: Sequence[Message]) -> int:
    return sum([message.tokens for message in messages]) + MESSAGE_FRAMING_TOKENS * len(messages)
