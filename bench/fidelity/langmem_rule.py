"""LangMem's own `summarize_messages`, unmodified, with our extractive summarizer.

Needs the group `fidelity` of `pyproject.toml`; nothing else in the project knows LangMem.
"""

# LangMem's signatures are partly unknown to the type checker, and it is not installed where the project is checked.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langmem.short_term import RunningSummary, summarize_messages

from app.engine.messages.tokens import Estimate
from bench.fidelity.langchain_rules import SUMMARY_SHARE, ExtractiveChatModel, from_langchain, to_langchain
from bench.fidelity.measure import Sent
from bench.fidelity.plain_rules import calls_of, input_tokens, sent, system_of
from bench.fidelity.recorded import Conversation, Question

State = tuple[list[BaseMessage], RunningSummary | None]


class LangMemSummaries:
    """A summary of everything as soon as what is not summarized and a full summary are as large as the budget."""

    def __init__(self, input_budget: int, estimate: Estimate) -> None:
        self._budget = input_budget
        self._estimate = estimate
        self._model = ExtractiveChatModel(max_chars=int(input_budget * SUMMARY_SHARE * 4), spent=[])

    def replay(self, conversation: Conversation) -> tuple[list[Sent], State]:
        """Every prompt; all messages, and the running summary."""
        past: list[BaseMessage] = []
        summary: RunningSummary | None = None
        prompts: list[Sent] = []
        for turn in conversation.turns:
            ends = list(calls_of(turn))
            for at, message in enumerate(turn.messages, start=1):
                past.append(to_langchain(message))
                if at in ends:
                    prompt, summary = self._summarized(conversation, past, summary)
                    prompts.append(prompt)
        return prompts, (past, summary)

    def ask(self, conversation: Conversation, state: State, question: Question) -> Sent:
        """The state and the question, summarized again where that is due."""
        past, summary = state
        return self._summarized(conversation, [*past, HumanMessage(question.text, id="question")], summary)[0]

    def _summarized(
        self, conversation: Conversation, past: list[BaseMessage], summary: RunningSummary | None
    ) -> tuple[Sent, RunningSummary | None]:
        room = max(2, self._budget - input_tokens(system_of(conversation), self._estimate))
        of_summary = max(1, min(room - 1, int(self._budget * SUMMARY_SHARE)))
        made = summarize_messages(
            past,  # type: ignore[arg-type]
            running_summary=summary,
            model=self._model,
            max_tokens=room,
            max_tokens_before_summary=max(1, room - of_summary),
            max_summary_tokens=of_summary,
            token_counter=self._count,
        )
        messages = [*system_of(conversation), *from_langchain(made.messages)]
        return sent(messages, self._model.spent, self._estimate), made.running_summary or summary

    def _count(self, messages: Iterable[Any]) -> int:
        return input_tokens(from_langchain(list(messages)), self._estimate)
