"""Looks up stored messages: for a turn's recall those before the window that match the user's message by words and by
meaning, and for look-backs pages of one message or of those that match some words. When vectors are made:
docs/decisions/0020-embeddings.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import numpy as np

from app.db.database import Transaction
from app.db.driver import Record
from app.db.recall import (
    has_vectors,
    messages_without_vectors,
    save_terms,
    save_vectors,
    settled_seq,
    stored_terms,
    stored_vectors,
    terms_at,
    turns_with,
    unpacked_messages,
)
from app.db.records import add_usages
from app.db.turns import get_turn
from app.domain.content import content_text, named
from app.domain.errors import NotFound
from app.domain.frozen import replace
from app.domain.types import Content, Message, Pin, SessionId, SessionRef, TenantId, Turn, TurnId, Usage
from app.engine.messages.tokens import Estimate
from app.engine.policy.policy import Recall
from app.engine.recall.bm25 import Query, posting_count
from app.engine.recall.dates import date_keys, day_said
from app.engine.recall.index import EMPTY, Index, Ints, Packed, index_bytes
from app.engine.recall.look_back_pages import (
    TextPage,
    matching_seqs,
    messages_to_read,
    page_of_matches,
    page_of_message,
    seq_of,
)
from app.engine.recall.ranking import MOST_RECALLED_TOKENS, Evicted, candidates, most_recalled_tokens, seqs_of
from app.engine.recall.relevance import text_of
from app.engine.recall.terms import query_terms
from app.engine.recall.vectors import Meaning, Vectors, packed_vectors
from app.engine.window.look_back import LookBack, Search
from app.providers.base import Embedded
from app.services.embeddings import MOST_EMBEDDED_CHARS, Embeddings
from app.services.pasts import Pasts
from app.services.runtime import Runtime, retried
from app.services.turn.planning import computed, pack_messages
from app.services.turn.provider_call import used_row
from app.services.turn.window_rows import WindowRows

EMBEDDED_A_TURN: Final = 500
"""Messages of one session that get vectors after one turn, rounded up to whole batches."""
_BATCH: Final = 16
"""Texts in one call. An answer with the longest vectors is parsed in a few milliseconds."""
_LONGEST_WAIT_S: Final = 3_600.0
_MOST_PINS: Final = 64
"""Most pins whose vectors one call starts to make, the oldest first."""
_INLINE_MESSAGES: Final = 4_096
_INLINE_POSTINGS: Final = 65_536
"""An index of `_INLINE_MESSAGES` messages, or of this many messages and postings, is ranked on the event loop. A larger
one could block it for too long. A thread uses twice the CPU, because it and the event loop wait for each other."""
_INLINE_CHARS: Final = 32_768
_T = TypeVar("_T")
PACKED_A_TURN: Final = 500
"""Messages without packed terms that one turn packs (a few tenths of a second); later turns pack the others."""
_SLICE_MESSAGES: Final = 4096
"""Messages, or vectors, that one statement reads."""
_INLINE_BYTES: Final = 256 * 1024
"""Most new packed terms by which an index is extended on the event loop: some 2,000 chat messages, a few ms."""
_COPIED_BYTES: Final = 32
"""Bytes of an index that are copied in the time that one byte of new terms takes."""
_SIGNS_A_POSTING = 8
"""64-bit words of vector signs that are compared in the time of one posting, including the work on their vectors."""


async def look_up(
    tx: Transaction, rt: Runtime, rows: WindowRows, message: Message, through_seq: int, input_budget: int, *, pack: bool
) -> Evicted:
    """The messages through `through_seq`, all settled, that may be recalled; none if `message` calls for no recall.
    Runs at most one statement for the messages, one for the rest of the index, and one for the vectors. With `pack`
    some of the messages that were stored without packed terms get them."""
    session, recall, embeddings = rows.session, rows.policy.recall, rt.embeddings
    text, said_day = content_text(message.content), day_said(message)
    room_tokens = most_recalled_tokens(text, recall, input_budget)
    vector = None
    if embeddings and room_tokens > 0:
        embeddings.compared_in(session, "recall")
        vector = embeddings.question(session.tenant_id, text)
    has_words = query_terms(text) or (said_day is not None and date_keys(text, said_day))
    if room_tokens <= 0 or not (has_words or vector is not None):
        return Evicted()
    index, _ = await settled_index(rt.pasts, tx, session.id, session.past_version, through_seq, pack=pack)
    meaning = await settled_meaning(tx, rt.pasts, session, through_seq, embeddings, text)
    query = Query(text, through_seq, said_day, meaning)
    found = await ranked(index, query, partial(candidates, index, query, room_tokens, recall.min_score_ratio))
    seqs = seqs_of(found)
    turns = await turns_with(tx, session.id, seqs, rows.encoding) if seqs else ()
    return Evicted(found, turns)


async def ranked(index: Index, query: Query, rank: Callable[[], _T]) -> _T:
    """The result of `rank`, which ranks the index's messages by the query. It runs in a thread if it could block the
    event loop noticeably."""
    of_meaning = query.meaning.vectors.signs.size // _SIGNS_A_POSTING if query.meaning else 0
    is_quick = len(index) <= _INLINE_MESSAGES or (
        len(index) <= _INLINE_POSTINGS and of_meaning + posting_count(index, query) <= _INLINE_POSTINGS
    )
    return await computed(rank, is_long=not is_quick)


async def searchable(
    tx: Transaction, rt: Runtime, session: SessionRef, words: str, last_seq: int, said_day: int | None
) -> tuple[Index, int, Query]:
    """What a search among a session's messages through `last_seq` needs: their index, how many of them it misses
    because they are older than it or not indexed yet, and the query for the words, which were said on this day."""
    settled_through, past_version = await settled_seq(tx, session.id, last_seq)
    index, unpacked = await settled_index(rt.pasts, tx, session.id, past_version, settled_through)
    index, more_unpacked = await extended_index(tx, session.id, index, last_seq, rt.pasts.most_index_bytes)
    meaning = await settled_meaning(tx, rt.pasts, session, settled_through, rt.embeddings, words)
    return index, index.after_seq + unpacked + more_unpacked, Query(words, last_seq, said_day, meaning)


async def settled_meaning(
    tx: Transaction, pasts: Pasts, session: SessionRef, through_seq: int, embeddings: Embeddings | None, text: str
) -> Meaning | None:
    """The vector of a text, and those of a session's messages through a number, all settled; None if the vector of the
    text is not available. Vectors that this process has not cached are read, and then cached; of more than fit into a
    half of the cache only the newest."""
    vector = embeddings.question(session.tenant_id, text) if embeddings else None
    if embeddings is None or vector is None:
        return None
    model, dimensions = embeddings.model, len(vector)
    kept = vectors = pasts.vectors(session.id, model, dimensions)
    slices: list[tuple[Ints, bytes]] = []
    end, left = through_seq, pasts.most_vectors_bytes // (dimensions + dimensions // 8)
    while left > 0 and end > kept.through_seq:
        limit = min(left, _SLICE_MESSAGES)
        seqs, packed = await stored_vectors(
            tx, session.id, kept.through_seq, end, model=model, dimensions=dimensions, limit=limit
        )
        if len(seqs):
            slices.append((seqs, packed))
        left -= limit
        end = int(seqs[0]) - 1 if len(seqs) == limit else kept.through_seq
    if end > kept.through_seq:
        vectors = Vectors.none_of(model, dimensions)
    for seqs, packed in reversed(slices):
        vectors = vectors.extended(seqs, packed)
    if vectors is not kept:
        pasts.keep_vectors(session.id, vectors)
    return Meaning(vector, vectors)


async def settled_index(
    pasts: Pasts, tx: Transaction, session_id: SessionId, past_version: int, settled_seq: int, *, pack: bool = False
) -> tuple[Index, int]:
    """The index of a session's messages, at least through `settled_seq`, below which nothing is written any more; and
    how many of them are missing in it, because they have no packed terms yet. With `pack`, some of those are packed.
    The index is cached if nothing is missing. Removes what is cached of the session if the database has lost it."""
    kept = pasts.index(session_id, past_version)
    is_compared = pack and pasts.last_message(session_id)[0] is not None  # when the window was read
    if len(kept) and not is_compared and not kept.ends_with(await terms_at(tx, session_id, int(kept.seqs[-1]))):
        pasts.forget(session_id)
        kept = EMPTY
    index, unpacked = await extended_index(tx, session_id, kept, settled_seq, pasts.most_index_bytes)
    if unpacked and pack:
        rows = await unpacked_messages(tx, session_id, index.after_seq, settled_seq, PACKED_A_TURN)
        terms = await pack_messages([(row["role"], row["content"], row["has_calls"], row["name"]) for row in rows])
        await save_terms(tx, session_id, [row["seq"] for row in rows], terms)
        index, unpacked = await extended_index(tx, session_id, kept, settled_seq, pasts.most_index_bytes)
    if not unpacked:
        pasts.keep_index(session_id, index, past_version)
    return index, unpacked


async def extended_index(
    tx: Transaction, session_id: SessionId, index: Index, through_seq: int, most_bytes: int
) -> tuple[Index, int]:
    """The index extended by the messages through `through_seq`, which are read in slices, and how many of those have no
    packed terms. If their own index takes more than `most_bytes`, it has only the newest of them, and what was indexed
    is left out. A large index is extended on a thread, off the event loop."""
    slices: list[Record] = []
    end, left_bytes = through_seq, most_bytes
    while end > index.through_seq and left_bytes > 0:
        slices.append(await stored_terms(tx, session_id, index.through_seq, end, _SLICE_MESSAGES))
        end = slices[-1]["after_seq"]
        left_bytes -= index_bytes(len(slices[-1]["seqs"]) // 8, len(slices[-1]["terms"]))
    if not slices:
        return index, 0
    if end > index.through_seq:
        index = replace(EMPTY, after_seq=end, through_seq=end)
    seqs, tokens, days, terms = (
        b"".join([part[name] for part in reversed(slices)]) for name in ("seqs", "tokens", "days", "terms")
    )
    new = Packed(np.frombuffer(seqs, ">i8"), np.frombuffer(tokens, ">i8"), terms, np.frombuffer(days, ">i8"))
    is_long = index.size_bytes // _COPIED_BYTES + len(terms) > _INLINE_BYTES
    index = await computed(index.extended, new, through_seq, is_long=is_long)
    return index, sum(part["unpacked"] for part in slices)


async def read_page(
    rt: Runtime, session: SessionRef, lookup: LookBack, wanted: Search, last_seq: int, tokens: int, estimate: Estimate
) -> TextPage | None:
    """A page of at most `tokens` tokens: of the message with the handle, or of the messages through `last_seq` that
    match. None if there is no such message. No database connection is held while texts are counted or a vector is made.
    The caller has checked that the session belongs to the tenant."""
    if lookup.handle is None:
        await prepare_search(rt, session, lookup.query)
    async with rt.database.autocommit() as tx:
        if lookup.handle is not None:
            seq = seq_of(lookup.handle)
            found = await _messages(tx, session.id, [] if seq is None else [seq])
        else:
            index, _, query = await searchable(tx, rt, session, lookup.query, last_seq, wanted.said_day)
            seqs = await ranked(index, query, partial(matching_seqs, index, query, wanted.without))
            found = await _messages(tx, session.id, seqs[: messages_to_read(wanted.number, tokens)])
    if not found:
        return None

    def made() -> TextPage | None:
        if lookup.handle is not None:
            return page_of_message(found[0], lookup.query, lookup.page, tokens, estimate)
        return page_of_matches(found, lookup.query, wanted.number, tokens, estimate, wanted.shown_number)

    chars = sum(len(str(message.content)) for message in found)
    return await computed(made, is_long=chars > _INLINE_CHARS)


async def _messages(tx: Transaction, session_id: SessionId, seqs: Sequence[int]) -> list[Message]:
    """The messages with these numbers, in the same order, without those that do not exist."""
    turns = await turns_with(tx, session_id, seqs, "") if seqs else ()
    found = {message.seq: message for turn in turns for message in turn.messages}
    return [found[seq] for seq in seqs if seq in found]


async def prepare_question(rt: Runtime, session: SessionRef, content: Content) -> None:
    """Requests the vector of a message if it calls for recall and this process has recalled in the session before, or
    if this process has trimmed the session's pins before. Waits no longer than the deployment's bound."""
    if rt.embeddings is None:
        return
    compares_in, text = partial(rt.embeddings.compares_in, session), content_text(content)
    recalls = compares_in("recall") and most_recalled_tokens(text, Recall(max_share=1.0), MOST_RECALLED_TOKENS)
    if recalls or compares_in("pins"):
        await rt.embeddings.prepare(session.tenant_id, text, partial(_store_usage, rt, rt.embeddings, session.id))


async def prepare_stored_question(rt: Runtime, session: SessionRef, turn_id: TurnId) -> None:
    """The same for the message of a stored turn, whose earlier rounds may have run in another process."""
    if rt.embeddings and (turn := await rt.database.run(get_turn, session, turn_id)):
        await prepare_question(rt, session, turn.user_input)


async def prepare_search(rt: Runtime, session: SessionRef, words: str) -> None:
    """Requests the vector of the words of a search, if the session has vectors to compare it with."""
    if rt.embeddings is None or not words.strip():
        return
    if await rt.database.run(has_vectors, session.id, rt.embeddings.model):
        await rt.embeddings.prepare(session.tenant_id, words, partial(_store_usage, rt, rt.embeddings, session.id))


def start_pin_vectors(rt: Runtime, session: SessionRef, pins: Sequence[Pin]) -> None:
    """Starts to make the vectors of pins without a given relevance, after pins were trimmed. They are kept in memory.
    From now on this process waits for the vectors of the session's questions."""
    if (embeddings := rt.embeddings) is None or embeddings.is_resting(session.tenant_id):
        return
    texts = [text_of(pin, MOST_EMBEDDED_CHARS) for pin in pins if pin.relevance is None]
    if texts:
        embeddings.compared_in(session, "pins")
    missing = [text for text in texts if not embeddings.has_requested(session.tenant_id, text)][:_MOST_PINS]
    for at in range(0, len(missing), _BATCH):
        store_usage = partial(_store_usage, rt, embeddings, session.id)
        made = embeddings.remember(session.tenant_id, missing[at : at + _BATCH], store_usage)
        rt.chores.start(made, f"the vectors of pins of session {session.id}")


