"""`pending` leaves the statuses of a turn: one is stored when it is claimed, and is `running` then.

Writers wait while the table is read for both, about a second for a million turns.
"""

from __future__ import annotations

from alembic import op

revision = "2026_11_22_open_statuses"
down_revision = "2026_11_22_learned_by_tenant"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _allow("'running', 'awaiting_tools'")


def downgrade() -> None:
    _allow("'pending', 'running', 'awaiting_tools'")


def _allow(open_statuses: str) -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE turns DROP CONSTRAINT ck_turns_status")  # Citus takes one subcommand at a time
    op.execute(
        "ALTER TABLE turns ADD CONSTRAINT ck_turns_status"
        f" CHECK (status IN ({open_statuses}, 'completed', 'failed', 'rejected', 'cancelled'))"
    )
    op.execute("DROP INDEX uq_turns_one_open")
    op.execute(f"CREATE UNIQUE INDEX uq_turns_one_open ON turns (session_id) WHERE status IN ({open_statuses})")
