"""Figures of a rule: what its prompts cost over a replay, and how much of what is asked for they hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.domain.content import content_text
from app.domain.types import PromptMessage, Usage
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, PROMPT_FRAMING_TOKENS, Estimate
from app.services.turn.provider_call import sum_of
from bench.fidelity.recorded import Conversation, Question

CACHED_PRICE_SHARE = 0.1
"""Of a prompt token's price; an output token costs four."""
OUTPUT_PRICE = 4


@dataclass(frozen=True, slots=True)
class Sent:
    """One prompt. `input_tokens` are what counts against the input budget; messages are None where the rule refused.
    `summarizer` has the usages of the summarizer's calls before it.
    `recalled_tokens` are those of older messages that came back for it, with framing; `tools_tokens` are those of the
    tools that the rule itself offers."""

    messages: Sequence[PromptMessage] | None
    input_tokens: int
    summarizer: Sequence[Usage] = ()
    recalled_tokens: int = 0
    tools_tokens: int = 0


class Rule(Protocol):
    """A way to keep a conversation within `input_budget` tokens."""

    def replay(self, conversation: Conversation) -> tuple[list[Sent], Any]:
        """Every prompt of the conversation in order, and the state after its last message."""
        ...

    def ask(self, conversation: Conversation, state: Any, question: Question) -> Sent:
        """The prompt of a question asked in that state, which stays as it was."""
        ...


@dataclass(slots=True)
class Tally:
    """Sums over conversations. `ev` and `ans` have one figure a question, by category too."""

    turns: int = 0
    prompts: int = 0
    refused: int = 0
    over_budget: int = 0
    violations: int = 0
    sent_tokens: int = 0
    cached_tokens: int = 0
    summarizer: list[Usage] = field(default_factory=list[Usage])
    question_tokens: int = 0
    recalled_tokens: int = 0
    recalled_for_questions: int = 0
    ev: list[float] = field(default_factory=list[float])
    ans: list[float] = field(default_factory=list[float])
    by_category: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    by_conversation: dict[str, float] = field(default_factory=dict[str, float])

    def figures(self) -> dict[str, Any]:
        """What is reported; shares are 0 to 1, tokens are means."""
        summarizer = sum_of(self.summarizer) or Usage(0, 0)
        cached_tokens = self.cached_tokens + summarizer.cached_prompt_tokens
        paid = self.sent_tokens + summarizer.prompt_tokens - (1 - CACHED_PRICE_SHARE) * cached_tokens
        paid += OUTPUT_PRICE * summarizer.completion_tokens
        asked = len(self.ev)
        return {
            "ev": _mean(self.ev),
            "ans": _mean(self.ans),
            "ev_by_category": {name: _mean(values) for name, values in sorted(self.by_category.items())},
            "ev_by_conversation": dict(sorted(self.by_conversation.items())),
            "questions": asked,
            "prompts": self.prompts,
            "prompts_refused": self.refused,
            "prompts_over_budget": self.over_budget,
            "prompts_with_violation": self.violations,
            "violation_share": round(self.violations / max(1, self.prompts), 4),
            "sent_tokens_per_turn": round(self.sent_tokens / max(1, self.turns)),
            "eff_tokens_per_turn": round(paid / max(1, self.turns)),
            "cacheable_share": round(self.cached_tokens / max(1, self.sent_tokens), 3),
            "recalled_tokens_per_prompt": round(self.recalled_tokens / max(1, self.prompts - asked)),
            "recalled_tokens_per_question": round(self.recalled_for_questions / max(1, asked)),
            "question_prompt_tokens": round(self.question_tokens / max(1, asked)),
            "summarizer_tokens": [
                summarizer.prompt_tokens,
                summarizer.cached_prompt_tokens,
                summarizer.completion_tokens,
            ],
        }


