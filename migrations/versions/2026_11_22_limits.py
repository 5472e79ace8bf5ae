"""What tenants and sessions may use, what they used, and what running turns have set aside of it.

Columns with a constant default: no table is rewritten.
"""

from __future__ import annotations

from alembic import op

revision = "2026_11_22_limits"
down_revision = "2026_11_22_message_terms"
branch_labels = None
depends_on = None

_USAGE = """
    span text NOT NULL,
    starts_at timestamptz NOT NULL,
    turns bigint NOT NULL,
    tokens bigint NOT NULL,
    usd numeric(20, 10) NOT NULL,
    reserved_tokens bigint NOT NULL,
    reserved_usd numeric(20, 10) NOT NULL,
    CONSTRAINT ck_{0}_span CHECK (span IN ('minute', 'day', 'month', 'total'))
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE sessions ADD COLUMN limits jsonb NOT NULL DEFAULT '{}'")
    op.execute("ALTER TABLE turns ADD COLUMN reservation jsonb")
    op.execute(
        """
        CREATE TABLE limits (
            tenant_id text NOT NULL,
            name text NOT NULL,
            value numeric(20, 10) NOT NULL,
            updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            CONSTRAINT pk_limits PRIMARY KEY (tenant_id, name),
            CONSTRAINT ck_limits_value CHECK (value >= 0)
        )
        """
    )
    op.execute(
        f"""
        CREATE TABLE tenant_usage (
            tenant_id text NOT NULL,
            {_USAGE.format("tenant_usage")},
            CONSTRAINT pk_tenant_usage PRIMARY KEY (tenant_id, span)
        )
        """
    )
    op.execute(
        f"""
        CREATE TABLE session_usage (
            session_id uuid NOT NULL,
            {_USAGE.format("session_usage")},
            CONSTRAINT pk_session_usage PRIMARY KEY (session_id, span),
            CONSTRAINT fk_session_usage_sessions FOREIGN KEY (session_id) REFERENCES sessions (id) ON DELETE CASCADE
        )
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE session_usage")
    op.execute("DROP TABLE tenant_usage")
    op.execute("DROP TABLE limits")
    op.execute("ALTER TABLE turns DROP COLUMN reservation")
    op.execute("ALTER TABLE sessions DROP COLUMN limits")
