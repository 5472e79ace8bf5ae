"""A text counted by its words has the count of the whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.tokenizers.counters import HEURISTIC, ByWords, Tokenizers
from app.tokenizers.vocabularies import ENCODINGS, load_vocabulary

TOKENIZERS = Tokenizers(load_vocabulary)
PROSE = "She said: \"I don't know, we'll see.\" That was 12,500.75 EUR;  café, naïve, 日本語 и так далее 👍🏽! "
_near_blanks = st.text(" \t\n\r\x0b\x85\u00a0\u2003\u3000.,:;!?'\"{}[]/aAzZéß9٣日本カ👍\u0301\u200d", max_size=24)
_texts = st.one_of(
    _near_blanks,
    st.text(st.characters(exclude_categories=("Cs",)), max_size=200),
    st.lists(st.one_of(_near_blanks, st.sampled_from(PROSE.split(" ")))).map(" ".join),
)


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(max_examples=300)
@given(texts=st.lists(_texts, min_size=1, max_size=4))
def test_a_text_has_the_count_of_its_words(encoding: str, texts: list[str]) -> None:
    whole = TOKENIZERS.estimator(encoding)
    count = ByWords(TOKENIZERS.estimator(encoding))
    for text in [*texts, " ".join(texts), *texts, PROSE, PROSE * 40]:
        assert count(text) == whole(text)


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(max_examples=300)
@given(texts=st.lists(_texts, min_size=1, max_size=6))
def test_parts_that_begin_with_a_blank_have_the_count_of_the_text_that_they_are(
    encoding: str, texts: list[str]
) -> None:
    whole, count = TOKENIZERS.estimator(encoding), ByWords(TOKENIZERS.estimator(encoding))
    parts = [f"{'' if at == 0 else ' '}<{text}>" for at, text in enumerate(texts)]
    assert count.of_parts(parts) == whole("".join(parts))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_long_words_and_many_words_are_counted_and_not_kept_for_ever(encoding: str) -> None:
    whole = TOKENIZERS.estimator(encoding)
    count = ByWords(TOKENIZERS.estimator(encoding))
    for text in ("x" * 5000 + " " + "ab" * 3000, " ".join(f"w{number}" for number in range(60_000))):
        assert count(text) == whole(text)


def test_where_no_vocabulary_counts_a_text_is_counted_whole() -> None:
    def broken(_encoding: str) -> object:
        raise OSError("no vocabulary")

    for tokenizers, encoding in ((TOKENIZERS, HEURISTIC), (Tokenizers(broken), ENCODINGS[0])):  # pyright: ignore[reportArgumentType] - it never returns
        count, whole = ByWords(tokenizers.estimator(encoding)), tokenizers.estimator(encoding)
        for _ in range(2):
            assert count(PROSE) == whole(PROSE)
