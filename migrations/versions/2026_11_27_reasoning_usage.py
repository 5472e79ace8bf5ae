"""The tokens of reasoning among a call's completion tokens, as the provider reported them; 0 for calls before.

A column with a constant default: the table is not rewritten.
"""

from __future__ import annotations

from alembic import op

revision = "2026_11_27_reasoning_usage"
down_revision = "2026_11_26_sessions_of_responses"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE usage_records ADD COLUMN reasoning_completion_tokens bigint NOT NULL DEFAULT 0")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE usage_records DROP COLUMN reasoning_completion_tokens")
