"""A process's cache of sessions' settled pasts, so that a turn reads only what is new: the turns as columns, the index
and vectors that recall uses, and the prompt that was sent last.

A past is append-only and says how far it goes: a cached past may be too short but is never wrong, whatever other
processes write. The turn that ended last is never cached, since only that one may be tried again. Three operations do
change a settled past, and raise the session's `past_version`, which a claim reads under the session's lock: a message
is withdrawn (`db/messages.withdraw_messages`), a turn that ended runs again (`db/claims.reclaim_turn`, with
`ended_as`), or turns are rejected with the one that they were added with (`db/records.py`). An import and a
fork fill a new session; a summary, even one that is undone, only says where the window begins; counts in another
encoding are added and never change. An erased session is never read, so every process removes its past within
`IDLE_S`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile

import numpy as np

from app.db.database import Transaction
from app.db.recall import StoredTerms, save_terms, stored_terms, stored_vectors, unpacked_messages
from app.domain.content import content_text
from app.domain.frozen import frozen
from app.domain.types import Content, ReasoningRule, Role, SessionId, Turn, Usage
from app.engine.recall.index import EMPTY, Index, Packed, packed_terms
from app.engine.recall.vectors import Vectors
from app.engine.window.columns import Columns
from app.engine.window.past import Kept
from app.services.settled_columns import extended_columns
from app.telemetry.metrics import Telemetry

IDLE_S = 600.0
"""Seconds without a read after which a past is removed."""
PROMPT_CACHE_S = 240.0
"""Seconds for which a provider is assumed to keep an unused prompt in its cache: OpenAI and Anthropic state at least
five minutes, and the next call takes some of that."""
PACKED_A_TURN = 500
"""Messages without packed terms that one turn packs (a few tenths of a second); later turns pack the others."""
_SLICE_MESSAGES = 4096
_INLINE_BYTES = 256 * 1024
"""Largest index, with its new part, that is extended on the event loop: some 2,000 chat messages, a few ms."""
_INLINE_CHARS = 32_768
_MESSAGE_CHARS = 64
"""Characters that take as long to pack as the fixed work for one message."""
ENTRY_BYTES = 4096
"""Bytes counted for a session besides its columns and its index: the overhead of the Python objects."""
_LEAST_TRIMMED = 256
"""Up to this many turns before the window stay in the columns: removing them is not worth copying the rest."""


@frozen
class Counting:
    """What the cached form of turns depends on; they are reused only if all of it is equal. It is the session's
    `past_version`, the encoding of counts, the model whose rule counts images, and which reasoning it wants back."""

    past_version: int
    encoding: str
    model: str
    reasoning_rule: ReasoningRule | None


@frozen
class LastPrompt:
    """The prompt that this process sent last for a session: the model alias, the prompt references (JSON), and the
    message number reserved for the reply. `cached_tokens` are those that the provider reported as read from its cache
    or written to it."""

    model_alias: str
    refs: bytes
    reply_seq: int
    sent_at: float = 0.0
    cached_tokens: int = 0


@dataclass(slots=True)
class _Entry:
    """The cache entry of one session, changed in place. `used_at` is when it was last read or stored, `size_bytes` is
    its size when it was last stored."""

    used_at: float = 0.0
    last_prompt: LastPrompt | None = None
    index: Index = EMPTY
    vectors: Vectors | None = None
    counting: Counting | None = None
    columns: Columns | None = None
    size_bytes: int = 0


class Pasts:
    """The pasts of the sessions that were used last, as many as fit into `most_bytes`."""

    def __init__(self, most_bytes: int, clock: Callable[[], float], telemetry: Telemetry) -> None:
        self._most_bytes = most_bytes
        self._clock = clock
        self._telemetry = telemetry
        self._pasts: OrderedDict[SessionId, _Entry] = OrderedDict()
        self.size_bytes = 0

    @property
    def keeps_any(self) -> bool:
        """Whether the cache may hold anything at all."""
        return self._most_bytes > 0

    def kept(self, session_id: SessionId, counting: Counting, after_seq: int, last_seq: int) -> Kept:
        """The cached turns with messages after `after_seq`, to which newer turns are appended. Empty if the cache has
        another `counting` or range, or reaches `last_seq`, the last message that the caller knows of."""
        past = self._read(session_id)
        columns = past.columns if past else None
        first = None
        if past and columns and past.counting == counting and columns.from_seq <= after_seq <= columns.through_seq:
            first = columns.turn_after(after_seq) if columns.through_seq < last_seq else None
        self._telemetry.session_looked_up(hit=first is not None)
        if columns is None or first is None:
            return Kept(Columns(after_seq))
        return Kept(columns, first, columns.turns)

    async def keep(self, session_id: SessionId, counting: Counting, kept: Kept, turns: Sequence[Turn]) -> Kept:
        """Appends settled turns, counted and marked as they are sent, to the cached ones; returns all of them.

        Many turns are added in slices, so that the event loop is not blocked. Columns that begin long before what is
        read are replaced by shorter ones.
        """
        columns, first = kept.columns, kept.first_turn
        new: Iterable[Turn] = turns
        if first > max(_LEAST_TRIMMED, 2 * kept.turns):
            new = chain(map(columns.turn, range(first, kept.end_turn)), turns)
            columns, first = Columns(columns.last_seq(first)), 0
        columns = await extended_columns(columns, new)
        past = self._pasts.get(session_id)
        if past is None or past.counting is None or past.counting.past_version <= counting.past_version:
            past = past or _Entry()
            past.counting, past.columns = counting, columns
            self._put(session_id, past)
        return Kept(columns, first, columns.turn_behind(turns[-1].seq) if turns else kept.end_turn)

    def index(self, session_id: SessionId) -> Index:
        """The cached index, as far as it goes; an empty one if the session is not cached."""
        past = self._read(session_id)
        return past.index if past else EMPTY

    def keep_index(self, session_id: SessionId, index: Index) -> None:
        """Caches an index if it goes further than the cached one."""
        past = self._pasts.get(session_id) or _Entry()
        if past.index.through_seq < index.through_seq:
            past.index = index
            self._put(session_id, past)

    def vectors(self, session_id: SessionId, model: str, dimensions: int) -> Vectors:
        """The cached vectors, as far as they go; empty if there are none, or those of another model or size."""
        past = self._pasts.get(session_id)
        found = past.vectors if past else None
        is_same = found is not None and (found.model, found.dimensions) == (model, dimensions)
        return found if found and is_same else Vectors.none_of(model, dimensions)

    def keep_vectors(self, session_id: SessionId, vectors: Vectors) -> None:
        """Caches vectors in place of those before."""
        past = self._pasts.get(session_id) or _Entry()
        past.vectors = vectors
        self._put(session_id, past)

    def forget_vectors(self, session_id: SessionId, from_seq: int) -> None:
        """Removes the cached vectors if they go beyond a message that has got one only now."""
        past = self._pasts.get(session_id)
        if past and past.vectors and past.vectors.through_seq > from_seq:
            past.vectors = None

    def last_prompt(self, session_id: SessionId) -> LastPrompt | None:
        """The prompt that this process sent last, if it is cached."""
        past = self._pasts.get(session_id)
        return past.last_prompt if past else None

    def cached_prompt(self, session_id: SessionId) -> LastPrompt | None:
        """The last prompt, if it was sent so recently that a provider which caches prompts still has it."""
        prompt = self.last_prompt(session_id)
        return prompt if prompt and self._clock() - prompt.sent_at < PROMPT_CACHE_S else None

    def keep_last_prompt(self, session_id: SessionId, prompt: LastPrompt) -> None:
        """Caches a prompt that is about to be sent, in place of the one before it."""
        past = self._pasts.get(session_id) or _Entry()
        past.last_prompt = replace(prompt, sent_at=self._clock())
        self._put(session_id, past)

    def note_cached(self, session_id: SessionId, usage: Usage) -> None:
        """Records how much of the last prompt the provider has in its cache, as far as it reports that."""
        past = self._pasts.get(session_id)
        if past and past.last_prompt:
            tokens = usage.cached_prompt_tokens + usage.cache_write_prompt_tokens
            past.last_prompt = replace(past.last_prompt, cached_tokens=tokens)

    def keep_fork(
        self, source: SessionId, target: SessionId, through_seq: int, last_message_seq: int, past_version: int
    ) -> None:
        """Copies what is cached of `source` to its fork, which ends with this turn and message.

        Columns are copied only if they are of this `past_version`, and end before the fork's last turn, which may be
        tried again there.
        """
        past = self._pasts.get(source)
        if past is None:
            return
        columns, counting = past.columns, past.counting
        is_same = counting is not None and counting.past_version == past_version
        fits = columns is not None and is_same and columns.turns > 0 and columns.turn_seqs[-1] < through_seq
        index = past.index if past.index.through_seq <= last_message_seq else EMPTY
        columns = columns.copy() if columns and fits else None
        vectors = past.vectors if past.vectors and past.vectors.through_seq <= last_message_seq else None
        self._put(target, replace(past, last_prompt=None, index=index, vectors=vectors, columns=columns))

    def forget(self, *session_ids: SessionId) -> None:
        """Removes the entries of these sessions, for example because they were erased here."""
        for session_id in session_ids:
            if past := self._pasts.pop(session_id, None):
                self.size_bytes -= past.size_bytes
        self._telemetry.session_cache_size(self.size_bytes)

    def forget_idle(self) -> None:
        """Removes the entries that were not read for `IDLE_S`. The least recently used come first."""
        since = self._clock() - IDLE_S
        self.forget(*takewhile(lambda session_id: self._pasts[session_id].used_at <= since, self._pasts))

    def _read(self, session_id: SessionId) -> _Entry | None:
        """The entry of a session, which becomes the most recently used one."""
        past = self._pasts.get(session_id)
        if past is not None:
            self._pasts.move_to_end(session_id)
            past.used_at = self._clock()
        return past

    def _put(self, session_id: SessionId, past: _Entry) -> None:
        """Stores an entry as the most recently used one and evicts the oldest; one that never fits is dropped."""
        if before := self._pasts.pop(session_id, None):
            self.size_bytes -= before.size_bytes
        size_bytes = ENTRY_BYTES + past.index.size_bytes + (past.columns.size_bytes if past.columns else 0)
        size_bytes += len(past.last_prompt.refs) if past.last_prompt else 0
        size_bytes += past.vectors.size_bytes if past.vectors else 0
        if size_bytes <= self._most_bytes:
            past.used_at, past.size_bytes = self._clock(), size_bytes
            self._pasts[session_id] = past
            self.size_bytes += size_bytes
        while self.size_bytes > self._most_bytes:
            _, oldest = self._pasts.popitem(last=False)
            self.size_bytes -= oldest.size_bytes
        self._telemetry.session_cache_size(self.size_bytes)


async def settled_index(
    pasts: Pasts, tx: Transaction, session_id: SessionId, settled_seq: int, *, pack: bool = False
) -> tuple[Index, int]:
    """The index of a session's messages, at least through `settled_seq`, below which nothing is written any more; and
    how many of them are missing in it, because they have no packed terms yet. With `pack`, some of those are packed.

    Reads what is not cached, and caches the index if nothing is missing.
    """
    kept = pasts.index(session_id)
    index, unpacked = await extended_index(tx, session_id, kept, settled_seq)
    if unpacked and pack:
        await _pack_oldest(tx, session_id, settled_seq)
        index, unpacked = await extended_index(tx, session_id, kept, settled_seq)
    if not unpacked:
        pasts.keep_index(session_id, index)
    return index, unpacked


async def settled_vectors(
    pasts: Pasts, tx: Transaction, session_id: SessionId, through_seq: int, *, model: str, dimensions: int
) -> Vectors:
    """The vectors that a model has made of a session's messages through `through_seq`. Reads and caches new ones."""
    vectors = new = pasts.vectors(session_id, model, dimensions)
    has_more = new.through_seq < through_seq
    while has_more:
        seqs, packed = await stored_vectors(
            tx, session_id, new.through_seq, through_seq, model=model, dimensions=dimensions, limit=_SLICE_MESSAGES
        )
        new = new.extended(seqs, packed) if len(seqs) else new
        has_more = len(seqs) == _SLICE_MESSAGES
    if new is not vectors:
        pasts.keep_vectors(session_id, new)
    return new


