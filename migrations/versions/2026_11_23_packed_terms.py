"""A message's terms in its own row, packed, in the place of a row for each of them.

The column is empty at first: nothing is rewritten here, whatever the installation's size. New messages are stored with
their terms; a session's older ones get them when one of its turns looks for them, some hundreds at a time.
"""

from __future__ import annotations

from alembic import op

revision = "2026_11_23_packed_terms"
down_revision = "2026_11_22_open_statuses"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE messages ADD COLUMN terms bytea")
    op.execute("DROP TABLE message_terms")
    op.execute("ALTER TABLE sessions DROP COLUMN recall_indexed_seq")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
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
    op.execute("ALTER TABLE messages DROP COLUMN terms")
