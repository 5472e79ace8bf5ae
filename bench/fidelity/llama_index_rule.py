"""LlamaIndex's own ChatSummaryMemoryBuffer, unmodified, with our extractive summarizer.

Needs the group `fidelity` of `pyproject.toml`; nothing else in the project knows LlamaIndex.
"""

# LlamaIndex is not installed where the project is checked.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage, CompletionResponse, CompletionResponseGen, LLMMetadata
from llama_index.core.llms import CustomLLM
from llama_index.core.memory import ChatSummaryMemoryBuffer

from app.domain.content import content_text
from app.domain.types import Message, PromptMessage
from app.engine.messages.tokens import Estimate
from app.engine.window.prompt import neutral_message
from bench.fidelity.measure import Sent
from bench.fidelity.plain_rules import calls_of, extractive_answer, input_tokens, sent, system_of
from bench.fidelity.recorded import Conversation, Question

SUMMARY_SHARE = 0.15
"""Of the input budget, as our presets have it: the buffer does not count its summary."""


class ExtractiveLLM(CustomLLM):
    """Answers a request for a summary with the densest sentences of what it was given."""

    max_chars: int
    spent: list[str]

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:  # noqa: ARG002
        answer = extractive_answer(prompt.rsplit("Transcript so far: ", 1)[-1], self.max_chars)
        self.spent += [prompt, answer]
        return CompletionResponse(text=answer)

    def stream_complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponseGen:
        raise NotImplementedError


class LlamaIndexSummaries:
    """The newest messages in full, and a summary of those before, in which the summary before is summarized too."""

    def __init__(self, input_budget: int, estimate: Estimate) -> None:
        self._budget = input_budget
        self._estimate = estimate
        self._model = ExtractiveLLM(max_chars=int(input_budget * SUMMARY_SHARE * 4), spent=[])

    def replay(self, conversation: Conversation) -> tuple[list[Sent], list[ChatMessage]]:
        """Every prompt, and what the buffer keeps."""
        memory = self._memory(conversation)
        prompts: list[Sent] = []
        for turn in conversation.turns:
            ends = list(calls_of(turn))
            for at, message in enumerate(turn.messages, start=1):
                memory.put(_to_llama_index(message))
                if at in ends:
                    prompts.append(self._sent(conversation, memory))
        return prompts, memory.get_all()

    def ask(self, conversation: Conversation, state: list[ChatMessage], question: Question) -> Sent:
        """What the buffer keeps and the question, summarized again where that is due."""
        memory = self._memory(conversation)
        memory.set([*state, ChatMessage(role="user", content=question.text)])
        return self._sent(conversation, memory)

    def _memory(self, conversation: Conversation) -> ChatSummaryMemoryBuffer:
        room = self._budget - input_tokens(system_of(conversation), self._estimate)
        return ChatSummaryMemoryBuffer.from_defaults(
            llm=self._model,
            token_limit=max(1, room - int(self._budget * SUMMARY_SHARE)),
            tokenizer_fn=lambda text: range(self._estimate(text)),
        )

    def _sent(self, conversation: Conversation, memory: ChatSummaryMemoryBuffer) -> Sent:
        messages = [*system_of(conversation), *map(_from_llama_index, memory.get())]
        return sent(messages, self._model.spent, self._estimate)


def _to_llama_index(message: Message) -> ChatMessage:
    kept = {"ours": neutral_message(message)}
    return ChatMessage(role=message.role, content=content_text(message.content), additional_kwargs=kept)


def _from_llama_index(message: ChatMessage) -> PromptMessage:
    return message.additional_kwargs.get("ours") or {"role": message.role.value, "content": message.content or ""}
