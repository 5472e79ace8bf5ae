"""What every adapter promises, whatever stands behind it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from app.domain.types import CompletionRequest
from app.providers.base import Provider
from app.providers.offline import OfflineProvider
from app.providers.openai import Endpoint, OpenAIProvider

from .server import Answer, serving

SUMMARY = {
    "summary_text": "They talked.",
    "key_facts": [{"text": "The budget is 12000 USD.", "message_ids": ["m1"]}],
    "open_questions": [],
    "decisions": [],
    "action_items": [],
}
DOCUMENT = {
    "previous_summary": None,
    "messages": [{"id": "m1", "role": "user", "text": "The budget is 12000 USD. Never lock the table."}],
    "context_messages": [],
    "max_tokens": 400,
}


def words(text: str) -> int:
    return len(text.split())


@asynccontextmanager
async def offline() -> AsyncGenerator[Provider]:
    adapter = OfflineProvider(words)
    yield adapter
    await adapter.aclose()


@asynccontextmanager
async def openai() -> AsyncGenerator[Provider]:
    message = {"role": "assistant", "content": json.dumps(SUMMARY)}
    usage = {"prompt_tokens": 9, "completion_tokens": 3}
    body = {"model": "m", "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    async with serving(Answer(body)) as server:
        endpoint = Endpoint(label="main", model="m", base_url=server.base_url)
        adapter = OpenAIProvider(endpoint, now=lambda: datetime.now(UTC))
        yield adapter
        await adapter.aclose()
        assert server.hits > 0


Adapter = Callable[[], AbstractAsyncContextManager[Provider]]
every_adapter = pytest.mark.parametrize("adapter", [offline, openai])


def turn(**fields: Any) -> CompletionRequest:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the budget?"}]
    return CompletionRequest(messages=messages, max_output_tokens=200, **fields)


@every_adapter
async def test_a_turn_is_answered_with_text_a_reason_to_stop_usage_and_a_model_name(adapter: Adapter) -> None:
    async with adapter() as provider:
        answer = await provider.complete(turn())
    assert answer.text
    assert answer.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.completion_tokens > 0
    assert answer.provider_model
    assert answer.attempts == 1


@every_adapter
async def test_a_summary_is_json_whose_items_cite_messages(adapter: Adapter) -> None:
    request = CompletionRequest(
        messages=[{"role": "system", "content": "Summarize."}, {"role": "user", "content": json.dumps(DOCUMENT)}],
        max_output_tokens=400,
        purpose="summary",
        response_schema={"type": "object"},
    )
    async with adapter() as provider:
        answer = await provider.complete(request)
    assert answer.text is not None
    summary = json.loads(answer.text)
    assert set(summary) == set(SUMMARY)
    assert summary["summary_text"]
    assert all(item["message_ids"] == ["m1"] for item in summary["key_facts"])


@every_adapter
async def test_the_same_request_gets_the_same_answer_and_leaves_it_untouched(adapter: Adapter) -> None:
    request = turn()
    before = json.dumps(list(request.messages))
    async with adapter() as provider:
        assert await provider.complete(request) == await provider.complete(request)
    assert json.dumps(list(request.messages)) == before


@every_adapter
async def test_a_prompt_of_parts_tools_and_tool_results_is_accepted(adapter: Adapter) -> None:
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    request = CompletionRequest(
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Look"}, picture]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "t1", "content": "result"},
        ],
        max_output_tokens=50,
        tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    )
    async with adapter() as provider:
        answer = await provider.complete(request)
    assert answer.text is not None
