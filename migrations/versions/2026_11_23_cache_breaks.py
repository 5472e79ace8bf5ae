"""Why a prompt did not go on from the one before it, and by which call a summary was made."""

from __future__ import annotations

from alembic import op

revision = "2026_11_23_cache_breaks"
down_revision = "2026_11_23_message_speakers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE turn_context_audit ADD COLUMN cache_break text")
    op.execute("ALTER TABLE session_summaries ADD COLUMN call text, ADD COLUMN call_reason text")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE session_summaries DROP COLUMN call_reason, DROP COLUMN call")
    op.execute("ALTER TABLE turn_context_audit DROP COLUMN cache_break")
