"""Messages: the raw window after the active summary, and single ones for a rebuild."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

from app.db.database import Record, Transaction
from app.db.sql import sql
from app.db.turns import tool_calls_from_json
from app.domain.types import JsonObject, Message, MessageId, SessionId, Turn, TurnId, TurnStatus

UNCOUNTED = -1
"""`tokens` of a message that has no count yet in the encoding that was asked for."""

COLUMNS = "m.id, m.turn_id, m.seq, m.role, m.content, m.tool_calls, m.tool_call_id, m.reasoning, m.reasoning_blocks"
"""What `message_of` reads, beside `tokens` and `reasoning_tokens`, which depend on the encoding that is asked for."""
AS_STORED = f"{COLUMNS}, m.token_estimate AS tokens, m.reasoning_tokens"

_WINDOW = sql(f"""
    SELECT {COLUMNS},
        CASE WHEN m.token_encoding = :encoding THEN m.token_estimate ELSE c.token_estimate END AS tokens,
        CASE WHEN m.token_encoding = :encoding THEN m.reasoning_tokens ELSE c.reasoning_tokens END
            AS reasoning_tokens,
        t.seq AS turn_seq, t.status, t.assistant_output IS NULL AS without_output
    FROM messages m
    JOIN turns t ON t.session_id = m.session_id AND t.id = m.turn_id
    LEFT JOIN message_token_counts c ON c.session_id = m.session_id AND c.message_id = m.id
        AND c.token_encoding = :encoding AND m.token_encoding <> :encoding
    WHERE m.session_id = CAST(:session_id AS uuid) AND m.seq > CAST(:after_seq AS bigint)
        AND m.seq <= CAST(:last_seq AS bigint) AND t.status <> 'rejected' AND NOT m.withdrawn
    ORDER BY m.seq
    """)

_BY_RUN = sql(f"""
    SELECT {AS_STORED}
    FROM unnest(CAST(:firsts AS bigint[]), CAST(:lasts AS bigint[]), CAST(:of_users AS boolean[]))
        AS run(first_seq, last_seq, of_users)
    JOIN messages m ON m.session_id = CAST(:session_id AS uuid) AND m.seq BETWEEN run.first_seq AND run.last_seq
        AND (m.role = 'user' OR NOT run.of_users)
    """)

_LISTED = """
    m.id, m.turn_id, t.seq AS turn_seq, m.seq, m.role, m.content, m.tool_calls, m.tool_call_id, m.token_estimate,
    m.token_encoding, m.created_at
