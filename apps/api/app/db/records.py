"""Records the end of a turn with everything that belongs to it, in one statement, and the usage of model calls."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import sqlalchemy as sa

from app.db import tables
from app.db.audits import as_stored
from app.db.claims import Claim
from app.db.database import Transaction, record_of
from app.db.limits import GIVING_BACK, give_back_of_tenant, released
from app.db.sessions import insert_in_session, locked_session
from app.db.sql import CLOCK, binds, by_key, insert_from, insert_row, json_rows, sql
from app.db.summaries import get_summary, undo_active
from app.db.turns import TURN_COLUMNS, turn_record
from app.domain.audit import Audit
from app.domain.errors import existing
from app.domain.figures import SessionUsage
from app.domain.frozen import frozen, names_of, values_of
from app.domain.limits import CallUse
from app.domain.types import JsonObject, SessionId, SummaryId, TurnId, TurnRecord, TurnStatus, Usage


def _of_turn(table: sa.Table, parameter: str) -> str:
    """An INSERT of the parameter's rows for the turn `t`."""
    of_turn = {"turn_id": "t.id"} if "turn_id" in table.columns else {}
    return insert_in_session(table, parameter, "t", of_turn, without=("withdrawn",))


# Sums over a turn's calls; a figure that no call has reported stays null.
_SUMMED = ", ".join(
    f"{name} = coalesce(coalesce({name}, 0) + :{name}, {name})"
    for name in ("prompt_tokens", "completion_tokens", "cost_usd")
)
_WRITTEN = f"""
        WITH {locked_session()}, t AS (
            UPDATE turns
            SET status = :status, assistant_output = :assistant_output,
                error = :error,
                model_alias = :model_alias, finish_reason = :finish_reason,
                {_SUMMED},
                completed_at = coalesce(completed_at, CASE WHEN :status <> 'awaiting_tools' THEN clock.at END),
                conversation_sha256 = :conversation_sha256,
                lease_expires_at = NULL, reservation = NULL, fence = turns.fence + :raised
            FROM locked, {CLOCK}
            WHERE session_id = :session_id AND id = :turn_id AND fence = :fence AND status = :found_as
            RETURNING {TURN_COLUMNS}
        ), m AS (
            {_of_turn(tables.messages, "messages")}
        ), st AS (
            {_of_turn(tables.turn_steps, "steps")}
        ), b AS (
            {_of_turn(tables.prompt_blocks, "blocks")}
            ON CONFLICT DO NOTHING
        ), u AS (
            {_of_turn(tables.usage_records, "usages")}
        ), a AS (
            {_of_turn(tables.turn_context_audit, "audits")}
        )
"""
_RECORD = sql(f"{_WRITTEN} SELECT * FROM t")
_RECORD_RESERVED = sql(f"{_WRITTEN}, {released('t')}, {GIVING_BACK} SELECT * FROM t")

# Every other way to end a turn raises its fence: a turn that ended under our fence was ended by us.
_RECORDED_BY_US = sql(f"""
    SELECT {TURN_COLUMNS} FROM turns
    WHERE session_id = :session_id AND id = :turn_id AND fence = :fence AND status <> 'running'
    """)

_ADD_USAGES = sql(
    insert_from(
        tables.usage_records,
        json_rows(tables.usage_records, "usages"),
        {"session_id": ":session_id"},
        without=("turn_id", "created_at"),
    )
)

USED_TOKENS = ", ".join(f"CAST(sum({name}) AS bigint) AS {name}" for name in names_of(Usage))
"""SQL expressions for the sum of each kind of token over usage rows."""
_USAGE_TOTALS = sql(f"""
    SELECT model_alias, purpose, count(*) AS calls, {USED_TOKENS}, CAST(sum(cost_usd) AS float) AS cost_usd
    FROM usage_records WHERE session_id = :session_id
    GROUP BY model_alias, purpose ORDER BY model_alias, purpose
    """)
