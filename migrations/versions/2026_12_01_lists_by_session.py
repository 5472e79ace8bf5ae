"""The newest sessions that begin alike are found without the others: very many may begin with "Hi" and its usual reply.

Writers of turns wait while the index is built, about two seconds for a million turns; on a larger table make it
`CONCURRENTLY` under this name beforehand, and this does nothing but drop the one before.
"""

from __future__ import annotations

from alembic import op

revision = "2026_12_01_lists_by_session"
down_revision = "2026_12_01_cache_keys"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _replace("ix_turns_conversation_sha256", "ix_turns_lists", "conversation_sha256, session_id")


def downgrade() -> None:
    _replace("ix_turns_lists", "ix_turns_conversation_sha256", "conversation_sha256")


def _replace(old: str, new: str, columns: str) -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(f"CREATE INDEX IF NOT EXISTS {new} ON turns ({columns}) WHERE conversation_sha256 IS NOT NULL")
    op.execute(f"DROP INDEX {old}")
