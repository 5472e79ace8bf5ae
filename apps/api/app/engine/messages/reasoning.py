"""Which messages of a turn take their reasoning with them when they are sent again, and what that costs.

What is sent is counted, what is not sent does not count: the choice is made once, here, before anything is planned.
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.types import OPEN_STATUSES, Message, ReasoningForm, ReasoningRule, Turn

NO_REASONING = " "
"""Stands for the reasoning of a message that has none, at a server that wants the field in every message of its scope.
Moonshot takes an empty text for a missing one, and DeepSeek takes either."""


def with_reasoning(turn: Turn, rule: ReasoningRule | None) -> Turn:
    """The turn with its assistant messages marked and counted as the model wants them back.

    Signed blocks go back for all calls of the loop or for none: a provider that verifies them refuses a loop in which
    one is missing.
    """
    if rule is None or not _in_scope(turn, rule):
        return turn
    called = [message for message in turn.messages if message.tool_calls]
    if not called or (rule.form == "blocks" and not all(message.reasoning_blocks for message in called)):
        return turn
    return replace(turn, messages=tuple(_marked(message, rule.form) for message in turn.messages))


def _in_scope(turn: Turn, rule: ReasoningRule) -> bool:
    return rule.scope == "tool_turns" or turn.status in OPEN_STATUSES


def _marked(message: Message, form: ReasoningForm) -> Message:
    """Messages of every role are marked, so that their neighbours stay one run in an audit's references."""
    if message.role != "assistant":
        return replace(message, reasoning_sent=form)
    return replace(message, reasoning_sent=form, tokens=message.tokens + sent_reasoning_tokens(message, form))


def sent_reasoning_tokens(message: Message, form: ReasoningForm) -> int:
    """What the reasoning of an assistant's message adds to its tokens where it is sent back in this form."""
    if form == "blocks":
        return message.reasoning_tokens if message.reasoning_blocks else 0
    return message.reasoning_tokens if message.reasoning else 1
