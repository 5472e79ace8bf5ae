"""Looking for words in a session's past, in the window and out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from app.db.messages import window_turns
from app.db.recall import find_evicted
from app.db.sessions import get_prompt_view
from app.domain.content import content_text
from app.domain.errors import NotFound
from app.domain.evicted import Evicted
from app.domain.types import JsonObject, Message, SessionId, TenantId, Turn
from app.engine.recall.ranking import ranked, with_more_evicted
from app.engine.recall.terms import excerpt, query_terms
from app.services.runtime import Runtime
from app.services.turn.recall import BOUNDS

MOST_UNINDEXED_MESSAGES = 1000
"""Of the messages that no index knows, the newest so many are looked through one by one."""
_ANY_SIZE_TOKENS = 2**62
_ANY_SHARE = 1.0
# Whoever searches wants what is said everywhere too; it is only found last.
_BOUNDS = replace(BOUNDS, most_seen_share=_ANY_SHARE)
_EXCERPT_CHARS = 600
_INLINE_CHARS = 32_768


async def search_session(
    rt: Runtime,
    tenant_id: TenantId,
    session_id: SessionId,
    asked: str,
    limit: int,
    *,
    most_unindexed_messages: int = MOST_UNINDEXED_MESSAGES,
) -> JsonObject:
    """The session's messages that match the words of `asked`, best first: by the index that recall goes by, and where
    that does not reach yet, by the newest messages themselves. Writes nothing. Raises `NotFound`.
    """
    terms = query_terms(asked)
    async with rt.database.begin() as tx:
        row = await get_prompt_view(tx, tenant_id, session_id)
        if row is None:
            raise NotFound("session")
        last_seq: int = row["last_message_seq"]
        indexed_seq: int = min(row["recall_indexed_seq"], last_seq)
        after_seq = max(indexed_seq, last_seq - most_unindexed_messages)
        found = await find_evicted(
            tx, session_id, terms, last_seq=indexed_seq, encoding="", most_tokens=_ANY_SIZE_TOKENS, bounds=_BOUNDS
        )
        rest = await window_turns(tx, session_id, after_seq, last_seq, "", step_failed=False) if terms else []
    hits = await _hits(found, rest, limit)
    return {
        "items": hits,
        "next_cursor": None,
        "searched_messages": last_seq - (after_seq - indexed_seq),
        "unsearched_messages": after_seq - indexed_seq,
    }


async def _hits(found: Evicted, rest: Sequence[Turn], limit: int) -> list[JsonObject]:
    """The best of both; many words are looked through off the event loop."""
    texts = (content_text(message.content) for turn in rest for message in turn.messages)
    if sum(map(len, texts)) <= _INLINE_CHARS:
        return _best(found, rest, limit)
    return await asyncio.to_thread(_best, found, rest, limit)


def _best(found: Evicted, rest: Sequence[Turn], limit: int) -> list[JsonObject]:
    evicted = with_more_evicted(found, rest, _ANY_SHARE)
    by_seq = {message.seq: (turn, message) for turn in evicted.turns for message in turn.messages}
    best = [(*by_seq[seq], score) for seq, score in ranked(evicted) if seq in by_seq]
    return [_public(turn, message, score, evicted.terms) for turn, message, score in best[:limit]]


def _public(turn: Turn, message: Message, score: float, terms: tuple[str, ...]) -> JsonObject:
    text = content_text(message.content)
    part = excerpt(text, terms, _EXCERPT_CHARS)
    return {
        "message_id": message.id,
        "turn_id": turn.id,
        "turn_seq": turn.seq,
        "seq": message.seq,
        "role": message.role,
        "score": round(score, 4),
        "excerpt": part,
        "complete": part == text,
    }
