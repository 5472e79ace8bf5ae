"""Instructor: objects of a type, by a tool that the model has to call."""

from __future__ import annotations

from typing import Any

import instructor
from openai import OpenAI
from pydantic import BaseModel
from talk import SYSTEM, Client, Job, talk


class Invoice(BaseModel):
    """An invoice."""

    id: str
    paid: bool


def tools(job: Job) -> Client:
    client = instructor.from_openai(OpenAI(**job.openai()), mode=instructor.Mode.TOOLS)
    history: list[Any] = [{"role": "system", "content": SYSTEM}]
    options: Any = {"model": "main", "messages": history, "max_retries": 1}

    def ask(text: str) -> str:
        history.append({"role": "user", "content": text})
        invoice, completion = client.create_with_completion(response_model=Invoice, **options)
        message = completion.choices[0].message
        history.append(message.model_dump(include={"role", "content", "tool_calls"}))
        history.extend(
            {"role": "tool", "tool_call_id": call.id, "content": job.look_up(invoice.id)} for call in message.tool_calls
        )
        return f"Invoice {invoice.id} is {'paid' if invoice.paid else 'open'}"

    return Client(ask)


talk({("tools", "instructor"): tools})
