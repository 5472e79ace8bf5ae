"""Summaries: one active a session, superseded by compare-and-set, never overwritten."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

from app.db.database import Record, Transaction, record_of
from app.db.sql import compile_sql, sql
from app.db.tables import session_summaries
from app.domain.stored import NewSummary, StoredSummary
from app.domain.types import (
    SUMMARY_LISTS,
    MessageId,
    Pin,
    SessionId,
    Summary,
    SummaryBody,
    SummaryId,
    SummaryItem,
)

# One row with what a prompt needs beside the messages: the active summary, the pins, and whether the newest settled
# turn has a step that did not succeed.
_CONTEXT = sql("""
    SELECT
        (SELECT to_jsonb(x) FROM session_summaries x
         WHERE x.session_id = CAST(:session_id AS uuid) AND x.status = 'active') AS summary,
        (SELECT jsonb_agg(jsonb_build_array(p.name, p.content, p.relevance, p.source) ORDER BY p.created_at, p.name)
         FROM pins p WHERE p.session_id = CAST(:session_id AS uuid)) AS pins,
        EXISTS (
            SELECT 1 FROM turn_steps st
            WHERE st.session_id = CAST(:session_id AS uuid) AND st.status <> 'success' AND st.turn_id = (
                SELECT t.id FROM turns t
                WHERE t.session_id = CAST(:session_id AS uuid) AND t.seq < CAST(:before_seq AS bigint)
                    AND t.status <> 'rejected'
                ORDER BY t.seq DESC LIMIT 1)
            AND NOT EXISTS (
                SELECT 1 FROM turn_steps again
                WHERE again.session_id = st.session_id AND again.turn_id = st.turn_id AND again.seq > st.seq
                    AND again.kind = st.kind AND again.status = 'success')
        ) AS step_failed
    """)

_LOCK = sql("SELECT 1 FROM sessions WHERE id = CAST(:session_id AS uuid) FOR NO KEY UPDATE")

_STILL_OURS = sql("""
    SELECT 1 FROM turns WHERE session_id = CAST(:session_id AS uuid) AND id = CAST(:turn_id AS uuid)
        AND fence = CAST(:fence AS integer) AND status = 'running'
    """)

_SUPERSEDE = sql("""
    UPDATE session_summaries SET status = 'superseded'
    WHERE session_id = CAST(:session_id AS uuid) AND id = CAST(:summary_id AS uuid) AND status = 'active'
    """)

_MADE = tuple(each.name for each in session_summaries.columns if each.name not in ("status", "created_at"))
_INSERT = compile_sql(
    sa.insert(session_summaries).values(
        status=sa.literal_column("'active'"),
        **{name: sa.bindparam(f"new_{name}", type_=session_summaries.c[name].type) for name in _MADE},
    )
)

_NOTE_ATTEMPT = sql("""
    UPDATE sessions SET
        summary_count_after_seq = CAST(:count_after_seq AS bigint),
        summary_failures = CASE WHEN :failed THEN summary_failures + 1
                                WHEN :asked THEN 0 ELSE summary_failures END,
        summary_failed_at = CASE WHEN :failed THEN clock_timestamp()
                                 WHEN :asked THEN NULL ELSE summary_failed_at END
    WHERE id = CAST(:session_id AS uuid)
    """)

_TAKE_LEASE = sql("""
    UPDATE sessions SET summary_lease_id = CAST(:lease_id AS uuid),
        summary_lease_expires_at = clock_timestamp() + make_interval(secs => CAST(:lease_s AS float))
    WHERE id = CAST(:session_id AS uuid)
        AND (summary_lease_expires_at IS NULL OR summary_lease_expires_at < clock_timestamp()
            OR :for_turn AND EXISTS (
                SELECT 1 FROM turns t
                WHERE t.session_id = CAST(:session_id AS uuid) AND t.id = sessions.summary_lease_id))
    """)

_RELEASE_LEASE = sql("""
    UPDATE sessions SET summary_lease_id = NULL, summary_lease_expires_at = NULL
    WHERE id = CAST(:session_id AS uuid) AND summary_lease_id = CAST(:lease_id AS uuid)
    """)

_PAGE = sql("""
    SELECT * FROM session_summaries
    WHERE session_id = CAST(:session_id AS uuid)
        AND (CAST(:before_id AS uuid) IS NULL OR id < CAST(:before_id AS uuid))
    ORDER BY id DESC LIMIT CAST(:limit AS integer)
    """)


_GET = sql("""
    SELECT * FROM session_summaries
    WHERE session_id = CAST(:session_id AS uuid) AND id = CAST(:summary_id AS uuid)
    """)


@dataclass(frozen=True, slots=True)
class PromptContext:
    """What stands around the raw window. `step_failed` is about the newest settled turn."""

    summary: Summary | None
    pins: tuple[Pin, ...]
    step_failed: bool


async def prompt_context(tx: Transaction, session_id: SessionId, before_seq: int) -> PromptContext:
    """The active summary, the pins in the order they were made, and the newest settled turn's health."""
    row = await tx.fetchrow(_CONTEXT, session_id=session_id, before_seq=before_seq)
    if row is None:
        raise LookupError("a SELECT without FROM gives one row")
    return PromptContext(
        summary=_summary(row["summary"]) if row["summary"] else None,
        pins=tuple(Pin(*pin) for pin in row["pins"] or ()),
        step_failed=row["step_failed"],
    )


