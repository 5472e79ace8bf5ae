"""What left the window and matches the user's words, looked up for a turn."""

from __future__ import annotations

import asyncio
from functools import partial

from app.db.database import Transaction
from app.db.recall import turns_with
from app.domain.content import content_text
from app.domain.types import Message, SessionRef
from app.engine.policy.policy import Recall
from app.engine.recall.bm25 import posting_count
from app.engine.recall.dates import date_keys, day_said
from app.engine.recall.ranking import Evicted, candidates, most_recalled_tokens, seqs_of
from app.engine.recall.terms import query_terms
from app.engine.recall.vectors import Meaning
from app.services.embeddings import Embeddings
from app.services.pasts import Pasts, settled_index, settled_vectors

_INLINE_MESSAGES = 4_096
_INLINE_POSTINGS = 65_536
"""Of an index: to rank more of the one, or of both, may take longer than others should wait. In a thread it takes twice
the CPU: the event loop and the thread wait for each other."""


async def look_up(
    tx: Transaction,
    pasts: Pasts,
    session: SessionRef,
    message: Message,
    recall: Recall,
    *,
    through_seq: int,
    input_budget: int,
    encoding: str,
    pack: bool,
    embeddings: Embeddings | None,
) -> Evicted | None:
    """What of the messages through `through_seq`, all settled, may come back for a message; None when nothing can.

    One statement for the messages, and one for what this process does not keep of the session; one more for its vectors
    where that of the message is there. With `pack` messages that were stored without packed terms get them, some at a
    time.
    """
    text, said_day = content_text(message.content), day_said(message)
    room_tokens = most_recalled_tokens(text, recall, input_budget)
    vector = None
    if embeddings and room_tokens > 0:
        embeddings.compared_in(session, "recall")
        vector = embeddings.question(session.tenant_id, text)
    has_words = query_terms(text) or (said_day is not None and date_keys(text, said_day))
    if room_tokens <= 0 or not (has_words or vector is not None):
        return None
    index, _ = await settled_index(pasts, tx, session.id, through_seq, pack=pack)
    meaning = await settled_meaning(tx, pasts, session, through_seq, embeddings, text)
    rank = partial(
        candidates,
        index,
        text,
        through_seq,
        room_tokens=room_tokens,
        min_score_ratio=recall.min_score_ratio,
        said_day=said_day,
        meaning=meaning,
    )
    is_quick = len(index) <= _INLINE_MESSAGES or (
        meaning is None
        and len(index) <= _INLINE_POSTINGS
        and posting_count(index, text, through_seq) <= _INLINE_POSTINGS
    )
    found = rank() if is_quick else await asyncio.to_thread(rank)
    seqs = seqs_of(found)
    turns = await turns_with(tx, session.id, seqs, encoding) if seqs else ()
    return Evicted(found, turns)


async def settled_meaning(
    tx: Transaction,
    pasts: Pasts,
    session: SessionRef,
    through_seq: int,
    embeddings: Embeddings | None,
    text: str,
) -> Meaning | None:
    """What a text is compared with by its meaning: the vectors of a session's messages through a number, all settled;
    None where that of the text is not there. At most one statement for vectors that this process does not keep."""
    vector = embeddings.question(session.tenant_id, text) if embeddings else None
    if embeddings is None or vector is None:
        return None
    vectors = await settled_vectors(pasts, tx, session.id, through_seq, model=embeddings.model, dimensions=len(vector))
    return Meaning(vector, vectors)
