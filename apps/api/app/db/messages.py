"""Messages: the window after the active summary, ranges to rebuild a prompt from, and items of a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from itertools import islice, takewhile
from operator import itemgetter
from uuid import UUID

from app.db.database import Fetched, PageBounds, Transaction
from app.db.driver import Record
from app.db.sql import OPEN_STATUSES_SQL, by_key, insert_from, listed, of_session, paged, sql
from app.db.tables import message_token_counts, messages
from app.domain.content import content_text, joined, tool_calls_from_json
from app.domain.frozen import names_of
from app.domain.stored import MessageRecord
from app.domain.types import (
    OPEN_STATUSES,
    STATUS_OF,
    Content,
    Message,
    MessageId,
    SessionId,
    SessionRef,
    TenantId,
    ToolCall,
    Turn,
    TurnId,
    TurnStatus,
)

UNCOUNTED = -1
"""`tokens` of a message that has no count in the requested encoding yet."""
SLICE_MESSAGES = 512
_SLICE_TURNS = 512
_SIZED_MESSAGES = 128
"""Messages whose sizes one statement computes: the database unpacks each for that."""
SLICE_BYTES = 8 * 1024 * 1024
"""Most bytes of messages that one statement reads, unless a single message has more."""
_NOT_SETTLED = (*OPEN_STATUSES, TurnStatus.REJECTED)
_FIRST_MESSAGES = 16
"""Messages of a window that are read before their sizes are known: as many as most turns find."""

_STORED = tuple(column.name for column in messages.columns if column.name in names_of(Message))
SAID_AT = "coalesce(m.said_at, m.created_at)"
TURN_SEQ = "(SELECT t.seq FROM turns t WHERE t.session_id = :session_id AND t.id = m.turn_id) AS turn_seq"
"""The number of a message's turn is looked up: a join may be planned to compare each message with all turns. In some
statements Citus does not see that a message's session is this one, so it is named."""
_WRITTEN_OTHERWISE = {"said_at": f"{SAID_AT} AS said_at"}
_OF_MESSAGE = ", ".join(_WRITTEN_OTHERWISE.get(name, f"m.{name}") for name in _STORED)
MESSAGE_BYTES = "octet_length(concat(m.content, m.tool_calls, m.reasoning, m.reasoning_blocks))"
"""SQL expression: the size of the message `m`."""
AS_STORED = f"{_OF_MESSAGE}, m.token_estimate AS tokens"
"""The columns that `message_from_row` reads, with the counts in the encoding that the message was stored with."""

NEWEST_CALLS = """(
        SELECT m.tool_calls FROM messages m
        WHERE m.session_id = t.session_id AND m.turn_id = t.id AND m.role = 'assistant'
        ORDER BY m.seq DESC LIMIT 1)"""
"""SQL expression: the tool calls of the newest assistant message of the turn `t`."""

NEWEST_SETTLED = f"""(
        SELECT t.id FROM turns t
        WHERE t.session_id = :session_id AND t.seq < :before_seq
            AND t.status NOT IN {OPEN_STATUSES_SQL} AND t.status <> 'rejected'
        ORDER BY t.seq DESC LIMIT 1)"""
"""SQL expression: the id of the newest turn below `:before_seq` that has ended and was not rejected."""

NOT_REJECTED = "turn_id IN (SELECT id FROM turns WHERE session_id = :session_id AND status = 'rejected') IS NOT TRUE"
"""SQL condition for a row of `messages` of `:session_id`. Rejected turns are few, have an index, and are looked up in a
hash. A join, which PostgreSQL 19 makes of `NOT IN`, can be planned to compare each message with each of them."""

STEP_FAILED = """st.status <> 'success' AND NOT EXISTS (
    SELECT FROM turn_steps again
    WHERE again.session_id = st.session_id AND again.turn_id = st.turn_id AND again.seq > st.seq
        AND again.kind = st.kind AND again.status = 'success')"""
"""SQL condition: the step `st` failed, which leaves its turn unresolved. A step that succeeded on a retry did not fail
(contract.md, decision 7)."""

