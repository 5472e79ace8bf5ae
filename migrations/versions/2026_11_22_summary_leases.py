"""Who makes a session's summary right now: a lease, so that no two processes do the same work."""

from __future__ import annotations

from alembic import op

revision = "2026_11_22_summary_leases"
down_revision = "2026_11_22_first_tables"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE sessions ADD COLUMN summary_lease_id uuid, ADD COLUMN summary_lease_expires_at timestamptz")


def downgrade() -> None:
    op.execute("ALTER TABLE sessions DROP COLUMN summary_lease_id, DROP COLUMN summary_lease_expires_at")
