"""The turns of a session that are over without an answer, for recall, which otherwise looks up every message's turn.

Writers wait while it is built, about a second for a million turns; on a larger table make it `CONCURRENTLY` under this
name beforehand, and this does nothing.
"""

from __future__ import annotations

from alembic import op

revision = "2026_11_23_unanswered_turns"
down_revision = "2026_11_23_past_version"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """
        CREATE INDEX IF NOT EXISTS ix_turns_unanswered ON turns (session_id, status)
        WHERE status IN ('failed', 'rejected', 'cancelled')
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP INDEX ix_turns_unanswered")
