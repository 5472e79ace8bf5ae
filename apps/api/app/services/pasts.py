"""A process's cache of sessions' settled pasts, so that a turn reads only what is new: the turns as columns, the active
summary, the index and vectors that recall uses, and the prompt that was sent last. A cached past may be too short but
is never wrong, whatever other processes write (docs/decisions/0016-kept-pasts.md). An erased session is never read, so
every process removes its past within `IDLE_S`."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from sys import getsizeof

from app.core.memory import skip_when_collecting
from app.domain.content import canonical_bytes, chars_of
from app.domain.frozen import frozen, replace
from app.domain.types import Message, MessageId, ReasoningRule, SessionId, Summary, Turn, Usage
from app.engine.recall.index import EMPTY, Index
from app.engine.recall.vectors import Vectors
from app.engine.window.columns import Columns
from app.engine.window.past import Past, past_of_columns
from app.telemetry.metrics import Telemetry

IDLE_S = 600.0
"""Seconds without a read after which a past is removed."""
PROMPT_CACHE_S = 240.0
"""Seconds for which a provider is assumed to keep an unused prompt in its cache: OpenAI and Anthropic state at least
five minutes, and the next call takes some of that."""
_ITEM_BYTES = 120
"""Bytes of an item of a summary besides its text and ids, and of one of its ids."""
_MESSAGE_BYTES = 600
"""Bytes of a `Message` besides its texts."""
_LARGEST_INDEX = 4
"""A recall index is read up to this part of the cache, or up to `_LEAST_INDEX_BYTES` if that is more."""
_LEAST_INDEX_BYTES = 16 * 1024 * 1024
_LARGEST_VECTORS = 2
_LARGEST_OPEN_TURN = 8
"""An open turn takes at most this part of the cache."""
_MORE_OF_OPEN_TURN = 512
"""Messages of an open turn that are cached in one step (a few ms). Of a longer turn each round caches some more."""
ENTRY_BYTES = 4096
"""Bytes counted for a session besides its columns and its index: the overhead of the Python objects."""
_SLICE_CHARS = 2_097_152
"""Characters of messages that are added to columns in one step (a few milliseconds). A turn with far more is added on a
thread."""
_ADDED_CHARS = 8_192
"""Characters that take as long to add to columns as the fixed work for one message."""
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


@dataclass(slots=True)
class LastPrompt:
    """The prompt that this process sent last for a session: the model alias, the prompt references (JSON), and the
    message number reserved for the reply. `cached_tokens` are those that the provider reported as read from its cache
    or written to it; they are set when it has answered."""

    model_alias: str
    refs: bytes
    reply_seq: int
    sent_at: float
    cached_tokens: int = 0


@frozen
class OpenTurn:
    """A turn that ran its last rounds here, as it was read: with stored counts, and the only one after `after_seq`."""

    counting: Counting
    after_seq: int
    turn: Turn
    size_bytes: int


@dataclass(slots=True)
class _CachedSession:
    """The cache entry of one session, changed in place. `used_at` is when it was last read or stored, `size_bytes` is
    its size when it was last stored. The sizes of its parts are computed when these change."""

    used_at: float = 0.0
    last_prompt: LastPrompt | None = None
    summary: Summary | None = None
    summary_bytes: int = 0
    index: Index = EMPTY
    index_version: int = 0
    vectors: Vectors | None = None
    counting: Counting | None = None
    columns: Columns | None = None
    columns_bytes: int = 0
    open_turn: OpenTurn | None = None
    size_bytes: int = 0


class Pasts:
    """The pasts of the sessions that were used last, as many as fit into `most_bytes`."""

    def __init__(self, most_bytes: int, clock: Callable[[], float], telemetry: Telemetry) -> None:
        self._most_bytes = most_bytes
        self._clock = clock
        self._telemetry = telemetry
        self._pasts: OrderedDict[SessionId, _CachedSession] = OrderedDict()
        self.size_bytes = 0

    @property
    def keeps_any(self) -> bool:
        return self._most_bytes > 0

    @property
    def most_index_bytes(self) -> int:
        """The size to which an index of a session's newest messages is read. It grows to twice that, and is then read
        anew."""
        return max(_LEAST_INDEX_BYTES, self._most_bytes // _LARGEST_INDEX)

    @property
    def most_vectors_bytes(self) -> int:
        """The size to which the vectors of a session's newest messages are read. They grow until they fit no more."""
        return max(_LEAST_INDEX_BYTES, self._most_bytes // _LARGEST_VECTORS)

    def last_message(self, session_id: SessionId) -> tuple[int, MessageId] | tuple[None, None]:
        """The number and the id of the last cached message. If the database has another one, what is cached was lost
        there: a standby took over without it, or an older backup was restored."""
        past = self._of(session_id)
        if past.open_turn:
            last = past.open_turn.turn.messages[-1]
            return last.seq, last.id
        return (past.columns and past.columns.last_message) or (None, None)

    def kept(self, session_id: SessionId, counting: Counting, after_seq: int, last_seq: int) -> Past:
        """The cached turns with messages after `after_seq`, to which newer turns are appended. Empty if the cache has
        another `counting` or range, or reaches `last_seq`, the last message that the caller knows of."""
        past = self._read(session_id)
        columns, first = past.columns, None
        through_seq = columns.last_seq(columns.turns) if columns else 0
        if columns and past.counting == counting and columns.from_seq <= after_seq <= through_seq < last_seq:
            first = columns.turn_after(after_seq)
        self._telemetry.session_looked_up(hit=first is not None)
        if columns is None or first is None:
            return past_of_columns(Columns(after_seq))
        return past_of_columns(columns, first, columns.turns)

    async def keep(self, session_id: SessionId, counting: Counting, kept: Past, turns: Sequence[Turn]) -> Past:
        """Appends settled turns, counted and marked as they are sent, to the cached ones, in slices, so that the event
        loop is not blocked; returns all of them. Columns that begin long before what is read are replaced by shorter
        ones."""
        columns, first = kept.columns, kept.first_turn
        new: Iterable[Turn] = turns
        if first > max(_LEAST_TRIMMED, 2 * kept.turn_count):
            new = chain(map(columns.turn, range(first, kept.end_turn)), turns)
            columns, first = Columns(columns.last_seq(first)), 0
        columns = await extended_columns(columns, new)
        past = self._of(session_id)
        if past.counting is None or past.counting.past_version <= counting.past_version:
            past.counting, past.columns, past.columns_bytes = counting, columns, columns.size_bytes
            past.open_turn = None  # it is not what follows these columns
            self._put(session_id, past)
        return past_of_columns(
            columns, first, bisect_right(columns.turn_seqs, turns[-1].seq) if turns else kept.end_turn
        )

    def open_turn(self, session_id: SessionId, counting: Counting, after_seq: int) -> Turn | None:
        """The cached turn directly after `after_seq`, as far as it goes. It may have ended since it was cached."""
        found = self._of(session_id).open_turn
        return found.turn if found and (found.counting, found.after_seq) == (counting, after_seq) else None

    def keep_open_turn(self, session_id: SessionId, counting: Counting, after_seq: int, turn: Turn) -> None:
        """Caches some more messages of the only turn after `after_seq`, as long as it does not take the place of many
        sessions."""
        past = self._of(session_id)
        before = self.open_turn(session_id, counting, after_seq)
        known = len(before.messages) if before and before.id == turn.id else 0
        known_bytes = past.open_turn.size_bytes if past.open_turn and known else 0
        end = min(known + _MORE_OF_OPEN_TURN, len(turn.messages))
        size_bytes = known_bytes + sum(map(_size_of_message, turn.messages[known:end]))
        if known < end and size_bytes <= self._most_bytes // _LARGEST_OPEN_TURN:
            past.open_turn = OpenTurn(counting, after_seq, replace(turn, messages=turn.messages[:end]), size_bytes)
            self._put(session_id, past)

    def summary(self, session_id: SessionId) -> Summary | None:
        """The summary that was active when the session was last read, if it is cached."""
        return self._of(session_id).summary

    def keep_summary(self, session_id: SessionId, summary: Summary) -> None:
        past = self._of(session_id)
        if past.summary is not summary:
            past.summary, past.summary_bytes = summary, _size_of(summary)
            self._put(session_id, past)

    def index(self, session_id: SessionId, past_version: int) -> Index:
        """The cached index, as far as it goes; an empty one if the session is not cached, or its past has changed."""
        past = self._read(session_id)
        return past.index if past.index_version == past_version else EMPTY

    def keep_index(self, session_id: SessionId, index: Index, past_version: int) -> None:
        past = self._of(session_id)
        if past.index_version != past_version or past.index.through_seq < index.through_seq:
            past.index = index if index.size_bytes <= 2 * self.most_index_bytes else EMPTY
            past.index_version = past_version
            self._put(session_id, past)

    def vectors(self, session_id: SessionId, model: str, dimensions: int) -> Vectors:
        """The cached vectors, as far as they go; empty if there are none, or those of another model or size."""
        found = self._of(session_id).vectors
        is_same = found is not None and (found.model, found.dimensions) == (model, dimensions)
        return found if found and is_same else Vectors.none_of(model, dimensions)

    def keep_vectors(self, session_id: SessionId, vectors: Vectors) -> None:
        past = self._of(session_id)
        past.vectors = vectors
        self._put(session_id, past)

    def forget_vectors(self, session_id: SessionId, from_seq: int) -> None:
        """Removes the cached vectors if they go beyond a message that has got one only now."""
        past = self._of(session_id)
        if past.vectors and past.vectors.through_seq > from_seq:
            past.vectors = None

    def last_prompt(self, session_id: SessionId) -> LastPrompt | None:
        return self._of(session_id).last_prompt

    def cached_prompt(self, session_id: SessionId) -> LastPrompt | None:
        """The last prompt, if it was sent so recently that a provider which caches prompts still has it."""
        prompt = self.last_prompt(session_id)
        return prompt if prompt and self._clock() - prompt.sent_at < PROMPT_CACHE_S else None

    def keep_last_prompt(self, session_id: SessionId, model_alias: str, refs: bytes, reply_seq: int) -> None:
        """Caches a prompt that is about to be sent, in place of the one before it."""
        past = self._of(session_id)
        past.last_prompt = LastPrompt(model_alias, refs, reply_seq, self._clock())
        self._put(session_id, past)

    def note_cached(self, session_id: SessionId, usage: Usage) -> None:
        """Records how much of the last prompt the provider has in its cache, as far as it reports that."""
        if prompt := self.last_prompt(session_id):
            prompt.cached_tokens = usage.cached_prompt_tokens + usage.cache_write_prompt_tokens

    def keep_fork(
        self, source: SessionId, target: SessionId, through_seq: int, last_message_seq: int, past_version: int
    ) -> None:
        """Copies what is cached of `source` to its fork, which ends with this turn and message. Columns must be of this
        `past_version`, and end before the fork's last turn, which may be tried again there."""
        if (past := self._pasts.get(source)) is None:
            return
        columns, counting = past.columns, past.counting
        is_same = counting is not None and counting.past_version == past_version
        fits = columns is not None and is_same and columns.turns > 0 and columns.turn_seqs[-1] < through_seq
        index = past.index if past.index.through_seq <= last_message_seq else EMPTY
        columns = columns.copy() if columns and fits else None
        vectors = past.vectors if past.vectors and past.vectors.through_seq <= last_message_seq else None
        copied = replace(past, last_prompt=None, index=index, vectors=vectors, columns=columns, open_turn=None)
        copied.columns_bytes = past.columns_bytes if columns else 0
        self._put(target, copied)

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

    def _of(self, session_id: SessionId) -> _CachedSession:
        """The entry of a session; a new one, which is not in the cache yet, if there is none."""
        return self._pasts.get(session_id) or _CachedSession()

    def _read(self, session_id: SessionId) -> _CachedSession:
        """The same entry, which becomes the most recently used one."""
        past = self._of(session_id)
        if session_id in self._pasts:
            self._pasts.move_to_end(session_id)
            past.used_at = self._clock()
        return past

    def _put(self, session_id: SessionId, past: _CachedSession) -> None:
        """Stores an entry as the most recently used one and evicts the oldest; one that never fits is dropped."""
        if before := self._pasts.pop(session_id, None):
            self.size_bytes -= before.size_bytes
        size_bytes = ENTRY_BYTES + past.summary_bytes + past.index.size_bytes + past.columns_bytes
        size_bytes += len(past.last_prompt.refs) if past.last_prompt else 0
        size_bytes += past.vectors.size_bytes if past.vectors else 0
        size_bytes += past.open_turn.size_bytes if past.open_turn else 0
        if size_bytes <= self._most_bytes:
            parts = (past.last_prompt, past.summary, past.index, past.vectors, past.counting, past.columns)
            skip_when_collecting(session_id, past, past.open_turn, *parts, getattr(past.columns, "__dict__", None))
            past.used_at, past.size_bytes = self._clock(), size_bytes
            self._pasts[session_id] = past
            self.size_bytes += size_bytes
        while self.size_bytes > self._most_bytes:
            _, oldest = self._pasts.popitem(last=False)
            self.size_bytes -= oldest.size_bytes
        self._telemetry.session_cache_size(self.size_bytes)


def _size_of(summary: Summary) -> int:
    """Bytes of a summary and of its rendered text (`render_summary`), about."""
    items = summary.body.items
    ids = sum([len(item.message_ids) for item in items])
    texts = [getsizeof(item.text) for item in items]
    return 2 * (getsizeof(summary.body.summary_text) + sum(texts)) + _ITEM_BYTES * (len(items) + ids)


def _size_of_message(message: Message) -> int:
    """Bytes of a message, about: no text of it is looked at."""
    blocks_bytes = len(canonical_bytes(message.reasoning_blocks)) if message.reasoning_blocks else 0
    texts_chars = chars_of(message.content, message.tool_calls) + len(message.reasoning or "")
    return _MESSAGE_BYTES + texts_chars + blocks_bytes


async def extended_columns(
    columns: Columns, turns: Iterable[Turn], as_sent: Callable[[Turn], Turn] | None = None
) -> Columns:
    """The columns with these turns, added in slices, so that the event loop is not blocked. It is a copy if a turn is
    so long that it is added on a thread: other tasks may append to the columns meanwhile."""
    part: list[Turn] = []
    chars = 0
    for turn in turns:
        part.append(turn)
        chars += sum([len(message.content) for message in turn.messages if isinstance(message.content, str)])
        chars += _ADDED_CHARS * len(turn.messages)
        if chars > 2 * _SLICE_CHARS:
            columns = columns.copy()
            await asyncio.to_thread(_add, columns, part, as_sent)
            part, chars = [], 0
        elif chars > _SLICE_CHARS:
            _add(columns, part, as_sent)
            part, chars = [], 0
            await asyncio.sleep(0)
    if part:
        _add(columns, part, as_sent)
    return columns


def _add(columns: Columns, turns: Sequence[Turn], as_sent: Callable[[Turn], Turn] | None) -> None:
    columns.extend(map(as_sent, turns) if as_sent else turns)
