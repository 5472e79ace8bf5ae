"""AutoGen's assistant agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from talk import SYSTEM, Client, Job, talk


def agent(job: Job) -> Client:
    info: Any = {
        "vision": False,
        "function_calling": True,
        "json_output": False,
        "structured_output": False,
        "family": "unknown",
    }
    clerk = AssistantAgent(
        "clerk",
        OpenAIChatCompletionClient(model="main", model_info=info, **job.openai()),
        tools=[job.look_up],
        system_message=SYSTEM,
        reflect_on_tool_use=True,
        model_client_stream=True,
    )

    async def ask(text: str) -> str:
        return str((await clerk.run(task=text)).messages[-1].content)

    async def stream(text: str) -> AsyncIterator[str]:
        async for event in clerk.run_stream(task=text):
            if isinstance(event, ModelClientStreamingChunkEvent):
                yield event.content

    return Client(ask, stream)


talk({("agent", "autogen-agentchat"): agent})