def meaning_of_pins(rt: Runtime, tenant_id: TenantId, pins: Sequence[Pin], turn: Turn) -> Meaning | None:
    """The vectors of pins by position, and that of the user's message in the turn; None if either is missing."""
    embeddings = rt.embeddings
    if embeddings is None or not (pins and turn.messages):
        return None
    query = embeddings.question(tenant_id, content_text(turn.messages[0].content))
    if query is None:
        return None
    given = ((at, embeddings.question(tenant_id, text_of(pin, MOST_EMBEDDED_CHARS))) for at, pin in enumerate(pins))
    found = {at: vector for at, vector in given if vector is not None and len(vector) == len(query)}
    vectors = Vectors.none_of(embeddings.model, len(query))
    packed = b"".join(vector.tobytes() for vector in found.values())
    return Meaning(query, vectors.extended(np.array([*found], np.int64), packed)) if found else None


def start_vectors(rt: Runtime, session: SessionRef, through_seq: int) -> None:
    """Starts a background task that makes the missing vectors of a session's messages through a number."""
    embeddings = rt.embeddings
    if embeddings is None or embeddings.is_resting(session.tenant_id):
        return
    if embeddings.through(session.id) < through_seq and session.id not in embeddings.busy:
        embeddings.busy.add(session.id)
        work = make_vectors(rt, embeddings, session, through_seq)
        rt.chores.start(work, f"the vectors of session {session.id}")


