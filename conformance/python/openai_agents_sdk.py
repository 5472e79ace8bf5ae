"""OpenAI's Agents SDK over Responses and chat completions, with the history on the client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from talk import SYSTEM, Client, Job, talk


def agent(job: Job, form: Any) -> Client:
    set_tracing_disabled(True)
    clerk: Any = Agent(
        name="Clerk",
        instructions=SYSTEM,
        tools=[function_tool(job.look_up, name_override="look_up")],
        model=form("main", AsyncOpenAI(**job.openai())),
    )
    session = SQLiteSession("one")

    async def ask(text: str) -> str:
        return str((await Runner.run(clerk, text, session=session)).final_output)

    async def stream(text: str) -> AsyncIterator[str]:
        async for event in Runner.run_streamed(clerk, text, session=session).stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                yield event.data.delta

    return Client(ask, stream)


def responses(job: Job) -> Client:
    return agent(job, OpenAIResponsesModel)


def chat(job: Job) -> Client:
    return agent(job, OpenAIChatCompletionsModel)


talk({("responses", "openai-agents"): responses, ("chat", "openai-agents"): chat})
