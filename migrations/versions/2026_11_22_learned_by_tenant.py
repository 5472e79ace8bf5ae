"""What is learned of a provider, by the tenant it was learned from.

What was learned before does not say from whom, so it is dropped: windows are stated again by the next refusal,
calibrations begin at 1.
"""

from __future__ import annotations

from alembic import op

revision = "2026_11_22_learned_by_tenant"
down_revision = "2026_11_22_responses"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE calibrations, learned_windows")
    op.execute(
        """
        CREATE TABLE calibrations (
            tenant_id text NOT NULL,
            model_alias text NOT NULL,
            token_encoding text NOT NULL,
            estimated_tokens double precision NOT NULL DEFAULT 0,
            actual_tokens double precision NOT NULL DEFAULT 0,
            squared_errors double precision NOT NULL DEFAULT 0,
            observed_tokens bigint NOT NULL DEFAULT 0,
            updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            CONSTRAINT pk_calibrations PRIMARY KEY (tenant_id, model_alias, token_encoding)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE learned_windows (
            model_alias text NOT NULL,
            tenant_id text NOT NULL,
            context_window bigint NOT NULL,
            statements bigint NOT NULL DEFAULT 1,
            last_turn_id uuid NOT NULL,
            first_stated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            expires_at timestamptz NOT NULL,
            CONSTRAINT pk_learned_windows PRIMARY KEY (model_alias, tenant_id)
        )
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE calibrations, learned_windows")
    op.execute(
        """
        CREATE TABLE calibrations (
            model_alias text NOT NULL,
            token_encoding text NOT NULL,
            ratios jsonb NOT NULL,
            updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            CONSTRAINT pk_calibrations PRIMARY KEY (model_alias, token_encoding)
        )
        """
    )
    op.execute(
        """
        CREATE TABLE learned_windows (
            model_alias text NOT NULL,
            context_window bigint NOT NULL,
            learned_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            expires_at timestamptz NOT NULL,
            CONSTRAINT pk_learned_windows PRIMARY KEY (model_alias)
        )
        """
    )
