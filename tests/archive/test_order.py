"""The order of an imported document's messages, the outputs in it that were withdrawn, and the bounds of its pins."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from app.archive.document import check_document
from app.domain.errors import ImportRefused
from app.domain.types import MOST_PINS, MOST_PINS_BYTES, JsonObject
from app.engine.window.prompt_refs import SentHashes

_CALL: JsonObject = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def _turn(seq: int, status: str) -> JsonObject:
    is_completed = status == "completed"
    ends: JsonObject = (
        {"error": None, "assistant_output": "Noted."} if is_completed else {"error": {}, "assistant_output": None}
    )
    return {"id": str(UUID(int=seq)), "seq": seq, "status": status, **ends}


def _message(turn: int, seq: int, role: str = "user", **changes: Any) -> JsonObject:
    message = {"id": str(UUID(int=100 + seq)), "turn_id": str(UUID(int=turn)), "seq": seq, "role": role, "content": "a"}
    return {**message, "tool_calls": None, "tool_call_id": None, "reasoning": None, **changes}


def _faults(messages: list[JsonObject], *statuses: str, pins: tuple[str, ...] = ()) -> list[str]:
    """The places at which a document of these turns is refused."""
    document: JsonObject = {
        "session": {"summary_count_after_seq": 0},
        "pins": [{"name": str(at), "content": content} for at, content in enumerate(pins)],
        "turns": [_turn(at + 1, status) for at, status in enumerate(statuses)],
        "messages": messages,
        **{section: [] for section in ("blocks", "steps", "summaries", "audits")},
    }
    try:
        check_document(document, SentHashes)
    except ImportRefused as refused:
        return [place for place, _ in refused.faults]
    return []


@pytest.mark.parametrize(
    ("numbers", "fault"),
    [
        # Turn, number: the first turn was tried again after the second was rejected.
        ([(1, 1), (1, 3), (2, 2), (3, 4)], None),
        ([(1, 1), (1, 5), (2, 2), (3, 4)], "body.messages.3.seq"),
        ([(1, 2), (1, 4), (2, 1), (3, 5)], "body.messages.2.seq"),
        ([(1, 1), (1, 6), (2, 2), (2, 4), (2, 3), (3, 7)], "body.messages.4.seq"),
        ([(1, 2), (1, 1), (2, 3), (3, 4)], "body.messages.1.seq"),
    ],
)
def test_only_a_rejected_turn_has_lower_numbers_than_the_turn_before_it(
    numbers: list[tuple[int, int]], fault: str | None
) -> None:
    messages = [_message(turn, seq) for turn, seq in numbers]
    assert _faults(messages, "failed", "rejected", "failed") == ([] if fault is None else [fault])


@pytest.mark.parametrize(
    ("withdrawn", "fault"),
    [
        ((False, True, False), None),
        ((False, False, True), None),
        ((False, True, True), None),
        ((True, True, True), None),
        ((False, False, False), "body.messages.3"),
        ((True, False, True), "body.messages.2"),
    ],
)
def test_one_output_of_a_call_that_was_not_withdrawn_is_not_withdrawn(
    withdrawn: tuple[bool, bool, bool], fault: str | None
) -> None:
    calls, first, second = withdrawn
    messages = [
        _message(1, 1),
        _message(1, 2, "assistant", tool_calls=[_CALL], withdrawn=calls),
        _message(1, 3, "tool", tool_call_id="x", withdrawn=first),
        _message(1, 4, "tool", tool_call_id="x", withdrawn=second),
    ]
    assert _faults(messages, "completed") == ([] if fault is None else [fault])


def test_the_pins_of_a_document_are_bounded_by_number_and_by_all_their_bytes() -> None:
    assert _faults([], pins=("",) * MOST_PINS) == []
    assert _faults([], pins=("",) * (MOST_PINS + 1)) == ["body.pins"]
    assert _faults([], pins=("\u0394" * (MOST_PINS_BYTES // 4),) * 2) == []
    assert _faults([], pins=("\u0394" * (MOST_PINS_BYTES // 4), "\u0394" * (MOST_PINS_BYTES // 4), "x")) == [
        "body.pins"
    ]
