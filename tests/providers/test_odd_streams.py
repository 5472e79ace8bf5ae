"""What servers write into a stream in other words or another order, on each wire."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.domain.errors import ProviderDown, ProviderError
from app.domain.types import Completion, CompletionRequest, Delta, Usage
from app.providers.wire import MOST_ITEMS

from .asking import REQUEST
from .server import Answer, Step, Stream, serving
from .wires import ANTHROPIC, OPENAI, RESPONSES, ModelReply, Wire, event, message_event, response_event

_WIRES = pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC, RESPONSES], ids=lambda wire: wire.name)
_DONE = b"data: [DONE]\n\n"
_STOPPING = replace(REQUEST, options={"stop": ["END", "FIN"]})


async def answered(wire: Wire, step: Step, request: CompletionRequest = REQUEST) -> tuple[Completion, list[Delta]]:
    """The answer, and its deltas if it is streamed."""
    deltas: list[Delta] = []
    on_delta = deltas.append if isinstance(step, Stream) else None
    async with serving(step) as server, wire.provider_at(server.base_url) as provider:
        answer = await provider.complete(request, on_delta)
    assert not on_delta or "".join(delta.text for delta in deltas) == (answer.text or "")
    return answer, deltas


def _done(place: Any, item: dict[str, Any]) -> bytes:
    return response_event("output_item.done", output_index=place, item=item)


def _said(text: str, kind: str = "output_text") -> dict[str, Any]:
    name = "refusal" if kind == "refusal" else "text"
    return {"type": "message", "content": [{"type": kind, name: text}]}


@_WIRES
@pytest.mark.parametrize(
    "error",
    [
        b'event: error\ndata: {"code": "overloaded_error", "message": "Busy."}\n\n',
        b'data: {"type": "error", "error": {"type": "overloaded_error", "message": "Busy."}}\n\n',
        b'data: {"error": {"type": "overloaded_error", "message": "Busy."}}\n\n',
        b'data: {"error": "Busy."}\n\n',
        b"event: error\ndata: {}\n\n",
    ],
)
async def test_an_error_in_a_stream_is_one_however_it_is_marked(wire: Wire, error: bytes) -> None:
    step = Stream((*wire.begin(), *wire.fragments(ModelReply()), error))
    with pytest.raises(ProviderDown) as raised:
        await answered(wire, step)
    assert "broke off" not in raised.value.detail
    assert raised.value.partial == "Hello."


async def test_an_error_without_an_object_of_its_own_is_one_by_its_type() -> None:
    for wire in (ANTHROPIC, RESPONSES):
        with pytest.raises(ProviderError, match="HTTP 502"):
            await answered(wire, Stream((*wire.begin(), event({"type": "error", "code": "odd_error", "message": "x"}))))


@pytest.mark.parametrize("wire", [OPENAI, RESPONSES], ids=lambda wire: wire.name)
async def test_events_without_content_are_passed_over(wire: Wire) -> None:
    blank = (b"data:\n\n", b"data:   \n\n")
    step = Stream(
        (
            *blank,
            *wire.begin(),
            *blank,
            *wire.fragments(ModelReply()),
            *wire.end(ModelReply())[:-1],
            b"data:  [DONE] \n\n",
        )
    )
    answer, _ = await answered(wire, step)
    assert (answer.text, answer.finish_reason) == ("Hello.", "stop")


@_WIRES
@pytest.mark.parametrize(("model", "expected"), [("m" * 300, "m" * 256), (3, None), ("", None), ("a\x00", "a\ufffd")])
async def test_the_name_of_a_model_is_bounded_text(wire: Wire, model: object, expected: str | None) -> None:
    answer, _ = await answered(wire, Answer(wire.answer(ModelReply()) | {"model": model}))
    assert answer.provider_model == expected


@_WIRES
async def test_half_of_a_character_at_the_end_of_an_answer_is_replaced(wire: Wire) -> None:
    for step in (wire.whole(ModelReply("Hm \ud83d")), wire.stream(ModelReply("Hm \ud83d"))):
        answer, _ = await answered(wire, step)
        assert answer.text == "Hm \ufffd"


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC], ids=lambda wire: wire.name)
@pytest.mark.parametrize(("stated", "expected"), [("END", "END"), ("OTHER", None), (None, None), (7, None), ([], None)])
async def test_a_stop_sequence_is_named_if_it_was_requested(wire: Wire, stated: Any, expected: str | None) -> None:
    reply = ModelReply(ended_at=stated)
    for step in (wire.whole(reply), wire.stream(reply)):
        answer, _ = await answered(wire, step, _STOPPING)
        assert answer.stop_sequence == expected


# --- Messages API ---------------------------------------------------------------------------------------------------


def _block(index: Any, text: str = "x") -> bytes:
    return message_event("content_block_start", index=index, content_block={"type": "text", "text": text})


async def test_a_reason_to_stop_stays_and_what_follows_the_end_of_a_message_is_no_part_of_it() -> None:
    end = (
        message_event("message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": 3}),
        message_event("message_delta", delta={}, usage={"output_tokens": 4}),
        message_event("message_delta", delta=None),
        message_event("message_stop"),
        _block(9, "more"),
    )
    answer, _ = await answered(ANTHROPIC, Stream((*ANTHROPIC.begin(), *ANTHROPIC.fragments(ModelReply()), *end)))
    assert (answer.text, answer.finish_reason) == ("Hello.", "length")
    assert answer.usage == Usage(11, 4, 4, 2)


async def test_a_signature_may_begin_with_its_block_and_go_on_in_deltas() -> None:
    begun = {"type": "thinking", "thinking": "Hm", "signature": "si"}
    deltas = [{"type": "thinking_delta", "thinking": "."}, {"type": "signature_delta", "signature": "g"}]
    pieces = [message_event("content_block_start", index=0, content_block=begun)]
    pieces += [message_event("content_block_delta", index=0, delta=delta) for delta in deltas]
    step = Stream((*ANTHROPIC.begin(), *pieces, *ANTHROPIC.end(ModelReply())))
    answer, _ = await answered(ANTHROPIC, step)
    assert answer.reasoning_blocks == ({"type": "thinking", "thinking": "Hm.", "signature": "sig"},)


@pytest.mark.parametrize(("index", "is_one"), [("a", True), (None, True), (7, True), ([], False), (1.5, False)])
async def test_the_number_of_a_block_is_a_number_a_text_or_missing(index: Any, *, is_one: bool) -> None:
    grown = message_event("content_block_delta", index=index, delta={"type": "text_delta", "text": "y"})
    step = Stream((*ANTHROPIC.begin(), _block(index), grown, *ANTHROPIC.end(ModelReply())))
    if is_one:
        answer, _ = await answered(ANTHROPIC, step)
        assert answer.text == "xy"
    else:
        with pytest.raises(ProviderDown, match="number"):
            await answered(ANTHROPIC, step)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("count", "is_answer"), [(MOST_ITEMS, True), (MOST_ITEMS + 1, False)])
async def test_a_message_has_so_many_blocks_and_no_more(count: int, *, is_answer: bool, stream: bool) -> None:
    blocks = [{"type": "text", "text": "x"}] * count
    step: Step = Answer(ANTHROPIC.answer(ModelReply()) | {"content": blocks})
    if stream:
        events = b"".join(_block(at) for at in range(count))
        step = Stream((*ANTHROPIC.begin(), events, *ANTHROPIC.end(ModelReply())))
    if is_answer:
        assert (await answered(ANTHROPIC, step))[0].text == "x" * count
    else:
        with pytest.raises(ProviderDown, match="blocks"):
            await answered(ANTHROPIC, step)


# --- responses --------------------------------------------------------------------------------------------------------


async def test_items_that_had_deltas_are_not_repeated_and_others_are_paragraphs_of_their_own() -> None:
    pieces = (
        response_event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="First."),
        response_event("reasoning_summary_text.delta", output_index=0, summary_index=1, delta="Then."),
        response_event("output_text.delta", output_index=1, delta="Hel"),
        response_event("output_text.delta", output_index=1, delta=3),
        response_event("output_text.delta", output_index=1, delta="lo."),
        _done(1, _said("Hello.")),
        _done(2, _said("Bye.")),
        _done([], 3),  # type: ignore[arg-type]
    )
    answer, deltas = await answered(RESPONSES, Stream((*pieces, *RESPONSES.end(ModelReply()))))
    assert (answer.text, answer.reasoning) == ("Hello.\n\nBye.", "First.\n\nThen.")
    assert [delta.text for delta in deltas if delta.text] == ["Hel", "lo.", "\n\nBye."]


async def test_a_response_that_ends_with_the_mark_of_chat_completions_alone_has_broken_off() -> None:
    with pytest.raises(ProviderDown, match="broke off"):
        await answered(RESPONSES, Stream((*RESPONSES.begin(), _DONE)))


async def test_members_of_items_that_are_missing_or_of_another_type_are_as_if_they_were_empty() -> None:
    items: list[Any] = [
        {
            "type": "message",
            "content": [3, None, {"type": "output_text", "text": 3}, {"type": "output_text", "text": "Hi."}],
        },
        {"type": "message", "content": {"text": "x"}},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}], "encrypted_content": "\ud800"},
        {"type": "reasoning", "summary": [{"text": "First."}, 3, {"text": "Then."}], "encrypted_content": 3},
        {"type": "function_call", "call_id": "c1", "name": "look"},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": {"a": 1}},
        {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "a\x00"},
        {"type": "custom_tool_call", "call_id": "c4", "name": "patch"},
        3,
    ]
    response = RESPONSES.answer(ModelReply()) | {"output": items}
    done = tuple(_done(at, item) for at, item in enumerate(items))
    for step in (Answer(response), Stream((*done, response_event("completed", response=response)))):
        answer, _ = await answered(RESPONSES, step)
        assert (answer.text, answer.reasoning, answer.reasoning_blocks) == ("Hi.", "Hm.\n\nFirst.\n\nThen.", ())
        assert [(call.id, call.arguments) for call in answer.tool_calls] == [
            ("c1", "{}"),
            ("c2", "{}"),
            ("c3", '{"input":"a\ufffd"}'),
            ("c4", '{"input":""}'),
        ]


async def test_calls_that_a_stream_broke_off_after_are_counted_by_their_deltas() -> None:
    delta = response_event("function_call_arguments.delta", output_index=0, delta="x" * 400)
    item = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "x" * 400}
    for pieces in ((delta,), (delta, _done(0, item)), (_done(0, item),)):
        text = response_event("output_text.delta", output_index=1, delta="Hello.")
        with pytest.raises(ProviderDown) as raised:
            await answered(RESPONSES, Stream((*pieces, text), ending="cut"))
        assert raised.value.usages == (Usage(0, 100),)


@pytest.mark.parametrize("in_deltas", [False, True])
async def test_a_refusal_of_a_response_is_one_whole_and_streamed(*, in_deltas: bool) -> None:
    item = _said("I cannot.", "refusal")
    response = RESPONSES.answer(ModelReply()) | {"output": [item]}
    if in_deltas:
        pieces = (response_event("refusal.delta", output_index=0, delta="I cannot."), _done(0, item))
        steps: tuple[Step, ...] = (Stream((*pieces, response_event("completed", response=response))),)
    else:
        steps = (
            Answer(response),
            Stream((_done(0, item), response_event("completed", response=response))),
            Stream((response_event("completed", response=response),)),
        )
    for step in steps:
        answer, deltas = await answered(RESPONSES, step)
        assert (answer.text, answer.finish_reason) == ("I cannot.", "refusal")
        assert deltas == ([Delta("I cannot.", is_refusal=True)] if isinstance(step, Stream) else [])


@pytest.mark.parametrize(
    ("fields", "finish"),
    [
        ({"status": "completed"}, "stop"),
        ({"status": None}, "stop"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "incomplete", "incomplete_details": None}, "other"),
        ({"status": "in_progress"}, "other"),
        ({"status": 3, "incomplete_details": []}, "other"),
    ],
)
async def test_a_response_ended_as_its_details_or_its_status_say(fields: dict[str, Any], finish: str) -> None:
    response = RESPONSES.answer(ModelReply()) | fields
    for step in (Answer(response), Stream((response_event("completed", response=response), _DONE))):
        answer, _ = await answered(RESPONSES, step)
        assert (answer.text, answer.finish_reason) == ("Hello.", finish)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_a_response_that_failed_or_was_cancelled_is_no_answer(status: str) -> None:
    response = RESPONSES.answer(ModelReply()) | {"status": status}
    for step in (Answer(response), Stream((response_event(status, response=response),))):
        with pytest.raises(ProviderDown, match="HTTP 502"):
            await answered(RESPONSES, step)


async def test_the_total_of_a_response_counts_where_its_input_is_missing() -> None:
    for usage, expected in (
        ({"output_tokens": 3, "total_tokens": 14}, Usage(11, 3)),
        ({"input_tokens": 11, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}, Usage(11, 3, 4)),
        (
            {"input_tokens": 11, "output_tokens_details": {"reasoning_tokens": 2}, "output_tokens": 3},
            Usage(11, 3, 0, 0, 2),
        ),
        (None, None),
    ):
        answer, _ = await answered(RESPONSES, Answer(RESPONSES.answer(ModelReply()) | {"usage": usage}))
        assert answer.usage == expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("count", "is_answer"), [(MOST_ITEMS, True), (MOST_ITEMS + 1, False)])
async def test_a_response_has_so_many_items_and_no_more(count: int, *, is_answer: bool, stream: bool) -> None:
    items = [_said("Hello."), *[{"type": "other"}] * (count - 1)]
    step: Step = Answer(RESPONSES.answer(ModelReply()) | {"output": items})
    if stream:
        step = Stream((b"".join(_done(at, item) for at, item in enumerate(items)), *RESPONSES.end(ModelReply())))
    if is_answer:
        assert (await answered(RESPONSES, step))[0].text == "Hello."
    else:
        with pytest.raises(ProviderDown, match="items"):
            await answered(RESPONSES, step)
