"""The newest turns of all sessions, for whoever follows what happens.

Writers wait while it is built, about a second for a million turns; on a larger table make it `CONCURRENTLY` under this
name beforehand, and this does nothing.
"""

from __future__ import annotations

from alembic import op

revision = "2026_11_22_turns_by_time"
down_revision = "2026_11_22_limits"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("CREATE INDEX IF NOT EXISTS ix_turns_created_at ON turns (created_at)")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP INDEX ix_turns_created_at")