# Two index ranges without a join: in a join, one is scanned for each row of the other until the tables are analyzed.
# Each is in the order of the intended index: to a planner that assumes one row per session, other indexes look as good.
# The first turn is that of the last message through `after_seq`, or the last one before it that was not rejected. Later
# messages belong to no earlier turn, because only the newest turn that was not rejected is run again.
_IN_RANGE = """
    FROM messages m
    WHERE m.session_id = :session_id AND m.seq > :after_seq AND m.seq <= :last_seq AND NOT m.withdrawn
    ORDER BY m.seq
"""
_RANGE = f"""
    SELECT {AS_STORED}, m.token_encoding, {MESSAGE_BYTES} AS size_bytes, NULL AS status, NULL AS without_output
    {_IN_RANGE}
"""
_MESSAGES = sql(_RANGE)
_SIZES = sql(f"SELECT m.seq, {MESSAGE_BYTES} AS size_bytes {_IN_RANGE} LIMIT {_SIZED_MESSAGES}")
_WINDOW = sql(f"""
    ({_RANGE} LIMIT {_FIRST_MESSAGES})
    UNION ALL
    (SELECT {", ".join({"id": "t.id", "seq": "t.seq"}.get(name, "NULL") for name in _STORED)}, NULL, NULL, NULL,
        t.status, t.assistant_output IS NULL
    FROM turns t
    WHERE t.session_id = :session_id AND t.seq >= coalesce((
        SELECT f.seq FROM turns f
        WHERE f.session_id = :session_id AND f.status <> 'rejected' AND f.seq <= (
            SELECT e.seq FROM turns e WHERE e.session_id = :session_id AND e.id >= (
                SELECT m.turn_id FROM messages m
                WHERE m.session_id = :session_id AND m.seq <= :after_seq
                ORDER BY m.seq DESC LIMIT 1)
            ORDER BY e.id LIMIT 1)
        ORDER BY f.seq DESC LIMIT 1), 0)
    ORDER BY t.seq)
    """)

# By a range of ids, which are in time order, rather than by a list: other rows in the range do no harm.
_COUNTS = sql("""
    SELECT message_id, token_estimate, reasoning_tokens FROM message_token_counts
    WHERE session_id = :session_id AND message_id >= :first_id
        AND message_id <= :last_id AND token_encoding = :encoding
    """)

# An ordered subquery is not joined in another way than run by run, each by its index range.
_BY_RUN = sql(f"""
    SELECT m.*
    FROM unnest(CAST(:firsts AS bigint[]), CAST(:lasts AS bigint[]), CAST(:of_users AS boolean[]))
        AS run(first_seq, last_seq, of_users)
    CROSS JOIN LATERAL (
        SELECT {AS_STORED} FROM messages m
        WHERE m.session_id = :session_id AND m.seq BETWEEN run.first_seq AND run.last_seq
            AND (m.role = 'user' OR NOT run.of_users)
        ORDER BY m.seq) m
    """)

_WRITTEN_IN_LISTS = {**_WRITTEN_OTHERWISE, "turn_seq": TURN_SEQ}
_LISTED = ", ".join(_WRITTEN_IN_LISTS.get(name, f"m.{name}") for name in names_of(MessageRecord))
_SIZED = ("content", "tool_calls")
_SHOWN = "messages m WHERE m.session_id = :session_id AND NOT m.withdrawn"
_PAGES = listed(_LISTED, _SHOWN, "m.seq", _SIZED)
_OF_IDS = by_key("messages", "m", "id", "CAST(:ids AS uuid[])")
_BY_ID = paged(f"SELECT {_LISTED} FROM {_OF_IDS} WHERE NOT m.withdrawn ORDER BY m.seq LIMIT :limit", _SIZED)

_COUNT_BY_ID = sql(f"SELECT count(*) FROM {_OF_IDS}")

_NEW_COUNTS = insert_from(
    message_token_counts,
    """s, unnest(CAST(:message_ids AS uuid[]), CAST(:counts AS bigint[]), CAST(:reasoning_counts AS bigint[]))
        AS x(message_id, token_estimate, reasoning_tokens)""",
    {"session_id": "s.id", "token_encoding": ":encoding"},
)
_SAVE_COUNTS = sql(f"""
    WITH s AS (SELECT id FROM sessions WHERE id = :session_id FOR KEY SHARE) {_NEW_COUNTS} ON CONFLICT DO NOTHING
    """)
