"""Summaries that a person wrote. Writers wait while the table is read, a second for some million summaries."""

from __future__ import annotations

from alembic import op

revision = "2026_11_23_edited_summaries"
down_revision = "2026_11_23_known_conversations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _allow("'model', 'fallback', 'emergency', 'person'")


def downgrade() -> None:
    op.execute("UPDATE session_summaries SET origin = 'model' WHERE origin = 'person'")
    _allow("'model', 'fallback', 'emergency'")


def _allow(origins: str) -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE session_summaries DROP CONSTRAINT ck_session_summaries_origin")
    op.execute(
        f"ALTER TABLE session_summaries ADD CONSTRAINT ck_session_summaries_origin CHECK (origin IN ({origins}))"
    )
