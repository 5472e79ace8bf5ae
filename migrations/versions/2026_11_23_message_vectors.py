"""What messages mean, as vectors, and the use of the model that makes them. Writers of usage wait while its table is
read."""

from __future__ import annotations

from alembic import op

revision = "2026_11_23_message_vectors"
down_revision = "2026_11_23_cache_breaks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _allow("'turn', 'summary', 'embedding'")
    op.execute(
        """
        CREATE TABLE message_vectors (
            session_id uuid NOT NULL,
            message_seq bigint NOT NULL,
            model text NOT NULL,
            vector bytea NOT NULL,
            CONSTRAINT pk_message_vectors PRIMARY KEY (session_id, message_seq),
            CONSTRAINT fk_message_vectors_sessions FOREIGN KEY (session_id) REFERENCES sessions (id) ON DELETE CASCADE
        )
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE message_vectors")
    op.execute("DELETE FROM usage_records WHERE purpose = 'embedding'")
    _allow("'turn', 'summary'")


def _allow(purposes: str) -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE usage_records DROP CONSTRAINT ck_usage_records_purpose")
    op.execute(f"ALTER TABLE usage_records ADD CONSTRAINT ck_usage_records_purpose CHECK (purpose IN ({purposes}))")
