"""Looking for words in a session's past, in the window and out of it."""

from __future__ import annotations

from app.db.recall import settled_seq, turns_with
from app.db.sessions import get_prompt_view
from app.domain.content import content_text
from app.domain.errors import NotFound
from app.domain.types import JsonObject, Message, SessionId, TenantId, Turn
from app.engine.recall.ranking import MOST_HITS, search
from app.engine.recall.terms import excerpt, query_terms
from app.services.pasts import extended_index, settled_index
from app.services.runtime import Runtime

_EXCERPT_CHARS = 600


async def search_session(rt: Runtime, tenant_id: TenantId, session_id: SessionId, asked: str, limit: int) -> JsonObject:
    """The session's messages that match the words of `asked`, best first, by the index that recall goes by.

    Writes nothing. Raises `NotFound`.
    """
    async with rt.database.begin() as tx:
        row = await get_prompt_view(tx, tenant_id, session_id)
        if row is None:
            raise NotFound("session")
        last_seq: int = row["last_message_seq"]
        settled = await settled_seq(tx, session_id, last_seq)
        index, unpacked = await settled_index(rt.pasts, tx, session_id, settled)
        index, more_unpacked = await extended_index(tx, session_id, index, last_seq)
        # A search also finds words that stand everywhere; they only rank last.
        hits = search(index, asked, last_seq, most_hits=max(MOST_HITS, 2 * limit), most_seen_share=1.0)
        scores = dict(zip(index.seqs[hits.positions].tolist(), hits.scores.tolist(), strict=True))
        turns = await turns_with(tx, session_id, list(scores), "") if scores else ()
    found = {message.seq: (turn, message) for turn in turns for message in turn.messages}
    terms = query_terms(asked)
    best = [(*found[seq], score) for seq, score in scores.items() if seq in found][:limit]
    return {
        "items": [_public(turn, message, score, terms) for turn, message, score in best],
        "next_cursor": None,
        "searched_messages": last_seq - unpacked - more_unpacked,
        "unsearched_messages": unpacked + more_unpacked,
    }


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
