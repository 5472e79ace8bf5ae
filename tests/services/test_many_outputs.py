"""A turn with thousands of tool calls, which lists of items can have: answered in time that goes by their number."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from app.db.claims import WaitingTurn
from app.domain.errors import ToolOutputsMismatch
from app.domain.types import ToolCall, TurnStatus
from app.services.turn.additions import check_outputs


def waiting_for(ids: Sequence[str]) -> WaitingTurn:
    calls = tuple(ToolCall(call_id, "look_up", "{}") for call_id in ids)
    return WaitingTurn(TurnStatus.AWAITING_TOOLS, 1, 1, "main", None, calls, rounds=1, steps=0)


def test_thousands_of_outputs_are_held_to_their_calls_in_no_time() -> None:
    """12,000 took 2.9 s of the event loop, under the session's lock: so long that Postgres ended the transaction."""
    ids = [f"call {number}" for number in range(12_000)]
    began = time.process_time()
    check_outputs(waiting_for(ids), ids[::-1])
    assert time.process_time() - began < 0.5


def test_what_is_missing_and_what_is_too_much_is_named_in_order() -> None:
    with pytest.raises(ToolOutputsMismatch) as refused:
        check_outputs(waiting_for(["a", "b", "c", "d"]), ["c", "x", "a", "c"])
    assert (refused.value.missing, refused.value.unknown) == (["b", "d"], ["x", "c"])
