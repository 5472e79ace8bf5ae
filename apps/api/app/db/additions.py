"""What a claim added to its session besides the turn, and how a rejection of the turn makes it ineffective."""

from __future__ import annotations

from app.db.database import Transaction
from app.db.sql import sql
from app.db.summaries import get_summary, undo_active
from app.domain.frozen import frozen
from app.domain.types import JsonObject, SessionId, SummaryId, TurnId

# Statements of their own: in one, Citus does nothing at all where no turn is to wait again.
_RESTORE = sql("""
    UPDATE sessions SET past_version = past_version + 1,
        instructions = CASE WHEN instructions IS NOT DISTINCT FROM :instructions THEN :instructions_before
            ELSE instructions END
    WHERE id = :session_id
    """)
_REJECT = sql("""
    UPDATE turns SET status = 'rejected', error = :error
    WHERE session_id = :session_id AND seq > :after_turn_seq AND seq < :turn_seq
    """)
_WITHDRAW_OUTPUTS = sql("""
    UPDATE messages SET withdrawn = true
    WHERE session_id = :session_id AND turn_id = :turn_id AND seq > :after_message_seq
    """)
# It is the session's only open turn: the rejected one was ended before.
_WAIT_AGAIN = sql("""
    UPDATE turns SET status = 'awaiting_tools', completed_at = NULL, error = NULL
    WHERE session_id = :session_id AND id = :turn_id
    """)
_SUMMARY_OF_ADDED = sql("""
    SELECT u.id FROM session_summaries u
    JOIN messages m ON m.session_id = u.session_id AND m.id = u.to_message_id
    WHERE u.session_id = :session_id AND u.status = 'active' AND m.seq > :after_message_seq
    """)


@frozen
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
    before, after, seq = added.instructions_before, added.instructions, added.after_message_seq
    await tx.execute(_RESTORE, session_id=session_id, instructions=after, instructions_before=before)
    await tx.execute(
        _REJECT, session_id=session_id, error=error, after_turn_seq=added.after_turn_seq, turn_seq=turn_seq
    )
    if added.ended_turn_id is not None:
        await tx.execute(_WITHDRAW_OUTPUTS, session_id=session_id, turn_id=added.ended_turn_id, after_message_seq=seq)
        await tx.execute(_WAIT_AGAIN, session_id=session_id, turn_id=added.ended_turn_id)
    made = await tx.fetchval(_SUMMARY_OF_ADDED, session_id=session_id, after_message_seq=seq)
    summary = await get_summary(tx, session_id, SummaryId(made)) if made else None
    if summary is not None:
        await undo_active(tx, summary)