async def extended_index(tx: Transaction, session_id: SessionId, index: Index, through_seq: int) -> tuple[Index, int]:
    """The index extended by the messages through `through_seq`, and how many of those have no packed terms.

    The messages are read in slices. A large index is extended on a thread, off the event loop.
    """
    slices: list[StoredTerms] = []
    read_seq = index.through_seq
    while read_seq < through_seq:
        slices.append(await stored_terms(tx, session_id, read_seq, through_seq, _SLICE_MESSAGES))
        read_seq = slices[-1].through_seq
    if not slices:
        return index, 0
    numbers = (
        np.frombuffer(b"".join(parts), ">i8")
        for parts in zip(*((s.seqs, s.tokens, s.days) for s in slices), strict=True)
    )
    terms = b"".join(part.terms for part in slices)
    seqs, tokens, days = numbers
    new = Packed(seqs, tokens, terms, days)
    if index.size_bytes + len(terms) <= _INLINE_BYTES:
        index = index.extended(new, through_seq)
    else:
        index = await asyncio.to_thread(index.extended, new, through_seq)
    return index, sum(part.unpacked for part in slices)


async def pack_messages(messages: Sequence[tuple[Role, Content, bool, str | None]]) -> list[bytes]:
    """The packed terms of messages, given by role, content, whether they call tools, and who spoke. Many characters
    are packed on a thread, off the event loop."""

    def packed() -> list[bytes]:
        return [packed_terms(role, content, has_calls=calls, name=name) for role, content, calls, name in messages]

    chars = sum(len(content_text(content)) + _MESSAGE_CHARS for _, content, _, _ in messages)
    return packed() if chars <= _INLINE_CHARS else await asyncio.to_thread(packed)


async def _pack_oldest(tx: Transaction, session_id: SessionId, through_seq: int) -> None:
    rows = await unpacked_messages(tx, session_id, through_seq, PACKED_A_TURN)
    terms = await pack_messages([(row["role"], row["content"], row["has_calls"], row["name"]) for row in rows])
    await save_terms(tx, session_id, [row["seq"] for row in rows], terms)
