"""What left the window and matches the user's words: looked up for a turn, and indexed when it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from app.db.database import Transaction
from app.db.messages import window_turns
from app.db.recall import SearchBounds, add_postings, find_evicted
from app.domain.content import content_text
from app.domain.evicted import Evicted
from app.domain.types import Message, SessionId
from app.engine.recall.ranking import GROUP_REACH, LEAST_MESSAGES, MOST_HITS, MOST_POSTINGS, MOST_SEEN_SHARE, REACH
from app.engine.recall.terms import query_terms, weighed_terms
from app.engine.summary.fold import Fold

CATCH_UP_MESSAGES = 500
"""Message numbers that one turn indexes of what was never indexed: some tenths of a second, until all are."""
_INLINE_CHARS = 32_768
BOUNDS = SearchBounds(MOST_POSTINGS, MOST_HITS, REACH, GROUP_REACH, MOST_SEEN_SHARE, LEAST_MESSAGES)


async def look_up(
    tx: Transaction, session_id: SessionId, asked: str, *, last_seq: int, encoding: str, most_tokens: int
) -> Evicted | None:
    """What of the messages through `last_seq` may come back for what is asked; None when nothing can.

    One statement, whose cost does not grow with the session. `most_tokens` is the largest message that has room.
    """
    terms = query_terms(asked)
    if not terms or most_tokens <= 0:
        return None
    return await find_evicted(
        tx, session_id, terms, last_seq=last_seq, encoding=encoding, most_tokens=most_tokens, bounds=BOUNDS
    )


async def catch_up(tx: Transaction, session_id: SessionId, *, indexed_seq: int, last_seq: int) -> int:
    """Indexes the oldest messages through `last_seq` that are not, a batch of them, and says how far it came.

    They are those of a session that was forked, imported, or is older than the index, or whose policy did not recall.
    """
    until_seq = min(last_seq, indexed_seq + CATCH_UP_MESSAGES)
    turns = await window_turns(tx, session_id, indexed_seq, until_seq, "", step_failed=False)
    messages = [message for turn in turns for message in turn.messages]
    await add_postings(tx, session_id, await _postings(messages), after_seq=indexed_seq, last_seq=until_seq)
    return until_seq


async def index_folded(tx: Transaction, session_id: SessionId, fold: Fold, *, indexed_seq: int) -> None:
    """Indexes what a summary has just taken in, if the index goes as far as that; else `catch_up` will."""
    new = [message for message in fold.messages if message.seq > indexed_seq]
    if new and indexed_seq >= (fold.previous.to_message_seq if fold.previous else 0):
        await add_postings(tx, session_id, await _postings(new), after_seq=indexed_seq, last_seq=new[-1].seq)


async def _postings(messages: Sequence[Message]) -> Mapping[int, Mapping[str, float]]:
    """The weighed terms of each message by `seq`; long texts are taken apart off the event loop."""
    texts = {message.seq: content_text(message.content) for message in messages}
    if sum(map(len, texts.values())) <= _INLINE_CHARS:
        return {seq: weighed_terms(text) for seq, text in texts.items()}
    return await asyncio.to_thread(lambda: {seq: weighed_terms(text) for seq, text in texts.items()})
