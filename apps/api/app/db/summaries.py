"""Summaries: one is active per session; it is superseded by compare-and-set or undone, and never overwritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from app.db.claims import Claim
from app.db.database import Fetched, PageBounds, Transaction, record_of
from app.db.driver import Record
from app.db.limits import TENANT_LIMITS, limits_of
from app.db.messages import NEWEST_SETTLED, STEP_FAILED
from app.db.sessions import insert_in_session, locked_session
from app.db.sql import CLOCK, listed, of_session, sql
from app.db.tables import session_summaries, usage_records
from app.domain.frozen import frozen, names_of, values_of
from app.domain.limits import Limits, Scope
from app.domain.prices import usd_of_rows
from app.domain.stored import NewSummary, StoredSummary, summary_lists
from app.domain.types import (
    SUMMARY_LISTS,
    JsonObject,
    MessageId,
    Pin,
    SessionId,
    SessionRef,
    SessionState,
    Summary,
    SummaryBody,
    SummaryId,
)

_INLINE_PIN_BYTES = 8_192
"""Largest pin, in bytes, that is read in one row with the others: `MOST_PINS` of these are decoded in a few ms."""

# One row: of the active summary only its id if the caller has it, and large pins without their content.
_CONTEXT = sql(f"""
    SELECT
        (SELECT CASE WHEN x.id = :cached_summary_id THEN to_jsonb(x.id) ELSE to_jsonb(x) END FROM (
            SELECT id, from_message_id, to_message_id, to_message_seq, summary_text, {", ".join(SUMMARY_LISTS)},
                origin, call_reason
            FROM session_summaries WHERE session_id = :session_id AND status = 'active') x) AS summary,
        (SELECT jsonb_agg(
            jsonb_build_array(
                p.name, CASE WHEN octet_length(p.content) <= {_INLINE_PIN_BYTES} THEN p.content END,
                p.relevance, p.source)
            ORDER BY p.created_at, p.name)
         FROM pins p WHERE p.session_id = :session_id) AS pins,
        EXISTS (
            SELECT FROM turn_steps st
            WHERE {STEP_FAILED} AND st.session_id = :session_id AND st.turn_id = {NEWEST_SETTLED}
        ) AS step_failed,
        (SELECT id FROM messages WHERE session_id = :session_id AND seq = :cached_seq) AS cached_id
    """)

# One row for each pin, so that they are not all decoded at once.
_LARGE_PINS = sql("SELECT name, content FROM pins WHERE session_id = :session_id AND name = ANY(:names)")

_USAGES = insert_in_session(usage_records, "usages", "locked", {"turn_id": ":turn_id"})
_SUMMARY = insert_in_session(session_summaries, "summaries", "ground", {"status": "'active'"})
# Who comes late does not set it back: the count has been restarted since.
_LATER_COUNT = "greatest(:count_after_seq, summary_count_after_seq)"
# The calls' usage is stored in any case, the summary only on its `ground`: a turn of the past may have been rejected or
# run again. A cancelled turn does not change what its summary says, but an emergency summary is for its turn alone.
# `paid` follows `ours`, which would not find a row that is written before. Only `locked` waits. What was written
# meanwhile is seen by the locks and updates after it, which read the current rows, and by the index that allows only
# one active summary.
_STORE = sql(f"""
    WITH {locked_session()}, ours AS (
        SELECT id FROM turns
        WHERE EXISTS (SELECT FROM locked) AND session_id = :session_id AND id = :turn_id
            AND fence = :fence AND status = 'running'
        FOR NO KEY UPDATE
    ), ground AS (
        SELECT locked_id FROM locked WHERE EXISTS (SELECT FROM ours)
            OR NOT :only_for_turn AND past_version = :past_version AND NOT EXISTS (
                SELECT FROM turns WHERE session_id = :session_id AND id = :turn_id AND status <> 'cancelled')
    ), noted AS (
        UPDATE sessions SET
            summary_count_after_seq = {_LATER_COUNT},
            summary_failures = CASE WHEN :failed THEN summary_failures + 1 WHEN :asked THEN 0 ELSE summary_failures END,
            summary_failed_at = CASE WHEN :failed THEN clock.at WHEN :asked THEN NULL ELSE summary_failed_at END,
            summary_lease_expires_at =
                CASE WHEN summary_lease_id = :lease_id THEN NULL ELSE summary_lease_expires_at END,
            summary_lease_id = nullif(summary_lease_id, :lease_id)
        FROM locked, {CLOCK} WHERE sessions.id = :session_id
    ), used AS (
        {_USAGES}
    ), paid AS (
        UPDATE turns SET cost_usd = coalesce(cost_usd, 0) + :cost_usd
        FROM locked LEFT JOIN ours ON true
        WHERE turns.session_id = :session_id AND turns.id = :turn_id AND CAST(:cost_usd AS numeric) IS NOT NULL
    ), superseded AS (
        UPDATE session_summaries SET status = 'superseded' FROM ground
        WHERE session_id = :session_id AND id = :previous_id AND status = 'active'
        RETURNING id
    ), stored AS (
        {_SUMMARY} AND (CAST(:previous_id AS uuid) IS NULL OR EXISTS (SELECT FROM superseded))
        ON CONFLICT (session_id) WHERE status = 'active' DO NOTHING
        RETURNING id
    )
    SELECT EXISTS (SELECT FROM stored) AND (CAST(:turn_id AS uuid) IS NULL OR EXISTS (SELECT FROM ours)) AS goes_on
    """)

_RESTART_COUNT = sql(f"UPDATE sessions SET summary_count_after_seq = {_LATER_COUNT} WHERE id = :session_id")

# To fold a summary that is no longer active would cost a call in vain: this is checked before the lease is taken.
_TAKE_LEASE = sql(f"""
    WITH ground AS (
        SELECT (SELECT id FROM session_summaries WHERE session_id = :session_id AND status = 'active')
            IS NOT DISTINCT FROM :previous_id AS stands
    ), taken AS (
        UPDATE sessions SET summary_lease_id = :lease_id,
            summary_lease_expires_at = statement_timestamp() + make_interval(secs => :lease_s)
        FROM ground
        WHERE id = :session_id AND stands
            AND (summary_lease_expires_at IS NULL OR summary_lease_expires_at < statement_timestamp()
                OR :for_turn AND EXISTS (
                    SELECT 1 FROM turns t
                    WHERE t.session_id = :session_id AND t.id = sessions.summary_lease_id
                        AND t.status <> 'cancelled'))
        RETURNING id, limits, {TENANT_LIMITS}
    )
    SELECT stands, taken.id IS NOT NULL AS had, limits, tenant_limits FROM ground LEFT JOIN taken ON true
    """)

_COLUMNS = ", ".join(names_of(StoredSummary))
_PAGES = listed(_COLUMNS, "session_summaries WHERE session_id = :session_id", "id", ("summary_text", *SUMMARY_LISTS))

_GET = sql(f"""
    SELECT {_COLUMNS} FROM session_summaries
    WHERE session_id = :session_id
        AND CASE WHEN CAST(:summary_id AS uuid) IS NULL THEN status = 'active' ELSE id = :summary_id END
    """)

# An undo restarts the turn count (contract.md, decision 3); the row's lock keeps out turns and other summaries.
_LOCK_AND_RESTART_COUNT = sql("""
    UPDATE sessions SET summary_count_after_seq = last_turn_seq, updated_at = statement_timestamp()
    WHERE id = :session_id AND tenant_id = :tenant_id
    """)

_MARK = sql("""
    UPDATE session_summaries SET status = :status
    WHERE session_id = :session_id AND id = :summary_id AND status = :status_before
    """)


@frozen
class PromptContext:
    """What a prompt needs besides the window's messages. `step_failed` is about the newest settled turn. `cached_id` is
    the stored id of the message that the caller has cached last, if there is such a message."""

    summary: Summary | None
    pins: tuple[Pin, ...]
    step_failed: bool
    cached_id: UUID | None


@frozen
class AttemptNote:
    """What is stored of an attempt to summarize, whether or not it made a summary. The turn count starts after the turn
    `count_after_seq`; None or an earlier one leaves it. `asked` means that a summarizer was called, `failed` that its
    answer could not be used: the circuit breaker counts consecutive ones. The lease `lease_id` is released."""

    count_after_seq: int | None = None
    asked: bool = False
    failed: bool = False
    usages: Sequence[JsonObject] = ()
    lease_id: UUID | None = None


async def prompt_context(
    tx: Transaction, session_id: SessionId, before_seq: int, cached_seq: int | None, cached_summary: Summary | None
) -> PromptContext:
    """The context with the pins in the order of creation, and the `cached_id` of the message `cached_seq`. A summary
    never changes: `cached_summary` is returned if it is the active one."""
    row = await tx.fetch_one(
        _CONTEXT,
        session_id=session_id,
        before_seq=before_seq,
        cached_seq=cached_seq,
        cached_summary_id=cached_summary.id if cached_summary else None,
    )
    active = row["summary"]
    pins: Sequence[tuple[str, str | None, float | None, str | None]] = row["pins"] or ()
    large = [name for name, content, *_ in pins if content is None]
    found = await tx.fetch(_LARGE_PINS, session_id=session_id, names=large) if large else ()
    contents: dict[str, str] = {each["name"]: each["content"] for each in found}
    contents |= {name: content for name, content, *_ in pins if content is not None}
    return PromptContext(
        summary=cached_summary if isinstance(active, str) else _summary(active) if active else None,
        pins=tuple(
            Pin(name, contents[name], relevance, source)
            for name, _, relevance, source in pins
            if name in contents  # else it was deleted meanwhile
        ),
        step_failed=row["step_failed"],
        cached_id=row["cached_id"],
    )


async def store_attempt(
    tx: Transaction, session: SessionState, new: NewSummary | None, note: AttemptNote, claim: Claim | None
) -> bool:
    """Stores the note of an attempt in one statement with its summary, if the one that it folded is still active and
    the turn it was made for is still ours. If there is none, or it was cancelled, the past must still be that of
    `session`, the state with which the window was read; an emergency summary of a cancelled turn is not stored. Returns
    whether a summary was stored with which its turn, if any, may go on."""
    return await tx.fetchval(
        _STORE,
        session_id=session.id,
        past_version=session.past_version,
        turn_id=claim.turn_id if claim else None,
        fence=claim.fence if claim else None,
        only_for_turn=new is not None and new.origin == "emergency",
        previous_id=new.previous_summary_id if new else None,
        summaries=[values_of(new, "status", "created_at")] if new else (),
        cost_usd=usd_of_rows(note.usages),
        **values_of(note),
    )


async def restart_count(tx: Transaction, session_id: SessionId, count_after_seq: int) -> None:
    """Makes the turn count towards the next summary start after this turn, unless it starts later already."""
    await tx.execute(_RESTART_COUNT, session_id=session_id, count_after_seq=count_after_seq)


async def take_summary_lease(
    tx: Transaction,
    session_id: SessionId,
    lease_id: UUID,
    lease_s: float,
    previous_id: SummaryId | None,
    *,
    for_turn: bool,
) -> tuple[bool, Mapping[Scope, Limits] | None]:
    """Takes the lease, for `lease_s` seconds, to make a summary that folds in the active summary `previous_id`.

    Returns whether that summary is still the active one; and the limits of the summarizer's call, None if the lease was
    not taken. With `for_turn`, `lease_id` is the id of the running turn. The lease of an earlier turn is taken over:
    its worker is dead, because a session runs one turn at a time, unless that turn was cancelled.
    """
    row = await tx.fetch_one(
        _TAKE_LEASE,
        session_id=session_id,
        lease_id=lease_id,
        lease_s=lease_s,
        previous_id=previous_id,
        for_turn=for_turn,
    )
    return row["stands"], limits_of(row) if row["had"] else None


async def page_of_summaries(tx: Transaction, session_id: SessionId, bounds: PageBounds[UUID]) -> Fetched[StoredSummary]:
    return await tx.fetch_between(_stored, _PAGES, bounds, session_id=session_id)


async def get_summary(tx: Transaction, session_id: SessionId, summary_id: SummaryId | None) -> StoredSummary | None:
    """The summary, or for None the active one, if any."""
    return await tx.fetch_record(_stored, _GET, session_id=session_id, summary_id=summary_id)


async def lock_and_restart_count(tx: Transaction, session: SessionRef) -> bool:
    """Restarts the turn count, and locks the session until the transaction ends; false when there is no session."""
    return await tx.execute(_LOCK_AND_RESTART_COUNT, **of_session(session)) > 0


async def undo_active(tx: Transaction, active: StoredSummary) -> None:
    """Marks the active summary as undone and makes its predecessor the active one, if it had one."""
    session_id, previous_id = active.session_id, active.previous_summary_id
    await tx.execute(_MARK, session_id=session_id, summary_id=active.id, status="undone", status_before="active")
    if previous_id is not None:
        await tx.execute(
            _MARK, session_id=session_id, summary_id=previous_id, status="active", status_before="superseded"
        )


def _stored(row: Record) -> StoredSummary:
    return record_of(StoredSummary, row, **summary_lists(row))


def _summary(row: Record) -> Summary:
    return Summary(
        id=SummaryId(UUID(row["id"])),
        body=SummaryBody(row["summary_text"], **summary_lists(row)),
        from_message_id=MessageId(UUID(row["from_message_id"])),
        to_message_id=MessageId(UUID(row["to_message_id"])),
        to_message_seq=row["to_message_seq"],
        origin=row["origin"],
        call_reason=row["call_reason"],
    )
