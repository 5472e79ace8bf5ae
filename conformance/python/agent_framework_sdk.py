"""Microsoft's Agent Framework over Responses and chat completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from talk import SYSTEM, Client, Job, talk


def agent(job: Job, form: Any, **options: Any) -> Client:
    client = form(model="main", base_url=job.v1, api_key=job.key, default_headers=job.headers)
    clerk: Any = Agent(client, SYSTEM, tools=[job.look_up], default_options=options or None)
    session = clerk.create_session()

    async def ask(text: str) -> str:
        return (await clerk.run(text, session=session)).text

    async def stream(text: str) -> AsyncIterator[str]:
        async for update in clerk.run(text, session=session, stream=True):
            yield update.text

    return Client(ask, stream)


def responses(job: Job) -> Client:
    return agent(job, OpenAIChatClient)


def chat(job: Job) -> Client:
    return agent(job, OpenAIChatCompletionClient)


talk({("responses", "agent-framework-openai"): responses, ("chat", "agent-framework-openai"): chat})
