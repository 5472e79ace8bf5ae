"""What is sent of a stored turn: which messages may be sent, which of them belong together, and which are sent with
their reasoning. Only reasoning that is sent is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, assert_never
from uuid import UUID

from app.domain.frozen import frozen, replace
from app.domain.types import OPEN_STATUSES, Message, ReasoningForm, ReasoningRule, Turn, TurnId, TurnStatus
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, Estimate, counted

UnitKind: TypeAlias = Literal["user", "assistant", "tool_group", "look_back"]

NO_REASONING = " "
"""Sent as the reasoning of a message that has none, to a server that requires the field in every message of its scope.
Moonshot treats an empty text as missing, and DeepSeek accepts both."""


def no_turn(seq: int) -> Turn:
    """A running turn that has no message yet."""
    return Turn(TurnId(UUID(int=0)), seq, TurnStatus.RUNNING, unresolved=True, messages=())


@frozen
class Unit:
    """Messages that are kept or dropped together: a user message, an assistant message, or a tool call with all its
    results, which in a `look_back` come from the service."""

    kind: UnitKind
    messages: tuple[Message, ...]


def units_of(messages: Sequence[Message]) -> tuple[Unit, ...]:
    """Cut a turn's messages into units. A tool group with missing results, or a result without a call, gives none:
    every provider would reject it."""
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
    """The units of a turn that later prompts may contain (contract.md, decision 7): none of a rejected turn; users'
    messages and complete tool groups of a failed or cancelled one; else all."""
    match turn.status:
        case TurnStatus.COMPLETED | TurnStatus.RUNNING | TurnStatus.AWAITING_TOOLS:  # nearly all: each case takes time
            return units_of(turn.messages)
        case TurnStatus.FAILED | TurnStatus.CANCELLED:
            return tuple(unit for unit in units_of(turn.messages) if unit.kind != "assistant")
        case TurnStatus.REJECTED:
            return ()
    assert_never(turn.status)


def sendable_messages(turns: Sequence[Turn]) -> tuple[Message, ...]:
    return tuple(message for turn in turns for unit in sendable_units(turn) for message in unit.messages)


def wire_tokens_of(turns: Sequence[Turn]) -> int:
    return framed_tokens(sendable_messages(turns))


def framed_tokens(messages: Sequence[Message]) -> int:
    return sum([message.tokens for message in messages]) + MESSAGE_FRAMING_TOKENS * len(messages)


def with_reasoning(turn: Turn, rule: ReasoningRule | None) -> Turn:
    """The turn with its messages marked and counted as the model's rule says they are sent back. Most providers that
    verify signed blocks refuse a loop in which one is missing."""
    if rule is None or (rule.scope == "tool_loop" and turn.status not in OPEN_STATUSES):
        return turn
    have_blocks = [bool(message.reasoning_blocks) for message in turn.messages if message.tool_calls]
    if not have_blocks or (rule.form == "blocks" and not (all if rule.of_all else any)(have_blocks)):
        return turn
    form = rule.form
    # Messages of every role are marked, so that adjacent ones are stored as one run in an audit's references.
    marked = [
        replace(message, reasoning_sent=form, tokens=message.tokens + _sent_reasoning_tokens(message, form))
        for message in turn.messages
    ]
    return replace(turn, messages=tuple(marked))


def sent_tokens(message: Message, estimate: Estimate) -> int:
    """The tokens of a message counted again, with those of the reasoning that it is marked to be sent with."""
    form, again = message.reasoning_sent, counted(message, estimate)
    return again.tokens + _sent_reasoning_tokens(again, form)


def _sent_reasoning_tokens(message: Message, form: ReasoningForm | None) -> int:
    """The tokens that the reasoning of a message adds when it is sent back in this form."""
    if form is None or message.role != "assistant":
        return 0
    if form == "blocks":
        return message.reasoning_tokens if message.reasoning_blocks else 0
    return message.reasoning_tokens if message.reasoning else 1


def most_tokens_of(message: Message) -> int:
    """Wire tokens of a message, including reasoning that is not sent."""
    unsent = 0 if message.reasoning_sent else message.reasoning_tokens
    return message.tokens + unsent + MESSAGE_FRAMING_TOKENS
