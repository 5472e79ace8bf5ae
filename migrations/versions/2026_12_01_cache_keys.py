"""A session may have a key of the provider's prompt cache: a fork has that of its source, whose prompts begin alike."""

from __future__ import annotations

from alembic import op

revision = "2026_12_01_cache_keys"
down_revision = "2026_11_30_usage_of_turns"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE sessions ADD COLUMN cache_key text")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE sessions DROP COLUMN cache_key")