_STATED = sql(f"""
    SELECT {USED_TOKENS}, (
        SELECT detail ->> 'stop_sequence' FROM turn_steps
        WHERE session_id = :session_id AND turn_id = :turn_id AND kind = 'model_call' ORDER BY seq DESC LIMIT 1
    ) AS stop_sequence
    FROM usage_records WHERE session_id = :session_id AND turn_id = :turn_id AND purpose = 'turn'
    """)

_LARGE_BLOCKS_CHARS = 1_048_576
"""Characters of a turn's blocks in all, above which long ones are stored one by one, and only if they are new."""
_LARGE_BLOCK_CHARS = 4_096

_STORED_BLOCKS = sql(f"""
    SELECT b.sha256 FROM {by_key("prompt_blocks", "b", "sha256", "CAST(:sha256s AS text[])")}
    """)
_STORE_BLOCK = sql(
    insert_row(
        tables.prompt_blocks,
        {"session_id": "s.id", **binds("sha256", "content")},
        "sessions s WHERE s.id = :session_id FOR KEY SHARE",
    )
    + " ON CONFLICT DO NOTHING"
)

# Statements of their own: in one, Citus does nothing at all where no turn is to wait again.
_RESTORE = sql("""
    UPDATE sessions SET past_version = past_version + 1,
        instructions = CASE WHEN instructions IS NOT DISTINCT FROM :instructions THEN :instructions_before
            ELSE instructions END
    WHERE id = :session_id
    """)
_REJECT = sql("""
    UPDATE turns SET status = 'rejected', error = :error
    WHERE session_id = :session_id AND seq > :after_turn_seq AND seq < :turn_seq
    """)
_WITHDRAW_OUTPUTS = sql("""
    UPDATE messages SET withdrawn = true
    WHERE session_id = :session_id AND turn_id = :turn_id AND seq > :after_message_seq
    """)
# It is the session's only open turn: the rejected one was ended before.
_WAIT_AGAIN = sql("""
    UPDATE turns SET status = 'awaiting_tools', completed_at = NULL, error = NULL
    WHERE session_id = :session_id AND id = :turn_id
    """)
_SUMMARY_OF_ADDED = sql("""
    SELECT u.id FROM session_summaries u
    JOIN messages m ON m.session_id = u.session_id AND m.id = u.to_message_id
    WHERE u.session_id = :session_id AND u.status = 'active' AND m.seq > :after_message_seq
    """)


@frozen
class Added:
    """The last turn and message before what was added, the turn that waited for tools and was ended by it, if any, and
    the session's instructions before and after."""

    after_turn_seq: int
    after_message_seq: int
    ended_turn_id: TurnId | None
    instructions_before: str | None
    instructions: str | None


@frozen
class TurnEnd:
    """How a turn ended and all that is recorded of it. Lists of `JsonObject` hold rows by column name. `spent` is what
    was reserved for the turn's call, as `reserve` returned it, and what the call used. `added` is what was added with a
    rejected turn, and is rejected with it. `ended_elsewhere` is true of what is added to a turn that has ended."""

    status: TurnStatus
    model_alias: str
    steps: Sequence[JsonObject]
    audits: Sequence[Audit]
    blocks: Sequence[JsonObject] = ()
    messages: Sequence[JsonObject] = ()
    assistant_output: str | None = None
    error: JsonObject | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: Decimal | None = None
    usages: Sequence[JsonObject] = ()
    spent: tuple[JsonObject, CallUse] | None = None
    conversation_sha256: bytes | None = None
    added: Added | None = None
    ended_elsewhere: bool = False


