"""What a process keeps of sessions' settled pasts, so that a turn reads only what is new: today what recall goes by.

A past is append-only and says how far it goes: one that is kept is never wrong, only short, whatever other processes
write. Where the window begins, an undone summary, or a turn that was rejected is a matter of the question, not of what
is kept. An erased session is asked for by nobody, so its past leaves within `IDLE_S` everywhere.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from app.db.database import Transaction
from app.db.recall import save_terms, stored_terms, unpacked_messages
from app.domain.content import content_text
from app.domain.types import Content, Role, SessionId
from app.engine.recall.index import EMPTY, Index, Packed, packed_terms
from app.telemetry import Telemetry

IDLE_S = 600.0
"""After which a past that nobody asked for leaves."""
PACKED_A_TURN = 500
"""Messages without packed terms that one turn packs: some tenths of a second, until all are."""
_SLICE_MESSAGES = 4096
_INLINE_BYTES = 256 * 1024
"""Of an index with what is new: a few milliseconds, some 2,000 messages of a chat."""
_INLINE_CHARS = 32_768
_ENTRY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is kept of one session; `used_at` is when it was asked for last."""

    index: Index
    used_at: float

    @property
    def size_bytes(self) -> int:
        return _ENTRY_BYTES + self.index.size_bytes


class Pasts:
    """The pasts of the sessions that were used last, as many as `most_bytes` hold."""

    def __init__(self, most_bytes: int, clock: Callable[[], float], telemetry: Telemetry) -> None:
        self._most_bytes = most_bytes
        self._clock = clock
        self._telemetry = telemetry
        self._pasts: OrderedDict[SessionId, _Entry] = OrderedDict()
        self.size_bytes = 0

    def index(self, session_id: SessionId) -> Index:
        """As far as it goes; an empty one of a session that is not kept."""
        past = self._pasts.get(session_id)
        self._telemetry.session_looked_up(hit=past is not None)
        if past is None:
            return EMPTY
        self._put(session_id, past.index)
        return past.index

    def keep(self, session_id: SessionId, index: Index) -> None:
        """Keeps an index in the place of a shorter one."""
        kept = self._pasts.get(session_id)
        if kept is None or kept.index.through_seq < index.through_seq:
            self._put(session_id, index)

    def forget(self, *session_ids: SessionId) -> None:
        """For sessions that were erased here."""
        for session_id in session_ids:
            if past := self._pasts.pop(session_id, None):
                self.size_bytes -= past.size_bytes
        self._telemetry.session_cache_size(self.size_bytes)

    def forget_idle(self) -> None:
        """Lets go of what nobody asked for in a while; the oldest come first."""
        since = self._clock() - IDLE_S
        idle: list[SessionId] = []
        for session_id, past in self._pasts.items():
            if past.used_at > since:
                break
            idle.append(session_id)
        self.forget(*idle)

    def _put(self, session_id: SessionId, index: Index) -> None:
        if before := self._pasts.pop(session_id, None):
            self.size_bytes -= before.size_bytes
        past = _Entry(index, self._clock())
        self._pasts[session_id] = past
        self.size_bytes += past.size_bytes
        while self.size_bytes > self._most_bytes:
            _, oldest = self._pasts.popitem(last=False)
            self.size_bytes -= oldest.size_bytes
        self._telemetry.session_cache_size(self.size_bytes)


async def settled_index(
    pasts: Pasts, tx: Transaction, session_id: SessionId, settled_seq: int, *, pack: bool = False
) -> tuple[Index, int]:
    """The index of a session's messages at least through a number that nothing is written below any more, and how many
    of them are not in it, because they have no packed terms yet. With `pack` some of those get them.

    Reads what is not kept; keeps it where nothing is missing.
    """
    kept = pasts.index(session_id)
    index, unpacked = await extended_index(tx, session_id, kept, settled_seq)
    if unpacked and pack:
        await _pack_oldest(tx, session_id, settled_seq)
        index, unpacked = await extended_index(tx, session_id, kept, settled_seq)
    if not unpacked:
        pasts.keep(session_id, index)
    return index, unpacked


async def extended_index(tx: Transaction, session_id: SessionId, index: Index, through_seq: int) -> tuple[Index, int]:
    """The index with the messages through a number that it does not have; how many have no packed terms.

    They are read a slice at a time, and a long session's are put in off the event loop.
    """
    slices = [
        await stored_terms(tx, session_id, after_seq, min(through_seq, after_seq + _SLICE_MESSAGES))
        for after_seq in range(index.through_seq, through_seq, _SLICE_MESSAGES)
    ]
    if not slices:
        return index, 0
    seqs, tokens = b"".join(part.seqs for part in slices), b"".join(part.tokens for part in slices)
    terms = b"".join(part.terms for part in slices)
    new = Packed(np.frombuffer(seqs, ">i8"), np.frombuffer(tokens, ">i8"), terms)
    if index.size_bytes + len(terms) <= _INLINE_BYTES:
        index = index.extended(new, through_seq)
    else:
        index = await asyncio.to_thread(index.extended, new, through_seq)
    return index, sum(part.unpacked for part in slices)


async def pack_messages(messages: Sequence[tuple[Role, Content, bool]]) -> list[bytes]:
    """The packed terms of messages by role, content, and whether they call tools; long ones off the event loop."""

    def packed() -> list[bytes]:
        return [packed_terms(role, content, has_calls=has_calls) for role, content, has_calls in messages]

    chars = sum(len(content_text(content)) for _, content, _ in messages)
    return packed() if chars <= _INLINE_CHARS else await asyncio.to_thread(packed)


async def _pack_oldest(tx: Transaction, session_id: SessionId, through_seq: int) -> None:
    rows = await unpacked_messages(tx, session_id, through_seq, PACKED_A_TURN)
    terms = await pack_messages([(row["role"], row["content"], row["has_calls"]) for row in rows])
    await save_terms(tx, session_id, [row["seq"] for row in rows], terms)