# For a join with sessions, all sessions of the tenant may be read.
_OF_TENANT = "(SELECT s.tenant_id FROM sessions s WHERE s.id = m.session_id) = :tenant_id"
_ITEMS = f"messages m WHERE m.session_id = :session_id AND {_OF_TENANT} AND NOT m.withdrawn AND {NOT_REJECTED}"
_PAGES_OF_ITEMS = listed(AS_STORED, _ITEMS, "m.seq", (*_SIZED, "reasoning", "reasoning_blocks"))
_NUMBERED = sql(f"""
    SELECT {AS_STORED}, m.session_id
    FROM unnest(CAST(:session_ids AS uuid[]), CAST(:seqs AS bigint[])) AS w(session_id, seq)
    JOIN messages m ON m.session_id = w.session_id AND m.seq = w.seq
    JOIN turns t ON t.session_id = m.session_id AND t.id = m.turn_id
    WHERE {_OF_TENANT} AND t.status <> 'rejected' AND NOT m.withdrawn
    """)

_IN_ORDER = f"""
    SELECT {AS_STORED} FROM messages m
    WHERE m.session_id = :session_id AND m.turn_id = :turn_id AND NOT m.withdrawn ORDER BY m.seq
"""
_OF_TURN = sql(_IN_ORDER)
_NEWEST_CALLS = sql(f"SELECT {NEWEST_CALLS} FROM turns t WHERE t.session_id = :session_id AND t.id = :turn_id")
_NEWEST_OF_TURN = sql(f"{_IN_ORDER} DESC LIMIT :limit")

_WITHDRAW = sql("""
    WITH s AS (
        UPDATE sessions SET past_version = past_version + 1 WHERE id = :session_id RETURNING id
    ), t AS (
        UPDATE turns SET user_input = :user_input,
            assistant_output = CASE WHEN :is_reply THEN left(assistant_output, 0) ELSE assistant_output END
        WHERE session_id = :session_id AND id = :turn_id
    )
    UPDATE messages SET withdrawn = true FROM s
    WHERE messages.session_id = :session_id AND messages.seq = ANY(:seqs)
    """)


async def window_turns(
    tx: Transaction,
    session_id: SessionId,
    after_seq: int,
    last_seq: int,
    encoding: str,
    *,
    step_failed: bool,
    take_bytes: Callable[[int], None],
) -> list[Turn]:
    """The turns with messages after `after_seq` through `last_seq` (with one bound the planner assumes that a fixed
    fraction of the session is read), oldest first, without rejected ones. `take_bytes` gets the size of each slice, and
    may refuse it before it is read, apart from the first one.

    `step_failed` says whether a step of the newest settled turn failed. Only that turn and the running one can be
    unresolved. A message without a count in `encoding` has `UNCOUNTED` tokens.
    """
    messages: dict[UUID, list[Message]] = {}

    async def add(stored: list[Record]) -> None:
        counts = await _counts(tx, session_id, encoding, stored)
        for row in sorted(stored, key=itemgetter("seq")):
            found = None if row["token_encoding"] == encoding else counts.get(row["id"], (UNCOUNTED, 0))
            messages.setdefault(row["turn_id"], []).append(message_from_row(row, found))

    rows = await tx.fetch(_WINDOW, session_id=session_id, after_seq=after_seq, last_seq=last_seq)
    turns = [row for row in rows if row["status"] is not None]
    first = [row for row in rows if row["status"] is None]
    take_bytes(sum([row["size_bytes"] for row in first]))
    await add(first)
    if len(first) == _FIRST_MESSAGES:
        async for after, through, size_bytes in _slices(tx, session_id, first[-1]["seq"], last_seq):
            take_bytes(size_bytes)
            await add(await tx.fetch(_MESSAGES, session_id=session_id, after_seq=after, last_seq=through))
    window: list[Turn] = []
    # Only the latest settled turn can still be unresolved (contract.md, decision 7); the open one always is.
    settled = [turn["seq"] for turn in turns if turn["id"] in messages and turn["status"] not in _NOT_SETTLED]
    latest = max(settled, default=0)
    for at, turn in enumerate(turns, 1):
        turn_id, status = TurnId(turn["id"]), STATUS_OF[turn["status"]]
        if turn_id in messages and status is not TurnStatus.REJECTED:
            failed = step_failed or status is not TurnStatus.COMPLETED or bool(turn["without_output"])
            unresolved = failed and turn["seq"] >= latest
            window.append(Turn(turn_id, turn["seq"], status, unresolved, tuple(messages[turn_id])))
        if at % _SLICE_TURNS == 0:
            await asyncio.sleep(0)
    return sorted(window, key=lambda turn: turn.seq)


