"""Breakpoints for OpenAI's models from GPT-5.6 on, whose prompts are found in the cache only where one ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.domain.frozen import replace
from app.domain.types import CompletionRequest, JsonObject

from .prefixes import NewestMessageCache
from .server import Answer, serving
from .wires import OPENAI, RESPONSES, ModelReply, Wire

NEWER: dict[str, Any] = {"model": "gpt-5.6-terra", "prompt_cache_key": True}
MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}
WIRES = pytest.mark.parametrize("wire", [OPENAI, RESPONSES], ids=["chat", "responses"])


def said(role: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **fields}


def called(identity: str, text: str) -> list[dict[str, Any]]:
    function = {"name": "read", "arguments": "{}"}
    calls = [{"id": identity, "type": "function", "function": function}]
    return [said("assistant", "", tool_calls=calls), said("tool", text, tool_call_id=identity)]


PAST = [said("system", "Be kind."), said("system", "Goal."), said("system", "Summary."), said("user", "Hi")]
FULL = CompletionRequest(
    messages=[
        *PAST,
        said("assistant", "Hello"),
        said("user", "Read."),
        *called("c1", "Rain."),
        said("assistant", "It rains."),
        said("user", "Recalled."),
        said("user", "And?"),
    ],
    max_output_tokens=77,
    lasting_messages=9,
)


async def bodies_of(wire: Wire, *requests: CompletionRequest, **endpoint: Any) -> list[JsonObject]:
    async with (
        serving(wire.whole(ModelReply())) as server,
        wire.provider_at(server.base_url, **{**NEWER, **endpoint}) as provider,
    ):
        for request in requests:
            await provider.complete(request)
    return [seen.json for seen in server.seen]


async def test_a_chat_has_breakpoints_before_the_conversation_and_where_two_prompts_ended_of_what_lasts() -> None:
    (body,) = await bodies_of(OPENAI, FULL)

    def marked(text: str) -> list[dict[str, Any]]:
        return [{"type": "text", "text": text, **MARK}]

    sent = body["messages"]
    assert [sent[at]["content"] for at in (1, 2, 3, 7)] == [*map(marked, ("Goal.", "Summary.", "Hi", "Rain."))]
    assert json.dumps(body).count("prompt_cache_breakpoint") == 4


async def test_a_prompt_for_the_responses_api_has_the_same_breakpoints_also_in_a_tools_result() -> None:
    (body,) = await bodies_of(RESPONSES, FULL)

    def marked(text: str) -> list[dict[str, Any]]:
        return [{"type": "input_text", "text": text, **MARK}]

    assert [body["input"][at]["content"] for at in (1, 2, 3)] == [*map(marked, ("Goal.", "Summary.", "Hi"))]
    assert body["input"][7] == {"type": "function_call_output", "call_id": "c1", "output": marked("Rain.")}
    assert json.dumps(body).count("prompt_cache_breakpoint") == 4


@WIRES
async def test_turns_that_recall_read_the_conversation_before_them_from_the_cache(wire: Wire) -> None:
    past = [*PAST, said("assistant", "Hello " * 4_000)]
    requests: list[CompletionRequest] = []
    for number in range(6):
        asked = [said("user", f"Recalled for {number}."), said("user", f"And {number}?")]
        requests.append(replace(FULL, messages=[*past, *asked], lasting_messages=len(past)))
        past += [asked[-1], said("assistant", "Noted.")]
    cache = NewestMessageCache()
    fresh = [cache.tokens_not_read(body) for body in await bodies_of(wire, *requests)]
    assert max(fresh[2:]) < fresh[0] / 10


@WIRES
async def test_another_summary_leaves_what_is_before_it_in_the_cache(wire: Wire) -> None:
    long = said("system", "Be kind. " * 4_000)
    first = replace(FULL, messages=[long, *FULL.messages[1:]])
    second = replace(
        first, messages=[long, PAST[1], said("system", "Another."), *FULL.messages[5:]], lasting_messages=7
    )
    cache = NewestMessageCache()
    begun = replace(first, messages=[long, *FULL.messages[1:4]], lasting_messages=4)
    fresh = [cache.tokens_not_read(body) for body in await bodies_of(wire, begun, first, second)]
    assert fresh[2] < fresh[0] / 10


@WIRES
@pytest.mark.parametrize(
    "endpoint",
    [
        {"model": "gpt-5.5"},
        {"model": "gpt-4o"},
        {"model": "gpt-35-turbo"},
        {"model": "llama-5.6"},
        {"prompt_cache_key": False},
    ],
    ids=str,
)
async def test_other_models_and_servers_without_the_cache_key_get_no_breakpoints(
    wire: Wire, endpoint: dict[str, Any]
) -> None:
    (body,) = await bodies_of(wire, FULL, **endpoint)
    assert "prompt_cache_breakpoint" not in json.dumps(body)


@WIRES
@pytest.mark.parametrize("model", ["gpt-5.6", "openai/gpt-5.7-mini", "GPT-6.2", "gpt-6-astra"])
async def test_newer_models_get_breakpoints_by_their_names(wire: Wire, model: str) -> None:
    (body,) = await bodies_of(wire, FULL, model=model)
    assert "prompt_cache_breakpoint" in json.dumps(body)


@WIRES
async def test_a_server_that_refuses_breakpoints_is_called_without_and_that_is_remembered(wire: Wire) -> None:
    message = "Unknown parameter: 'messages[1].content[0].prompt_cache_breakpoint'."
    refusal, fine = Answer({"error": {"message": message}}, 400), wire.whole(ModelReply())
    async with serving(refusal, fine, fine) as server, wire.provider_at(server.base_url, **NEWER) as provider:
        for _ in range(2):
            await provider.complete(FULL)
    marked = ["prompt_cache_breakpoint" in json.dumps(seen.json) for seen in server.seen]
    assert marked == [True, False, False]


@WIRES
async def test_a_prompt_without_a_place_for_one_is_sent_as_to_other_models(wire: Wire) -> None:
    alone = replace(FULL, messages=[said("user", "Hi")], lasting_messages=1)
    (newer,) = await bodies_of(wire, alone)
    (older,) = await bodies_of(wire, alone, model="gpt-5.5")
    assert newer == {**older, "model": newer["model"]}
