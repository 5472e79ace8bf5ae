"""LiteLLM's SDK over chat completions, Responses and messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import litellm
from talk import SCHEMA, SYSTEM, Client, Job, talk

TOOLS = [
    {
        "type": "function",
        "function": {"name": "look_up", "description": "Says whether an invoice is paid.", "parameters": SCHEMA},
    }
]


def conversation(job: Job, **of_vendor: Any) -> Client:
    history: list[Any] = [{"role": "system", "content": SYSTEM}]
    options: Any = {"tools": TOOLS, "api_key": job.key, "extra_headers": job.headers, **of_vendor}

    def took(message: Any) -> bool:
        """Adds a reply and the outputs of its calls; whether there are any."""
        history.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            output = job.look_up(**json.loads(call.function.arguments))
            history.append({"role": "tool", "tool_call_id": call.id, "content": output})
        return bool(message.tool_calls)

    def ask(text: str) -> str:
        history.append({"role": "user", "content": text})
        while took(message := litellm.completion(messages=history, **options).choices[0].message):
            pass
        return message.content

    def stream(text: str) -> Iterator[str]:
        history.append({"role": "user", "content": text})
        more = True
        while more:
            chunks = []
            for chunk in litellm.completion(messages=history, stream=True, **options):
                chunks.append(chunk)
                yield chunk.choices[0].delta.content or ""
            more = took(litellm.stream_chunk_builder(chunks).choices[0].message)

    return Client(ask, stream)


def chat(job: Job) -> Client:
    return conversation(job, model="openai/main", api_base=job.v1)


def messages(job: Job) -> Client:
    return conversation(job, model="anthropic/main", api_base=job.address)


talk({("chat", "litellm"): chat, ("messages", "litellm"): messages})
