"""A session's messages by their meaning: one vector each, packed into a byte per dimension, and scanned as arrays.

Vectors come from an embedding model outside the engine. Two are comparable only if the same model made both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from app.domain.frozen import frozen, replace
from app.engine.recall.index import U64, Floats, Index, Ints

Rows: TypeAlias = npt.NDArray[np.int8]

_BLOCK_ROWS: Final = 2_048
"""Rows of one array, which is the most that an extension copies."""
_MOST_COMPARED: Final = 1_536
"""Rows whose cosines are computed for a text, not counting rows that are as near as the last of them."""
_STEPS: Final = 127 / 4
"""Steps for a dimension's usual size: a byte holds four times that, and larger values are clipped."""
_LEAST_NORM: Final = 1e-6
_MEANING_SHARE: Final = 0.35
"""Share of the best score by words that is added to the message that is nearest in meaning."""
_MOST_SIMILAR: Final = 256
"""Most messages, nearest in meaning first, whose scores are raised."""
_NEAREST_SHARE: Final = 0.5
"""Share of the highest cosine from which on a message is reported as similar."""


def packed_vectors(vectors: npt.NDArray[np.floating]) -> list[bytes]:
    """Each row's direction as it is stored, a signed byte per dimension; empty for a row without a direction."""
    with np.errstate(all="ignore"):  # a model may return any values
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    usable = np.isfinite(norms[:, 0]) & (norms[:, 0] > _LEAST_NORM)
    unit = vectors[usable] / norms[usable] * (_STEPS * np.sqrt(vectors.shape[1]))
    rows = iter(np.clip(np.rint(unit), -127, 127).astype(np.int8))
    return [next(rows).tobytes() if is_usable else b"" for is_usable in usable]


