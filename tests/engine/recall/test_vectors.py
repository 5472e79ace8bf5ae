"""Messages by their meaning: vectors as they are packed, kept and compared, and what they add to a search by words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from app.domain.types import Message, MessageId, TurnId
from app.engine.recall.bm25 import Query, search
from app.engine.recall.index import EMPTY, Index, Packed
from app.engine.recall.ranking import candidates
from app.engine.recall.vectors import Meaning, Vectors, packed_query, packed_vectors

DIMENSIONS = 24
SAID = (
    "My sister Ottilie keeps bees behind the lighthouse.",
    "The invoice of the harbour crane is number 4711.",
    "We painted the boathouse green last August.",
    "The clouds drift on and nobody minds.",
)


def _random(rows: int, seed: int = 7) -> Any:
    return np.random.default_rng(seed).normal(0.3, 1.0, (rows, DIMENSIONS))


def _vectors(rows: Any, *slices: int) -> Vectors:
    """Vectors of messages 2, 4, 6 and so on, put in so many at a time."""
    found, at = Vectors.none_of("m", DIMENSIONS), 0
    for count in slices or (len(rows),):
        packed = b"".join(packed_vectors(rows[at : at + count]))
        found = found.extended(np.arange(at, at + count) * 2 + 2, packed)
        at += count
    return found


def _index() -> Index:
    messages = [
        Message(MessageId(UUID(int=seq)), TurnId(UUID(int=1)), seq, "user", text, 12)
        for seq, text in enumerate(SAID, 1)
    ]
    return EMPTY.extended(Packed.of(messages), len(messages))


def _meaning(near: int) -> Meaning:
    """A question that means what the message of this number says, of which no other says anything like it."""
    rows = np.eye(DIMENSIONS)[: len(SAID)]
    vectors = Vectors.none_of("m", DIMENSIONS)
    vectors = vectors.extended(np.arange(1, len(SAID) + 1), b"".join(packed_vectors(rows)))
    query = packed_query(rows[near - 1])
    assert query is not None
    return Meaning(query, vectors)


def test_the_nearest_are_those_by_cosine_from_the_mean_of_what_is_searched() -> None:
    rows, query = _random(3_000), _random(1, seed=8)[0]
    packed = packed_query(query)
    assert packed is not None
    seqs, found = _vectors(rows).similar(packed, 2 * 2_500 + 1, 40)
    unit = rows[:2_500] / np.linalg.norm(rows[:2_500], axis=1, keepdims=True)
    centred, aim = unit - unit.mean(0), query / np.linalg.norm(query) - unit.mean(0)
    cosines = centred @ aim / np.linalg.norm(centred, axis=1) / np.linalg.norm(aim)
    assert found == pytest.approx(cosines[seqs // 2 - 1], abs=0.05), "to what a byte tells apart"
    assert set(np.argsort(-cosines)[:10] * 2 + 2) <= set(seqs.tolist())
    assert all(seqs <= 5_000)
    assert list(seqs) == sorted(seqs)


def test_vectors_that_were_extended_find_what_those_that_were_put_in_at_once_find() -> None:
    rows, query = _random(2_100), packed_query(_random(1, seed=8)[0])
    assert query is not None
    at_once, extended = _vectors(rows), _vectors(rows, 3, 1_000, 21, 1, 1_075)
    for through_seq in (2, 2_047, 2_048, 4_200):
        one, other = (vectors.similar(query, through_seq, 20) for vectors in (at_once, extended))
        assert [column.tolist() for column in one] == [column.tolist() for column in other]
    assert extended.size_bytes == at_once.size_bytes
    assert extended.through_seq == 4_200


def test_of_many_the_nearest_are_found_though_not_all_are_compared() -> None:
    """Texts have subjects: the vectors of one are near each other."""
    subjects = np.random.default_rng(5).normal(0, 1, (60, DIMENSIONS * 4))
    rows = np.repeat(subjects, 100, axis=0) + np.random.default_rng(6).normal(0.2, 0.4, (6_000, DIMENSIONS * 4))
    vectors = Vectors.none_of("m", DIMENSIONS * 4).extended(np.arange(1, 6_001), b"".join(packed_vectors(rows)))
    query = packed_query(subjects[17])
    assert query is not None
    seqs, _ = vectors.similar(query, 6_000, 100)
    assert set(seqs.tolist()) == set(range(1_701, 1_801))
    assert set(vectors.similar(query, 1_750, 50)[0].tolist()) == set(range(1_701, 1_751))


def test_an_old_nearer_message_is_found_among_many_newer_similar_ones() -> None:
    other, often, query = _random(600), _random(1, seed=9), _random(1, seed=8)
    asked = packed_query(query[0])
    assert asked is not None
    seqs, _ = _vectors(np.concatenate((query, other, np.repeat(often, 8_000, axis=0)))).similar(asked, 20_000, 8)
    assert 2 in seqs


def test_zero_and_non_finite_vectors_are_packed_as_empty() -> None:
    odd = np.array([[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [1e300, 1e300], [3.0, 4.0]])
    assert [len(packed) for packed in packed_vectors(odd)] == [0, 0, 0, 0, 2]
    assert packed_query([0.0, 0.0]) is None
    longer, shorter = packed_vectors(np.array([[300.0, -400.0], [3.0, -4.0]]))
    assert longer == shorter, "only where it points"


def test_a_message_without_a_word_of_the_question_is_found_by_its_meaning_and_says_so() -> None:
    question, index = "Which insects did Otto own?", _index()
    assert not candidates(index, Query(question, 4), 100, 0.5)
    found = candidates(index, Query(question, 4, meaning=_meaning(near=1)), 100, 0.5)
    assert found[0].seqs == (1,)
    assert found[0].matched == (("≈1.0",),)


def test_meaning_is_added_to_words_and_messages_without_vectors_are_found_by_theirs() -> None:
    index, meaning = _index(), _meaning(near=2)
    by_words = search(index, Query("green boathouse", 4))
    both = search(index, Query("green boathouse", 4, meaning=meaning))
    assert index.seqs[by_words.positions].tolist() == [3]
    assert index.seqs[both.positions].tolist() == [3, 2], "words count for more than meaning alone"
    assert both.scores[0] == by_words.scores[0]
    none = replace(meaning, vectors=Vectors.none_of("m", DIMENSIONS))
    others = replace(meaning, vectors=Vectors.none_of("m", 7).extended(np.array([2]), b"\1" * 7))
    for absent in (none, others):
        found = search(index, Query("green boathouse", 4, meaning=absent))
        assert (found.positions.tolist(), found.scores.tolist()) == (by_words.positions.tolist(), [*by_words.scores])


def test_a_vector_of_a_message_that_the_index_does_not_have_finds_nothing() -> None:
    meaning = _meaning(near=2)
    index = EMPTY.extended(Packed.of([]), 4)
    assert not len(search(index, Query("crane", 4, meaning=meaning)).positions)
