"""What a process keeps of sessions' settled pasts, so that a turn reads only what is new: the turns as columns, and
what recall goes by; and which prompt it sent last.

A past is append-only and says how far it goes: one that is kept is never wrong, only short, whatever other processes
write. The turn that ended last is never kept, since it alone may be tried again. What can change all the same raises
the session's `past_version`, which whoever claims a turn reads under the session's lock: a message that is taken back
(`db/messages.withdraw_messages`), and a turn that ended and runs again (`db/claims.reclaim_turn`, with `ended_as`). An
import and a fork fill a new session; a summary, also one that is undone, says only where the window begins; counts in
another encoding are added and never change. Nobody reads an erased session, so its past leaves within
`IDLE_S` everywhere.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise, takewhile

import numpy as np

from app.db.database import Transaction
from app.db.messages import UNCOUNTED, window_turns
from app.db.recall import save_terms, stored_terms, unpacked_messages
from app.db.settled import settled_texts
from app.db.vectors import stored_vectors
from app.domain.content import content_text
from app.domain.stored import StoredTexts
from app.domain.types import Content, ReasoningRule, Role, SessionId, Turn, Usage
from app.engine.recall.index import EMPTY, Index, Packed, packed_terms
from app.engine.recall.vectors import Vectors
from app.engine.window.columns import Columns
from app.engine.window.past import Kept
from app.engine.window.whole_turns import of_texts
from app.telemetry.metrics import Telemetry

IDLE_S = 600.0
"""After which a past that nobody read leaves."""
PROMPT_CACHE_S = 240.0
"""For which a provider keeps a prompt in its cache that nobody sends again, less what the next call takes: OpenAI and
Anthropic state five minutes at least."""
PACKED_A_TURN = 500
"""Messages without packed terms that one turn packs: some tenths of a second, until all are."""
_SLICE_MESSAGES = 4096
_SLICE_TEXTS = 2048
_SLICE_TURNS = 128
_SLICE_CHARS = 1_048_576
"""That become columns at once: a few milliseconds."""
_INLINE_BYTES = 256 * 1024
"""Of an index with what is new: a few milliseconds, some 2,000 messages of a chat."""
_INLINE_CHARS = 32_768
_MESSAGE_CHARS = 64
"""As many characters as a message takes the time of, however short it is."""
ENTRY_BYTES = 4096
"""Of one session beside what its columns and its index hold: what Python takes for them."""
_LEAST_TRIMMED = 256
"""Turns from before the window that are not worth copying the rest for."""


@dataclass(frozen=True, slots=True)
class Counting:
    """What has to be the same for turns that were kept to be what is sent of them: the session's `past_version`, the
    encoding of their counts, the model whose rule their images are counted by, and which reasoning it wants back."""

    past_version: int
    encoding: str
    model: str
    reasoning_rule: ReasoningRule | None


@dataclass(frozen=True, slots=True)
class LastPrompt:
    """The prompt that this process sent last for a session: to which alias, as references (JSON), and the number that
    was set aside for its reply. `cached_tokens` are those that the provider says it has read from its cache or written.
    """

    model_alias: str
    refs: bytes
    reply_seq: int
    sent_at: float = 0.0
    cached_tokens: int = 0


@dataclass(slots=True)
class _Entry:
    """What is kept of one session, changed in place; `used_at` is when it was read last, `size_bytes` what it was
    counted as when it was put last."""

    used_at: float
    last_prompt: LastPrompt | None = None
    index: Index = EMPTY
    vectors: Vectors | None = None
    counting: Counting | None = None
    columns: Columns | None = None
    size_bytes: int = 0


class Pasts:
    """The pasts of the sessions that were used last, as many as `most_bytes` hold."""

    def __init__(self, most_bytes: int, clock: Callable[[], float], telemetry: Telemetry) -> None:
        self._most_bytes = most_bytes
        self._clock = clock
        self._telemetry = telemetry
        self._pasts: OrderedDict[SessionId, _Entry] = OrderedDict()
        self.size_bytes = 0

    @property
    def keeps_any(self) -> bool:
        """Whether there is memory for pasts at all."""
        return self._most_bytes > 0

    def kept(self, session_id: SessionId, counting: Counting, after_seq: int, last_seq: int) -> Kept:
        """The turns with messages after a number that are kept as they are counted, to be gone on with after their
        last; none of a session that is not kept so. `last_seq` is the last message that the caller knows of."""
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
        """Keeps settled turns, counted and marked as they are sent, behind those that are kept; gives all of them.

        Many are put into columns a slice at a time, so that nobody else waits. Columns that begin long before what is
        read are exchanged for shorter ones.
        """
        columns, first = kept.columns, kept.first_turn
        new: Iterable[Turn] = turns
        if first > max(_LEAST_TRIMMED, 2 * kept.turns):
            new = chain(map(columns.turn, range(first, kept.end_turn)), turns)
            columns, first = Columns(columns.last_seq(first)), 0
        await _extend(columns, new)
        past = self._pasts.get(session_id)
        if past is None or past.counting is None or past.counting.past_version <= counting.past_version:
            past = past or _Entry(self._clock())
            past.counting, past.columns = counting, columns
            self._put(session_id, past)
        return Kept(columns, first, columns.turn_behind(turns[-1].seq) if turns else kept.end_turn)

    def index(self, session_id: SessionId) -> Index:
        """As far as it goes; an empty one of a session that is not kept."""
        past = self._read(session_id)
        return past.index if past else EMPTY

    def keep_index(self, session_id: SessionId, index: Index) -> None:
        """Keeps an index in the place of a shorter one."""
        past = self._pasts.get(session_id) or _Entry(self._clock())
        if past.index.through_seq < index.through_seq:
            past.index = index
            self._put(session_id, past)

    def vectors(self, session_id: SessionId, model: str, dimensions: int) -> Vectors:
        """As far as they go; none of a session of which others are kept, or nothing."""
        past = self._pasts.get(session_id)
        found = past.vectors if past else None
        is_same = found is not None and (found.model, found.dimensions) == (model, dimensions)
        return found if found and is_same else Vectors.none_of(model, dimensions)

    def keep_vectors(self, session_id: SessionId, vectors: Vectors) -> None:
        """Keeps vectors in the place of those before."""
        past = self._pasts.get(session_id) or _Entry(self._clock())
        past.vectors = vectors
        self._put(session_id, past)

    def last_prompt(self, session_id: SessionId) -> LastPrompt | None:
        """The prompt that was sent last, as far as this process knows."""
        past = self._pasts.get(session_id)
        return past.last_prompt if past else None

    def cached_prompt(self, session_id: SessionId) -> LastPrompt | None:
        """The same where it was sent so lately that a provider which caches prompts still has it."""
        prompt = self.last_prompt(session_id)
        return prompt if prompt and self._clock() - prompt.sent_at < PROMPT_CACHE_S else None

    def keep_last_prompt(self, session_id: SessionId, prompt: LastPrompt) -> None:
        """Keeps a prompt that is about to be sent in the place of the one before it."""
        past = self._pasts.get(session_id) or _Entry(self._clock())
        past.last_prompt = replace(prompt, sent_at=self._clock())
        self._put(session_id, past)

    def note_cached(self, session_id: SessionId, usage: Usage) -> None:
        """Notes what the provider has cached of the prompt that was sent last, as far as it says so."""
        past = self._pasts.get(session_id)
        if past and past.last_prompt:
            tokens = usage.cached_prompt_tokens + usage.cache_write_prompt_tokens
            past.last_prompt = replace(past.last_prompt, cached_tokens=tokens)

    def keep_fork(
        self, source: SessionId, target: SessionId, through_seq: int, last_message_seq: int, past_version: int
    ) -> None:
        """Keeps for a fork that ends with this turn and message what is kept of its source, which had this version.

        The fork's last turn may be tried again there, so it is not kept with those before it.
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
        """For sessions that were erased here."""
        for session_id in session_ids:
            if past := self._pasts.pop(session_id, None):
                self.size_bytes -= past.size_bytes
        self._telemetry.session_cache_size(self.size_bytes)

    def forget_idle(self) -> None:
        """Lets go of what nobody read in a while; the oldest come first."""
        since = self._clock() - IDLE_S
        idle: list[SessionId] = []
        for session_id, past in self._pasts.items():
            if past.used_at > since:
                break
            idle.append(session_id)
        self.forget(*idle)

    def _read(self, session_id: SessionId) -> _Entry | None:
        """What is kept of a session, which is the one that was used last from now on."""
        past = self._pasts.get(session_id)
        if past is not None:
            self._pasts.move_to_end(session_id)
            past.used_at = self._clock()
        return past

    def _put(self, session_id: SessionId, past: _Entry) -> None:
        """Keeps this of a session, the one that was used last; what the memory has no room for is not kept."""
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


