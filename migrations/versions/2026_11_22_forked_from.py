"""Sessions that began with another one's past say whose.

A nullable column without a default: no table is rewritten.
"""

from __future__ import annotations

from alembic import op

revision = "2026_11_22_forked_from"
down_revision = "2026_11_22_reasoning_blocks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE sessions ADD COLUMN forked_from jsonb")


def downgrade() -> None:
    op.execute("ALTER TABLE sessions DROP COLUMN forked_from")