async def make_vectors(rt: Runtime, embeddings: Embeddings, session: SessionRef, through_seq: int) -> None:
    """Makes vectors for the oldest messages of a session that have none, a batch at a time. Those that a crash or a
    failing model leaves out are made after a later turn. Raises a `ProviderError`, and `TimeoutError` if those of other
    sessions took too long."""
    try:
        for _ in range(0, EMBEDDED_A_TURN, _BATCH):
            await embeddings.gate.acquire(session.tenant_id, _LONGEST_WAIT_S)
            try:
                if embeddings.is_resting(session.tenant_id) or embeddings.through(session.id) >= through_seq:
                    break
                await _make_batch(rt, embeddings, session, through_seq)
            finally:
                embeddings.gate.release(session.tenant_id)
    except NotFound:
        return  # erased meanwhile
    finally:
        embeddings.busy.discard(session.id)


async def _make_batch(rt: Runtime, embeddings: Embeddings, session: SessionRef, through_seq: int) -> None:
    session_id, after_seq = session.id, embeddings.through(session.id)
    rows = await rt.database.run(
        messages_without_vectors, session_id, after_seq, through_seq, model=embeddings.model, limit=_BATCH
    )
    texts = [named(row["name"], content_text(row["content"])).strip() for row in rows]
    worded = [text for text in texts if text]
    embedded = await embeddings.embed(session.tenant_id, worded) if worded else None
    if embedded is not None:  # first, as the call is paid for even if its vectors can not be stored
        await _store_usage(rt, embeddings, session_id, embedded)
    vectors = iter(packed_vectors(embedded.vectors) if embedded else ())
    packed = [next(vectors) if text else b"" for text in texts]
    async with rt.database.begin() as tx:
        await save_vectors(tx, session_id, embeddings.model, [row["seq"] for row in rows], packed)
    if rows:
        rt.pasts.forget_vectors(session_id, rows[0]["seq"])
    embeddings.went_through(session_id, rows[-1]["seq"] if len(rows) == _BATCH else through_seq)


async def _store_usage(rt: Runtime, embeddings: Embeddings, session_id: SessionId, embedded: Embedded) -> None:
    """Counts and stores the usage of a call, if the model reported it and the session was not erased meanwhile."""
    if embedded.prompt_tokens:
        used = used_row(rt, rt.catalogue.model(embeddings.alias), "embedding", Usage(embedded.prompt_tokens, 0))
        with suppress(NotFound):
            await retried(rt.database.run)(add_usages, session_id, [used])
