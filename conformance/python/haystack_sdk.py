"""Haystack's agent."""

from __future__ import annotations

from typing import Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from talk import SCHEMA, SYSTEM, Client, Job, talk


def agent(job: Job, generator: Any) -> Client:
    tool = Tool("look_up", "Says whether an invoice is paid.", SCHEMA, job.look_up)
    clerk = Agent(chat_generator=generator, tools=[tool], system_prompt=SYSTEM)
    history: list[ChatMessage] = []

    def run(text: str, **options: Any) -> str:
        # The agent puts its system prompt before the messages that it gets.
        messages = [message for message in history if message.role != "system"]
        result = clerk.run(messages=[*messages, ChatMessage.from_user(text)], **options)
        history[:] = result["messages"]
        return history[-1].text or ""

    def stream(text: str) -> list[str]:
        pieces: list[str] = []
        run(text, streaming_callback=lambda chunk: pieces.append(chunk.content))
        return pieces

    return Client(run, stream)


def chat(job: Job) -> Client:
    options: Any = {"extra_headers": job.headers} if job.headers else {}
    return agent(
        job,
        OpenAIChatGenerator(
            api_key=Secret.from_token(job.key), model="main", api_base_url=job.v1, generation_kwargs=options
        ),
    )


talk({("chat", "haystack-ai"): chat})
