"""Claims of turns under the session's lock, with leases by the database's clock and fences against lost workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from app.db import tables
from app.db.database import Transaction, record_of
from app.db.limits import TENANT_LIMITS, limits_of
from app.db.messages import NEWEST_CALLS
from app.db.sessions import ON_ITS_NODE, STATE_COLUMNS, insert_in_session
from app.db.sql import CLOCK, Statement, binds, insert_row, of_session, sql
from app.db.turns import SHORT_REQUEST, WHOLE_REQUEST, is_stored_apart, parts_of_request
from app.domain.content import tool_calls_from_json
from app.domain.frozen import frozen, values_of
from app.domain.limits import Limits, Scope
from app.domain.stored import JsonText
from app.domain.types import STATUS_OF, JsonObject, SessionId, SessionRef, SessionState, ToolCall, TurnId, TurnStatus

_LOCKED = f"{', '.join(STATE_COLUMNS)}, limits, {TENANT_LIMITS}"
_LEASE_END = "statement_timestamp() + make_interval(secs => :lease_s)"
_NEW_TURN: Mapping[str, str] = {
    "id": ":turn_id",
    "session_id": "sessions.id",
    "seq": "s.last_turn_seq",
    "status": "'running'",
    "model_alias": "coalesce(:model_alias, s.model_alias)",
    "user_input": "coalesce(:user_input, CAST(:content AS jsonb) #>> '{}')",
    **binds("idempotency_key", "request_sha256", "request"),
    "created_at": "s.claimed_at",
    "lease_expires_at": "s.claimed_at + make_interval(secs => :lease_s)",
}
_USERS_MESSAGE = insert_row(
    tables.messages,
    {
        "id": ":message_id",
        "session_id": "sessions.id",
        "turn_id": ":turn_id",
        "seq": "s.last_message_seq - 1",
        "role": "'user'",
        **binds("content", "token_estimate", "token_encoding", "terms", "name", "said_at"),
        "created_at": "s.claimed_at",
    },
    f"s, {ON_ITS_NODE}",
)


def _claim(new_turn: Mapping[str, str], block: str = "") -> Statement:
    return sql(f"""
        WITH s AS (
            UPDATE sessions
            SET last_turn_seq = last_turn_seq + 1, last_message_seq = last_message_seq + 2,
                updated_at = statement_timestamp(), erase_after = CASE WHEN :is_of_response THEN erase_after END
            WHERE id = :session_id AND tenant_id = :tenant_id
            RETURNING {_LOCKED}, updated_at AS claimed_at
        ), t AS (
            {insert_row(tables.turns, new_turn, f"s, {ON_ITS_NODE}")}
        ), m AS (
            {_USERS_MESSAGE}
        ){block}
        SELECT * FROM s
        """)


_CLAIM = _claim(_NEW_TURN)
# Only where there may be one is a block prepared: that takes a tenth of what Postgres spends on a whole turn.
_CLAIM_WITH_PARTS = _claim({**_NEW_TURN, "request": SHORT_REQUEST}, f", b AS ({parts_of_request('s', 's.claimed_at')})")

# A turn that ended and runs again may be in a cached past already: `changes` is 1 then, which invalidates the cache.
_LOCK_SESSION = sql(f"""
    UPDATE sessions
    SET last_message_seq = last_message_seq + :messages, updated_at = statement_timestamp(),
        past_version = past_version + :changes
    WHERE id = :session_id AND tenant_id = :tenant_id
    RETURNING {_LOCKED}
    """)

_WAITING = sql(f"""
    SELECT t.status, t.seq, t.fence, t.model_alias, {WHOLE_REQUEST}, {NEWEST_CALLS} AS tool_calls,
        (SELECT max(a.round) FROM turn_context_audit a
         WHERE a.session_id = t.session_id AND a.turn_id = t.id) AS rounds,
        (SELECT max(st.seq) FROM turn_steps st
         WHERE st.session_id = t.session_id AND st.turn_id = t.id) AS steps,
        (SELECT jsonb_agg(jsonb_build_array(st.detail -> 'after_seq', b.content) ORDER BY st.seq, x.place)
         FROM turn_steps st, jsonb_array_elements_text(
                CASE WHEN jsonb_typeof(st.detail -> 'blocks') = 'array' THEN st.detail -> 'blocks' ELSE '[]' END
            ) WITH ORDINALITY AS x(sha256, place),
            prompt_blocks b
         WHERE st.session_id = t.session_id AND st.turn_id = t.id AND st.kind = 'look_back'
            AND b.session_id = t.session_id AND b.session_id = st.session_id AND b.sha256 = x.sha256
            AND t.status = 'awaiting_tools') AS looked_back
    FROM turns t JOIN sessions s ON s.id = t.session_id
    WHERE s.id = :session_id AND s.tenant_id = :tenant_id AND t.id = :turn_id
    """)

_NEW_OUTPUTS = {"turn_id": "t.id", "seq": ":messages_before + x.seq"}
_OUTPUTS = insert_in_session(tables.messages, "outputs", "t", _NEW_OUTPUTS, without=("withdrawn",))


def _reclaim(request: str, block: str = "") -> Statement:
    return sql(f"""
        WITH t AS (
            UPDATE turns
            SET status = 'running', fence = fence + 1, error = NULL, completed_at = NULL,
                request = coalesce({request}, request), lease_expires_at = {_LEASE_END},
                idempotency_key = coalesce(:idempotency_key, idempotency_key),
                request_sha256 = coalesce(:request_sha256, request_sha256)
            WHERE session_id = :session_id AND id = :turn_id AND fence = :found_fence
                AND status = :found_as AND (status <> 'completed' OR assistant_output IS NULL)
                AND NOT EXISTS (SELECT FROM turns later
                    WHERE later.session_id = :session_id AND later.seq > turns.seq AND later.status <> 'rejected')
            RETURNING session_id, id, fence
        ), m AS (
            {_OUTPUTS}
        ){block}
        SELECT fence FROM t
        """)


_RECLAIM = _reclaim(":request")
_RECLAIM_WITH_PARTS = _reclaim(SHORT_REQUEST, f", b AS ({parts_of_request(f't, {CLOCK}', 'clock.at')})")

# This runs without the session's lock, so it must not wait for a row: a turn that is locked is being ended.
_RENEW = sql(f"""
    WITH ours AS (
        SELECT id FROM turns
        WHERE session_id = :session_id AND id = :turn_id AND fence = :fence AND status = 'running'
        FOR NO KEY UPDATE SKIP LOCKED
    ), renewed AS (
        UPDATE turns SET lease_expires_at = {_LEASE_END}
        FROM ours WHERE turns.session_id = :session_id AND turns.id = ours.id
    )
    SELECT count(*) > 0 FROM turns WHERE session_id = :session_id AND id = :turn_id AND fence = :fence
    """)


@frozen
class Claim:
    """A turn that this process may run: what was claimed, and the session as it was under the lock.

    `assistant_seq` is the message number reserved for the reply. `round` counts the model calls of the turn from 1,
    `steps` the stored steps. `limits` is empty without any. `looked_back` has, for each look-back message of earlier
    rounds, the number of the message that it follows and its JSON as it was sent.
    """

    session: SessionState
    turn_id: TurnId
    fence: int
    seq: int
    assistant_seq: int
    round: int
    steps: int
    limits: Mapping[Scope, Limits]
    looked_back: tuple[tuple[int, str], ...] = ()

    @property
    def session_id(self) -> SessionId:
        return self.session.id


@frozen
class NewTurn:
    """What a claim stores. `user_input` is the text of `content`, or None if that is a text itself; `terms` are its
    packed terms. `name` is the speaker and `said_at` the time, if the client gives them. Unless `is_of_response`, the
    claim keeps the session from being erased with its responses. `seq` is the number that the turn must get, if it must
    directly follow a certain turn, and `past_version` what that of the session must be."""

    turn_id: TurnId
    message_id: UUID
    user_input: str | None
    content: JsonText
    token_estimate: int
    token_encoding: str
    terms: bytes
    name: str | None
    said_at: datetime | None
    model_alias: str | None
    idempotency_key: str | None
    request_sha256: str
    request: JsonText | None
    is_of_response: bool
    seq: int | None = None
    past_version: int | None = None


async def claim_turn(tx: Transaction, session: SessionRef, new: NewTurn, lease_s: float) -> Claim | None:
    """Stores a running turn with its user message under the session's lock; None when there is no such session. Raises
    `UniqueViolated` when the session already has an open turn or the idempotency key was used."""
    claim = _CLAIM_WITH_PARTS if is_stored_apart(new.request) else _CLAIM
    row = await tx.fetchrow(claim, **of_session(session), lease_s=lease_s, **values_of(new, "seq", "past_version"))
    if row is None:
        return None
    return Claim(
        session=record_of(SessionState, row),
        turn_id=new.turn_id,
        fence=1,
        seq=row["last_turn_seq"],
        assistant_seq=row["last_message_seq"],
        round=1,
        steps=0,
        limits=limits_of(row),
    )


@frozen
class RequestKey:
    """The idempotency key of a request, and the hash of its body."""

    idempotency_key: str
    request_sha256: str


@frozen
class WaitingTurn:
    """The stored state of a turn that is to be continued. `open_calls` are those of its newest assistant message."""

    status: TurnStatus
    seq: int
    fence: int
    model_alias: str
    request: JsonObject | None
    open_calls: tuple[ToolCall, ...]
    rounds: int
    steps: int
    looked_back: tuple[tuple[int, str], ...] = ()


async def waiting_turn(tx: Transaction, session: SessionRef, turn_id: TurnId) -> WaitingTurn | None:
    """The turn, whatever its status; None when the tenant has no such turn."""
    row = await tx.fetchrow(_WAITING, **of_session(session), turn_id=turn_id)
    if row is None:
        return None
    return record_of(
        WaitingTurn,
        row,
        status=STATUS_OF[row["status"]],
        open_calls=tool_calls_from_json(row["tool_calls"]),
        rounds=row["rounds"] or 0,
        steps=row["steps"] or 0,
        looked_back=tuple((after_seq, sent) for after_seq, sent in row["looked_back"] or ()),
    )


async def reclaim_turn(
    tx: Transaction,
    session: SessionRef,
    turn_id: TurnId,
    waiting: WaitingTurn,
    outputs: Sequence[JsonObject],
    lease_s: float,
    request: JsonText | None = None,
    *,
    ended_as: Sequence[TurnStatus] = (),
    key: RequestKey | None = None,
) -> Claim | None:
    """Stores the outputs (rows of messages, whose `seq` counts from 1) and sets the turn to running again, under the
    session's lock. None if it is no longer as `waiting`, which was read without the lock, or a turn that was not
    rejected followed it. `ended_as` are the statuses of an ended turn that may run again. One that was read while it
    ran is not claimed, because `waiting` may lack rounds and steps of it. `request`, if given, replaces the stored one,
    and `key` the turn's. Raises `UniqueViolated` if another turn of the session has the key."""
    if waiting.status not in (ended_as or (TurnStatus.AWAITING_TOOLS,)):
        return None
    row = await tx.fetchrow(
        _LOCK_SESSION, **of_session(session), messages=len(outputs) + 1, changes=int(bool(ended_as))
    )
    if row is None:
        return None
    fence = await tx.fetchval(
        _RECLAIM_WITH_PARTS if is_stored_apart(request) else _RECLAIM,
        session_id=session.id,
        turn_id=turn_id,
        outputs=outputs,
        messages_before=row["last_message_seq"] - len(outputs) - 1,
        lease_s=lease_s,
        request=request,
        found_fence=waiting.fence,
        found_as=waiting.status.value,
        idempotency_key=key and key.idempotency_key,
        request_sha256=key and key.request_sha256,
    )
    if fence is None:
        return None
    return Claim(
        session=record_of(SessionState, row),
        turn_id=turn_id,
        fence=fence,
        seq=waiting.seq,
        assistant_seq=row["last_message_seq"],
        round=waiting.rounds + 1,
        steps=waiting.steps,
        limits=limits_of(row),
        looked_back=waiting.looked_back,
    )


async def renew_lease(tx: Transaction, claim: Claim, lease_s: float) -> bool:
    """Extends the lease of a running turn. False if the claim is no longer ours: it was ended elsewhere, or is gone."""
    return await tx.fetchval(
        _RENEW, lease_s=lease_s, session_id=claim.session_id, turn_id=claim.turn_id, fence=claim.fence
    )
