"""What waits for a client that reads slowly."""

from __future__ import annotations

from app.api.streaming import LONG_DELTA_CHARS, MOST_APART, PendingEvents
from app.services.turn.types import TurnEvent

_CREATED, _ASSEMBLED = TurnEvent("turn.created", {"turn": {}}), TurnEvent("context.assembled", {"context": {}})


async def _all(pending: PendingEvents) -> list[TurnEvent]:
    found: list[TurnEvent] = []
    while (event := await pending.get()) is not None:
        found += [event, *pending.ready()]
    return found


async def test_deltas_that_a_slow_client_has_not_read_are_joined_and_none_is_lost() -> None:
    pending = PendingEvents()
    pending.put(_CREATED)
    pending.put(_ASSEMBLED)
    texts = [f"{at} " for at in range(200_000)]
    for at, text in enumerate(texts):
        pending.put(TurnEvent("output.delta", {"text": text, "reasoning": "r"} if at % 2 else {"text": text}))
    pending.put(None)
    created, assembled, *deltas = await _all(pending)
    assert (created, assembled) == (_CREATED, _ASSEMBLED)
    assert "".join(delta.data["text"] for delta in deltas) == "".join(texts)
    assert sum(len(delta.data.get("reasoning", "")) for delta in deltas) == 100_000
    assert len(deltas) <= MOST_APART + (sum(map(len, texts)) + 100_000) // LONG_DELTA_CHARS + 1


async def test_deltas_that_are_read_in_time_stay_as_they_came() -> None:
    pending = PendingEvents()
    deltas = [TurnEvent("output.delta", {"text": str(at)}) for at in range(MOST_APART)]
    for delta in deltas:
        pending.put(delta)
    pending.put(None)
    assert await _all(pending) == deltas
