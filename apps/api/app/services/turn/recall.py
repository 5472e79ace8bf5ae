"""What left the window and matches the user's words, looked up for a turn."""

from __future__ import annotations

from app.db.database import Transaction
from app.db.recall import turns_with
from app.domain.types import SessionId
from app.engine.policy.policy import Recall
from app.engine.recall.ranking import Evicted, candidates, most_recalled_tokens, seqs_of
from app.engine.recall.terms import query_terms
from app.services.pasts import Pasts, settled_index


async def look_up(
    tx: Transaction,
    pasts: Pasts,
    session_id: SessionId,
    asked: str,
    recall: Recall,
    *,
    through_seq: int,
    input_budget: int,
    encoding: str,
    pack: bool,
) -> Evicted | None:
    """What of the messages through `through_seq`, all settled, may come back for what is asked; None when nothing can.

    One statement for the messages, and one for what this process does not keep of the session. With `pack` messages
    that were stored without packed terms get them, some at a time.
    """
    room_tokens = most_recalled_tokens(asked, recall, input_budget)
    if room_tokens <= 0 or not query_terms(asked):
        return None
    index, _ = await settled_index(pasts, tx, session_id, through_seq, pack=pack)
    found = candidates(index, asked, through_seq, room_tokens=room_tokens, min_score_ratio=recall.min_score_ratio)
    seqs = seqs_of(found)
    turns = await turns_with(tx, session_id, seqs, encoding) if seqs else ()
    return Evicted(found, turns)
