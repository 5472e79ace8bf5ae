"""The `openai` package: chat completions, Responses with the whole history or after the previous one, completions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from openai import OpenAI
from talk import SCHEMA, SYSTEM, Client, Job, talk

FUNCTION = {"name": "look_up", "description": "Says whether an invoice is paid.", "parameters": SCHEMA}


def chat(job: Job) -> Client:
    client = OpenAI(**job.openai())
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    options: Any = {"model": "main", "tools": [{"type": "function", "function": FUNCTION}]}

    def ask(text: str) -> str:
        messages.append({"role": "user", "content": text})
        while True:
            message = client.chat.completions.create(messages=messages, **options).choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                output = job.look_up(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})

    def stream(text: str) -> Iterator[str]:
        messages.append({"role": "user", "content": text})
        while True:
            with client.chat.completions.stream(messages=messages, **options) as events:
                for event in events:
                    if event.type == "content.delta":
                        yield event.delta
                message = events.get_final_completion().choices[0].message
            messages.append(
                {"role": "assistant", **message.model_dump(include={"content", "tool_calls"}, exclude_none=True)}
            )
            if not message.tool_calls:
                return
            for call in message.tool_calls:
                output = job.look_up(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})

    return Client(ask, stream)


def responses(job: Job, *, chained: bool = False) -> Client:
    client = OpenAI(**job.openai())
    options: Any = {
        "model": "main",
        "instructions": SYSTEM,
        "tools": [{"type": "function", **FUNCTION, "strict": False}],
    }
    history: list[Any] = []
    previous: dict[str, str] = {}

    def add(*items: Any) -> None:
        if chained:
            history.clear()
        history.extend(items)

    def took(response: Any) -> bool:
        """Adds what a response has; whether it asks for more."""
        previous.update(previous_response_id=response.id) if chained else None
        calls = [item for item in response.output if item.type == "function_call"]
        outputs = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": job.look_up(**json.loads(call.arguments)),
            }
            for call in calls
        ]
        add(*([] if chained else response.output), *outputs)
        return bool(calls)

    def ask(text: str) -> str:
        add({"role": "user", "content": text})
        while took(response := client.responses.create(input=history, **options, **previous)):
            pass
        return response.output_text

    def stream(text: str) -> Iterator[str]:
        add({"role": "user", "content": text})
        more = True
        while more:
            with client.responses.stream(input=history, **options, **previous) as events:
                for event in events:
                    if event.type == "response.output_text.delta":
                        yield event.delta
                more = took(events.get_final_response())

    return Client(ask, stream)


def chained(job: Job) -> Client:
    return responses(job, chained=True)


def completions(job: Job) -> Client:
    client = OpenAI(**job.openai())

    def ask(text: str) -> str:
        return client.completions.create(model="main", prompt=text).choices[0].text

    def stream(text: str) -> Iterator[str]:
        for chunk in client.completions.create(model="main", prompt=text, stream=True):
            yield chunk.choices[0].text if chunk.choices else ""

    return Client(ask, stream)


talk(
    {
        ("chat", "openai"): chat,
        ("responses", "openai"): responses,
        ("chained", "openai"): chained,
        ("completions", "openai"): completions,
    }
)
