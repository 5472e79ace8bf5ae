"""LangChain's own rules, unmodified: `trim_messages`, and SummarizationMiddleware with our extractive summarizer.

Needs the group `fidelity` of `pyproject.toml`; nothing else in the project knows LangChain.
"""

# LangChain's signatures are partly unknown to the type checker, and it is not installed where the project is checked.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage, trim_messages
from langchain_core.messages import SystemMessage as LcSystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from app.domain.content import content_text
from app.domain.types import Message, PromptMessage
from app.engine.messages.tokens import Estimate
from app.engine.window.prompt import neutral_message
from bench.fidelity.measure import Sent
from bench.fidelity.plain_rules import calls_of, extractive_answer, input_tokens, sent, system_of
from bench.fidelity.recorded import Conversation, Question

SUMMARY_SHARE = 0.15
"""Of the input budget, as our presets have it."""
TRIGGER_SHARE, KEEP_SHARE = 0.9, 0.5


class TrimMessages:
    """`trim_messages` with `strategy="last"`, as its documentation shows it for a chat history."""

    def __init__(self, input_budget: int, estimate: Estimate) -> None:
        self._budget = input_budget
        self._estimate = estimate

    def replay(self, conversation: Conversation) -> tuple[list[Sent], list[BaseMessage]]:
        """Every prompt, and all messages."""
        past: list[BaseMessage] = [LcSystemMessage(conversation.system)] if conversation.system else []
        prompts: list[Sent] = []
        for turn in conversation.turns:
            ours = [to_langchain(message) for message in turn.messages]
            prompts += [self._trimmed([*past, *ours[:end]]) for end in calls_of(turn)]
            past += ours
        return prompts, past

    def ask(self, conversation: Conversation, state: list[BaseMessage], question: Question) -> Sent:  # noqa: ARG002
        """The trimmed messages, the question among them."""
        return self._trimmed([*state, HumanMessage(question.text)])

    def _trimmed(self, past: Sequence[BaseMessage]) -> Sent:
        kept = trim_messages(
            list(past),
            max_tokens=self._budget,
            token_counter=self._count,
            strategy="last",
            include_system=True,
        )
        messages = from_langchain(kept)
        return Sent(messages, input_tokens(messages, self._estimate))

    def _count(self, messages: list[BaseMessage]) -> int:
        return input_tokens(from_langchain(messages), self._estimate)


class ExtractiveChatModel(BaseChatModel):
    """Answers a request for a summary with the densest sentences of what it was given."""

    max_chars: int
    spent: list[str]

    @property
    def _llm_type(self) -> str:
        return "extractive"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        asked = "\n".join(content_text(message.content) for message in messages)  # type: ignore[arg-type]
        answer = extractive_answer(asked, self.max_chars)
        self.spent += [asked, answer]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(answer))])


class LangChainSummaries:
    """SummarizationMiddleware that fires at 90 % of the budget and keeps the newest 50 %."""

    def __init__(self, input_budget: int, estimate: Estimate) -> None:
        self._budget = input_budget
        self._estimate = estimate

    def replay(self, conversation: Conversation) -> tuple[list[Sent], list[BaseMessage]]:
        """Every prompt, and the state of the agent's messages."""
        middleware, model = self._middleware(conversation)
        state: list[BaseMessage] = []
        prompts: list[Sent] = []
        for turn in conversation.turns:
            ends = list(calls_of(turn))
            for at, message in enumerate(turn.messages, start=1):
                state.append(to_langchain(message))
                if at in ends:
                    state = self._before_model(middleware, state)
                    prompts.append(self._sent(conversation, state, model))
        return prompts, state

    def ask(self, conversation: Conversation, state: list[BaseMessage], question: Question) -> Sent:
        """The state and the question, summarized again where that is due."""
        middleware, model = self._middleware(conversation)
        return self._sent(conversation, self._before_model(middleware, [*state, HumanMessage(question.text)]), model)

    def _middleware(self, conversation: Conversation) -> tuple[Any, ExtractiveChatModel]:
        model = ExtractiveChatModel(max_chars=int(self._budget * SUMMARY_SHARE * 4), spent=[])
        room = max(1, self._budget - input_tokens(system_of(conversation), self._estimate))
        middleware = SummarizationMiddleware(
            model=model,
            trigger=("tokens", max(1, int(room * TRIGGER_SHARE))),
            keep=("tokens", max(1, int(room * KEEP_SHARE))),
            token_counter=lambda messages: input_tokens(from_langchain(messages), self._estimate),
        )
        return middleware, model

    def _before_model(self, middleware: Any, state: list[BaseMessage]) -> list[BaseMessage]:
        update = middleware.before_model({"messages": state}, None)
        if not update:
            return state
        return [message for message in update["messages"] if not isinstance(message, RemoveMessage)]

    def _sent(self, conversation: Conversation, state: Sequence[BaseMessage], model: ExtractiveChatModel) -> Sent:
        return sent([*system_of(conversation), *from_langchain(state)], model.spent, self._estimate)


def to_langchain(message: Message) -> BaseMessage:
    ours = neutral_message(message)
    text = content_text(message.content)
    kept = {"id": str(message.id), "additional_kwargs": {"ours": ours}}
    if message.role == "user":
        return HumanMessage(text, **kept)
    if message.role == "tool":
        return ToolMessage(text, tool_call_id=message.tool_call_id or "", **kept)
    calls = [{"id": call.id, "name": call.name, "args": _arguments(call.arguments)} for call in message.tool_calls]
    return AIMessage(text, tool_calls=calls, **kept)


def _arguments(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        return {"raw": text}
    return parsed if isinstance(parsed, dict) else {"raw": text}


def from_langchain(messages: Sequence[BaseMessage]) -> list[PromptMessage]:
    """In the neutral form: ours as they were, LangChain's own by their type and text."""
    roles = {"human": "user", "ai": "assistant", "system": "system"}
    return [
        message.additional_kwargs.get("ours") or {"role": roles[message.type], "content": content_text(message.content)}  # type: ignore[arg-type]
        for message in messages
    ]
