"""The index of open turns includes what is counted of them: turns that wait for tools may be many.

Writers wait while the table of turns is read for it, about a second for a million turns.
"""

from __future__ import annotations

from alembic import op

revision = "2026_11_28_waiting_turns"
down_revision = "2026_11_28_sessions_of_clients"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _replace(" INCLUDE (status, created_at)")


def downgrade() -> None:
    _replace("")


def _replace(include: str) -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP INDEX uq_turns_one_open")
    op.execute(
        f"CREATE UNIQUE INDEX uq_turns_one_open ON turns (session_id){include}"
        " WHERE status IN ('running', 'awaiting_tools')"
    )
