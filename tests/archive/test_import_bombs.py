"""What a document of references expands to is bounded, and it is never held: neither to be hashed nor to be refused."""

from __future__ import annotations

import tracemalloc
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest

from app.archive.document import check_document
from app.domain.errors import ImportRefused, PromptTooLarge
from app.domain.types import JsonObject, Message, MessageId, ToolCall, TurnId
from app.engine.window.prompt_refs import MESSAGE_BYTES, MOST_PROMPT_BYTES, SentHashes, needed_for
from tests.engine.prompt_hash import prompt_sha256
from tests.engine.readings import rebuild

_TURN_ID, _MESSAGE_ID = str(UUID(int=2**64)), str(UUID(int=2**65))
_MEGABYTE = 1024 * 1024
_LARGE = "\u0394 lorem \n" * (4 * _MEGABYTE // 10)
_LARGE_SHA256 = sha256(_LARGE.encode()).hexdigest()
_BLOCK: list[Any] = ["b", _LARGE_SHA256, "system"]
_MESSAGE: list[Any] = ["m", 1, 1]


def _document(items: list[Any], audits: int = 1, prompt_sha256: str = "0" * 64) -> JsonObject:
    message = {"id": _MESSAGE_ID, "turn_id": _TURN_ID, "seq": 1, "role": "user", "content": _LARGE, "tool_calls": None}
    message |= {"tool_call_id": None, "reasoning": None, "reasoning_blocks": None}
    refs = {"items": items, "tools": None}
    audit = {"turn_id": _TURN_ID, "round": 1, "prompt_refs": refs, "prompt_sha256": prompt_sha256}
    return {
        "session": {"summary_count_after_seq": 0},
        "pins": [],
        "blocks": [{"sha256": _LARGE_SHA256, "content": _LARGE}],
        "turns": [{"id": _TURN_ID, "seq": 1, "status": "completed", "error": None, "assistant_output": "Noted."}],
        "messages": [message],
        "steps": [],
        "summaries": [],
        "audits": [audit | {"id": str(UUID(int=at)), "attempt": at} for at in range(1, audits + 1)],
    }


def _refused(document: JsonObject, **limits: int) -> list[tuple[str, str]]:
    with pytest.raises(ImportRefused) as refused:
        check_document(document, SentHashes, **limits)
    return refused.value.faults


@pytest.mark.parametrize("item", [_BLOCK, _MESSAGE, ["s", 1, _LARGE_SHA256]], ids=["block", "message", "shortened"])
def test_a_prompt_that_names_a_large_part_700_times_is_refused_in_the_memory_of_a_few(item: list[Any]) -> None:
    document = _document([item] * 700)
    tracemalloc.start()
    try:
        faults = _refused(document)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [place for place, _ in faults] == ["body.audits.0.prompt_refs"]
    assert str(MOST_PROMPT_BYTES) in faults[0][1]
    assert 700 * len(_LARGE) > 2500 * _MEGABYTE
    assert peak < 160 * _MEGABYTE


def test_a_large_part_in_many_messages_is_kept_once() -> None:
    messages = {at: Message(MessageId(UUID(int=at)), TurnId(UUID(int=1)), at, "user", "", 0) for at in range(100)}
    hashes = SentHashes({_LARGE_SHA256: _LARGE}, messages)
    tracemalloc.start()
    try:
        for at in range(0, 100, 10):
            shown: list[list[Any]] = [["s", seq, _LARGE_SHA256] for seq in range(at, at + 10)]
            roles = [["b", _LARGE_SHA256, f"role {at + each}"] for each in range(3)]
            hashes.sha256({"items": [*shown, *roles], "tools": None})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert hashes.total_bytes > 500 * _MEGABYTE
    assert peak < 160 * _MEGABYTE


def test_many_tiny_messages_count_for_what_shows_them() -> None:
    tiny = {1: Message(MessageId(UUID(int=1)), TurnId(UUID(int=1)), 1, "user", "", 0)}
    most = MOST_PROMPT_BYTES // MESSAGE_BYTES
    with pytest.raises(PromptTooLarge):
        SentHashes({}, tiny).sha256({"items": [_MESSAGE] * most, "tools": None})


def test_all_prompts_of_a_document_are_bounded_together() -> None:
    sent = [{"role": "user", "content": _LARGE}] * 3
    document = _document([_MESSAGE] * 3, 10, prompt_sha256(sent, []))
    check_document(document, SentHashes)
    assert _refused(document, most_prompts_bytes=50 * _MEGABYTE) == [
        ("body.audits.3.prompt_refs", f"All prompts together have more than {50 * _MEGABYTE} bytes.")
    ]


def test_a_message_that_is_named_often_is_read_once() -> None:
    items: list[list[Any]] = [
        ["m", 5, 9],
        ["m", 1, 3],
        _BLOCK,
        *[["m", 7, 12]] * 100,
        ["s", 4, _LARGE_SHA256],
        ["m", 20, 2**60],
    ]
    needed = needed_for({"items": items, "tools": None})
    assert needed.runs == ((1, 12), (20, 2**60))
    assert needed.sha256s == (_LARGE_SHA256,)


def test_the_hash_in_pieces_is_the_hash_of_the_whole_for_every_form_of_reference() -> None:
    calls = (ToolCall("a", "look_up", '{"id": "\u0394"}'),)
    blocks = {
        "text": 'Cut "here".\n',
        "parts": '[{"type": "text", "text": "A picture was here."}]',
        "tools": '[{"b": 1, "a": []}]',
    }
    thinking = {"type": "thinking", "signature": "s"}
    ids = (MessageId(UUID(int=1)), TurnId(UUID(int=1)))
    messages = {
        1: Message(*ids, 1, "user", [{"type": "text", "text": "Look"}], 0),
        2: Message(*ids, 2, "assistant", None, 0, calls, None, reasoning="Hm.", reasoning_blocks=(thinking,)),
        3: Message(*ids, 3, "tool", "Yes.", 0, (), "a"),
    }
    items: list[list[Any]] = [
        ["b", "text", "system"],
        ["j", 1, "parts"],
        ["m", 1, 3],
        ["mt", 2, 3],
        ["mb", 2, 2],
        ["s", 2, "text"],
        *[[letter, 1, 3] for letter in ("k", "h", "e", "l", "p", "pt", "kb")],
    ]
    all_of_them: JsonObject = {"items": [*items, ["s", 3, "text"]], "tools": "tools"}
    for refs in (all_of_them, *({"items": some, "tools": None} for some in ([], *([item] for item in items)))):
        assert SentHashes(blocks, messages).sha256(refs) == prompt_sha256(*rebuild(refs, blocks, messages))
