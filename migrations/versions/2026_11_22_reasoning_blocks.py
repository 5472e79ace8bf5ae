"""Reasoning as its provider wants it back, what that costs, and the tokens that were written to a cache.

Columns with a constant default: no table is rewritten. Messages stored before keep their reasoning in `token_estimate`,
which errs on the high side.
"""

from __future__ import annotations

from alembic import op

revision = "2026_11_22_reasoning_blocks"
down_revision = "2026_11_22_summary_leases"
branch_labels = None
depends_on = None

COLUMNS = (
    ("messages", "reasoning_blocks", "jsonb"),
    ("messages", "reasoning_tokens", "bigint NOT NULL DEFAULT 0"),
    ("message_token_counts", "reasoning_tokens", "bigint NOT NULL DEFAULT 0"),
    ("usage_records", "cache_write_prompt_tokens", "bigint NOT NULL DEFAULT 0"),
)


def upgrade() -> None:
    for table, column, kind in COLUMNS:
        op.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")


def downgrade() -> None:
    for table, column, _ in reversed(COLUMNS):
        op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
