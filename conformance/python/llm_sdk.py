"""The library behind the `llm` command."""

from __future__ import annotations

from collections.abc import Iterator

import llm
from llm.default_plugins.openai_models import Chat
from talk import SYSTEM, Client, Job, talk


def chat(job: Job) -> Client:
    model = Chat(
        "main", model_name="main", api_base=job.v1, headers=job.headers or None, supports_tools=True, can_stream=True
    )
    model.key = job.key
    conversation = llm.Conversation(model=model)
    tool = llm.Tool.function(job.look_up, name="look_up")

    def ask(text: str) -> str:
        return conversation.chain(text, system=SYSTEM, tools=[tool], stream=False).text()

    def stream(text: str) -> Iterator[str]:
        return iter(conversation.chain(text, system=SYSTEM, tools=[tool], stream=True))

    return Client(ask, stream)


talk({("chat", "llm"): chat})