async def settled_columns(
    tx: Transaction,
    session_id: SessionId,
    after_seq: int,
    through_seq: int,
    encoding: str,
    as_sent: Callable[[Turn], Turn],
    slice_messages: int = _SLICE_TEXTS,
) -> Columns:
    """The turns of a range of messages that begins and ends with one, all of them settled, as columns: as far as every
    message has a count. `as_sent` counts and marks a turn as the model is sent it.

    Turns that are nothing but text never become messages. What stands between others is read with them. A statement
    reads `slice_messages`, or as many more as one turn has.
    """
    columns, size = Columns(after_seq), slice_messages
    while after_seq < through_seq:
        last_seq = min(through_seq, after_seq + size)
        texts = await settled_texts(tx, session_id, after_seq, last_seq, encoding)
        if last_seq < through_seq:
            if len(texts.turn_seqs) < 2:
                size *= 2
                continue
            texts = texts.part(0, len(texts.turn_seqs) - 1)  # the last one may go on
            last_seq = texts.seqs[-1]
        first, end = _more_than_text(texts)
        columns.add(of_texts(texts.part(0, first)))
        if first < end:
            begins = texts.part(0, first).seqs[-1] if first else after_seq
            ends = texts.part(first, end).seqs[-1]
            turns = await window_turns(tx, session_id, begins, ends, encoding, step_failed=False)
            counted = list(takewhile(_is_counted, turns))
            await _extend(columns, map(as_sent, counted))
            if len(counted) < len(turns):
                break
            columns.add(of_texts(texts.part(end, len(texts.turn_seqs))))
        after_seq = last_seq
    return columns