async def record_end(tx: Transaction, claim: Claim, end: TurnEnd) -> TurnRecord | None:
    """Writes the end of a running turn; None when the claim is no longer ours. With `ended_elsewhere` it adds to a turn
    that was ended so under this claim, and raises its fence again: a retry that was read before has old numbers of
    rounds and steps. `spent` and `added` need a transaction. Large blocks may be stored before it: without the
    turn's audit nothing refers to them."""
    raised = int(end.ended_elsewhere)  # as ending it raised the fence
    blocks = await _without_large(tx, claim.session_id, end.blocks)
    of_limits: JsonObject = {}
    if end.spent is not None:
        reservation, used = end.spent
        of_limits = {"reservation": reservation, **values_of(used)}
    row = await tx.fetchrow(
        _RECORD_RESERVED if of_limits else _RECORD,
        session_id=claim.session_id,
        turn_id=claim.turn_id,
        fence=claim.fence + raised,
        raised=raised,
        found_as=(end.status if raised else TurnStatus.RUNNING).value,
        status=end.status.value,
        audits=list(map(as_stored, end.audits)),
        blocks=blocks,
        **values_of(end, "status", "audits", "blocks", "spent", "added", "ended_elsewhere"),
        **of_limits,
    )
    if row is None:
        return None
    if of_limits:
        await give_back_of_tenant(tx, of_limits)
    if end.added is not None:
        await _leave_out(tx, claim.session_id, claim.seq, end.added, end.error)
    return turn_record(row)


async def _leave_out(
    tx: Transaction, session_id: SessionId, turn_seq: int, added: Added, error: JsonObject | None
) -> None:
    """Makes what was added with the rejected turn `turn_seq` as ineffective as that turn: later requests find the
    session as it was before. The caller has locked the session."""
    before, after, seq = added.instructions_before, added.instructions, added.after_message_seq
    await tx.execute(_RESTORE, session_id=session_id, instructions=after, instructions_before=before)
    await tx.execute(
        _REJECT, session_id=session_id, error=error, after_turn_seq=added.after_turn_seq, turn_seq=turn_seq
    )
    if added.ended_turn_id is not None:
        await tx.execute(_WITHDRAW_OUTPUTS, session_id=session_id, turn_id=added.ended_turn_id, after_message_seq=seq)
        await tx.execute(_WAIT_AGAIN, session_id=session_id, turn_id=added.ended_turn_id)
    # The turn may have folded one that was made in the background, and is active again once the turn's own is undone.
    while made := await tx.fetchval(_SUMMARY_OF_ADDED, session_id=session_id, after_message_seq=seq):
        await undo_active(tx, existing(await get_summary(tx, session_id, SummaryId(made)), "summary"))


async def _without_large(tx: Transaction, session_id: SessionId, blocks: Sequence[JsonObject]) -> Sequence[JsonObject]:
    """Stores the long blocks, if the blocks together are large; returns the blocks that are still to be stored."""
    if sum([len(block["content"]) for block in blocks]) <= _LARGE_BLOCKS_CHARS:
        return blocks
    large = {block["sha256"]: block["content"] for block in blocks if len(block["content"]) > _LARGE_BLOCK_CHARS}
    stored = {row["sha256"] for row in await tx.fetch(_STORED_BLOCKS, session_id=session_id, sha256s=list(large))}
    for sha256 in large.keys() - stored:
        await tx.execute(_STORE_BLOCK, session_id=session_id, sha256=sha256, content=large[sha256])
    return [block for block in blocks if block["sha256"] not in large]


async def recorded_before(tx: Transaction, claim: Claim) -> TurnRecord | None:
    """The turn if this claim has ended it already, for when the answer to a commit was lost; None if it has not."""
    ours = {"session_id": claim.session_id, "turn_id": claim.turn_id, "fence": claim.fence}
    return await tx.fetch_record(turn_record, _RECORDED_BY_US, **ours)


async def add_usages(tx: Transaction, session_id: SessionId, usages: Sequence[JsonObject]) -> None:
    """Stores the usage of calls that belong to no turn; that of a turn is stored as it ends."""
    await tx.execute(_ADD_USAGES, session_id=session_id, usages=usages)


async def stated_of_turn(tx: Transaction, session_id: SessionId, turn_id: TurnId) -> tuple[Usage | None, str | None]:
    """The usage of all of a turn's calls, None if none is stored; and the stop sequence that ended its answer."""
    row = await tx.fetch_one(_STATED, session_id=session_id, turn_id=turn_id)
    return record_of(Usage, row) if row["prompt_tokens"] is not None else None, row["stop_sequence"]


async def usage_totals(tx: Transaction, session_id: SessionId) -> list[SessionUsage]:
    return await tx.fetch_records(SessionUsage, _USAGE_TOTALS, session_id=session_id)
