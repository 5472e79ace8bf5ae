"""Responses in OpenAI's form: a row for each model call that a client requested in that form, with what the turn's own
rows lack. Contents are in `messages`, the end of the call in `turns`, its usage in `usage_records`."""

from __future__ import annotations

from app.db.claims import Claim
from app.db.database import Transaction, record_of
from app.db.driver import Record
from app.db.messages import AS_STORED, message_from_row
from app.db.records import USED_TOKENS
from app.db.sql import binds, insert_row, of_session, sql
from app.db.tables import responses
from app.domain.frozen import values_of
from app.domain.responses import ResponseNote, ResponseRef, StoredResponse
from app.domain.types import SessionRef, TenantId, TurnId, TurnStatus, Usage

_KEEP = sql(insert_row(responses, binds(*responses.columns.keys())))

_HAS_LATER = """EXISTS (
            SELECT FROM responses l WHERE l.session_id = r.session_id AND l.turn_id = r.turn_id AND"""
"""The beginning of an SQL condition: the turn of the response `r` has another one, `l`, with …"""
_FOUND = f"""
    SELECT r.session_id AS response_session_id, r.reply_seq, r.turn_id AS response_turn_id, r.first_seq,
        r.form, r.created_at AS response_created_at, t.seq AS turn_seq, t.status, t.error,
        t.finish_reason, t.model_alias, s.last_message_seq, {AS_STORED},
        CASE WHEN r.form -> 'context_management' IS NOT NULL THEN (
            SELECT CAST(x.detail ->> 'summary_id' AS uuid) FROM turn_steps x
            WHERE x.session_id = r.session_id AND x.turn_id = r.turn_id AND x.kind = 'summarize'
                AND x.detail ->> 'summary_id' IS NOT NULL AND x.started_at >= r.created_at
                AND NOT {_HAS_LATER} l.reply_seq > r.reply_seq AND l.created_at <= x.started_at)
            ORDER BY x.seq LIMIT 1) END AS summary_id,
        u.*,
        NOT {_HAS_LATER} l.reply_seq > r.reply_seq) AS is_last_of_turn,
        NOT EXISTS (SELECT 1 FROM messages l WHERE l.session_id = r.session_id AND l.turn_id = r.turn_id
            AND l.seq > r.reply_seq) AS ends_turn,
        NOT EXISTS (SELECT 1 FROM messages l JOIN turns lt ON lt.session_id = l.session_id AND lt.id = l.turn_id
            WHERE l.session_id = r.session_id AND l.seq > r.reply_seq AND NOT l.withdrawn
                AND lt.status <> 'rejected') AS ends_session
    FROM responses r
    JOIN sessions s ON s.id = r.session_id
    JOIN turns t ON t.session_id = r.session_id AND t.id = r.turn_id
    LEFT JOIN messages m ON m.session_id = r.session_id AND m.seq = r.reply_seq
    LEFT JOIN LATERAL (
        SELECT max(x.model_alias) AS used_alias, {USED_TOKENS} FROM usage_records x
        WHERE x.session_id = r.session_id AND x.turn_id = r.turn_id AND x.purpose = 'turn' AND x.round >= r.round
            AND NOT {_HAS_LATER} l.round > r.round AND l.round <= x.round)
    ) u ON true
    WHERE r.session_id = :session_id AND s.tenant_id = :tenant_id
"""
_GET = sql(f"{_FOUND} AND r.is_stored AND r.reply_seq = :reply_seq")
_OF_REQUEST = sql(
    f"{_FOUND} AND r.turn_id = :turn_id AND r.request_sha256 = :request_sha256 ORDER BY r.reply_seq DESC LIMIT 1"
)

_ERASE = sql("DELETE FROM responses WHERE session_id = :session_id AND reply_seq = :reply_seq")
_WITHOUT_RESPONSES = sql("""
    SELECT id FROM sessions s
    WHERE s.id = :session_id AND s.tenant_id = :tenant_id AND s.erase_after IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM turns t JOIN responses r ON r.session_id = t.session_id AND r.turn_id = t.id
            WHERE t.session_id = :session_id AND t.status <> 'rejected')
    """)


async def keep_response(tx: Transaction, claim: Claim, note: ResponseNote) -> None:
    """Stores the request of the claimed call under the number that is reserved for its reply."""
    await tx.execute(
        _KEEP,
        session_id=claim.session_id,
        reply_seq=claim.assistant_seq,
        turn_id=claim.turn_id,
        round=claim.round,
        **values_of(note),
    )


async def get_response(tx: Transaction, tenant_id: TenantId, ref: ResponseRef) -> StoredResponse | None:
    session = SessionRef(tenant_id, ref.session_id)
    return await tx.fetch_record(_response, _GET, **of_session(session), reply_seq=ref.reply_seq)


async def response_of_request(
    tx: Transaction, session: SessionRef, turn_id: TurnId, request_sha256: str
) -> StoredResponse | None:
    """The turn's newest response to this request."""
    found = {**of_session(session), "turn_id": turn_id, "request_sha256": request_sha256}
    return await tx.fetch_record(_response, _OF_REQUEST, **found)


async def erase_response(tx: Transaction, ref: ResponseRef) -> None:
    """Deletes the row; the turn is kept."""
    await tx.execute(_ERASE, session_id=ref.session_id, reply_seq=ref.reply_seq)


async def has_lost_its_responses(tx: Transaction, session: SessionRef) -> bool:
    """Whether a session that was made for a response and used for nothing else has none left, but of rejected turns."""
    return await tx.fetchrow(_WITHOUT_RESPONSES, **of_session(session)) is not None


def _response(row: Record) -> StoredResponse:
    return record_of(
        StoredResponse,
        row,
        ref=ResponseRef(row["response_session_id"], row["reply_seq"]),
        turn_id=TurnId(row["response_turn_id"]),
        turn_status=TurnStatus(row["status"]),
        created_at=row["response_created_at"],
        model_alias=row["used_alias"] or row["model_alias"],
        reply=message_from_row(row) if row["id"] is not None else None,
        usage=record_of(Usage, row) if row["prompt_tokens"] is not None else None,
    )