def _more_than_text(texts: StoredTexts) -> tuple[int, int]:
    """The place of the first turn that has more than text or was not completed, and that behind the last such one."""
    ends = [*accumulate(texts.turn_messages, initial=0)]
    places = [
        at
        for at, (first, end) in enumerate(pairwise(ends))
        if not texts.turn_completed[at] or "-" in texts.roles[first:end]
    ]
    return (places[0], places[-1] + 1) if places else (len(texts.turn_seqs), len(texts.turn_seqs))


def _is_counted(turn: Turn) -> bool:
    return all(message.tokens != UNCOUNTED for message in turn.messages)


async def _extend(columns: Columns, turns: Iterable[Turn]) -> None:
    """Adds turns a slice at a time, so that nobody else waits."""
    part: list[Turn] = []
    chars = 0
    for turn in turns:
        part.append(turn)
        chars += sum([len(message.content) for message in turn.messages if isinstance(message.content, str)])
        if len(part) == _SLICE_TURNS or chars > _SLICE_CHARS:
            columns.extend(part)
            part, chars = [], 0
            await asyncio.sleep(0)
    if part:
        columns.extend(part)


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
        pasts.keep_index(session_id, index)
    return index, unpacked


async def settled_vectors(
    pasts: Pasts, tx: Transaction, session_id: SessionId, through_seq: int, *, model: str, dimensions: int
) -> Vectors:
    """What there is of a model's vectors of a session's messages through a number; reads what is not kept, keeps it."""
    vectors = pasts.vectors(session_id, model, dimensions)
    new = vectors
    for after_seq in range(vectors.through_seq, through_seq, _SLICE_MESSAGES):
        last_seq = min(through_seq, after_seq + _SLICE_MESSAGES)
        seqs, packed = await stored_vectors(tx, session_id, after_seq, last_seq, model=model, dimensions=dimensions)
        new = new.extended(seqs, packed) if len(seqs) else new
    if new is not vectors:
        pasts.keep_vectors(session_id, new)
    return new


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
    """The packed terms of messages by role, content, whether they call tools, and who spoke; long ones off the event
    loop."""

    def packed() -> list[bytes]:
        return [packed_terms(role, content, has_calls=calls, name=name) for role, content, calls, name in messages]

    chars = sum(len(content_text(content)) + _MESSAGE_CHARS for _, content, _, _ in messages)
    return packed() if chars <= _INLINE_CHARS else await asyncio.to_thread(packed)


async def _pack_oldest(tx: Transaction, session_id: SessionId, through_seq: int) -> None:
    rows = await unpacked_messages(tx, session_id, through_seq, PACKED_A_TURN)
    terms = await pack_messages([(row["role"], row["content"], row["has_calls"], row["name"]) for row in rows])
    await save_terms(tx, session_id, [row["seq"] for row in rows], terms)
