"""Sessions that were made for a response are marked as such, to be erased with their last one.

Of sessions from before, those are marked in which every call of a model belongs to a response outside a conversation.
Sessions in which a response was deleted before are not found. Turns of sessions with responses wait until it ends.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

revision = "2026_11_26_sessions_of_responses"
down_revision = "2026_11_23_message_vectors"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # On a cluster a table that an earlier step of this upgrade made is not distributed yet, nor can it be joined.
    if not op.get_bind().scalar(text("SELECT EXISTS (SELECT 1 FROM responses)")):
        return
    # The turns of a fork's past are older than the fork; those of a past that a request brought have no audit.
    op.execute(
        """
        UPDATE sessions SET erase_after = 'infinity'
        WHERE erase_after IS NULL AND external_id IS NULL
            AND EXISTS (SELECT 1 FROM responses r WHERE r.session_id = sessions.id)
            AND NOT EXISTS (
                SELECT 1 FROM responses r
                WHERE r.session_id = sessions.id AND r.form ->> 'conversation' IS NOT NULL)
            AND NOT EXISTS (
                SELECT 1 FROM turns t
                WHERE t.session_id = sessions.id AND t.created_at >= sessions.created_at AND t.status <> 'rejected'
                    AND EXISTS (
                        SELECT 1 FROM turn_context_audit a WHERE a.session_id = sessions.id AND a.turn_id = t.id)
                    AND NOT EXISTS (
                        SELECT 1 FROM responses r WHERE r.session_id = sessions.id AND r.turn_id = t.id))
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("UPDATE sessions SET erase_after = NULL WHERE erase_after = 'infinity'")
