"""The session of a client's conversation: by the messages that it resends, or by the client's own name for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.db.database import Transaction
from app.db.sql import sql
from app.domain.types import SessionId, TenantId, TurnId

# Of several sessions with the same past (forks), the one that has been sent the same request, where this is a retry;
# then the one that it is the whole past of; then the oldest.
_BY_LIST = sql("""
    SELECT t.session_id, t.id AS turn_id, s.last_turn_seq, since.turns = 0 AS is_last, since.is_repeated
    FROM turns t JOIN sessions s ON s.id = t.session_id CROSS JOIN LATERAL (
        SELECT count(*) AS turns,
            coalesce(bool_or(n.request_sha256 = CAST(:request_sha256 AS text)), false) AS is_repeated
        FROM turns n
        WHERE n.session_id = t.session_id AND n.seq > t.seq AND n.status IN ('running', 'awaiting_tools', 'completed')
    ) since
    WHERE t.conversation_sha256 = ANY(CAST(:digests AS bytea[])) AND s.tenant_id = :tenant_id
        AND t.status IN ('completed', 'awaiting_tools')
    ORDER BY array_position(CAST(:digests AS bytea[]), t.conversation_sha256), is_repeated DESC, is_last DESC,
        t.session_id
    LIMIT 1
    """)

# Held to the end of the transaction, so that of two requests with one name the second finds what the first made. No
# unique index does it: sessions can be distributed by their id alone.
_LOCK_NAME = sql("SELECT pg_advisory_xact_lock(hashtextextended(CAST(:tenant_id || ' ' || :external_id AS text), 1))")
_BY_NAME = sql("""
    SELECT id FROM sessions WHERE tenant_id = :tenant_id AND external_id = :external_id ORDER BY id LIMIT 1
    """)
_NAME = sql("""
    UPDATE sessions SET external_id = :external_id
    WHERE id = CAST(:session_id AS uuid) AND tenant_id = :tenant_id
    """)


@dataclass(frozen=True, slots=True)
class KnownTurn:
    """The newest turn that a list of messages goes on from. `is_last` is false where its session has gone on already;
    `is_repeated` is true where it went on with the request that is repeated."""

    session_id: SessionId
    turn_id: TurnId
    last_turn_seq: int
    is_last: bool
    is_repeated: bool


async def turn_of_list(
    tx: Transaction, tenant_id: TenantId, digests: Sequence[bytes], request_sha256: str | None
) -> KnownTurn | None:
    """The tenant's turn that ends with the first of these digests that any has, or None. `request_sha256` is the hash
    of a request that may be a retry."""
    row = await tx.fetchrow(_BY_LIST, tenant_id=tenant_id, digests=list(digests), request_sha256=request_sha256)
    return None if row is None else KnownTurn(**row)


async def session_of_name(tx: Transaction, tenant_id: TenantId, external_id: str) -> SessionId | None:
    row = await tx.fetchrow(_BY_NAME, tenant_id=tenant_id, external_id=external_id)
    return None if row is None else SessionId(row["id"])


async def lock_name(tx: Transaction, tenant_id: TenantId, external_id: str) -> None:
    """Until the transaction ends nobody else makes a session of this name."""
    await tx.fetchrow(_LOCK_NAME, tenant_id=tenant_id, external_id=external_id)


async def name_session(tx: Transaction, tenant_id: TenantId, session_id: SessionId, external_id: str) -> None:
    await tx.execute(_NAME, session_id=session_id, tenant_id=tenant_id, external_id=external_id)
