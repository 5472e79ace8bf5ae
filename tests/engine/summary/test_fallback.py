"""The summary that needs no model, made again and again: what is new gets in, what was anchored stays."""

from __future__ import annotations

from uuid import UUID

import pytest

from app.domain.extractive import READING, Reading
from app.domain.sentences import Sentence
from app.domain.types import Message, MessageId, Summary, SummaryId, Turn, TurnId, TurnStatus
from app.engine.summary.block import render_summary
from app.engine.summary.extractive import fallback_summary
from app.engine.summary.fold import Fold
from tests.engine.histories import estimate

_FOLDS = 6
_CAP_TOKENS = 160


def _turn(number: int, text: str = "") -> Turn:
    """A turn that says one thing of its own, among words that every turn has, or the text."""
    text = text or (
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


@pytest.mark.parametrize(
    ("said", "later"),
    [
        ("Remind me to call the notary.", "The call to the notary is done."),
        ("But never do that!", None),
        ("Never restart the controller.", "You may restart the controller now."),
        ("The port is 8443.", "The port is now 9443."),
    ],
)
def test_what_lasts_outlives_five_extracts_until_it_is_ended_in_words_of_any_worth(
    said: str, later: str | None
) -> None:
    previous: Summary | None = None
    shown: list[bool] = []
    for number, text in enumerate([said, None, None, None, None, later], 1):
        turns = (*(_turn(10 * number + at) for at in range(3)), *([_turn(10 * number + 3, text)] if text else ()))
        body = fallback_summary(Fold("turn_count", turns, (), previous, 100, 1000, 2 * _CAP_TOKENS), estimate)
        assert body is not None
        shown.append(said in render_summary(body))
        first, last = turns[0].messages[0], turns[-1].messages[0]
        previous = Summary(SummaryId(UUID(int=number)), body, first.id, last.id, last.seq, "fallback")
    assert shown == [True] * 5 + [later is None]


def test_of_many_megabytes_the_longest_messages_are_read_in_part() -> None:
    """400,000 characters of very short sentences take 7 s of a processor, and an imported session may have 64 MB."""
    lengths: list[int] = []

    def statements(text: str) -> list[Sentence]:
        lengths.append(len(text))
        return [*READING.statements(text[:1_000])]

    turns = (_turn(1, "Some words. " * 100_000), _turn(2), _turn(3, "Other words. " * 200_000))
    body = fallback_summary(
        Fold("turn_count", turns, (), None, 100, 1000, _CAP_TOKENS), estimate, Reading(statements, READING.statement)
    )
    assert body is not None
    first, short, last = lengths
    assert first == last
    assert short == len(str(turns[1].messages[0].content))
    assert 999_000 < sum(lengths) < 1_001_000
