"""The `anthropic` package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anthropic import Anthropic
from talk import SCHEMA, SYSTEM, Client, Job, talk


def messages(job: Job) -> Client:
    client = Anthropic(**job.anthropic())
    history: list[Any] = []
    tools = [{"name": "look_up", "description": "Says whether an invoice is paid.", "input_schema": SCHEMA}]
    options: Any = {"model": "main", "max_tokens": 500, "system": SYSTEM, "tools": tools}

    def took(message: Any) -> bool:
        """Adds a reply and the outputs of its calls; whether there are any."""
        history.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        outputs = [
            {"type": "tool_result", "tool_use_id": call.id, "content": job.look_up(**call.input)} for call in calls
        ]
        history.extend([{"role": "user", "content": outputs}] if outputs else [])
        return bool(calls)

    def ask(text: str) -> str:
        history.append({"role": "user", "content": text})
        while took(message := client.messages.create(messages=history, **options)):
            pass
        return message.content[0].text

    def stream(text: str) -> Iterator[str]:
        history.append({"role": "user", "content": text})
        more = True
        while more:
            with client.messages.stream(messages=history, **options) as events:
                yield from events.text_stream
                more = took(events.get_final_message())

    return Client(ask, stream)


talk({("messages", "anthropic"): messages})
