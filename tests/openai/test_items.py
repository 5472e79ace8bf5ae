"""Lists of items as system and developer messages and all else."""

from __future__ import annotations

import time
from base64 import b64encode
from typing import Any

import pytest

from app.domain.errors import InvalidRequest
from app.domain.incoming import IncomingMessage
from app.openai.items import MOST_DIRECTIONS, joined_directions, read_items


def developer(text: str) -> dict[str, str]:
    return {"role": "developer", "content": text}


def test_an_instruction_is_appended_to_the_earlier_ones_once() -> None:
    read = read_items([developer("Be brief."), developer("Be kind."), developer("Be brief.")])
    assert read.directions == ("Be brief.", "Be kind.")
    joined = joined_directions(None, read.directions)
    assert joined == "Be brief.\n\nBe kind."
    assert joined_directions(joined, ["Be kind.", "Be", "Be brief.\n\nBe kind."]) == f"{joined}\n\nBe"
    assert joined_directions("", []) is None


def test_many_long_directions_are_joined_in_no_time_and_more_are_refused() -> None:
    """Each was looked for in all before it: 5,000 of 600 characters kept a process from its requests for a minute."""
    texts = [f"rule {number} " + "x" * 3000 for number in range(MOST_DIRECTIONS)]
    read = read_items([*map(developer, texts), developer(texts[0])])
    began = time.process_time()
    joined = joined_directions(None, read.directions)
    of_new = time.process_time() - began
    assert joined_directions(joined, read.directions) == joined
    assert of_new < 0.2
    with pytest.raises(InvalidRequest, match="different system and developer messages"):
        read_items([*map(developer, texts), developer("one more")])


def reasoning(*texts: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text} for text in texts]}


def test_reasoning_belongs_to_the_reply_after_it_or_to_the_calls_that_are_added_to_one() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    said = {"role": "assistant", "content": "Let me see."}
    answered = {"type": "function_call_output", "call_id": "a", "output": "1"}
    cases: list[tuple[list[Any], list[str | None]]] = [
        ([reasoning("why"), call, answered], ["why", None]),
        ([reasoning("why"), said, call, answered], ["why", None]),
        ([reasoning("wh", "y"), said, reasoning("how"), call, answered], ["why\n\nhow", None]),
        ([reasoning("why"), reasoning("how"), said], ["why\n\nhow"]),
        ([reasoning("lost"), {"role": "user", "content": "Hi"}, said], [None, None]),
        ([said, reasoning("lost"), developer("Be brief."), {"role": "user", "content": "Hi"}], [None, None]),
        ([{"type": "reasoning", "summary": []}, {"type": "reasoning", "content": None}, said], [None]),
    ]
    for items, thoughts in cases:
        messages: tuple[IncomingMessage, ...] = read_items(items).messages
        assert [message.reasoning for message in messages] == thoughts


def test_a_text_after_calls_without_outputs_is_that_replys() -> None:
    """LiteLLM sends a reply of Anthropic's form so: its calls, its text, then the outputs."""
    calls = [{"type": "function_call", "call_id": each, "name": "f", "arguments": "{}"} for each in "ab"]
    outputs = [{"type": "function_call_output", "call_id": each, "output": "1"} for each in "ab"]
    said = [{"role": "assistant", "content": text} for text in ("Let me see.", " And this.")]
    answered = {"role": "assistant", "content": "Done."}
    for reply, text in (
        ([*calls, said[0]], "Let me see."),
        ([calls[0], said[0], reasoning("why"), calls[1], said[1]], "Let me see. And this."),
        ([said[0], calls[0], said[1], calls[1]], "Let me see. And this."),
        ([*calls, {"role": "assistant", "content": ""}], None),
    ):
        caller, *others = read_items([*reply, *outputs, answered]).messages
        assert (caller.content, [call.id for call in caller.tool_calls]) == (text, ["a", "b"])
        assert [message.content for message in others] == ["1", "1", "Done."]


def test_many_texts_after_a_call_are_read_in_no_time() -> None:
    """Joined one by one, those of a body of 4 MiB took 13 seconds."""
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    began = time.process_time()
    (message,) = read_items([call, *[{"role": "assistant", "content": "x" * 60}] * 33_000]).messages
    assert time.process_time() - began < 2
    assert message.content == "x" * 60 * 33_000


def test_many_reasoning_items_are_read_in_no_time() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    items = [reasoning("why " * 50) for _ in range(20_000)] + [reasoning("how " * 50), call] * 1_000
    began = time.process_time()
    (message,) = read_items(items).messages
    assert time.process_time() - began < 2
    assert (message.reasoning or "").count("how") == 50_000


@pytest.mark.parametrize(
    "sealed",
    [
        "gAAAAABo_of-openai==",
        "5",
        "\u00e9",
        b64encode(b"5").decode(),
        b64encode(b"[1, []]").decode(),
        b64encode(b'["why", 5]').decode(),
        b64encode(b'["why", [{"signature": "s"}]]').decode(),
        b64encode(b'["why", [{"type": "thinking", "thinking": {}}]]').decode(),
        b64encode(b'["wh\\u0000y", []]').decode(),
        b64encode(b"[" * 5_000).decode(),
        None,
    ],
)
def test_a_seal_that_this_service_did_not_make_holds_nothing(sealed: str | None) -> None:
    items: list[Any] = [{"type": "reasoning", "encrypted_content": sealed}, {"role": "assistant", "content": "Hi"}]
    (message,) = read_items(items).messages
    assert (message.reasoning, message.reasoning_blocks) == (None, ())


def test_a_seal_brings_the_thoughts_that_a_client_left_out_and_those_of_a_reply_are_joined() -> None:
    sealed = [b64encode(f'["{text}", []]'.encode()).decode() for text in ("one", "two")]
    items: list[Any] = [
        {"type": "reasoning", "encrypted_content": sealed[0]},
        {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "x", "output": "found"},
        {"type": "reasoning", "encrypted_content": sealed[1]},
        {"role": "assistant", "content": "Hi"},
    ]
    assert [message.reasoning for message in read_items(items).messages] == ["one", None, "two"]
    said_twice = [items[0], items[1], items[3], items[4], items[2]]
    assert [message.reasoning for message in read_items(said_twice).messages] == ["one\n\ntwo", None]


def test_thoughts_before_a_compaction_leave_with_what_it_replaces() -> None:
    handle = f"session_{'0' * 31}1_turn_7"
    items: list[Any] = [
        {"type": "reasoning", "encrypted_content": None, "content": [{"type": "reasoning_text", "text": "why"}]},
        {"type": "compaction", "encrypted_content": handle},
        {"role": "user", "content": "And now?"},
    ]
    assert [(message.content, message.reasoning) for message in read_items(items).messages] == [("And now?", None)]
