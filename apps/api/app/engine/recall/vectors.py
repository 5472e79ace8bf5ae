"""A session's messages by their meaning: a vector each, packed into a byte a dimension, and scanned as arrays.

Vectors come from an embedding model, which is no part of the engine. Two are comparable only where one model made both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from app.engine.recall.index import Floats, Index, Ints

Rows: TypeAlias = npt.NDArray[np.int8]

_BLOCK_ROWS: Final = 1024
"""Of one array: what an extension copies at most."""
_MOST_COMPARED: Final = 2_048
"""Rows whose cosines are reckoned for a text."""
_STEPS: Final = 127 / 4
"""Of a dimension's usual size: a byte holds four times as much, and of what is larger the sign tells enough."""
_LEAST_NORM: Final = 1e-6
_MEANING_SHARE: Final = 0.35
"""Of the best score by words: what the message that is nearest in meaning gets beside it."""
_MOST_SIMILAR: Final = 256
"""Messages nearest in meaning, best first, whose scores are raised."""
_NEAREST_SHARE: Final = 0.5
"""Of the highest cosine: from which on a message is said to be similar."""


class Similar(NamedTuple):
    """Messages whose vectors point the way of a text's, best first: their numbers, and the cosines, above 0."""

    seqs: Ints
    cosines: Floats


class VectorBlock(NamedTuple):
    """Packed vectors, a row each, and their signs."""

    rows: Rows
    signs: npt.NDArray[np.uint64]


def packed_vectors(vectors: npt.NDArray[np.floating]) -> list[bytes]:
    """Each row's direction as it is stored, a signed byte a dimension; empty for one that has none."""
    with np.errstate(all="ignore"):  # whatever a model gave
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    usable = np.isfinite(norms[:, 0]) & (norms[:, 0] > _LEAST_NORM)
    unit = vectors[usable] / norms[usable] * (_STEPS * np.sqrt(vectors.shape[1]))
    rows = iter(np.clip(np.rint(unit), -127, 127).astype(np.int8))
    return [next(rows).tobytes() if is_usable else b"" for is_usable in usable]


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Vectors of one model and so many dimensions, by the numbers of their messages, ascending.

    A value: extending gives another. `blocks` have `_BLOCK_ROWS` rows each, but for the last; `total` is their sum.
    """

    model: str
    dimensions: int
    seqs: Ints
    blocks: tuple[VectorBlock, ...]
    total: Ints

    @classmethod
    def none_of(cls, model: str, dimensions: int) -> Vectors:
        return cls(model, dimensions, np.zeros(0, np.int64), (), np.zeros(dimensions, np.int64))

    @property
    def through_seq(self) -> int:
        """The number of the last message that is in it."""
        return int(self.seqs[-1]) if len(self.seqs) else 0

    @property
    def size_bytes(self) -> int:
        """What it takes of memory."""
        return self.seqs.nbytes + self.total.nbytes + sum(rows.nbytes + signs.nbytes for rows, signs in self.blocks)

    def extended(self, seqs: Ints, packed: bytes) -> Vectors:
        """The same with newer messages' packed vectors, one after the other."""
        new = np.frombuffer(packed, np.int8).reshape(len(seqs), self.dimensions)
        whole, last = self.blocks, new
        if self.blocks and len(self.blocks[-1].rows) < _BLOCK_ROWS:
            whole, last = self.blocks[:-1], np.concatenate((self.blocks[-1].rows, new))
        cut = [last[at : at + _BLOCK_ROWS] for at in range(0, len(last), _BLOCK_ROWS)]
        made = [VectorBlock(rows, _signs(rows)) for rows in cut]
        total = self.total + new.sum(0, dtype=np.int64)
        return Vectors(self.model, self.dimensions, np.concatenate((self.seqs, seqs)), (*whole, *made), total)

    def similar(self, query: Rows, through_seq: int, most: int) -> Similar:
        """The messages through a number that are nearest to a packed query, so many at most.

        All are taken from the mean of these messages: what is common to a conversation tells none apart.
        """
        count = int(np.searchsorted(self.seqs, through_seq, "right"))
        if not count or len(query) != self.dimensions:
            return Similar(self.seqs[:0], np.zeros(0))
        mean = ((self.total - self._sum_behind(count)) / count).astype(np.float32)
        aim = query - mean
        compared = self._to_compare(aim, count)
        dots = np.concatenate([rows.astype(np.float32) @ aim for rows in self._rows(compared)]) - aim @ mean
        nearest = np.sort(np.argpartition(dots, -most)[-most:]) if len(dots) > most else np.arange(len(dots))
        best = compared[nearest]
        rows = np.concatenate([*self._rows(best)]).astype(np.float32)
        squares = np.einsum("ij,ij->i", rows, rows) - 2 * (rows @ mean) + mean @ mean
        lengths = np.sqrt(np.maximum(squares, _LEAST_NORM)) * float(np.linalg.norm(aim))
        cosines = dots[nearest].astype(np.float64) / np.maximum(lengths, _LEAST_NORM)
        found = np.flatnonzero(cosines > 0)
        order = found[np.lexsort((-best[found], -cosines[found]))]
        return Similar(self.seqs[best[order]], cosines[order])

    def _sum_behind(self, count: int) -> Ints:
        """The sum of the rows from a position on: those of messages that are newer than what is searched."""
        total = np.zeros(self.dimensions, np.int64)
        for at in range(count // _BLOCK_ROWS, len(self.blocks)):
            total += self.blocks[at].rows[max(0, count - at * _BLOCK_ROWS) :].sum(0, dtype=np.int64)
        return total

    def _to_compare(self, aim: npt.NDArray[np.float32], count: int) -> Ints:
        """The positions of the rows, of the first `count`, whose cosines are reckoned: of many those that differ from
        the aim in the signs of the fewest dimensions. On LoCoMo a tenth of the rows so chosen has 98 % of the 64
        nearest, in half the time."""
        if count <= _MOST_COMPARED:
            return np.arange(count)
        wanted = _signs(aim[None])
        differing = [np.bitwise_count(block.signs ^ wanted).sum(0, dtype=np.uint16) for block in self.blocks]
        return np.sort(np.argpartition(np.concatenate(differing)[:count], _MOST_COMPARED)[:_MOST_COMPARED])

    def _rows(self, positions: Ints) -> Iterator[Rows]:
        """The rows at ascending positions, a block at a time."""
        cuts = np.searchsorted(positions, np.arange(len(self.blocks) + 1) * _BLOCK_ROWS).tolist()
        places = positions % _BLOCK_ROWS
        for block, (first, end) in zip(self.blocks, pairwise(cuts), strict=True):
            yield block.rows.take(places[first:end], axis=0)  # in two thirds of the time of indexing


def _signs(rows: Rows | npt.NDArray[np.float32]) -> npt.NDArray[np.uint64]:
    """The signs of rows, a bit a dimension: a column of words each."""
    bits = np.packbits(rows >= 0, axis=1)
    padded = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8)))
    return np.ascontiguousarray(padded.view(np.uint64).T)


