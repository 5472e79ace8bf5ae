"""Semantic Kernel's chat completion agent."""

from __future__ import annotations

from collections.abc import AsyncIterator

from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function
from talk import SYSTEM, Client, Job, talk


def agent(job: Job) -> Client:
    class Invoices:
        """The tools of a clerk."""

        @kernel_function(name="look_up", description="Says whether an invoice is paid.")
        def look_up(self, id: str) -> str:
            return job.look_up(id)

    service = OpenAIChatCompletion(ai_model_id="main", async_client=AsyncOpenAI(**job.openai()))
    clerk = ChatCompletionAgent(service=service, name="clerk", instructions=SYSTEM, plugins=[Invoices()])
    threads: list[object] = [None]

    async def ask(text: str) -> str:
        response = await clerk.get_response(text, thread=threads[0])
        threads[0] = response.thread
        return str(response.content)

    async def stream(text: str) -> AsyncIterator[str]:
        async for piece in clerk.invoke_stream(text, thread=threads[0]):
            yield str(piece.content)

    return Client(ask, stream)


talk({("agent", "semantic-kernel"): agent})
