"""Responses in OpenAI's form: what tells one again, items that were taken back, sessions that are not to be kept."""

from __future__ import annotations

from alembic import op

revision = "2026_11_22_responses"
down_revision = "2026_11_22_turns_by_time"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE usage_records ADD COLUMN round integer")
    op.execute("ALTER TABLE messages ADD COLUMN withdrawn boolean NOT NULL DEFAULT false")
    op.execute("ALTER TABLE sessions ADD COLUMN erase_after timestamptz")
    op.execute("CREATE INDEX ix_sessions_erase_after ON sessions (erase_after) WHERE erase_after IS NOT NULL")
    op.execute(
        """
        CREATE TABLE responses (
            session_id uuid NOT NULL,
            reply_seq bigint NOT NULL,
            turn_id uuid NOT NULL,
            round integer NOT NULL,
            first_seq bigint NOT NULL,
            request_sha256 text NOT NULL,
            is_stored boolean NOT NULL,
            form jsonb NOT NULL,
            created_at timestamptz NOT NULL,
            CONSTRAINT pk_responses PRIMARY KEY (session_id, reply_seq),
            CONSTRAINT fk_responses_turns FOREIGN KEY (session_id, turn_id) REFERENCES turns (session_id, id)
                ON DELETE CASCADE
        )
        """
    )
    op.execute("CREATE INDEX ix_responses_session_id_turn_id ON responses (session_id, turn_id)")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE responses")
    op.execute("DROP INDEX ix_sessions_erase_after")
    op.execute("ALTER TABLE sessions DROP COLUMN erase_after")
    op.execute("ALTER TABLE messages DROP COLUMN withdrawn")
    op.execute("ALTER TABLE usage_records DROP COLUMN round")
