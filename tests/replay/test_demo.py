"""The shipped conversation keeps what the demo needs of it."""

from __future__ import annotations

from app.replay.demo import WINDOW_TOKENS, message_that_cannot_fit, shipped_conversation
from app.tokenizers.vocabularies import load_vocabulary


def test_the_shipped_conversation_is_long_enough_to_leave_the_window_more_than_twice() -> None:
    conversation = shipped_conversation()
    count = load_vocabulary("o200k_base").count
    tokens = sum(count(turn.prompt) + count(turn.reply or "") for turn in conversation.turns)
    assert len(conversation.turns) >= 60
    assert all(turn.reply for turn in conversation.turns)
    assert conversation.instructions
    assert 2 * WINDOW_TOKENS < tokens < 60_000


def test_the_message_that_cannot_fit_is_larger_than_the_window() -> None:
    assert load_vocabulary("o200k_base").count(message_that_cannot_fit()) > WINDOW_TOKENS