@frozen(eq=False)
class Vectors:
    """Vectors of one model and `dimensions` dimensions, by the `seq` of their messages, ascending. `blocks` have
    `_BLOCK_ROWS` rows each, except the last. `total` is the sum of all rows; `signs` has their signs, in columns."""

    model: str
    dimensions: int
    seqs: Ints
    blocks: tuple[Rows, ...]
    signs: U64
    total: Ints

    @classmethod
    def none_of(cls, model: str, dimensions: int) -> Vectors:
        no_signs = _signs(np.zeros((0, dimensions), np.int8))
        return cls(model, dimensions, np.zeros(0, np.int64), (), no_signs, np.zeros(dimensions, np.int64))

    @property
    def through_seq(self) -> int:
        """The `seq` of the last message; 0 without any."""
        return int(self.seqs[-1]) if len(self.seqs) else 0

    @property
    def size_bytes(self) -> int:
        rows_bytes = sum([rows.nbytes for rows in self.blocks])
        return self.seqs.nbytes + self.signs.nbytes + self.total.nbytes + rows_bytes

    def extended(self, seqs: Ints, packed: bytes) -> Vectors:
        """The vectors with those of newer messages added; `packed` are these, concatenated."""
        new = np.frombuffer(packed, np.int8).reshape(len(seqs), self.dimensions)
        whole, last = self.blocks, new
        if self.blocks and len(self.blocks[-1]) < _BLOCK_ROWS:
            whole, last = self.blocks[:-1], np.concatenate((self.blocks[-1], new))
        cut = [last[at : at + _BLOCK_ROWS] for at in range(0, len(last), _BLOCK_ROWS)]
        return replace(
            self,
            seqs=np.concatenate((self.seqs, seqs)),
            blocks=(*whole, *cut),
            signs=np.concatenate((self.signs, _signs(new)), axis=1),
            total=self.total + new.sum(0, dtype=np.int64),
        )

    def similar(self, query: Rows, through_seq: int, most: int) -> tuple[Ints, Floats]:
        """The messages through `through_seq` that are nearest to a packed query, `most` at most: their `seq`,
        ascending, and cosines above 0. The mean is subtracted from all vectors: what a whole conversation has in common
        does not discriminate."""
        count = int(np.searchsorted(self.seqs, through_seq, "right"))
        if not count or len(query) != self.dimensions:
            return self.seqs[:0], np.zeros(0)
        mean = ((self.total - self._sum_behind(count)) / count).astype(np.float32)
        aim = query - mean
        compared = self._to_compare(aim, count)
        # Not a matrix product: BLAS would divide it among threads, which busy-wait.
        dots = np.concatenate([np.vecdot(rows.astype(np.float32), aim) for rows in self._rows(compared)]) - aim @ mean
        nearest = np.sort(np.argpartition(dots, -most)[-most:]) if len(dots) > most else np.arange(len(dots))
        best = compared[nearest]
        rows = np.concatenate([*self._rows(best)]).astype(np.float32)
        squares = np.vecdot(rows, rows) - 2 * np.vecdot(rows, mean) + mean @ mean
        lengths = np.sqrt(np.maximum(squares, _LEAST_NORM)) * float(np.linalg.norm(aim))
        cosines = dots[nearest].astype(np.float64) / np.maximum(lengths, _LEAST_NORM)
        found = cosines > 0
        return self.seqs[best[found]], cosines[found]

    def _sum_behind(self, count: int) -> Ints:
        """The sum of the rows from position `count` on."""
        total = np.zeros(self.dimensions, np.int64)
        for at in range(count // _BLOCK_ROWS, len(self.blocks)):
            total += self.blocks[at][max(0, count - at * _BLOCK_ROWS) :].sum(0, dtype=np.int64)
        return total

    def _to_compare(self, aim: npt.NDArray[np.float32], count: int) -> Ints:
        """The positions of the rows, among the first `count`, whose cosines are computed: of many, those whose signs
        differ from the aim's in the fewest dimensions, including ties with the last of these."""
        if count <= _MOST_COMPARED:
            return np.arange(count)
        differing = np.zeros(count, np.uint16)
        for signs, wanted in zip(self.signs, _signs(aim[None]), strict=True):
            differing += np.bitwise_count(signs[:count] ^ wanted)
        most = np.partition(differing, _MOST_COMPARED - 1)[_MOST_COMPARED - 1]
        equal = np.flatnonzero(differing == most)[-_MOST_COMPARED:]  # the newest: one text may be sent very often
        return np.sort(np.concatenate((np.flatnonzero(differing < most), equal)), kind="stable")

    def _rows(self, positions: Ints) -> Iterator[Rows]:
        """The rows at ascending positions, one array per block."""
        cuts = np.searchsorted(positions, np.arange(len(self.blocks) + 1) * _BLOCK_ROWS).tolist()
        places = positions % _BLOCK_ROWS
        for block, (first, end) in zip(self.blocks, pairwise(cuts), strict=True):
            yield block.take(places[first:end], axis=0)  # takes two thirds of the time of indexing


def _signs(rows: Rows | npt.NDArray[np.float32]) -> U64:
    """The signs of rows, one bit per dimension: a column of 64-bit words for each row."""
    bits = np.packbits(rows >= 0, axis=1)
    words = np.zeros((len(rows), -(-bits.shape[1] // 8)), np.uint64)
    words.view(np.uint8)[:, : bits.shape[1]] = bits
    return np.ascontiguousarray(words.T)


@frozen(eq=False)
class Meaning:
    """A search by meaning: the packed vector of a text, and the vectors that it is compared with."""

    query: Rows
    vectors: Vectors


def packed_query(vector: Sequence[float] | npt.NDArray[np.floating]) -> Rows | None:
    """A text's vector in the form in which it is compared with stored ones; None if it has no direction."""
    (packed,) = packed_vectors(np.asarray([vector], np.float64))
    return np.frombuffer(packed, np.int8) if packed else None


def with_similar(
    index: Index, meaning: Meaning | None, through_seq: int, found: Ints, scores: Floats
) -> tuple[Ints, Floats, dict[int, float]]:
    """The positions and scores of what was found by words, merged with what is near in meaning, best first; and the
    cosines of the nearest, by position."""
    if meaning is None or not len(index):
        return found, scores, {}
    seqs, cosines = meaning.vectors.similar(meaning.query, through_seq, _MOST_SIMILAR)
    at = np.searchsorted(index.seqs, seqs)
    known = index.seqs.take(at, mode="clip") == seqs
    at, cosines = at[known], cosines[known]
    if not len(at):
        return found, scores, {}
    best, most = float(scores.max(initial=0.0)) or 1.0, cosines.max()
    place = at.searchsorted(found)
    by_both = at.take(place, mode="clip") == found
    raised = _MEANING_SHARE * best * cosines / most
    raised[place[by_both]] += scores[by_both]
    every = np.concatenate((at, found[~by_both]))
    both = np.concatenate((raised, scores[~by_both]))
    order = np.lexsort((-every, -both))
    nearest = cosines >= _NEAREST_SHARE * most
    return every[order], both[order], dict(zip(at[nearest].tolist(), cosines[nearest].tolist(), strict=True))
