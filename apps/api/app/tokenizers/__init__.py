"""Counting tokens with offline vocabularies, as `str -> int`, and off the event loop for large texts."""

from app.tokenizers.counting import (
    HEURISTIC,
    TWO_FIFTHS,
    Estimator,
    Tokenizers,
    by_words,
    encoding_for_model,
    heuristic_tokens,
)
from app.tokenizers.vocabularies import ENCODINGS, Vocabulary, load_vocabulary

__all__ = [
    "ENCODINGS",
    "HEURISTIC",
    "TWO_FIFTHS",
    "Estimator",
    "Tokenizers",
    "Vocabulary",
    "by_words",
    "encoding_for_model",
    "heuristic_tokens",
    "load_vocabulary",
]
