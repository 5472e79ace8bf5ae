"""What a sentence says by itself, whatever it consists of."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.cues import FINISHES, LIFTS
from app.domain.sentences import DEMAND, read_lasting, read_sentence


@pytest.mark.parametrize("letters", ["aB", "é", "漢", "1"])
def test_one_word_of_a_megabyte_is_read_in_one_pass(letters: str) -> None:
    """From each of its letters again it would take hours, in which no other thread runs."""
    word = letters * (1_000_000 // len(letters))
    assert read_sentence(word).words == (word.lower(),)


def test_long_words_are_not_kept_in_memory() -> None:
    """A summary that was imported or edited may consist of them."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(100):
            read_sentence(f"word{number}" * 10_000)
        assert tracemalloc.get_traced_memory()[0] - before < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_long_run_of_capitals_is_no_reference_number_and_is_read_in_one_pass() -> None:
    begun = time.process_time()
    assert read_sentence(f"Case 1 is {'A' * 20_000}").standing == 0
    assert time.process_time() - begun < 1.0  # generous: it takes a few milliseconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("see `a b`x_y", 2),
        ("https://foo_bar", 2),
        ("call run() or x_y", 2),
        ("a@b.de, /etc/hosts", 2),
        ("plain words", 0),
    ],
)
def test_identifiers_count_wherever_one_ends_and_the_next_begins(text: str, count: int) -> None:
    assert read_sentence(text).signals == 0.75 * count


@pytest.mark.parametrize(
    ("text", "kind", "standing", "signals"),
    [
        ("lets keep the oak", "decisions", 0, 0.0),
        ("i would be going with the oak", "decisions", 0, 0.0),
        ("tomorrow we'll use the oak", "decisions", 0, 0.0),
        ("and we will use it", "decisions", 0, 0.0),
        ("please do not paint it", "key_facts", DEMAND, 1.0),
        ("you must not paint it", "key_facts", DEMAND, 1.0),
        ("make sure every door is oak", "key_facts", DEMAND, 0.0),
        ("ask first, and make sure it is oak", "key_facts", DEMAND, 0.0),
        ("“never” paint it", "key_facts", 0, 1.0),
        ("“never paint it”", "key_facts", DEMAND, 1.0),
        ("i want you to never paint it", "key_facts", DEMAND, 1.0),
        ("under no circumstances paint it", "key_facts", DEMAND, 0.0),
        ("stop painting it", "key_facts", DEMAND, 0.0),
        ("the bus stop is painted", "key_facts", 0, 0.0),
        ("avoid any paint", "key_facts", DEMAND, 0.0),
        ("you can avoid any paint", "key_facts", 0, 0.0),
        ("you may stop painting it", "key_facts", 0, 0.0),
        ("you should avoid any paint", "key_facts", DEMAND, 0.0),
        ("bitte antworte immer auf Deutsch", "key_facts", DEMAND, 0.5),
        ("Nennen Sie niemals einen Preis", "key_facts", DEMAND, 1.0),
        ("Er antwortet immer auf Deutsch", "key_facts", 0, 0.5),
        ("Es ist immer noch kalt", "key_facts", 0, 0.0),
        ("Ne réponds jamais trop tard", "key_facts", DEMAND, 0.0),
        ("Il répond toujours trop tard", "key_facts", 0, 0.0),
        ("i am not sure it is oak", "key_facts", 0, 0.0),
        ("it is not painted", "key_facts", 0, 0.0),
        ("it takes at most a day", "key_facts", 0, 1.0),
        ("no more than a day", "key_facts", 0, 1.0),
        ("note that it is oak", "key_facts", 0, 1.0),
        ("more of that", "key_facts", 0, 0.0),
        ("because of the outlet", "key_facts", 0, 0.0),
    ],
)
def test_phrases_are_found_by_their_words(text: str, kind: str, standing: int, signals: float) -> None:
    found = read_sentence(text)
    assert (found.kind, found.standing, found.signals) == (kind, standing, signals)


_PARTS = (
    "never", "do", "not", "must", "only", "need", "to", "next", "will", "done", "no", "longer", "now", "again", "is",
    "12", "/srv/data", "a@b.de", "`x`", "cat?", "the",
)  # fmt: skip


@given(st.lists(st.sampled_from(_PARTS) | st.text(max_size=8), max_size=10).map(" ".join))
def test_a_sentence_that_is_left_out_neither_lasts_nor_closes_anything(text: str) -> None:
    whole, found = read_sentence(text), read_lasting(text)
    assert found in (None, whole)
    if found is None:
        assert (whole.standing, whole.cues & (FINISHES | LIFTS)) == (0, 0)
        assert whole.kind != "action_items"