async def store_summary(tx: Transaction, new: NewSummary) -> bool:
    """Makes a summary the active one if what it folded is still what is active, and its turn still ours.

    False, and nothing stored, when somebody was faster.
    """
    session_id, turn_id = new.session_id, new.created_by_turn_id
    if await tx.fetchrow(_LOCK, session_id=session_id) is None:
        return False
    still_ours = {"session_id": session_id, "turn_id": turn_id, "fence": new.fence}
    if turn_id is not None and await tx.fetchrow(_STILL_OURS, **still_ours) is None:
        return False
    if new.previous_summary_id is not None:
        if await tx.execute(_SUPERSEDE, session_id=session_id, summary_id=new.previous_summary_id) == 0:
            return False
    elif (await prompt_context(tx, session_id, 0)).summary is not None:
        return False
    await tx.execute(_INSERT, **{f"new_{name}": getattr(new, name) for name in _MADE})
    return True


async def note_attempt(
    tx: Transaction, session_id: SessionId, *, count_after_seq: int, asked: bool, failed: bool
) -> None:
    """Restarts the turn count, and keeps the breaker's count of failures in a row.

    `asked` means that a summarizer was called, `failed` that its answer could not be had or used.
    """
    await tx.execute(_NOTE_ATTEMPT, session_id=session_id, count_after_seq=count_after_seq, asked=asked, failed=failed)


async def take_summary_lease(
    tx: Transaction, session_id: SessionId, lease_id: UUID, lease_s: float, *, for_turn: bool
) -> bool:
    """Whether nobody else makes a summary of the session now; then others see that this one does, for so long.

    With `for_turn` the lease is named after the turn that runs: an earlier turn's is a dead worker's, since a session
    runs one at a time, and is taken over.
    """
    taken = await tx.execute(_TAKE_LEASE, session_id=session_id, lease_id=lease_id, lease_s=lease_s, for_turn=for_turn)
    return taken > 0


async def release_summary_lease(tx: Transaction, session_id: SessionId, lease_id: UUID) -> None:
    """Lets others make summaries again; a lease that somebody else has taken over is left alone."""
    await tx.execute(_RELEASE_LEASE, session_id=session_id, lease_id=lease_id)


async def page_of_summaries(
    tx: Transaction, session_id: SessionId, before_id: UUID | None, limit: int
) -> list[StoredSummary]:
    """Summaries newest first. The caller has checked whose session it is."""
    rows = await tx.fetch(_PAGE, session_id=session_id, before_id=before_id, limit=limit)
    return [_stored(row) for row in rows]


async def get_summary(tx: Transaction, session_id: SessionId, summary_id: SummaryId) -> StoredSummary | None:
    """One summary. The caller has checked whose session it is."""
    row = await tx.fetchrow(_GET, session_id=session_id, summary_id=summary_id)
    return _stored(row) if row else None


def _stored(row: Record) -> StoredSummary:
    return record_of(StoredSummary, row, **_items(row))


def _summary(row: Record) -> Summary:
    return Summary(
        id=SummaryId(UUID(row["id"])),
        body=SummaryBody(row["summary_text"], **_items(row)),
        from_message_id=MessageId(UUID(row["from_message_id"])),
        to_message_id=MessageId(UUID(row["to_message_id"])),
        to_message_seq=row["to_message_seq"],
        origin=row["origin"],
    )


def _items(row: Record) -> dict[str, tuple[SummaryItem, ...]]:
    return {
        column: tuple(
            SummaryItem(item["text"], tuple(MessageId(UUID(value)) for value in item["message_ids"]))
            for item in row[column]
        )
        for column in SUMMARY_LISTS
    }