"""

_PAGE = sql(f"""
    SELECT {_LISTED} FROM messages m JOIN turns t ON t.session_id = m.session_id AND t.id = m.turn_id
    WHERE m.session_id = CAST(:session_id AS uuid) AND m.seq > CAST(:after_seq AS bigint)
    ORDER BY m.seq LIMIT CAST(:limit AS integer)
    """)

_BY_ID = sql(f"""
    SELECT {_LISTED} FROM messages m JOIN turns t ON t.session_id = m.session_id AND t.id = m.turn_id
    WHERE m.session_id = CAST(:session_id AS uuid) AND m.id = ANY(CAST(:ids AS uuid[]))
    ORDER BY m.seq
    """)

_SAVE_COUNTS = sql("""
    WITH s AS (SELECT id FROM sessions WHERE id = CAST(:session_id AS uuid) FOR KEY SHARE)
    INSERT INTO message_token_counts (session_id, message_id, token_encoding, token_estimate, reasoning_tokens)
    SELECT s.id, x.message_id, :encoding, x.tokens, x.reasoning_tokens
    FROM s, unnest(CAST(:message_ids AS uuid[]), CAST(:counts AS bigint[]), CAST(:reasoning_counts AS bigint[]))
        AS x(message_id, tokens, reasoning_tokens)
    ON CONFLICT DO NOTHING
    """)


async def window_turns(
    tx: Transaction, session_id: SessionId, after_seq: int, last_seq: int, encoding: str, *, step_failed: bool
) -> list[Turn]:
    """The turns with messages after `after_seq` through `last_seq`, oldest first, rejected ones left out.

    Both bounds, because with one the planner believes that it reads a share of the session.
    `step_failed` says whether a step of the newest settled turn did not succeed; only the newest two can be unresolved
    (it, and the running one). A message without a count in `encoding` has `UNCOUNTED` tokens.
    """
    rows = await tx.fetch(_WINDOW, session_id=session_id, after_seq=after_seq, last_seq=last_seq, encoding=encoding)
    turns: list[Turn] = []
    for _, group in groupby(rows, key=lambda row: row["turn_id"]):
        of_turn = list(group)
        first = of_turn[0]
        status = TurnStatus(first["status"])
        turns.append(
            Turn(
                id=TurnId(first["turn_id"]),
                seq=first["turn_seq"],
                status=status,
                unresolved=status is not TurnStatus.COMPLETED or bool(first["without_output"]),
                messages=tuple(message_of(row) for row in of_turn),
            )
        )
    return _with_unresolved(turns, step_failed=step_failed)


def _with_unresolved(turns: list[Turn], *, step_failed: bool) -> list[Turn]:
    """Only the latest settled turn can still be unresolved (contract.md, decision 7); the running one always is."""
    settled = [turn for turn in turns if turn.status is not TurnStatus.RUNNING]
    latest = settled[-1].seq if settled else 0
    return [
        Turn(turn.id, turn.seq, turn.status, turn.unresolved or step_failed, turn.messages)
        if turn.seq >= latest
        else Turn(turn.id, turn.seq, turn.status, False, turn.messages)
        for turn in turns
    ]


async def messages_in_runs(
    tx: Transaction,
    session_id: SessionId,
    runs: Sequence[tuple[int, int]],
    user_runs: Sequence[tuple[int, int]] = (),
) -> dict[int, Message]:
    """The stored messages of inclusive `seq` ranges, and users' messages of others, by `seq`."""
    both = (*runs, *user_runs)
    rows = await tx.fetch(
        _BY_RUN,
        session_id=session_id,
        firsts=[first for first, _ in both],
        lasts=[last for _, last in both],
        of_users=[False] * len(runs) + [True] * len(user_runs),
    )
    return {row["seq"]: message_of(row) for row in rows}


async def page_of_messages(tx: Transaction, session_id: SessionId, after_seq: int, limit: int) -> list[JsonObject]:
    """Messages in time order after a `seq`, as clients read them. The caller has checked whose session it is."""
    return [dict(row) for row in await tx.fetch(_PAGE, session_id=session_id, after_seq=after_seq, limit=limit)]


async def messages_by_id(tx: Transaction, session_id: SessionId, ids: Sequence[UUID]) -> list[JsonObject]:
    """Those of the messages that the session has, in time order, as clients read them."""
    return [dict(row) for row in await tx.fetch(_BY_ID, session_id=session_id, ids=list(ids))]


async def save_token_counts(
    tx: Transaction, session_id: SessionId, encoding: str, counts: Iterable[tuple[MessageId, int, int]]
) -> None:
    """Keeps counts in an encoding that is not the messages' own, once a message: (its id, tokens, reasoning tokens)."""
    rows = list(counts)
    await tx.execute(
        _SAVE_COUNTS,
        session_id=session_id,
        encoding=encoding,
        message_ids=[message_id for message_id, _, _ in rows],
        counts=[tokens for _, tokens, _ in rows],
        reasoning_counts=[reasoning_tokens for _, _, reasoning_tokens in rows],
    )


def message_of(row: Record) -> Message:
    """A row with a message's columns and its `tokens` as the domain's value."""
    tokens: Any = row["tokens"]
    return Message(
        id=row["id"],
        turn_id=row["turn_id"],
        seq=row["seq"],
        role=row["role"],
        content=row["content"],
        tokens=UNCOUNTED if tokens is None else tokens,
        tool_calls=tool_calls_from_json(row["tool_calls"]),
        tool_call_id=row["tool_call_id"],
        reasoning=row["reasoning"],
        reasoning_blocks=tuple(row["reasoning_blocks"] or ()),
        reasoning_tokens=row["reasoning_tokens"] or 0,
    )
