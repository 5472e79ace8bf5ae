"""LlamaIndex's models with a function agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.memory import Memory
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI, OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from talk import SYSTEM, Client, Job, talk


def agent(job: Job, model: Any) -> Client:
    tool = FunctionTool.from_defaults(job.look_up, name="look_up")
    clerk = FunctionAgent(tools=[tool], llm=model, system_prompt=SYSTEM, streaming=False)
    talkative = FunctionAgent(tools=[tool], llm=model, system_prompt=SYSTEM, streaming=True)
    # All of the conversation: without a limit of its own it sends no more than 30,000 tokens of it.
    memory = Memory.from_defaults(token_limit=1_000_000)

    async def ask(text: str) -> str:
        return str(await clerk.run(text, memory=memory))

    async def stream(text: str) -> AsyncIterator[str]:
        handler = talkative.run(text, memory=memory)
        async for event in handler.stream_events():
            if isinstance(event, AgentStream):
                yield event.delta
        await handler

    return Client(ask, stream)


def options(job: Job) -> dict[str, Any]:
    return {"model": "main", "api_base": job.v1, "api_key": job.key, "default_headers": job.headers, "max_retries": 0}


def like(job: Job) -> Client:
    return agent(
        job, OpenAILike(is_chat_model=True, is_function_calling_model=True, context_window=8192, **options(job))
    )


def completions(job: Job) -> Client:
    """`OpenAILike` as it is without options: a prompt to `/v1/completions`."""
    model = OpenAILike(context_window=8192, **options(job))

    def stream(text: str) -> list[str]:
        return [piece.delta or "" for piece in model.stream_complete(text)]

    return Client(lambda text: model.complete(text).text, stream)


def chat(job: Job) -> Client:
    """LlamaIndex knows the windows of OpenAI's models, and takes no other name: the service's alias is one of them."""
    return agent(job, OpenAI(**options(job) | {"model": "gpt-4o"}))


def responses(job: Job) -> Client:
    """By default it asks for nothing to be stored, and for a history that is too long to be refused."""
    return agent(job, OpenAIResponses(context_window=8192, store=True, truncation="auto", **options(job)))


talk(
    {
        ("like", "llama-index-llms-openai-like"): like,
        ("completions", "llama-index-llms-openai-like"): completions,
        ("chat", "llama-index-llms-openai"): chat,
        ("responses", "llama-index-llms-openai"): responses,
    }
)
