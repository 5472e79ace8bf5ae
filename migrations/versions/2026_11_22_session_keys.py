"""The idempotency key of the request that made a session on its way."""

from __future__ import annotations

from alembic import op

revision = "2026_11_22_session_keys"
down_revision = "2026_11_22_forked_from"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE sessions ADD COLUMN idempotency_key text")
    op.execute(
        "CREATE INDEX ix_sessions_idempotency_key ON sessions (tenant_id, idempotency_key)"
        " WHERE idempotency_key IS NOT NULL"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP INDEX ix_sessions_idempotency_key")
    op.execute("ALTER TABLE sessions DROP COLUMN idempotency_key")
