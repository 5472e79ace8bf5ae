"""The terms of messages that left the window, so that what a user asks about can come back."""

from __future__ import annotations

from alembic import op

revision = "2026_11_22_message_terms"
down_revision = "2026_11_22_session_keys"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Nothing is indexed here: a session's older messages are when its next turn looks for them, a batch at a time.
    op.execute("ALTER TABLE sessions ADD COLUMN recall_indexed_seq bigint NOT NULL DEFAULT 0")
    op.execute(
        """
        CREATE TABLE message_terms (
            session_id uuid NOT NULL,
            term text COLLATE "C" NOT NULL,
            message_seq bigint NOT NULL,
            weight real NOT NULL,
            CONSTRAINT pk_message_terms PRIMARY KEY (session_id, term, message_seq),
            CONSTRAINT fk_message_terms_sessions FOREIGN KEY (session_id) REFERENCES sessions (id) ON DELETE CASCADE
        )
        """
    )


def downgrade() -> None:
    op.execute("DROP TABLE message_terms")
    op.execute("ALTER TABLE sessions DROP COLUMN recall_indexed_seq")