def measure(rule: Rule, conversations: Sequence[Conversation], input_budget: int, estimate: Estimate) -> Tally:
    """Replays every conversation under the rule, then asks its questions one by one in the same last state."""
    tally = Tally()
    for conversation in conversations:
        prompts, state = rule.replay(conversation)
        tally.turns += len(conversation.turns)
        _count_prompts(tally, prompts, input_budget, estimate)
        of_this: list[float] = []
        for question in conversation.questions:
            sent = rule.ask(conversation, state, question)
            _count_prompts(tally, [sent], input_budget, estimate, replayed=False)
            of_this.append(evidence_share(sent.messages or (), question))
            tally.by_category.setdefault(question.category, []).append(of_this[-1])
            tally.ans.append(float(has_answer(sent.messages or (), question)))
        tally.ev += of_this
        if of_this:
            tally.by_conversation[conversation.id] = _mean(of_this)
    return tally


def evidence_share(messages: Sequence[PromptMessage], question: Question) -> float:
    """EV: the share of the question's evidence messages that are in the prompt word for word, each as a message."""
    texts = {content_text(message["content"]) for message in messages if message["role"] != "system"}
    return sum(evidence in texts for evidence in question.evidence) / max(1, len(question.evidence))


def has_answer(messages: Sequence[PromptMessage], question: Question) -> bool:
    """ANS: whether an answer's text stands inside one message but the question, or one line of a summary."""
    lines = [line for message in messages[:-1] for line in _lines(message)]
    return any(answer.casefold() in line for answer in question.answers for line in lines)


def violation(messages: Sequence[PromptMessage]) -> str | None:
    """What a provider would refuse in the prompt: an orphaned call or result, or no user message at all."""
    if not any(message["role"] == "user" for message in messages):
        return "no user message"
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return "orphaned result"
            open_calls.discard(message["tool_call_id"])
        elif open_calls:
            return "orphaned call"
        else:
            open_calls = {call["id"] for call in message.get("tool_calls") or ()}
    return "orphaned call" if open_calls else None


def wire_tokens(messages: Sequence[PromptMessage], estimate: Estimate) -> int:
    """A prompt's tokens by the engine's own count, whoever made the prompt."""
    return sum(message_wire_tokens(message, estimate) for message in messages) + PROMPT_FRAMING_TOKENS


def message_wire_tokens(message: PromptMessage, estimate: Estimate) -> int:
    """Content, calls and ids, with framing."""
    tokens = estimate(content_text(message["content"])) + MESSAGE_FRAMING_TOKENS
    for call in message.get("tool_calls") or ():
        tokens += (
            estimate(call["id"]) + estimate(call["function"]["name"]) + estimate(call["function"]["arguments"]) + 3
        )
    return tokens + (estimate(message["tool_call_id"]) if message.get("tool_call_id") else 0)


def common_prefix_tokens(before: Sequence[PromptMessage], now: Sequence[PromptMessage], estimate: Estimate) -> int:
    """Tokens of the messages both begin with: what a provider's prompt cache can give back."""
    tokens = 0
    for one, other in zip(before, now, strict=False):
        if one != other:
            break
        tokens += message_wire_tokens(one, estimate)
    return tokens


def _count_prompts(
    tally: Tally, prompts: Sequence[Sent], input_budget: int, estimate: Estimate, *, replayed: bool = True
) -> None:
    before: Sequence[PromptMessage] = ()
    tools_before = 0
    for sent in prompts:
        tally.prompts += 1
        tally.summarizer += sent.summarizer if replayed else ()
        if sent.messages is None:
            tally.refused += 1
            continue
        tally.over_budget += sent.input_tokens > input_budget
        tally.violations += violation(sent.messages) is not None
        tokens = wire_tokens(sent.messages, estimate) + sent.tools_tokens
        if not replayed:
            tally.question_tokens += tokens
            tally.recalled_for_questions += sent.recalled_tokens
            continue
        tally.recalled_tokens += sent.recalled_tokens
        tally.sent_tokens += tokens
        if sent.tools_tokens == tools_before:  # a prompt begins with its tools
            tally.cached_tokens += sent.tools_tokens + common_prefix_tokens(before, sent.messages, estimate)
        before, tools_before = sent.messages, sent.tools_tokens


def _lines(message: PromptMessage) -> list[str]:
    text = content_text(message["content"]).casefold()
    if message["role"] != "system" or "\n{" not in text:
        return [text]
    record: Mapping[str, Any] = json.loads(text[text.index("\n{") : text.rindex("}") + 1])
    items = [str(item) for name, items in record.items() if name != "summary" for item in items]
    return [*str(record.get("summary", "")).splitlines(), *items]


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0
