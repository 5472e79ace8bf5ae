"""An agent of Strands."""

from __future__ import annotations

from collections.abc import AsyncIterator

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.models.openai import OpenAIModel
from talk import SYSTEM, Client, Job, talk


def agent(job: Job) -> Client:
    @tool
    def look_up(id: str) -> str:
        """Says whether an invoice is paid."""
        return job.look_up(id)

    clerk = Agent(
        OpenAIModel(client_args=job.openai(), model_id="main"),
        tools=[look_up],
        system_prompt=SYSTEM,
        callback_handler=None,
        conversation_manager=NullConversationManager(),
    )

    async def ask(text: str) -> str:
        return str(await clerk.invoke_async(text))

    async def stream(text: str) -> AsyncIterator[str]:
        async for event in clerk.stream_async(text):
            if "data" in event:
                yield event["data"]

    return Client(ask, stream)


talk({("agent", "strands-agents"): agent})
