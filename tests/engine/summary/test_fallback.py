"""The summary that needs no model, made again and again: what is new gets in, what was anchored stays."""

from __future__ import annotations

from uuid import UUID

from app.domain.types import Message, MessageId, Summary, SummaryId, Turn, TurnId, TurnStatus
from app.engine.summary.block import render_summary
from app.engine.summary.extractive import fallback_summary
from app.engine.summary.fold import Fold
from tests.engine.histories import estimate

_FOLDS = 6
_CAP_TOKENS = 160


def _turn(number: int) -> Turn:
    """A turn that says one thing of its own, among words that every turn has."""
    text = (
        f"Warehouse Zeta{number} holds exactly {4000 + number} crates of copper. "
        f"The clerk at Zeta{number} is called Person{number}. Deliveries come by rail to Dock{number}. "
    )
    message = Message(
        MessageId(UUID(int=number)), TurnId(UUID(int=10**6 + number)), number, "user", text, estimate(text)
    )
    return Turn(message.turn_id, number, TurnStatus.COMPLETED, unresolved=False, messages=(message,))


def test_something_of_the_newest_fold_gets_in_however_often_a_fallback_stood_in_before() -> None:
    previous: Summary | None = None
    for number in range(1, _FOLDS + 1):
        turns = tuple(_turn(10 * number + at) for at in range(4))
        fold = Fold("turn_count", turns, (), previous, 100, 1000, _CAP_TOKENS)
        body = fallback_summary(fold, estimate)
        assert body is not None
        own = {f"Zeta{turn.seq}" for turn in turns}
        assert any(name in render_summary(body) for name in own), f"fold {number} left nothing in: {body}"
        first, last = turns[0].messages[0], turns[-1].messages[0]
        previous = Summary(SummaryId(UUID(int=number)), body, first.id, last.id, last.seq, "fallback")
