"""An agent of smolagents: it sends what its tools said as the user's messages."""

from __future__ import annotations

from typing import Any

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool
from talk import Client, Job, talk


def agent(job: Job) -> Client:
    @tool
    def look_up(id: str) -> str:
        """Says whether an invoice is paid.

        Args:
            id: The invoice's number.
        """
        return job.look_up(id)

    options: Any = {"client_kwargs": {"default_headers": job.headers, "max_retries": 0}}
    model = OpenAIModel("main", api_base=job.v1, api_key=job.key, **options)
    clerk = ToolCallingAgent([look_up], model, max_steps=4, verbosity_level=LogLevel.OFF, stream_outputs=False)

    def ask(text: str) -> str:
        return str(clerk.run(text, reset=False))

    def stream(text: str) -> list[str]:
        clerk.stream_outputs = True
        pieces = []
        for event in clerk.run(text, reset=False, stream=True):
            content = getattr(event, "content", None) or getattr(event, "output", None)
            if isinstance(content, str):
                pieces.append(content)
        clerk.stream_outputs = False
        return pieces

    return Client(ask, stream)


talk({("agent", "smolagents"): agent})