async def _slices(
    tx: Transaction, session_id: SessionId, after_seq: int, last_seq: int
) -> AsyncGenerator[tuple[int, int, int]]:
    """Ranges (after, through) that hold all messages, each with its bytes: at most `_SIZED_MESSAGES` messages and
    `SLICE_BYTES`, or one message. By what is stored, because an imported session may leave numbers out."""
    while sizes := await tx.fetch(_SIZES, session_id=session_id, after_seq=after_seq, last_seq=last_seq):
        through, slice_bytes = after_seq, 0
        for row in sizes:
            if slice_bytes and slice_bytes + row["size_bytes"] > SLICE_BYTES:
                yield after_seq, through, slice_bytes
                after_seq, slice_bytes = through, 0
            through, slice_bytes = row["seq"], slice_bytes + row["size_bytes"]
        yield after_seq, through, slice_bytes
        after_seq = through
        if len(sizes) < _SIZED_MESSAGES:
            return


async def _counts(
    tx: Transaction, session_id: SessionId, encoding: str, stored: Iterable[Record]
) -> dict[UUID, tuple[int, int]]:
    """Tokens and reasoning tokens in `encoding`, by id, of the messages that were stored with counts of another one.
    Messages that were not counted in it are missing; other messages may be included."""
    message_ids = [row["id"] for row in stored if row["token_encoding"] != encoding]
    if not message_ids:
        return {}
    rows = await tx.fetch(
        _COUNTS, session_id=session_id, first_id=min(message_ids), last_id=max(message_ids), encoding=encoding
    )
    return {row["message_id"]: (row["token_estimate"], row["reasoning_tokens"]) for row in rows}


async def messages_in_runs(
    tx: Transaction, session_id: SessionId, runs: Sequence[tuple[int, int]], user_runs: Sequence[tuple[int, int]] = ()
) -> dict[int, Message]:
    """The stored messages of the inclusive `seq` ranges `runs`, and users' messages of `user_runs`, by `seq`."""
    both = (*runs, *user_runs)
    rows = await tx.fetch(
        _BY_RUN,
        session_id=session_id,
        firsts=[first for first, _ in both],
        lasts=[last for _, last in both],
        of_users=[False] * len(runs) + [True] * len(user_runs),
    )
    return {message.seq: message for message in await messages_from_rows(rows)}


async def page_of_messages(tx: Transaction, session_id: SessionId, bounds: PageBounds[int]) -> Fetched[MessageRecord]:
    return await tx.fetch_between(MessageRecord, _PAGES, bounds, session_id=session_id)


async def has_messages(tx: Transaction, session_id: SessionId, ids: Collection[UUID]) -> bool:
    return await tx.fetchval(_COUNT_BY_ID, session_id=session_id, ids=list(ids)) == len(ids)


async def messages_by_id(tx: Transaction, session_id: SessionId, ids: Sequence[UUID]) -> Fetched[MessageRecord]:
    """The session's messages with these ids, in time order, in the form for clients. Others are left out."""
    return await tx.fetch_page(MessageRecord, _BY_ID, len(ids), session_id=session_id, ids=list({*ids}))


async def page_of_item_messages(tx: Transaction, session: SessionRef, bounds: PageBounds[int]) -> Fetched[Message]:
    """Messages within these bounds of numbers, without withdrawn ones and those of rejected turns."""
    return await tx.fetch_between(message_from_row, _PAGES_OF_ITEMS, bounds, **of_session(session))


async def numbered_messages(
    tx: Transaction, tenant_id: TenantId, places: Collection[tuple[SessionId, int]]
) -> dict[tuple[SessionId, int], Message]:
    """The tenant's messages by session and number, without withdrawn ones and those of rejected turns."""
    session_ids, seqs = [place[0] for place in places], [place[1] for place in places]
    rows = await tx.fetch(_NUMBERED, tenant_id=tenant_id, session_ids=session_ids, seqs=seqs)
    messages = await messages_from_rows(rows)
    return {(row["session_id"], message.seq): message for row, message in zip(rows, messages, strict=True)}


