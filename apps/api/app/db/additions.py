"""What a claim added to its session besides the turn, and how a rejection of the turn makes it ineffective."""

from __future__ import annotations

from dataclasses import dataclass

from app.db.database import Transaction
from app.db.sql import sql
from app.db.summaries import get_summary, undo_active
from app.domain.stored import values_of
from app.domain.types import JsonObject, SessionId, SummaryId, TurnId

# The turn that waits again has the session's only open turn: the rejected one was ended before.
_LEAVE_OUT = sql("""
    WITH s AS (
        UPDATE sessions SET past_version = past_version + 1,
            instructions = CASE WHEN instructions IS NOT DISTINCT FROM :instructions THEN :instructions_before
                ELSE instructions END
        WHERE id = :session_id RETURNING id
    ), p AS (
        UPDATE turns SET status = 'rejected', error = :error FROM s
        WHERE turns.session_id = :session_id AND turns.seq > :after_turn_seq AND turns.seq < :turn_seq
    ), o AS (
        UPDATE messages SET withdrawn = true FROM s
        WHERE messages.session_id = :session_id AND messages.turn_id = :ended_turn_id
            AND messages.seq > :after_message_seq
    )
    UPDATE turns SET status = 'awaiting_tools', completed_at = NULL, error = NULL FROM s
    WHERE turns.session_id = :session_id AND turns.id = :ended_turn_id
    """)
_SUMMARY_OF_ADDED = sql("""
    SELECT u.id FROM session_summaries u
    JOIN messages m ON m.session_id = u.session_id AND m.id = u.to_message_id
    WHERE u.session_id = :session_id AND u.status = 'active' AND m.seq > :after_message_seq
    """)


@dataclass(frozen=True, slots=True)
class Added:
    """The last turn and message before what was added, the turn that waited for tools and was ended by it, if any, and
    the session's instructions before and after."""

    after_turn_seq: int
    after_message_seq: int
    ended_turn_id: TurnId | None
    instructions_before: str | None
    instructions: str | None


async def leave_out(
    tx: Transaction, session_id: SessionId, turn_seq: int, added: Added, error: JsonObject | None
) -> None:
    """Makes what was added with the rejected turn `turn_seq` as ineffective as that turn: later requests find the
    session as it was before. The caller has locked the session."""
    await tx.execute(_LEAVE_OUT, session_id=session_id, turn_seq=turn_seq, error=error, **values_of(added))
    made = await tx.fetchval(_SUMMARY_OF_ADDED, session_id=session_id, after_message_seq=added.after_message_seq)
    summary = await get_summary(tx, session_id, SummaryId(made)) if made else None
    if summary is not None:
        await undo_active(tx, summary)
