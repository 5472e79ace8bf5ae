"""The clients of a run, in the order of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Environment: TypeAlias = Literal["clients", "clients-openai-2", "clients-openai-3-3", "node"]


@dataclass(frozen=True, slots=True)
class Case:
    """A client: its name in the table, the file with its program, and its name in that file.

    `calls_tools` is false for a client, or a wire, that has no tools. One that is not `resends` does not send its whole
    history as it was, so that there is nothing to recognize its conversation by. With `is_named` it names its session
    in the header `X-Session-Id` in every run.
    """

    name: str
    environment: Environment
    file: str
    which: str
    calls_tools: bool = True
    resends: bool = True
    is_named: bool = False

    @property
    def tenant(self) -> str:
        return f"{self.environment}-{self.file}-{self.which}"


CASES: Final = (
    Case("OpenAI Python, chat completions", "clients", "openai_sdk", "chat"),
    Case("OpenAI Python, Responses with the whole history", "clients", "openai_sdk", "responses"),
    Case("OpenAI Python, Responses after the previous one", "clients", "openai_sdk", "chained", resends=False),
    Case(
        "OpenAI Python, completions",
        "clients",
        "openai_sdk",
        "completions",
        calls_tools=False,
        resends=False,
        is_named=True,
    ),
    Case("Anthropic Python, messages", "clients", "anthropic_sdk", "messages"),
    Case("LangChain ChatOpenAI, chat completions", "clients", "langchain_sdk", "chat"),
    Case("LangChain ChatOpenAI, Responses", "clients", "langchain_sdk", "responses"),
    Case("LangChain ChatAnthropic", "clients", "langchain_sdk", "anthropic"),
    Case("LangGraph, agent with a checkpointer", "clients", "langchain_sdk", "langgraph"),
    Case("Pydantic AI, chat completions", "clients", "pydantic_ai_sdk", "chat"),
    Case("Pydantic AI, Responses", "clients", "pydantic_ai_sdk", "responses"),
    Case("Pydantic AI, Anthropic", "clients", "pydantic_ai_sdk", "anthropic"),
    Case("OpenAI Agents SDK, Responses", "clients", "openai_agents_sdk", "responses"),
    Case("OpenAI Agents SDK, chat completions", "clients", "openai_agents_sdk", "chat"),
    Case("Haystack, agent", "clients", "haystack_sdk", "chat"),
    Case("AutoGen, AssistantAgent", "clients", "autogen_sdk", "agent"),
    Case("Agent Framework, Responses", "clients", "agent_framework_sdk", "responses", resends=False),
    Case("Agent Framework, chat completions", "clients", "agent_framework_sdk", "chat"),
    Case("llm, chain of tools", "clients", "llm_sdk", "chat"),
    Case("smolagents, ToolCallingAgent", "clients", "smolagents_sdk", "agent"),
    Case("LiteLLM SDK, chat completions", "clients-openai-2", "litellm_sdk", "chat"),
    Case("LiteLLM SDK, Anthropic", "clients-openai-2", "litellm_sdk", "messages"),
    Case("DSPy, Predict with a history", "clients-openai-2", "dspy_sdk", "predict", calls_tools=False, resends=False),
    Case("LlamaIndex OpenAILike, agent", "clients-openai-2", "llama_index_sdk", "like"),
    Case("LlamaIndex OpenAI, agent", "clients-openai-2", "llama_index_sdk", "chat"),
    Case("LlamaIndex OpenAIResponses, agent", "clients-openai-2", "llama_index_sdk", "responses"),
    Case(
        "LlamaIndex OpenAILike, completions",
        "clients-openai-2",
        "llama_index_sdk",
        "completions",
        calls_tools=False,
        resends=False,
        is_named=True,
    ),
    Case("Strands, agent", "clients-openai-2", "strands_sdk", "agent"),
    Case("Instructor, TOOLS", "clients-openai-3-3", "instructor_sdk", "tools"),
    Case("Semantic Kernel, ChatCompletionAgent", "clients-openai-3-3", "semantic_kernel_sdk", "agent"),
    Case("OpenAI Node, chat completions", "node", "openai_sdk", "chat"),
    Case("OpenAI Node, Responses with the whole history", "node", "openai_sdk", "responses"),
    Case("Anthropic Node, messages", "node", "anthropic_sdk", "messages"),
    Case("Vercel AI, openai-compatible", "node", "vercel_sdk", "compatible"),
    Case("Vercel AI, openai.chat", "node", "vercel_sdk", "chat"),
    Case("Vercel AI, openai (Responses)", "node", "vercel_sdk", "responses"),
    Case("Vercel AI, anthropic", "node", "vercel_sdk", "anthropic"),
    Case("LangChain.js ChatOpenAI", "node", "langchain_sdk", "chat"),
    Case("LangChain.js ChatAnthropic", "node", "langchain_sdk", "anthropic"),
    Case("OpenAI Agents SDK for JS, Responses", "node", "openai_agents_sdk", "responses"),
    Case("OpenAI Agents SDK for JS, chat completions", "node", "openai_agents_sdk", "chat"),
)