async def messages_from_rows(rows: Sequence[Record]) -> list[Message]:
    """The messages of these rows. Yields to other tasks."""
    messages: list[Message] = []
    for at in range(0, len(rows), SLICE_MESSAGES):
        messages += map(message_from_row, rows[at : at + SLICE_MESSAGES])
        await asyncio.sleep(0)
    return messages


async def messages_of_turn(tx: Transaction, session_id: SessionId, turn_id: TurnId) -> list[Message]:
    """A turn's messages in time order, without withdrawn ones."""
    return await tx.fetch_records(message_from_row, _OF_TURN, session_id=session_id, turn_id=turn_id)


async def reply_of_turn(tx: Transaction, session_id: SessionId, turn_id: TurnId) -> Message | None:
    """The reply that a turn ends with; None if it was withdrawn."""
    newest = await _newest_of_turn(tx, session_id, turn_id, 1)
    return newest[0] if newest and newest[0].role == "assistant" else None


async def newest_calls(tx: Transaction, session_id: SessionId, turn_id: TurnId) -> tuple[ToolCall, ...]:
    """The tool calls of the turn's newest reply."""
    return tool_calls_from_json(await tx.fetchval(_NEWEST_CALLS, session_id=session_id, turn_id=turn_id))


async def last_outputs(tx: Transaction, session_id: SessionId, turn_id: TurnId, limit: int) -> dict[str, Content]:
    """The outputs with which a turn was last continued, by call id: more than `limit` if there are more."""
    newest = await _newest_of_turn(tx, session_id, turn_id, limit + 2)
    without_reply = newest[1:] if newest and newest[0].role == "assistant" else newest
    outputs = takewhile(lambda message: message.role == "tool", without_reply)
    return {str(output.tool_call_id): output.content for output in outputs}


async def _newest_of_turn(tx: Transaction, session_id: SessionId, turn_id: TurnId, limit: int) -> list[Message]:
    found = {"session_id": session_id, "turn_id": turn_id, "limit": limit}
    return await tx.fetch_records(message_from_row, _NEWEST_OF_TURN, **found)


async def withdraw_messages(
    tx: Transaction, session_id: SessionId, of_turn: Sequence[Message], seqs: Collection[int]
) -> None:
    """Withdraws the messages with these numbers of a turn, all of whose other messages are given: they stay in its row
    for the prompts that refer to them, and their text leaves the row of the turn."""
    left = [message.content for message in of_turn if message.role == "user" and message.seq not in seqs]
    await tx.execute(
        _WITHDRAW,
        session_id=session_id,
        turn_id=of_turn[-1].turn_id,
        seqs=list(seqs),
        user_input=content_text(joined(left)),
        is_reply=of_turn[-1].seq in seqs,
    )


async def save_token_counts(
    tx: Transaction, session_id: SessionId, encoding: str, counts: Iterable[tuple[MessageId, int, int]]
) -> None:
    """Stores new counts (message id, tokens, reasoning tokens) in an encoding that is not the messages' own."""
    waiting = iter(counts)
    while rows := list(islice(waiting, SLICE_MESSAGES)):  # encoding many arguments blocks the event loop
        message_ids, tokens, reasoning_tokens = map(list, zip(*rows, strict=True))
        await tx.execute(
            _SAVE_COUNTS,
            session_id=session_id,
            encoding=encoding,
            message_ids=message_ids,
            counts=tokens,
            reasoning_counts=reasoning_tokens,
        )


def message_from_row(row: Record, counts: tuple[int, int] | None = None) -> Message:
    """Converts a row with the columns of `AS_STORED` to a `Message`, with these counts or else the stored ones."""
    tokens, of_reasoning = counts or (row["tokens"], row["reasoning_tokens"])
    return Message(  # by position, in the order of its fields: by name, a turn's messages take three times as long
        row["id"],
        row["turn_id"],
        row["seq"],
        row["role"],
        row["content"],
        UNCOUNTED if tokens is None else tokens,
        tool_calls_from_json(row["tool_calls"]),
        row["tool_call_id"],
        row["reasoning"],
        tuple(row["reasoning_blocks"] or ()),
        of_reasoning,
        None,
        row["name"],
        row["said_at"],
    )
