"""What every adapter promises, whatever stands behind it, asked plainly and streamed.

Offline takes part in what needs no network; the faults are played by real HTTP servers and are seen to fire.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from app.domain.content import JsonMessages, canonical_bytes
from app.domain.errors import (
    ProviderDown,
    ProviderError,
    ProviderOverflow,
    ProviderRateLimited,
    ProviderRefused,
    ProviderTimeout,
)
from app.domain.types import Completion, CompletionRequest, Delta, ToolCall, Usage
from app.providers.base import Provider
from app.providers.offline import OfflineProvider

from .asking import settled
from .server import Answer, Raw, Reset, ScriptedServer, Seen, Step, Stream, serving
from .wires import ANTHROPIC, OPENAI, RESPONSES, SECRET, ModelReply, Waits, Wire, event

PROMPT = "the private prompt"
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


def turn(**fields: Any) -> CompletionRequest:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    return CompletionRequest(messages=messages, max_output_tokens=200, **fields)


@dataclass(frozen=True)
class Way:
    """How to ask: one adapter, plainly or streamed."""

    wire: Wire
    streamed: bool

    def answer(self, model_reply: ModelReply) -> Answer | Stream:
        return self.wire.stream(model_reply) if self.streamed else self.wire.whole(model_reply)


async def ask(provider: Provider, streamed: bool, request: CompletionRequest) -> tuple[Completion, list[Delta]]:
    """An answer. Streamed, its deltas are its text and its reasoning, and none is empty."""
    if not streamed:
        return await provider.complete(request), []
    deltas: list[Delta] = []
    answer = await provider.complete(request, deltas.append)
    assert "".join(delta.text for delta in deltas) == (answer.text or "")
    assert "".join(delta.reasoning for delta in deltas) == (answer.reasoning or "")
    assert Delta() not in deltas
    return answer, deltas


async def answer_to(
    way: Way, *script: Step, request: CompletionRequest | None = None, **endpoint: Any
) -> tuple[Completion, ScriptedServer]:
    async with serving(*script) as server, way.wire.provider_at(server.base_url, **endpoint) as provider:
        answer, _ = await ask(provider, way.streamed, request or turn())
    return answer, server


async def failure_of(way: Way, *script: Step, hits: int, **endpoint: Any) -> ProviderError:
    """The error of a call, after `hits` requests were really made; its sentence gives nothing away."""
    async with serving(*script) as server, way.wire.provider_at(server.base_url, **endpoint) as provider:
        with pytest.raises(ProviderError) as raised:
            await ask(provider, way.streamed, turn())
    assert server.hits == hits
    assert raised.value.attempts == hits
    assert SECRET not in raised.value.detail
    assert PROMPT not in raised.value.detail
    return raised.value


WIRES = (OPENAI, ANTHROPIC, RESPONSES)
WAYS = [Way(wire, streamed) for wire in WIRES for streamed in (False, True)]
every_way = pytest.mark.parametrize(
    "way", WAYS, ids=[f"{w.wire.name}-{'stream' if w.streamed else 'plain'}" for w in WAYS]
)
every_stream = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


@asynccontextmanager
async def offline() -> AsyncGenerator[Provider]:
    adapter = OfflineProvider(lambda text: len(text.split()))
    yield adapter
    await adapter.aclose()


def remote(wire: Wire, streamed: bool) -> Callable[[], AbstractAsyncContextManager[Provider]]:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[Provider]:
        model_reply = ModelReply(json.dumps(SUMMARY))
        async with serving(wire.stream(model_reply) if streamed else wire.whole(model_reply)) as server:
            async with wire.provider_at(server.base_url) as provider:
                yield provider
            assert server.hits > 0

    return opened


Adapter = Callable[[], AbstractAsyncContextManager[Provider]]
every_adapter = pytest.mark.parametrize(
    ("adapter", "streamed"),
    [
        pytest.param(offline, False, id="offline-plain"),
        pytest.param(offline, True, id="offline-stream"),
        *(
            pytest.param(remote(wire, streamed), streamed, id=f"{wire.name}-{'stream' if streamed else 'plain'}")
            for wire in WIRES
            for streamed in (False, True)
        ),
    ],
)


@every_adapter
async def test_a_turn_is_answered_with_text_a_reason_to_stop_usage_and_a_model_name(
    adapter: Adapter, streamed: bool
) -> None:
    async with adapter() as provider:
        answer, deltas = await ask(provider, streamed, turn())
    assert answer.text
    assert answer.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.completion_tokens > 0
    assert answer.provider_model
    assert answer.attempts == 1
    assert len(deltas) > 1 or not streamed


@every_adapter
async def test_a_summary_is_json_whose_items_cite_messages(adapter: Adapter, streamed: bool) -> None:
    request = CompletionRequest(
        messages=[{"role": "system", "content": "Summarize."}, {"role": "user", "content": json.dumps(DOCUMENT)}],
        max_output_tokens=400,
        purpose="summary",
        response_schema={"type": "object"},
    )
    async with adapter() as provider:
        answer, _ = await ask(provider, streamed, request)
    assert answer.text is not None
    summary = json.loads(answer.text)
    assert set(summary) == set(SUMMARY)
    assert summary["summary_text"]
    assert all(item["message_ids"] == ["m1"] for item in summary["key_facts"])


@every_adapter
async def test_the_same_request_gets_the_same_answer_and_leaves_it_untouched(adapter: Adapter, streamed: bool) -> None:
    request = turn(tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
    before = json.dumps([list(request.messages), list(request.tools)])
    async with adapter() as provider:
        assert await ask(provider, streamed, request) == await ask(provider, streamed, request)
    assert json.dumps([list(request.messages), list(request.tools)]) == before


@every_adapter
async def test_a_prompt_of_parts_tools_and_tool_results_is_accepted(adapter: Adapter, streamed: bool) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}
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
        answer, _ = await ask(provider, streamed, request)
    assert answer.text is not None


@every_way
async def test_reasoning_text_and_parallel_calls_are_distinguished(way: Way) -> None:
    calls = (ToolCall("t1", "f", '{"a": 1}'), ToolCall("t2", "g", '{"b": "é😀"}'))
    answer, _ = await answer_to(way, way.answer(ModelReply("Let me see.", "They ask for both.", calls)))
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("Let me see.", "They ask for both.", "tool_calls")
    assert [(call.id, call.name, json.loads(call.arguments)) for call in answer.tool_calls] == [
        (call.id, call.name, json.loads(call.arguments)) for call in calls
    ]


@every_way
async def test_an_answer_that_only_calls_a_tool_has_no_text(way: Way) -> None:
    answer, _ = await answer_to(way, way.answer(ModelReply("", calls=(ToolCall("t1", "f", "{}"),))))
    assert (answer.text, answer.tool_calls) == (None, (ToolCall("t1", "f", "{}"),))


@every_way
async def test_the_prompt_tokens_include_those_that_a_cache_had_a_part_in(way: Way) -> None:
    answer, _ = await answer_to(way, way.answer(ModelReply()))
    written = 2 if way.wire is ANTHROPIC else 0
    assert answer.usage == Usage(11, 3, cached_prompt_tokens=4, cache_write_prompt_tokens=written)


@every_way
async def test_an_answer_that_was_cut_for_its_length_is_an_honest_answer(way: Way) -> None:
    answer, _ = await answer_to(way, way.answer(ModelReply("Hel", stop=way.wire.length)))
    assert (answer.text, answer.finish_reason) == ("Hel", "length")


@every_way
async def test_nul_and_lone_surrogates_are_replaced_so_that_the_answer_can_be_stored(way: Way) -> None:
    calls = (ToolCall("t\0", "f\ud800", '{"a": "\\u0000"}'),)
    answer, _ = await answer_to(way, way.answer(ModelReply("a\0b\ud800c😀", "x\udfff", calls)))
    assert (answer.text, answer.reasoning) == ("a\ufffdb\ufffdc😀", "x\ufffd")
    assert answer.tool_calls[0].id == "t\ufffd"
    assert answer.tool_calls[0].name == "f_"
    assert "\0" not in answer.tool_calls[0].arguments
    assert answer.reasoning_blocks == ()


@every_way
@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 422])
async def test_a_refusal_is_not_called_again(way: Way, status: int) -> None:
    body = {"type": "error", "error": {"message": f"{PROMPT} {SECRET}", "type": "invalid_request_error"}}
    error = await failure_of(way, Answer(body, status), way.answer(ModelReply()), hits=1)
    assert isinstance(error, ProviderRefused)
    assert error.status == status
    assert error.partial is None
    assert "invalid_request_error" in error.detail


@every_way
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_a_passing_fault_is_called_again_three_times_in_all(way: Way, status: int) -> None:
    error = await failure_of(way, Answer({"error": {"message": PROMPT}}, status), hits=3)
    assert type(error) is (ProviderRateLimited if status == 429 else ProviderDown)
    assert error.status == status


@every_way
@pytest.mark.parametrize(
    "fault", [Reset(), Answer({}, 503), Answer(b"<html>", 502, content_type="text/html"), Raw(b"SSH-2.0\r\n\r\n")]
)
async def test_two_faults_and_then_an_answer_make_an_answer(way: Way, fault: Step) -> None:
    waits = Waits()
    answer, server = await answer_to(way, fault, fault, way.answer(ModelReply()), sleep=waits)
    assert (answer.text, answer.attempts, server.hits) == ("Hello.", 3, 3)
    assert waits.waits_s == [0.5, 1.0]


@every_way
async def test_a_body_whose_chunks_break_off_is_called_for_again_at_once(way: Way) -> None:
    """If the chunk came later than the head, the call waited for its deadline."""
    kind = "text/event-stream" if way.streamed else "application/json"
    broken = Stream((b"\n\n",), ending="broken", pause_s=0.02, content_type=kind)
    answer, server = await answer_to(way, broken, way.answer(ModelReply()), timeout_s=10.0)
    assert (answer.text, answer.attempts, server.hits) == ("Hello.", 2, 2)


@every_way
async def test_a_server_that_hangs_up_or_does_not_listen_is_not_said_to_be_slow(way: Way) -> None:
    """Both were reported as `ConnectTimeout`."""
    gone = await failure_of(way, Reset(), hits=3)
    async with serving(Reset()) as server:
        nobody = server.base_url
    async with way.wire.provider_at(nobody) as provider:
        with pytest.raises(ProviderDown) as refused:
            await ask(provider, way.streamed, turn())
    assert "cannot be reached (ServerDisconnectedError)" in gone.detail
    assert "cannot be reached (ClientConnectorError). Check its base_url" in refused.value.detail


@every_way
async def test_a_retry_after_is_waited_for(way: Way) -> None:
    waits = Waits()
    slow = Answer({}, 429, headers={"retry-after": "3"})
    _, server = await answer_to(way, slow, way.answer(ModelReply()), sleep=waits, timeout_s=60.0)
    assert (waits.waits_s, server.hits) == ([3.0], 2)


@every_way
@pytest.mark.parametrize("body", [b"not json", b"", b"[]", b"null", b"{}", b"[" * 200_000])
async def test_an_answer_that_is_none_is_down(way: Way, body: bytes) -> None:
    error = await failure_of(way, Answer(body), way.answer(ModelReply()), hits=1)
    assert isinstance(error, ProviderDown)


@every_way
async def test_a_prompt_that_is_too_long_is_reported_with_both_figures(way: Way) -> None:
    body = {"error": {"type": "invalid_request_error", "message": "prompt is too long: 208732 tokens > 200000 maximum"}}
    error = await failure_of(way, Answer(body, 400), way.answer(ModelReply()), hits=1)
    assert isinstance(error, ProviderOverflow)
    stated = error.stated
    assert (stated.limit_tokens, stated.requested_tokens, stated.prompt_tokens) == (
        200_000,
        208_732,
        208_732,
    )


@every_way
async def test_a_redirect_is_not_followed_and_a_cookie_is_not_kept(way: Way) -> None:
    async with serving(way.answer(ModelReply())) as elsewhere:
        away = Answer(b"", 307, headers={"location": f"{elsewhere.base_url}/x", "set-cookie": "a=b; Path=/"})
        error = await failure_of(way, away, hits=1)
        assert elsewhere.hits == 0
    assert isinstance(error, ProviderRefused)


@every_way
async def test_the_deadline_holds_for_the_whole_call_and_closes_its_connection(way: Way) -> None:
    silent = way.wire.stream(ModelReply(), pause_s=0.7) if way.streamed else Answer({}, delay_s=30)
    async with serving(silent) as server, way.wire.provider_at(server.base_url, timeout_s=1.0) as provider:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(ProviderTimeout) as raised:
            await ask(provider, way.streamed, turn())
        assert asyncio.get_running_loop().time() - begun < 20  # seconds; the server is silent for 30
        assert (server.hits, raised.value.attempts) == (1, 1)
        await settled(server)


@every_way
async def test_a_cancelled_call_leaves_no_connection_behind(way: Way) -> None:
    async with serving(Answer({}, delay_s=30)) as server, way.wire.provider_at(server.base_url) as provider:
        call = asyncio.ensure_future(ask(provider, way.streamed, turn()))
        await server.arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await settled(server)


@every_way
async def test_calls_one_after_the_other_share_a_connection(way: Way) -> None:
    async with serving(way.answer(ModelReply())) as server, way.wire.provider_at(server.base_url) as provider:
        for _ in range(4):
            await ask(provider, way.streamed, turn())
    assert (server.hits, server.connections) == (4, 1)


OVERLOADED = event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error")


@every_stream
async def test_a_cancelled_stream_closes_its_connection(wire: Wire) -> None:
    begun = Stream((*wire.begin(), *wire.fragments(ModelReply())), ending="open")
    async with serving(begun) as server, wire.provider_at(server.base_url) as provider:
        first = asyncio.Event()
        call = asyncio.ensure_future(provider.complete(turn(), lambda _: first.set()))
        await first.wait()
        assert server.open_connections == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await settled(server)


@every_stream
@pytest.mark.parametrize("ending", ["closed", "cut", "overloaded", "too long"])
async def test_a_stream_that_breaks_after_a_delta_is_not_called_again_and_carries_what_had_come(
    wire: Wire, ending: str
) -> None:
    too_long = event({"type": "error", "error": {"message": "prompt is too long: 2 tokens > 1 maximum"}}, "error")
    last = {"overloaded": (OVERLOADED,), "too long": (too_long,)}.get(ending, ())
    pieces = (*wire.begin(), *wire.fragments(ModelReply("Hel")), *last)
    broken = Stream(pieces, ending="cut" if ending == "cut" else "closed")
    error = await failure_of(Way(wire, streamed=True), broken, wire.stream(ModelReply()), hits=1)
    assert type(error) is (ProviderOverflow if ending == "too long" else ProviderDown)
    assert error.partial == "Hel"
    assert "Hel" not in str(error.stored())


@every_stream
async def test_a_deadline_that_passes_in_a_stream_reports_what_had_come(wire: Wire) -> None:
    begun = Stream((*wire.begin(), *wire.fragments(ModelReply("Hel"))), ending="open")
    error = await failure_of(Way(wire, streamed=True), begun, hits=1, timeout_s=2.0)
    assert isinstance(error, ProviderTimeout)
    assert error.partial == "Hel"


@every_stream
@pytest.mark.parametrize("ending", ["closed", "cut", "overloaded", "a call alone"])
async def test_a_stream_that_breaks_before_its_first_delta_is_called_again(wire: Wire, ending: str) -> None:
    call_fragments = (
        wire.fragments(ModelReply("", calls=(ToolCall("t1", "f", "{}"),))) if ending == "a call alone" else ()
    )
    last = (OVERLOADED,) if ending == "overloaded" else ()
    broken = Stream((*wire.begin(), *call_fragments, *last), ending="cut" if ending == "cut" else "closed")
    answer, server = await answer_to(Way(wire, streamed=True), broken, broken, wire.stream(ModelReply()))
    assert (answer.text, answer.tool_calls, answer.attempts, server.hits) == ("Hello.", (), 3, 3)


@every_stream
@pytest.mark.parametrize("size", [1, 3, 17])
async def test_it_does_not_matter_where_a_stream_is_cut_nor_how_its_lines_end(wire: Wire, size: int) -> None:
    model_reply = ModelReply("naïve 😀.", "why 😀", (ToolCall("t1", "f", '{"a": "é"}'),))
    whole = b": hi\n\n".join(wire.stream(model_reply).pieces).decode().replace("\n", "\r\n").encode()
    cut = Stream([whole[place : place + size] for place in range(0, len(whole), size)])
    answer, _ = await answer_to(Way(wire, streamed=True), cut)
    plain, _ = await answer_to(Way(wire, streamed=False), wire.whole(model_reply))
    assert answer == plain


@every_stream
async def test_a_server_that_got_a_request_for_a_stream_and_answers_at_once_is_understood(wire: Wire) -> None:
    answer, _ = await answer_to(Way(wire, streamed=True), wire.whole(ModelReply("Hello.", "why")))
    assert (answer.text, answer.reasoning) == ("Hello.", "why")


@every_stream
async def test_a_stream_whose_model_stated_why_it_stopped_is_whole_without_its_end_mark(wire: Wire) -> None:
    without = Stream([*wire.stream(ModelReply()).pieces][:-1], ending="cut")
    answer, server = await answer_to(Way(wire, streamed=True), without)
    assert (answer.text, answer.finish_reason, answer.usage is not None, server.hits) == ("Hello.", "stop", True, 1)


@every_way
async def test_an_answer_that_only_claims_to_call_tools_has_ended(way: Way) -> None:
    """Clients that go by the reason would wait for calls, or make an empty request for their results."""
    claimed = {OPENAI: "tool_calls", ANTHROPIC: "tool_use", RESPONSES: ""}[way.wire]
    answer, _ = await answer_to(way, way.answer(ModelReply("Done.", stop=claimed)))
    assert (answer.text, answer.tool_calls, answer.finish_reason) == ("Done.", (), "stop")


def _arguments_in(body: Any) -> list[str]:
    """The arguments of calls in a request; Anthropic has objects in their place."""
    calls = [call for message in body.get("messages", ()) for call in message.get("tool_calls", ())]
    items = [item["arguments"] for item in body.get("input", ()) if "arguments" in item]
    return [call["function"]["arguments"] for call in calls] + items


@every_way
@pytest.mark.parametrize(("status", "times"), [(400, 1), (500, 1), (400, 30_000)])
async def test_a_session_survives_a_call_that_a_model_wrote_wrongly(way: Way, status: int, times: int) -> None:
    """Servers whose chat templates parse the arguments of earlier calls (vLLM, SGLang, llama.cpp) refuse every later
    prompt with such a call, by a sentence of their JSON parser. Arguments that they take are sent as they are."""

    def play(request: Seen) -> Step:
        for given in _arguments_in(request.json):
            try:
                assert isinstance(json.loads(given), dict)
            except (ValueError, AssertionError):
                said = "Unterminated string starting at: line 1 column 7 (char 6)"
                return Answer({"error": {"message": said, "type": "BadRequestError", "code": status}}, status)
        return way.answer(ModelReply())

    named = {"look_up": '{"id": "1', "list": '["a"]', "read": '{"id":  2}', "stop": " "}
    named["copy"] = '{ "malformed_arguments": "a model may imitate it" }'
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": named[name]}} for name in named]
    results = [{"role": "tool", "content": "Not understood.", "tool_call_id": name} for name in named]
    asked = {"role": "user", "content": times * PROMPT}
    request = CompletionRequest([asked, {"role": "assistant", "content": None, "tool_calls": calls}, *results], 9)
    kept = JsonMessages([canonical_bytes(request.messages)[1:-1]], len(request.messages))
    async with serving(play) as server, way.wire.provider_at(server.base_url) as provider:
        for given in (request, replace(request, messages=kept)):
            answer, _ = await ask(provider, way.streamed, given)
            assert answer.text == "Hello."
    assert server.hits == (2 if way.wire is ANTHROPIC else 3), "that the server parses them was forgotten"
    wrapped = [f'{{"malformed_arguments":{json.dumps(named[name])}}}' for name in ("look_up", "list")]
    as_sent = [] if way.wire is ANTHROPIC else [*wrapped, named["read"], "{}", named["copy"]]
    assert _arguments_in(server.seen[-1].json) == as_sent
