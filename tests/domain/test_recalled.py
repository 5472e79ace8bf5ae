"""What recall brought in, packed: the same rows come back, and there are few bytes of them."""

from __future__ import annotations

from itertools import accumulate
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from app.domain.frozen import replace
from app.domain.recalled import Recalled, recalled_ref, rows_of
from app.domain.types import MessageId

_DISTANCES_AND_FIGURES = st.lists(
    st.tuples(
        st.integers(1, 2**40),
        st.sampled_from((None, "text", "blocks")),
        st.integers(0, 2**30),
        st.integers(0, 2**40),
        st.sets(st.text(min_size=1, max_size=4), max_size=6).map(sorted).map(tuple),
    ),
    max_size=50,
)
_WORDS = ("bees", "lighthouse", "sister")


@given(_DISTANCES_AND_FIGURES)
def test_rows_come_back_as_they_were_packed(
    given_rows: list[tuple[int, str | None, int, int, tuple[str, ...]]],
) -> None:
    seqs = accumulate(distance for distance, *_ in given_rows)
    rows = [
        Recalled(seq, MessageId(UUID(int=seq)), form, score, tokens, matched)  # pyright: ignore[reportArgumentType]
        for seq, (_, form, score, tokens, matched) in zip(seqs, given_rows, strict=True)
    ]
    assert list(rows_of(recalled_ref(rows))) == [replace(row, message_id=None) for row in rows]


def test_a_row_takes_a_few_bytes_and_a_word_is_stored_once() -> None:
    rows = [Recalled(4 * at, MessageId(UUID(int=at)), None, 90 + at, 40 + at, _WORDS[at % 3 :]) for at in range(1, 147)]
    _, packed, *words = recalled_ref(rows)
    assert len(packed) < 8 * len(rows)
    assert words == sorted(_WORDS)
