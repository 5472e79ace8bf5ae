"""By what a client's conversation is found again: the list of messages that a turn answered, and a name of its own.

Writers of turns wait while their index is built, about a second for a million turns; on a larger table make it
`CONCURRENTLY` under this name beforehand, and this does nothing.
"""

from __future__ import annotations

from alembic import op

revision = "2026_11_23_known_conversations"
down_revision = "2026_11_23_unanswered_turns"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE sessions ADD COLUMN external_id text")
    op.execute("ALTER TABLE turns ADD COLUMN IF NOT EXISTS conversation_sha256 bytea")
    op.execute(
        """
        CREATE INDEX ix_sessions_external_id ON sessions (tenant_id, external_id) WHERE external_id IS NOT NULL
        """
    )
    op.execute(
        """
        CREATE INDEX IF NOT EXISTS ix_turns_conversation_sha256 ON turns (conversation_sha256)
        WHERE conversation_sha256 IS NOT NULL
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP INDEX ix_turns_conversation_sha256")
    op.execute("DROP INDEX ix_sessions_external_id")
    op.execute("ALTER TABLE turns DROP COLUMN conversation_sha256")
    op.execute("ALTER TABLE sessions DROP COLUMN external_id")
