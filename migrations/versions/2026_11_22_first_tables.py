"""The first tables.

Plain SQL rather than `op.create_table`: the server gets what stands here, with every constraint named.
`make check` holds it against `app/db/tables.py`.
"""

from __future__ import annotations

from alembic import op

revision = "2026_11_22_first_tables"
down_revision = None
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE sessions (
        id uuid NOT NULL,
        tenant_id text NOT NULL,
        model_alias text NOT NULL,
        mode text,
        agent_role text,
        room_goal text,
        instructions text,
        policy jsonb NOT NULL,
        metadata jsonb NOT NULL,
        last_turn_seq bigint NOT NULL DEFAULT 0,
        last_message_seq bigint NOT NULL DEFAULT 0,
        summary_count_after_seq bigint NOT NULL DEFAULT 0,
        summary_failures integer NOT NULL DEFAULT 0,
        summary_failed_at timestamptz,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT pk_sessions PRIMARY KEY (id)
    )
    """,
    "CREATE INDEX ix_sessions_tenant_id_id ON sessions (tenant_id, id DESC)",
    """
    CREATE TABLE turns (
        id uuid NOT NULL,
        session_id uuid NOT NULL,
        seq bigint NOT NULL,
        status text NOT NULL,
        user_input text NOT NULL,
        assistant_output text,
        error jsonb,
        model_alias text NOT NULL,
        finish_reason text,
        prompt_tokens bigint,
        completion_tokens bigint,
        cost_usd numeric(20, 10),
        idempotency_key text,
        request_sha256 text NOT NULL,
        request jsonb,
        fence integer NOT NULL DEFAULT 1,
        lease_expires_at timestamptz,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        completed_at timestamptz,
        CONSTRAINT pk_turns PRIMARY KEY (session_id, id),
        CONSTRAINT uq_turns_session_id_seq UNIQUE (session_id, seq),
        CONSTRAINT fk_turns_sessions FOREIGN KEY (session_id)
            REFERENCES sessions (id) ON DELETE CASCADE,
        CONSTRAINT ck_turns_status
            CHECK (status IN ('pending', 'running', 'awaiting_tools', 'completed', 'failed', 'rejected', 'cancelled'))
    )
    """,
    """
    CREATE UNIQUE INDEX uq_turns_one_open ON turns (session_id)
        WHERE status IN ('pending', 'running', 'awaiting_tools')
    """,
    "CREATE INDEX ix_turns_running_lease ON turns (lease_expires_at) WHERE status = 'running'",
    """
    CREATE UNIQUE INDEX uq_turns_idempotency_key ON turns (session_id, idempotency_key)
        WHERE idempotency_key IS NOT NULL
    """,
    """
    CREATE TABLE turn_steps (
        id uuid NOT NULL,
        turn_id uuid NOT NULL,
        session_id uuid NOT NULL,
        seq integer NOT NULL,
        kind text NOT NULL,
        status text NOT NULL,
        detail jsonb NOT NULL,
        started_at timestamptz NOT NULL,
        finished_at timestamptz,
        CONSTRAINT pk_turn_steps PRIMARY KEY (session_id, turn_id, seq),
        CONSTRAINT fk_turn_steps_turns FOREIGN KEY (session_id, turn_id)
            REFERENCES turns (session_id, id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE messages (
        id uuid NOT NULL,
        session_id uuid NOT NULL,
        turn_id uuid NOT NULL,
        seq bigint NOT NULL,
        role text NOT NULL,
        content jsonb,
        tool_calls jsonb,
        tool_call_id text,
        reasoning text,
        token_estimate bigint NOT NULL,
        token_encoding text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT pk_messages PRIMARY KEY (session_id, id),
        CONSTRAINT uq_messages_session_id_seq UNIQUE (session_id, seq),
        CONSTRAINT fk_messages_turns FOREIGN KEY (session_id, turn_id)
            REFERENCES turns (session_id, id) ON DELETE CASCADE,
        CONSTRAINT ck_messages_role CHECK (role IN ('user', 'assistant', 'tool'))
    )
    """,
    "CREATE INDEX ix_messages_session_id_turn_id ON messages (session_id, turn_id)",
    """
    CREATE TABLE message_token_counts (
        session_id uuid NOT NULL,
        message_id uuid NOT NULL,
        token_encoding text NOT NULL,
        token_estimate bigint NOT NULL,
        CONSTRAINT pk_message_token_counts PRIMARY KEY (session_id, message_id, token_encoding),
        CONSTRAINT fk_message_token_counts_messages FOREIGN KEY (session_id, message_id)
            REFERENCES messages (session_id, id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE session_summaries (
        id uuid NOT NULL,
        session_id uuid NOT NULL,
        from_message_id uuid NOT NULL,
        to_message_id uuid NOT NULL,
        to_message_seq bigint NOT NULL,
        previous_summary_id uuid,
        summary_text text NOT NULL,
        key_facts jsonb NOT NULL,
        open_questions jsonb NOT NULL,
        decisions jsonb NOT NULL,
        action_items jsonb NOT NULL,
        status text NOT NULL,
        origin text NOT NULL,
        model_alias text NOT NULL,
        token_estimate bigint NOT NULL,
        token_encoding text NOT NULL,
        prompt_tokens bigint,
        completion_tokens bigint,
        created_by_turn_id uuid,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT pk_session_summaries PRIMARY KEY (session_id, id),
        CONSTRAINT fk_session_summaries_sessions FOREIGN KEY (session_id)
            REFERENCES sessions (id) ON DELETE CASCADE,
        CONSTRAINT ck_session_summaries_status CHECK (status IN ('active', 'superseded', 'undone')),
        CONSTRAINT ck_session_summaries_origin CHECK (origin IN ('model', 'fallback', 'emergency'))
    )
    """,
    """
    CREATE UNIQUE INDEX uq_session_summaries_one_active ON session_summaries (session_id)
        WHERE status = 'active'
    """,
    """
    CREATE TABLE prompt_blocks (
        session_id uuid NOT NULL,
        sha256 text NOT NULL,
        content text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT pk_prompt_blocks PRIMARY KEY (session_id, sha256),
        CONSTRAINT fk_prompt_blocks_sessions FOREIGN KEY (session_id)
            REFERENCES sessions (id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE turn_context_audit (
        id uuid NOT NULL,
        turn_id uuid NOT NULL,
        session_id uuid NOT NULL,
        round integer NOT NULL DEFAULT 1,
        attempt integer NOT NULL DEFAULT 1,
        model_alias text NOT NULL,
        model_context_limit bigint NOT NULL,
        context_limit_source text NOT NULL,
        output_reserve bigint NOT NULL,
        overhead_reserve bigint NOT NULL,
        input_budget bigint NOT NULL,
        estimator text NOT NULL,
        calibration_ratio double precision NOT NULL,
        estimated_input_tokens_before bigint NOT NULL,
        estimated_input_tokens_after_summary bigint NOT NULL,
        estimated_input_tokens_after_prune bigint NOT NULL,
        estimated_wire_tokens bigint NOT NULL,
        actual_prompt_tokens bigint,
        summary_triggered boolean NOT NULL,
        prune_triggered boolean NOT NULL,
        overflow_rejected boolean NOT NULL,
        regions jsonb NOT NULL,
        context_trim_log jsonb NOT NULL,
        prompt_refs jsonb,
        prompt_sha256 text,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT pk_turn_context_audit PRIMARY KEY (session_id, id),
        CONSTRAINT uq_turn_context_audit_session_id_turn_id_round_attempt
            UNIQUE (session_id, turn_id, round, attempt),
        CONSTRAINT fk_turn_context_audit_turns FOREIGN KEY (session_id, turn_id)
            REFERENCES turns (session_id, id) ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE usage_records (
        id uuid NOT NULL,
        session_id uuid NOT NULL,
        turn_id uuid,
        purpose text NOT NULL,
        model_alias text NOT NULL,
        prompt_tokens bigint NOT NULL,
        cached_prompt_tokens bigint NOT NULL,
        completion_tokens bigint NOT NULL,
        cost_usd numeric(20, 10),
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT pk_usage_records PRIMARY KEY (session_id, id),
        CONSTRAINT fk_usage_records_sessions FOREIGN KEY (session_id) REFERENCES sessions (id) ON DELETE CASCADE,
        CONSTRAINT ck_usage_records_purpose CHECK (purpose IN ('turn', 'summary'))
    )
    """,
    """
    CREATE TABLE calibrations (
        model_alias text NOT NULL,
        token_encoding text NOT NULL,
        ratios jsonb NOT NULL,
        updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT pk_calibrations PRIMARY KEY (model_alias, token_encoding)
    )
    """,
    """
    CREATE TABLE pins (
        session_id uuid NOT NULL,
        name text NOT NULL,
        content text NOT NULL,
        relevance double precision,
        source text,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        CONSTRAINT pk_pins PRIMARY KEY (session_id, name),
        CONSTRAINT fk_pins_sessions FOREIGN KEY (session_id) REFERENCES sessions (id) ON DELETE CASCADE,
        CONSTRAINT ck_pins_relevance CHECK (relevance >= 0 AND relevance <= 1)
    )
    """,
    """
    CREATE TABLE learned_windows (
        model_alias text NOT NULL,
        context_window bigint NOT NULL,
        learned_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        expires_at timestamptz NOT NULL,
        CONSTRAINT pk_learned_windows PRIMARY KEY (model_alias)
    )
    """,
    """
    CREATE TABLE api_keys (
        id uuid NOT NULL,
        tenant_id text NOT NULL,
        name text NOT NULL,
        prefix text NOT NULL,
        secret_sha256 text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        revoked_at timestamptz,
        CONSTRAINT pk_api_keys PRIMARY KEY (id),
        CONSTRAINT uq_api_keys_secret_sha256 UNIQUE (secret_sha256)
    )
    """,
)
# The reverse of their order: what refers goes before what is referred to.
TABLES = (
    "api_keys",
    "learned_windows",
    "calibrations",
    "usage_records",
    "pins",
    "turn_context_audit",
    "prompt_blocks",
    "session_summaries",
    "message_token_counts",
    "messages",
    "turn_steps",
    "turns",
    "sessions",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
