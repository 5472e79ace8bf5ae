"""Counting tokens: vocabularies that are there offline, behind `str -> int`, off the event loop where it matters."""

from app.tokenizers.counting import HEURISTIC, TWO_FIFTHS, Estimator, Tokenizers, encoding_for_model, heuristic_tokens
from app.tokenizers.vocabularies import ENCODINGS, Vocabulary, load_vocabulary

__all__ = [
    "ENCODINGS",
    "HEURISTIC",
    "TWO_FIFTHS",
    "Estimator",
    "Tokenizers",
    "Vocabulary",
    "encoding_for_model",
    "heuristic_tokens",
    "load_vocabulary",
]
