"""The tables as SQLAlchemy Core describes them. `migrations/` creates them, and a check keeps both the same.

Below `sessions` every primary key, unique constraint and foreign key begins with `session_id`, so that tables can be
distributed by it. Rows of `prompt_blocks`, `turn_context_audit`, `message_token_counts` and `messages` are not updated,
except that a message can be marked `withdrawn` and can get packed terms that it lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, UUID
from sqlalchemy.schema import SchemaItem

from app.db.sql import (
    OPEN_STATUSES_SQL,
    UNANSWERED,
    columns,
    id_column,
    index_where,
    index_where_set,
    instant_column,
    metadata,
    one_of,
    usage_columns,
)
from app.domain.types import SUMMARY_LISTS, Purpose, Role, SummaryOrigin, SummaryStatus, TurnStatus


def _below(noun: str, name: str, *parts: SchemaItem, key: Sequence[str]) -> sa.Table:
    """A table whose rows are erased with their session, or with the turn or message in it that the noun names. `key`
    is their key within the session."""
    names, parents = ["session_id"], ["sessions.id"]
    if noun != "session":
        names, parents = ["session_id", f"{noun}_id"], [f"{noun}s.session_id", f"{noun}s.id"]
    keys = sa.PrimaryKeyConstraint("session_id", *key), sa.ForeignKeyConstraint(names, parents, ondelete="CASCADE")
    return sa.Table(name, metadata, id_column("session_id"), *parts, *keys)


sessions = sa.Table(
    "sessions",
    metadata,
    id_column(),
    *columns(sa.Text, "tenant_id", "model_alias"),
    *columns(sa.Text, "mode", "agent_role", "room_goal", "instructions", nullable=True),
    *columns(JSONB, "policy", "metadata"),
    # Counters that are raised under the row's lock: turn numbers have no gaps, message numbers never repeat.
    *columns(sa.BigInteger, "last_turn_seq", "last_message_seq", default="0"),
    # Raised when messages are withdrawn, an ended turn runs again, or added turns are rejected: processes then read
    # again what they have cached.
    sa.Column("past_version", sa.BigInteger, nullable=False, server_default="0"),
    # Turns with a seq above this one count towards the mandatory summary.
    sa.Column("summary_count_after_seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("summary_failures", sa.Integer, nullable=False, server_default="0"),
    instant_column("summary_failed_at", nullable=True),
    # The key of a request that made the session implicitly (chat completions): the same key finds it again.
    sa.Column("idempotency_key", sa.Text),
    # A client's own name for it, by which its requests find it.
    sa.Column("external_id", sa.Text),
    # The key of its prompts' cache at the provider, if that is not its id: a client's own, or that of a fork's source.
    sa.Column("cache_key", sa.Text),
    # Who is making a summary now, so that no two do the same work; compare-and-set decides which summary is kept.
    sa.Column("summary_lease_id", UUID(as_uuid=True)),
    instant_column("summary_lease_expires_at", nullable=True),
    instant_column("created_at", default_now=True),
    instant_column("updated_at", default_now=True),
    # The session it was forked from and the last turn: `{session_id, turn_id}`. No foreign key: that may be erased.
    sa.Column("forked_from", JSONB),
    # Its limits, by the names of `domain/limits.py`.
    sa.Column("limits", JSONB, nullable=False, server_default="{}"),
    # For a session that was made for a response: it is erased after this time, or (`infinity`) with its last response.
    instant_column("erase_after", nullable=True),
    sa.PrimaryKeyConstraint("id"),
)
sa.Index("ix_sessions_tenant_id_id", sessions.c.tenant_id, sessions.c.id.desc())
index_where_set("ix_sessions_idempotency_key", sessions.c.tenant_id, sessions.c.idempotency_key)
index_where_set("ix_sessions_external_id", sessions.c.tenant_id, sessions.c.external_id)
index_where_set("ix_sessions_erase_after", sessions.c.erase_after)

turns = _below(
    "session",
    "turns",
    id_column(),
    sa.Column("seq", sa.BigInteger, nullable=False),
    *columns(sa.Text, "status", "user_input"),
    sa.Column("assistant_output", sa.Text),
    sa.Column("error", JSONB),
    sa.Column("model_alias", sa.Text, nullable=False),
    sa.Column("finish_reason", sa.Text),
    *columns(sa.BigInteger, "prompt_tokens", "completion_tokens", nullable=True),
    # The cost of all its calls, including summaries made for it; null where no price is known.
    sa.Column("cost_usd", sa.Numeric(20, 10)),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("request_sha256", sa.Text, nullable=False),
    # What later rounds or another try need of the request; null if it had only content.
    # A long system prompt is a block.
    sa.Column("request", JSONB),
    # Decides who may write: every claim raises the fence, and a write names the fence of its claim.
    sa.Column("fence", sa.Integer, nullable=False, server_default="1"),
    instant_column("lease_expires_at", nullable=True),
    instant_column("created_at", default_now=True),
    instant_column("completed_at", nullable=True),
    # What a running turn has reserved of limits, and in which spans; null without limits and once it has ended.
    sa.Column("reservation", JSONB),
    # Hash of the message list that a client sent, through the reply if there is one: finds the turn when it is resent.
    sa.Column("conversation_sha256", sa.LargeBinary),
    sa.UniqueConstraint("session_id", "seq"),
    one_of("status", TurnStatus),
    key=("id",),
)
# Includes what is counted of turns that wait for tools: those of clients that never came back stay, and may be many.
sa.Index(
    "uq_turns_one_open",
    turns.c.session_id,
    unique=True,
    postgresql_include=["status", "created_at"],
    postgresql_where=sa.text(f"status IN {OPEN_STATUSES_SQL}"),
)
index_where_set("uq_turns_idempotency_key", turns.c.session_id, turns.c.idempotency_key, unique=True)
index_where("conversation_sha256 IS NOT NULL", "ix_turns_lists", turns.c.conversation_sha256, turns.c.session_id)
# The activity view reads the newest turns of all sessions, once a second.
sa.Index("ix_turns_created_at", turns.c.created_at)
# Recall looks up which turns ended without an answer; these turns are few, so this index stays tiny.
index_where(f"status IN {UNANSWERED}", "ix_turns_unanswered", turns.c.session_id, turns.c.status)
# The sweeper looks for turns of dead workers across sessions; running turns are few, so this index stays tiny.
index_where("status = 'running'", "ix_turns_running_lease", turns.c.lease_expires_at)

turn_steps = _below(
    "turn",
    "turn_steps",
    id_column(),
    id_column("turn_id"),
    sa.Column("seq", sa.Integer, nullable=False),
    *columns(sa.Text, "kind", "status"),
    sa.Column("detail", JSONB, nullable=False),
    instant_column("started_at"),
    instant_column("finished_at", nullable=True),
    key=("turn_id", "seq"),
)

messages = _below(
    "turn",
    "messages",
    id_column(),
    id_column("turn_id"),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    *columns(JSONB, "content", "tool_calls", nullable=True),
    *columns(sa.Text, "tool_call_id", "reasoning", nullable=True),
    sa.Column("token_estimate", sa.BigInteger, nullable=False),
    sa.Column("token_encoding", sa.Text, nullable=False),
    instant_column("created_at", default_now=True),
    # The provider's own form of its reasoning, signatures included; null where it gave none.
    sa.Column("reasoning_blocks", JSONB),
    # The tokens of the reasoning where it is sent back; not included in `token_estimate`.
    sa.Column("reasoning_tokens", sa.BigInteger, nullable=False, server_default="0"),
    # Taken back by the client: in no later prompt. The row is kept for the prompts that were sent with it.
    sa.Column("withdrawn", sa.Boolean, nullable=False, server_default="false"),
    # The packed terms by which recall and search find it (engine/recall/index.py); null until a turn packs them.
    sa.Column("terms", sa.LargeBinary),
    # Which of several people spoke, and when, if the client gives it.
    sa.Column("name", sa.Text),
    instant_column("said_at", nullable=True),
    sa.UniqueConstraint("session_id", "seq"),
    one_of("role", get_args(Role)),
    key=("id",),
)

# Erasing a session cascades turn by turn; without this index each turn would scan all the session's messages.
sa.Index("ix_messages_session_id_turn_id", messages.c.session_id, messages.c.turn_id)

message_token_counts = _below(
    "message",
    "message_token_counts",
    id_column("message_id"),
    sa.Column("token_encoding", sa.Text, nullable=False),
    sa.Column("token_estimate", sa.BigInteger, nullable=False),
    sa.Column("reasoning_tokens", sa.BigInteger, nullable=False, server_default="0"),
    key=("message_id", "token_encoding"),
)

# The embedding vector of a message: a signed byte per dimension, or no bytes where the model gave nothing usable. They
# are made in the background, in the order of messages; those of another model are replaced.
message_vectors = _below(
    "session",
    "message_vectors",
    sa.Column("message_seq", sa.BigInteger, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("vector", sa.LargeBinary, nullable=False),
    key=("message_seq",),
)

session_summaries = _below(
    "session",
    "session_summaries",
    id_column(),
    id_column("from_message_id"),
    id_column("to_message_id"),
    sa.Column("to_message_seq", sa.BigInteger, nullable=False),
    # The summary this one folded in; undoing this one makes that one active again.
    sa.Column("previous_summary_id", UUID(as_uuid=True)),
    sa.Column("summary_text", sa.Text, nullable=False),
    *columns(JSONB, *SUMMARY_LISTS),
    *columns(sa.Text, "status", "origin", "model_alias"),
    *columns(sa.Text, "call", "call_reason", nullable=True),
    sa.Column("token_estimate", sa.BigInteger, nullable=False),
    sa.Column("token_encoding", sa.Text, nullable=False),
    *columns(sa.BigInteger, "prompt_tokens", "completion_tokens", nullable=True),
    sa.Column("created_by_turn_id", UUID(as_uuid=True)),
    instant_column("created_at", default_now=True),
    one_of("status", get_args(SummaryStatus)),
    one_of("origin", get_args(SummaryOrigin)),
    key=("id",),
)
index_where("status = 'active'", "uq_session_summaries_one_active", session_summaries.c.session_id, unique=True)

prompt_blocks = _below(
    "session",
    "prompt_blocks",
    *columns(sa.Text, "sha256", "content"),
    instant_column("created_at", default_now=True),
    key=("sha256",),
)

turn_context_audit = _below(
    "turn",
    "turn_context_audit",
    id_column(),
    id_column("turn_id"),
    *columns(sa.Integer, "round", "attempt", default="1"),
    sa.Column("model_alias", sa.Text, nullable=False),
    sa.Column("model_context_limit", sa.BigInteger, nullable=False),
    sa.Column("context_limit_source", sa.Text, nullable=False),
    *columns(sa.BigInteger, "output_reserve", "overhead_reserve", "input_budget"),
    sa.Column("estimator", sa.Text, nullable=False),
    sa.Column("calibration_ratio", sa.Float, nullable=False),
    *columns(
        sa.BigInteger,
        "estimated_input_tokens_before",
        "estimated_input_tokens_after_summary",
        "estimated_input_tokens_after_prune",
        "estimated_wire_tokens",
    ),
    sa.Column("actual_prompt_tokens", sa.BigInteger),
    *columns(sa.Boolean, "summary_triggered", "prune_triggered", "overflow_rejected"),
    *columns(JSONB, "regions", "context_trim_log"),
    # What was sent, as references to blocks and messages (form: `engine/window/prompt_refs.py`); null when nothing was.
    sa.Column("prompt_refs", JSONB),
    *columns(sa.Text, "prompt_sha256", "cache_break", nullable=True),
    instant_column("created_at", default_now=True),
    sa.UniqueConstraint("session_id", "turn_id", "round", "attempt"),
    key=("id",),
)

usage_records = _below(
    "session",
    "usage_records",
    id_column(),
    sa.Column("turn_id", UUID(as_uuid=True)),
    *columns(sa.Text, "purpose", "model_alias"),
    *columns(sa.BigInteger, "prompt_tokens", "cached_prompt_tokens", "completion_tokens"),
    sa.Column("cost_usd", sa.Numeric(20, 10)),
    instant_column("created_at", default_now=True),
    sa.Column("cache_write_prompt_tokens", sa.BigInteger, nullable=False, server_default="0"),
    # The round of its turn, from 1; null for summaries and embeddings.
    sa.Column("round", sa.Integer),
    sa.Column("reasoning_completion_tokens", sa.BigInteger, nullable=False, server_default="0"),
    one_of("purpose", get_args(Purpose)),
    key=("id",),
)
index_where_set("ix_usage_records_session_id_turn_id", usage_records.c.session_id, usage_records.c.turn_id)

# A model call that a client of OpenAI's Responses requested; its reply is the message `reply_seq`. When the client
# deletes the response, only this row is erased: the turn belongs to the session.
responses = _below(
    "turn",
    "responses",
    sa.Column("reply_seq", sa.BigInteger, nullable=False),
    id_column("turn_id"),
    sa.Column("round", sa.Integer, nullable=False),
    # The first message of its input; the last is the one before the reply.
    sa.Column("first_seq", sa.BigInteger, nullable=False),
    sa.Column("request_sha256", sa.Text, nullable=False),
    sa.Column("is_stored", sa.Boolean, nullable=False),
    # The parts of the request that an answer repeats: instructions, tools, metadata …
    sa.Column("form", JSONB, nullable=False),
    instant_column("created_at"),
    key=("reply_seq",),
)
sa.Index("ix_responses_session_id_turn_id", responses.c.session_id, responses.c.turn_id)

pins = _below(
    "session",
    "pins",
    *columns(sa.Text, "name", "content"),
    sa.Column("relevance", sa.Float),
    sa.Column("source", sa.Text),
    instant_column("created_at", default_now=True),
    instant_column("updated_at", default_now=True),
    sa.CheckConstraint("relevance >= 0 AND relevance <= 1", name="relevance"),
    key=("name",),
)

session_usage = _below("session", "session_usage", *usage_columns(), key=("span",))

api_keys = sa.Table(
    "api_keys",
    metadata,
    id_column(),
    *columns(sa.Text, "tenant_id", "name", "prefix", "secret_sha256"),
    instant_column("created_at", default_now=True),
    instant_column("revoked_at", nullable=True),
    sa.PrimaryKeyConstraint("id"),
    sa.UniqueConstraint("secret_sha256"),
)

# The limits of a tenant, which the operator sets, by the names of `domain/limits.py`.
limits = sa.Table(
    "limits",
    metadata,
    *columns(sa.Text, "tenant_id", "name"),
    sa.Column("value", sa.Numeric(20, 10), nullable=False),
    instant_column("updated_at", default_now=True),
    sa.PrimaryKeyConstraint("tenant_id", "name"),
    sa.CheckConstraint("value >= 0", name="value"),
)

# One row per span, which is reset when a new span begins, so rows do not pile up. Only spans with a limit are counted.
tenant_usage = sa.Table(
    "tenant_usage",
    metadata,
    sa.Column("tenant_id", sa.Text, nullable=False),
    *usage_columns(),
    sa.PrimaryKeyConstraint("tenant_id", "span"),
)

# One row for each alias and encoding that a tenant uses; deleted after 30 days without a call.
calibrations = sa.Table(
    "calibrations",
    metadata,
    *columns(sa.Text, "tenant_id", "model_alias", "token_encoding"),
    *columns(sa.Float, "estimated_tokens", "actual_tokens", "squared_errors", default=sa.text("0")),
    sa.Column("observed_tokens", sa.BigInteger, nullable=False, server_default="0"),
    instant_column("updated_at", default_now=True),
    sa.PrimaryKeyConstraint("tenant_id", "model_alias", "token_encoding"),
)

# The last window that a provider stated to a tenant. Expired rows are deleted when the next window is stored.
learned_windows = sa.Table(
    "learned_windows",
    metadata,
    *columns(sa.Text, "model_alias", "tenant_id"),
    sa.Column("context_window", sa.BigInteger, nullable=False),
    sa.Column("statements", sa.BigInteger, nullable=False, server_default="1"),
    id_column("last_turn_id"),
    instant_column("first_stated_at", default_now=True),
    instant_column("expires_at"),
    sa.PrimaryKeyConstraint("model_alias", "tenant_id"),
)