@dataclass(frozen=True, slots=True, eq=False)
class Meaning:
    """What is looked for by its meaning: the packed vector of a text, and the vectors that it is compared with."""

    query: Rows
    vectors: Vectors


def packed_query(vector: Sequence[float] | npt.NDArray[np.floating]) -> Rows | None:
    """A text's vector as it is compared with stored ones; None where it has no direction."""
    (packed,) = packed_vectors(np.asarray([vector], np.float64))
    return np.frombuffer(packed, np.int8) if packed else None


def with_similar(
    index: Index, meaning: Meaning | None, through_seq: int, found: Ints, scores: Floats
) -> tuple[Ints, Floats, dict[int, float]]:
    """What was found by words, by position and best first, together with what is near in meaning; and the cosines of
    the nearest."""
    if meaning is None:
        return found, scores, {}
    near = meaning.vectors.similar(meaning.query, through_seq, _MOST_SIMILAR)
    at = np.searchsorted(index.seqs, near.seqs)
    known = np.append(index.seqs, -1)[at] == near.seqs
    at, cosines = at[known], near.cosines[known]
    if not len(at):
        return found, scores, {}
    best = float(scores.max(initial=0.0)) or 1.0
    raised = np.concatenate((scores, _MEANING_SHARE * best * cosines / cosines.max()))
    every, place = np.unique(np.concatenate((found, at)), return_inverse=True)
    both = np.bincount(place, raised).astype(np.float64, copy=False)
    order = np.lexsort((-every, -both))
    nearest = int(np.count_nonzero(cosines >= _NEAREST_SHARE * cosines.max()))  # the best come first
    return every[order], both[order], dict(zip(at[:nearest].tolist(), cosines[:nearest].tolist(), strict=True))
