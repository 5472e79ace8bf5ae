"""Members of an answer that are missing, of another type, twice there, or in contradiction with each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from app.domain.errors import ProviderDown
from app.domain.types import Completion, Delta, ToolCall, Usage
from app.providers.wire import MOST_ITEMS

from .asking import REQUEST, answer_to, chat, failure_of, streamed
from .server import Answer, Stream, serving
from .wires import ANTHROPIC, ModelReply, block_events, event, message_event

_STOP = (event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}), b"data: [DONE]\n\n")


def chunk(delta: dict[str, Any], index: Any = 0) -> bytes:
    return event({"choices": [{"index": index, "delta": delta}]})


async def message_of(blocks: Sequence[Any], *, stream: bool = False, **fields: Any) -> Completion:
    """An answer of the Messages API with these blocks."""
    whole = ANTHROPIC.answer(ModelReply()) | {"content": blocks} | fields
    began = (event for at, block in enumerate(blocks) for event in block_events(at, block, ()))
    pieces = (*ANTHROPIC.begin(), *began, *ANTHROPIC.end(ModelReply()))
    step = Stream(pieces) if stream else Answer(whole)
    async with serving(step) as server, ANTHROPIC.provider_at(server.base_url) as provider:
        return await provider.complete(REQUEST, (lambda _: None) if stream else None)


# --- chat completions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", [None, "", "No.", 3, [], {"text": "No."}], ids=repr)
async def test_an_answer_with_text_is_no_refusal_whatever_its_refusal_is(refusal: object) -> None:
    message = {"role": "assistant", "content": "Hello.", "refusal": refusal}
    whole, _ = await answer_to(Answer(chat(message)))
    in_stream, _, _ = await streamed(Stream((chunk(message), *_STOP)))
    for answer in (whole, in_stream):
        assert (answer.text, answer.finish_reason) == ("Hello.", "stop")


@pytest.mark.parametrize("refusal", [3, [], {"text": "No."}, True], ids=repr)
async def test_a_refusal_that_is_no_text_is_none(refusal: object) -> None:
    message = {"role": "assistant", "content": None, "refusal": refusal}
    whole, _ = await answer_to(Answer(chat(message)))
    in_stream, deltas, _ = await streamed(Stream((chunk(message), *_STOP)))
    assert (whole.text, whole.finish_reason) == (in_stream.text, in_stream.finish_reason) == ("", "stop")
    assert deltas == []


async def test_other_choices_than_the_first_are_no_part_of_an_answer() -> None:
    pieces = (chunk({"content": "Hel"}), chunk({"content": "other"}, 1), chunk({"content": "lo."}, None), *_STOP)
    answer, deltas, _ = await streamed(Stream(pieces))
    assert (answer.text, deltas) == ("Hello.", [Delta("Hel"), Delta("lo.")])


async def test_the_first_choice_of_a_whole_answer_is_it_whatever_its_index_is() -> None:
    indexes: tuple[Any, ...] = (0, 1, None, "0", [])
    for index in indexes:
        choice: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": "Hello."},
            "finish_reason": "length",
        }
        answer, _ = await answer_to(Answer(chat(choices=[choice, {**choice, "message": {"content": "other"}}])))
        assert (answer.text, answer.finish_reason) == ("Hello.", "length")


@pytest.mark.parametrize("delta", [None, [], [1], 3, "Hi."], ids=repr)
async def test_a_delta_that_is_no_object_has_nothing(delta: Any) -> None:
    answer, deltas, _ = await streamed(Stream((chunk({"content": "Hello."}), chunk(delta), *_STOP)))
    assert (answer.text, len(deltas)) == ("Hello.", 1)


@pytest.mark.parametrize("calls", ["look", {"name": "look"}, 3, True], ids=repr)
async def test_tool_calls_that_are_no_list_are_malformed(calls: object) -> None:
    message = {"role": "assistant", "content": "Hello.", "tool_calls": calls}
    assert isinstance(await failure_of(Answer(chat(message)), hits=1), ProviderDown)
    step = Stream((chunk({"tool_calls": calls}), *_STOP))
    assert isinstance(await failure_of(step, hits=1, on_delta=lambda _: None), ProviderDown)


async def test_the_calls_of_a_whole_answer_are_as_many_as_it_lists_whatever_their_indexes_are() -> None:
    calls = [{"index": 0, "function": {"name": name, "arguments": "{"}} for name in ("look", "see")]
    answer, _ = await answer_to(Answer(chat({"role": "assistant", "content": None, "tool_calls": calls})))
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("look", "{"), ("see", "{")]


async def test_a_call_of_a_custom_tool_is_put_together_from_its_fragments() -> None:
    first = {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "patch", "input": "*** Be"}}
    later = {"index": 0, "custom": {"input": 'gin\x00 "Patch"'}}
    answer, _, _ = await streamed(Stream((chunk({"tool_calls": [first]}), chunk({"tool_calls": [later]}), *_STOP)))
    whole = {**first, "custom": {"name": "patch", "input": '*** Begin\x00 "Patch"'}}
    at_once, _ = await answer_to(Answer(chat({"role": "assistant", "content": None, "tool_calls": [whole]})))
    assert answer.tool_calls == at_once.tool_calls
    assert answer.tool_calls == (ToolCall("c1", "patch", '{"input":"*** Begin\ufffd \\"Patch\\""}'),)


async def test_members_of_a_call_that_are_of_another_type_are_as_if_they_were_missing() -> None:
    calls = [
        {"index": [], "id": 7, "function": {"name": "look", "arguments": {"a": 1}}, "extra_content": [1]},
        {"index": {}, "id": None, "function": {"name": "see", "arguments": None}, "extra_content": {"google": 3}},
    ]
    pieces = (*(chunk({"tool_calls": [call]}) for call in calls), *_STOP)
    answer, _, _ = await streamed(Stream(pieces))
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("look", '{"a": 1}'), ("see", "{}")]
    assert answer.reasoning_blocks == ()


async def test_a_signature_that_cannot_be_stored_is_not_kept() -> None:
    call = {"id": "c1", "function": {"name": "look", "arguments": "{}"}}
    for signature, kept in (("c2ln", 1), ("\ud800", 0), ("a\x00", 0), (3, 0)):
        signed = {**call, "extra_content": {"google": {"thought_signature": signature}}}
        answer, _ = await answer_to(Answer(chat({"content": None, "tool_calls": [signed]})))
        assert len(answer.reasoning_blocks) == kept


@pytest.mark.parametrize(
    "parts",
    [
        {"content": "Hi."},
        {"reasoning_content": "Why."},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": "{}"}}]},
    ],
    ids=lambda parts: next(iter(parts)),
)
async def test_a_whole_message_at_the_end_repeats_nothing_whatever_its_deltas_had(parts: dict[str, Any]) -> None:
    choice = {"index": 0, "message": {"role": "assistant", **parts}, "finish_reason": "stop"}
    pieces = (chunk(parts), chunk({"role": "assistant"}), event({"choices": [choice]}), b"data: [DONE]\n\n")
    answer, _, _ = await streamed(Stream(pieces))
    text, reasoning = parts.get("content", ""), parts.get("reasoning_content")
    assert (answer.text or "", answer.reasoning, len(answer.tool_calls)) == (
        text,
        reasoning,
        len(parts.get("tool_calls", ())),
    )


@pytest.mark.parametrize(
    "fragments",
    [
        # The id in the first fragment alone, the name in each; then the other way round; then an empty last fragment.
        [{"id": "c1", "name": "look", "arguments": '{"a"'}, {"name": "look", "arguments": ": 1}"}],
        [{"name": "look", "arguments": '{"a"'}, {"id": "c1", "name": "look", "arguments": ": 1}"}],
        [{"id": "c1", "name": "look", "arguments": '{"a": 1}'}, {"name": "look", "arguments": ""}],
        [{"id": "c1", "name": "look", "arguments": '{"a": 1}'}, {"name": "look", "arguments": None}],
        [{"id": "c1", "arguments": '{"a"'}, {"id": "c1", "name": "look", "arguments": ": 1}"}],
    ],
)
async def test_fragments_that_name_their_tool_again_are_one_call(fragments: list[dict[str, Any]]) -> None:
    pieces: list[bytes] = []
    for fragment in fragments:
        named = {name: fragment[name] for name in ("name", "arguments") if name in fragment}
        pieces.append(chunk({"tool_calls": [{"index": 0, "id": fragment.get("id"), "function": named}]}))
    answer, _, _ = await streamed(Stream((*pieces, *_STOP)))
    assert answer.tool_calls == (ToolCall("c1", "look", '{"a": 1}'),)


async def test_openrouters_details_are_kept_as_one_block_for_each_type_and_index() -> None:
    def detail(kind: str, index: Any = 0, **fields: Any) -> dict[str, Any]:
        return {"type": f"reasoning.{kind}", "index": index, **fields}

    in_pieces = [
        [detail("summary", text=None, summary="First. ", id="r1"), detail("text", 1, text="Then ", format="f")],
        [detail("summary", summary="Second.", id="r2", more="x"), detail("text", 1, text="this.")],
        [detail("text", 1, signature="sig"), detail("encrypted", 2, data="a"), detail("encrypted", 2, data="b")],
        [detail("text", [], text="Apart."), {"type": "reasoning.text", "text": " Alike."}, None, 3],
    ]
    kept = (
        detail("summary", summary="First. Second.", id="r1"),
        detail("text", 1, text="Then this.", format="f", signature="sig"),
        detail("encrypted", 2, data="a"),
        detail("encrypted", 2, data="b"),
        {"type": "reasoning.text", "text": "Apart. Alike."},
    )
    pieces = (chunk({"reasoning_details": details}) for details in in_pieces)
    stream = Stream((*pieces, chunk({"content": "Hello."}), *_STOP))
    answer, _, _ = await streamed(stream, return_reasoning="signatures")
    assert answer.reasoning_blocks == kept
    assert answer.reasoning == "First. Then Second.this.Apart. Alike."
    message = {"role": "assistant", "content": "Hello.", "reasoning_details": list(kept)}
    whole, _ = await answer_to(Answer(chat(message)), return_reasoning="signatures")
    assert whole.reasoning_blocks == kept
    assert whole.reasoning == "First. Second.Then this.Apart. Alike."


@pytest.mark.parametrize("broken", ["a\x00", "\ud800"])
async def test_details_that_cannot_be_stored_as_they_are_are_not_kept(broken: str) -> None:
    details = [{"type": "reasoning.text", "text": "Hm."}, {"type": "reasoning.text", "signature": broken}]
    message = {"role": "assistant", "content": "Hello.", "reasoning_details": details}
    answer, _ = await answer_to(Answer(chat(message)), return_reasoning="signatures")
    assert (answer.reasoning, answer.reasoning_blocks) == ("Hm.", ())


@pytest.mark.parametrize(("count", "code"), [(MOST_ITEMS, None), (MOST_ITEMS + 1, "provider_error")])
async def test_an_answer_has_so_many_details_and_no_more(count: int, code: str | None) -> None:
    details = [{"type": "reasoning.text", "index": at, "text": "x"} for at in range(count)]
    halves = (chunk({"reasoning_details": half}) for half in (details[: count // 2], details[count // 2 :]))
    step = Stream((*halves, chunk({"content": "Hello."}), *_STOP))
    if code is None:
        answer, _, _ = await streamed(step, return_reasoning="signatures")
        assert len(answer.reasoning_blocks) == count
    else:
        error = await failure_of(step, hits=1, on_delta=lambda _: None, return_reasoning="signatures")
        assert (error.code, "reasoning details" in error.detail) == (code, True)


async def test_details_may_be_as_large_as_an_answer_and_no_larger() -> None:
    details = [{"type": "reasoning.encrypted", "data": "x" * 2**19}] * 9
    pieces = (chunk({"reasoning_details": [detail]}) for detail in details)
    step = Stream((*pieces, chunk({"content": "Hello."}), *_STOP))
    error = await failure_of(step, hits=1, on_delta=lambda _: None, return_reasoning="signatures")
    assert "characters" in error.detail


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ([], None),
        ({}, None),
        ({"completion_tokens": 3}, None),
        ({"completion_tokens": 3, "total_tokens": 2}, None),
        ({"completion_tokens": 3, "total_tokens": 3}, Usage(0, 3)),
        ({"completion_tokens": 3, "total_tokens": 14}, Usage(11, 3)),
        ({"prompt_tokens": 11}, Usage(11, 0)),
        ({"prompt_tokens": 11, "total_tokens": 14}, Usage(11, 3)),
        ({"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 5}, Usage(11, 3)),
        ({"prompt_tokens": 11.0, "completion_tokens": 3.5}, Usage(11, 0)),
        ({"prompt_tokens": True, "completion_tokens": 3}, None),
        ({"prompt_tokens": 2**31 - 1, "completion_tokens": 2**31}, Usage(2**31 - 1, 0)),
        ({"prompt_tokens": 11, "prompt_tokens_details": {"cached_tokens": 40}}, Usage(11, 0, 11)),
        (
            {"prompt_tokens": 11, "prompt_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 9}},
            Usage(11, 0, 8, 3),
        ),
        (
            {"prompt_tokens": 11, "prompt_tokens_details": {"cached_tokens": None, "cache_write_tokens": 2}},
            Usage(11, 0, 0, 2),
        ),
        (
            {"prompt_tokens": 11, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 5}},
            Usage(11, 3, reasoning_completion_tokens=3),
        ),
        ({"prompt_tokens": 11, "completion_tokens_details": [], "prompt_tokens_details": 3}, Usage(11, 0)),
    ],
)
async def test_usage_is_what_the_figures_allow_and_none_without_a_prompt(usage: Any, expected: Usage | None) -> None:
    whole, _ = await answer_to(Answer(chat(usage=usage)))
    last = event({"choices": [], "usage": usage})
    in_stream, _, _ = await streamed(Stream((chunk({"content": "Hi."}), _STOP[0], last, _STOP[1])))
    assert whole.usage == in_stream.usage == expected


# --- Messages API ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_only_blocks_of_thinking_that_are_signed_are_kept(*, stream: bool) -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "unsigned"},
        {"type": "thinking", "thinking": "empty", "signature": ""},
        {"type": "thinking", "thinking": "signed", "signature": "sig"},
        {"type": "redacted_thinking"},
        {"type": "redacted_thinking", "data": "sealed", "more": 3},
        {"type": "text", "text": "Hello.", "signature": "sig", "data": "x"},
        {"type": "other", "thinking": "x", "signature": "sig", "data": "x"},
        {},
    ]
    answer = await message_of(blocks, stream=stream)
    assert (answer.text, answer.reasoning) == ("Hello.", "unsignedemptysigned")
    assert answer.reasoning_blocks == (
        {"type": "thinking", "thinking": "signed", "signature": "sig"},
        {"type": "redacted_thinking", "data": "sealed"},
    )


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ([], None),
        ({"output_tokens": 3}, None),
        ({"input_tokens": None, "output_tokens": 3}, None),
        ({"input_tokens": "5", "output_tokens": 3}, None),
        ({"input_tokens": 5}, Usage(5, 0)),
        ({"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 4}, Usage(9, 3, 4)),
        ({"input_tokens": 5, "output_tokens": 3, "cache_creation_input_tokens": 2}, Usage(7, 3, 0, 2)),
        ({"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": -1}, Usage(5, 3)),
        (
            {"input_tokens": 5, "output_tokens": 3, "output_tokens_details": {"thinking_tokens": 9}},
            Usage(5, 3, reasoning_completion_tokens=3),
        ),
        ({"input_tokens": 5, "output_tokens": 3, "output_tokens_details": 7}, Usage(5, 3)),
    ],
)
async def test_the_usage_of_a_message_is_what_its_figures_allow(usage: Any, expected: Usage | None) -> None:
    assert (await message_of([{"type": "text", "text": "Hi."}], usage=usage)).usage == expected


@pytest.mark.parametrize(
    ("given", "arguments"),
    [(None, "{}"), ({}, "{}"), ({"a": 1}, '{"a": 1}'), ('{"a":', '{"a":'), ([1], "[1]"), (7, "7"), ("", "{}")],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_input_of_a_call_is_passed_on_whatever_it_is(given: Any, arguments: str, *, stream: bool) -> None:
    call = {"type": "tool_use", "id": "c1", "name": "look", "input": given}
    answer = await message_of([call], stream=stream)
    assert answer.tool_calls == (ToolCall("c1", "look", arguments),)


async def test_a_delta_without_a_number_belongs_to_the_newest_block_without_one() -> None:
    begun = [
        message_event("content_block_start", content_block={"type": "text", "text": "Hel"}),
        message_event("content_block_delta", delta={"type": "text_delta", "text": "lo."}),
        message_event("content_block_delta", delta={"type": "text_delta", "text": 3}),
        message_event("content_block_delta", delta=None),
    ]
    pieces = (*ANTHROPIC.begin(), *begun, *ANTHROPIC.end(ModelReply()))
    async with serving(Stream(pieces)) as server, ANTHROPIC.provider_at(server.base_url) as provider:
        answer = await provider.complete(REQUEST, lambda _: None)
    assert answer.text == "Hello."
