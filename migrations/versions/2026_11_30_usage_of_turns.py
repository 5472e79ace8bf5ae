"""The calls of a turn are found by an index: each request with `previous_response_id` read all calls of its session.

Writers of usage wait while it is built, about two seconds for a million calls; on a larger table make it `CONCURRENTLY`
under this name beforehand, and this does nothing.
"""

from __future__ import annotations

from alembic import op

revision = "2026_11_30_usage_of_turns"
down_revision = "2026_11_28_waiting_turns"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        "CREATE INDEX IF NOT EXISTS ix_usage_records_session_id_turn_id ON usage_records (session_id, turn_id)"
        " WHERE turn_id IS NOT NULL"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP INDEX ix_usage_records_session_id_turn_id")
