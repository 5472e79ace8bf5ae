"""How often a session's settled past was changed later, so that a process knows whether what it keeps still holds."""

from __future__ import annotations

from alembic import op

revision = "2026_11_23_past_version"
down_revision = "2026_11_23_packed_terms"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE sessions ADD COLUMN past_version bigint NOT NULL DEFAULT 0")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE sessions DROP COLUMN past_version")
