"""Who said a message, and when where that was not when it was stored."""

from __future__ import annotations

from alembic import op

revision = "2026_11_23_message_speakers"
down_revision = "2026_11_23_edited_summaries"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE messages ADD COLUMN name text, ADD COLUMN said_at timestamptz")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE messages DROP COLUMN said_at, DROP COLUMN name")
