"""Rules without an engine: what a conversation looks like before each model call, and plain keep-last-N."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from app.domain.extractive import SourceText, gather
from app.domain.types import Message, PromptMessage, Turn, Usage
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, Estimate
from app.engine.window.prompt import neutral_message
from bench.fidelity.measure import Sent, message_wire_tokens
from bench.fidelity.recorded import Conversation, Question


def calls_of(turn: Turn) -> Iterator[int]:
    """How many of the turn's messages stand before each of its model calls: the user's, and each tool group's last."""
    messages = turn.messages
    for at, message in enumerate(messages):
        next_role = messages[at + 1].role if at + 1 < len(messages) else None
        if message.role == "user" or (message.role == "tool" and next_role != "tool"):
            yield at + 1


def input_tokens(messages: Sequence[PromptMessage], estimate: Estimate) -> int:
    """What a prompt costs the input budget: without the framing, which the overhead reserve pays for."""
    return sum(message_wire_tokens(message, estimate) - MESSAGE_FRAMING_TOKENS for message in messages)


def sent(messages: Sequence[PromptMessage], spent: list[str], estimate: Estimate) -> Sent:
    """A prompt with what its summarizer read and wrote since the one before, turn about, which is forgotten then."""
    asked, answered = (sum(map(estimate, spent[at::2])) for at in (0, 1))
    spent.clear()
    return Sent(messages, input_tokens(messages, estimate), [Usage(asked, answered)])


def system_of(conversation: Conversation) -> list[PromptMessage]:
    """The conversation's system message, if it has one."""
    return [{"role": "system", "content": conversation.system}] if conversation.system else []


def extractive_answer(asked: str, max_chars: int) -> str:
    """What a model without a model answers to a request for a summary: the densest sentences of what it was given."""
    material = asked.rsplit("Messages to summarize:", 1)[-1]
    made = gather([SourceText("", "summary", material)]).within(max_chars)
    items = chain(made.decisions, made.open_questions, made.action_items, made.key_facts)
    return "\n".join([made.summary_text, *(item.text for item in items)]) or material[:max_chars]


class KeepLast:
    """The newest `count` messages, whatever they are and cost."""

    def __init__(self, count: int, estimate: Estimate) -> None:
        self._count = count
        self._estimate = estimate

    def replay(self, conversation: Conversation) -> tuple[list[Sent], list[Message]]:
        """Every prompt, and all messages."""
        past: list[Message] = []
        prompts: list[Sent] = []
        for turn in conversation.turns:
            prompts += [self._sent(conversation, [*past, *turn.messages[:end]]) for end in calls_of(turn)]
            past += turn.messages
        return prompts, past

    def ask(self, conversation: Conversation, state: list[Message], question: Question) -> Sent:
        """The newest messages and the question."""
        kept = [neutral_message(message) for message in state[-self._count + 1 :]]
        messages = [*system_of(conversation), *kept, {"role": "user", "content": question.text}]
        return Sent(messages, input_tokens(messages, self._estimate))

    def _sent(self, conversation: Conversation, past: Sequence[Message]) -> Sent:
        kept = [neutral_message(message) for message in past[-self._count :]]
        messages = [*system_of(conversation), *kept]
        return Sent(messages, input_tokens(messages, self._estimate))
