"""Related words: what they find, what they never outrank, and the table that they are looked up in."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.recalled import Recalled
from app.domain.types import MessageId
from app.engine.recall.bm25 import Query, search
from app.engine.recall.index import EMPTY, Index, Packed, packed_text
from app.engine.recall.ranking import candidates
from app.engine.recall.related import LARGEST_WEIGHT, MOST_RELATED_QUERY_TERMS, related_terms, related_words
from app.engine.recall.terms import query_words, term_hash

OTHERS = [f"entry {at} of the ledger" for at in range(20)]


def indexed(*texts: str) -> Index:
    packed = b"".join(packed_text(text) for text in texts)
    return EMPTY.extended(Packed(np.arange(1, len(texts) + 1), np.full(len(texts), 10), packed), len(texts))


def related_to(asked: str) -> dict[str, float]:
    terms = {term_hash(term): word for term, word in query_words(asked).items()}
    return {other.word: other.weight for other in related_terms(terms)}


def test_every_row_of_the_table_names_other_rows_the_nearest_first() -> None:
    table = related_words()
    numbers = np.arange(len(table))
    assert (np.diff(table["term"].astype(np.int64)) > 0).all()
    assert (table["related"] < len(table)).all()
    assert ((table["related"] != numbers[:, None]) | (table["weight"] == 0)).all()
    assert (np.diff(table["weight"].astype(int), axis=1) <= 0).all()
    assert table.nbytes < 600_000


def test_the_words_of_the_table_are_found_by_its_terms() -> None:
    """Fails where terms are made in another way than when the table was: then it has to be made anew."""
    table = related_words()
    for row in table[::97]:
        assert term_hash(*query_words(row["word"].decode())) == row["term"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("What pets does she have?", "We adopted two puppies and named them after rivers."),
        ("What did the doctor ask?", "The surgeon took ten minutes for me."),
        ("Where is my car?", "I left the automobile behind the mill."),
    ],
)
def test_a_message_in_other_words_than_the_questions_is_found_and_says_why(asked: str, said: str) -> None:
    index = indexed(*OTHERS[:10], said, *OTHERS[10:])
    found = candidates(index, Query(asked, len(index)), 20, 0.05)
    assert found[0].seqs == (11,)
    words = found[0].matched[0]
    row = Recalled(11, MessageId(UUID(int=1)), None, round(100 * found[0].score), 10, words).public()
    assert "matched" not in row
    assert row["related"]
    assert all(pair["of"] in asked for pair in row["related"])


def test_the_questions_own_word_outranks_a_related_one_and_is_what_is_named() -> None:
    index = indexed(*OTHERS, "The surgeon came.", "The doctor came.", "The doctor is a surgeon.")
    hits = search(index, Query("Which doctor?", len(index)))
    scores = dict(zip(hits.positions.tolist(), hits.scores.tolist(), strict=True))
    assert scores[21] > scores[20] > 0, "positions count from 0"
    found = candidates(index, Query("Which doctor?", len(index)), 100, 0.0)
    matched = {candidate.seqs[0]: candidate.matched[0] for candidate in found}
    assert matched[21] == ("surgeon~doctor",)
    assert matched[22] == matched[23] == ("doctor",)


def test_a_text_of_many_words_is_searched_for_by_these_alone() -> None:
    words = [
        word.decode() for word in related_words()["word"][:: len(related_words()) // (2 * MOST_RELATED_QUERY_TERMS)]
    ]
    assert related_to(" ".join(words[:4]))
    assert not related_to(" ".join(words))


@given(st.text(max_size=60), st.lists(st.sampled_from(["dog", "pet", "doctor", "car", "money"]), max_size=6))
def test_related_words_are_none_of_the_questions_own_and_weigh_less(text: str, more: list[str]) -> None:
    asked = f"{text} {' '.join(more)}"
    terms = {term_hash(term): word for term, word in query_words(asked).items()}
    related = related_terms(terms)
    assert not {other.term for other in related} & terms.keys()
    assert len({other.term for other in related}) == len(related)
    assert all(1 / LARGEST_WEIGHT <= other.weight <= 1 and other.of in terms.values() for other in related)
    assert [other.weight for other in related] == sorted(other.weight for other in related)


def test_a_word_that_many_messages_have_is_not_stood_for_by_others() -> None:
    few = indexed(*["A dog barks."] * 3, *["Rain again today."] * 27, "My puppy sleeps.")
    many = indexed(*["A dog barks."] * 8, *["Rain again today."] * 22, "My puppy sleeps.")
    assert 30 in search(few, Query("Where is the dog?", 31)).positions
    assert 30 not in search(many, Query("Where is the dog?", 31)).positions
