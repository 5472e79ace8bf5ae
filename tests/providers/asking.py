"""Asking the chat completions adapter through a real socket, and what a call with an injected fault came to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.domain.errors import ProviderError
from app.domain.types import Completion, CompletionRequest, Delta
from app.providers.base import DeltaSink, Endpoint
from app.providers.catalogue_file import ModelEntry
from app.providers.openai import OpenAIProvider
from app.providers.transport import RetryPolicy

from .server import Answer, ScriptedServer, Step, serving
from .wires import NOW, SECRET, Waits

PROMPT = "the private prompt"
REQUEST = CompletionRequest(messages=[{"role": "user", "content": PROMPT}], max_output_tokens=77)


def chat(message: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": message or {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    return {"id": "c1", "model": "served-model", "choices": [choice], "usage": usage, **fields}


OK = Answer(chat())


@asynccontextmanager
async def provider_at(
    base_url: str, sleep: Callable[[float], Awaitable[None]] | None = None, **endpoint: Any
) -> AsyncGenerator[OpenAIProvider]:
    settings: dict[str, Any] = {"model": "served-model", "timeout_s": 60.0, **endpoint}
    adapter = OpenAIProvider(
        Endpoint("main", ModelEntry(provider="openai", base_url=base_url, **settings), SECRET),
        now=lambda: NOW,
        retry=RetryPolicy(jitter=lambda ceiling_s: ceiling_s, sleep=sleep or Waits()),
    )
    try:
        yield adapter
    finally:
        await adapter.aclose()


async def answer_to(
    *script: Step, request: CompletionRequest = REQUEST, on_delta: DeltaSink | None = None, **endpoint: Any
) -> tuple[Completion, ScriptedServer]:
    async with serving(*script) as server, provider_at(server.base_url, **endpoint) as adapter:
        return await adapter.complete(request, on_delta), server


async def streamed(
    *script: Step, request: CompletionRequest = REQUEST, **endpoint: Any
) -> tuple[Completion, list[Delta], ScriptedServer]:
    """A streamed answer. Whatever else it is, its deltas are its text and its reasoning, and none is empty."""
    deltas: list[Delta] = []
    answer, server = await answer_to(*script, request=request, on_delta=deltas.append, **endpoint)
    assert "".join(delta.text for delta in deltas) == (answer.text or "")
    assert "".join(delta.reasoning for delta in deltas) == (answer.reasoning or "")
    assert Delta() not in deltas
    return answer, deltas, server


async def failure_of(*script: Step, hits: int, on_delta: DeltaSink | None = None, **endpoint: Any) -> ProviderError:
    """The error of a call, after `hits` requests were really made; its sentence gives nothing away."""
    async with serving(*script) as server, provider_at(server.base_url, **endpoint) as adapter:
        with pytest.raises(ProviderError) as raised:
            await adapter.complete(REQUEST, on_delta)
    assert server.hits == hits
    assert raised.value.attempts == hits
    assert SECRET not in raised.value.detail
    assert PROMPT not in raised.value.detail
    return raised.value


async def settled(server: ScriptedServer) -> None:
    for _ in range(3000):
        if server.open_connections == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("a connection is still open")
