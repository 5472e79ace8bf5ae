"""Pydantic AI's agent over chat completions, Responses and messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from talk import SYSTEM, Client, Job, talk


def agent(job: Job, model: Any) -> Client:
    clerk = Agent(model, instructions=SYSTEM, tools=[job.look_up])
    history: list[Any] = []

    async def ask(text: str) -> str:
        run = await clerk.run(text, message_history=history)
        history[:] = run.all_messages()
        return run.output

    async def stream(text: str) -> AsyncIterator[str]:
        async with clerk.run_stream(text, message_history=history) as run:
            async for piece in run.stream_text(delta=True, debounce_by=None):
                yield piece
        history[:] = run.all_messages()

    return Client(ask, stream)


def of_openai(job: Job) -> OpenAIProvider:
    return OpenAIProvider(openai_client=AsyncOpenAI(**job.openai()))


def chat(job: Job) -> Client:
    return agent(job, OpenAIChatModel("main", provider=of_openai(job)))


def responses(job: Job) -> Client:
    return agent(job, OpenAIResponsesModel("main", provider=of_openai(job)))


def anthropic(job: Job) -> Client:
    provider = AnthropicProvider(anthropic_client=AsyncAnthropic(**job.anthropic()))
    return agent(job, AnthropicModel("main", provider=provider))


talk(
    {
        ("chat", "pydantic-ai-slim"): chat,
        ("responses", "pydantic-ai-slim"): responses,
        ("anthropic", "pydantic-ai-slim"): anthropic,
    }
)
