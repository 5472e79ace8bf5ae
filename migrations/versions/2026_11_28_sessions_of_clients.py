"""Sessions that existed before their first response are not erased with their last one: a client made them.

The migration 2026_11_26 marked such a session too, if all that it was used for were responses that named it by
`X-Session-Id`. Where a response was deleted since, it is not known whether the session was made for that one, and the
mark stays.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

revision = "2026_11_28_sessions_of_clients"
down_revision = "2026_11_27_reasoning_usage"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # On a cluster a table that an earlier step of this upgrade made is not distributed yet, nor can it be joined.
    if not op.get_bind().scalar(text("SELECT EXISTS (SELECT 1 FROM responses)")):
        return
    # A response has the time at which its request was read, which is before a session is made for it.
    op.execute(
        """
        UPDATE sessions SET erase_after = NULL
        WHERE erase_after = 'infinity'
            AND NOT EXISTS (
                SELECT 1 FROM responses r
                WHERE r.session_id = sessions.id AND r.created_at <= sessions.created_at)
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
    """The mark that these sessions had was wrong."""
