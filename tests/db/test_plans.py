"""Statements whose cost must not depend on what the planner believes: read by index ranges, analyzed or not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from math import ceil
from pathlib import Path
from struct import pack
from typing import Any, cast
from uuid import UUID

import asyncpg
import pytest

from app import db
from app.db.archive import copy_past, exported_rows, fork_point
from app.db.audits import blocks_by_sha256
from app.db.database import Database, PageBounds, Transaction
from app.db.driver import Record
from app.db.erasure import due_sessions
from app.db.figures import (
    changed_turns,
    count_open_turns,
    open_turns,
    session_figures,
    summaries_between,
    timeline_turns,
)
from app.db.messages import (
    UNCOUNTED,
    has_messages,
    messages_by_id,
    messages_in_runs,
    numbered_messages,
    page_of_item_messages,
    page_of_messages,
    window_turns,
)
from app.db.recall import messages_with_words, sessions_with_messages, stored_terms, turns_with
from app.db.records import stated_of_turn
from app.db.responses import get_response, response_of_request
from app.db.sessions import list_sessions, search_sessions, turn_of_list
from app.db.settled import settled_through
from app.db.sql import Statement
from app.db.statistics import analyze_for
from app.db.turns import newest_messages, page_of_turns, turn_numbers, turns_begun_by
from app.domain.frozen import replace
from app.domain.responses import ResponseRef
from app.domain.types import JsonObject, SessionId, SessionRef, TenantId, Turn, TurnId, TurnStatus, Usage
from app.services.turn.gather import settled_columns
from tests.pooling import past_pooler
from tests.services.service import service

TURNS, MESSAGES = 300, 600
SESSION = SessionId(UUID(int=2))
_SETTLED = """
    CREATE FUNCTION u(n int) RETURNS uuid LANGUAGE sql RETURN CAST(lpad(to_hex(n), 32, '0') AS uuid);
    ALTER TABLE turns SET (autovacuum_enabled = off); ALTER TABLE messages SET (autovacuum_enabled = off);
    ALTER TABLE message_token_counts SET (autovacuum_enabled = off);
    INSERT INTO sessions (id, tenant_id, model_alias, policy, metadata)
    SELECT u(s), 'default', 'm', '{}', '{}' FROM generate_series(1, 8) s;
    """
_FILL = """
    INSERT INTO turns (id, session_id, seq, status, user_input, assistant_output, model_alias, request_sha256)
    SELECT u(1000 * s - t), u(s), t, CASE WHEN t % 50 = 0 THEN 'rejected' ELSE 'completed' END, 'x', 'y', 'm', ''
    FROM generate_series(1, 8) s, generate_series({first}, {last}) t;
    INSERT INTO messages (id, session_id, turn_id, seq, role, content, token_estimate, token_encoding)
    SELECT u(100000 * s + 2 * t - 1 + m), u(s), u(1000 * s - t), 2 * t - 1 + m,
        CASE m WHEN 0 THEN 'user' ELSE 'assistant' END, '"text"', 3,
        CASE WHEN (2 * t - 1 + m) % 3 = 0 THEN 'theirs' ELSE 'ours' END
    FROM generate_series(1, 8) s, generate_series({first}, {last}) t, generate_series(0, 1) m;
    INSERT INTO message_token_counts (session_id, message_id, token_encoding, token_estimate)
    SELECT session_id, id, encoding, 5 FROM messages, unnest(ARRAY['ours', 'another']) AS encoding
    WHERE token_encoding = 'theirs' AND seq > 3 AND seq >= 2 * {first} - 1;
    """


class Explained(Transaction):
    """A transaction that keeps the plan, as it ran, of each statement that reads."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.plans: list[Any] = []

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Record]:
        rows = await self._tx.fetch(statement, **parameters)
        await self._explain(statement, parameters)
        return rows

    async def fetchrow(self, statement: Statement, **parameters: Any) -> Record | None:
        row = await self._tx.fetchrow(statement, **parameters)
        await self._explain(statement, parameters)
        return row

    async def fetchval(self, statement: Statement, **parameters: Any) -> Any:
        value = await self._tx.fetchval(statement, **parameters)
        await self._explain(statement, parameters)
        return value

    async def _explain(self, statement: Statement, parameters: dict[str, Any]) -> None:
        found = Statement("SELECT name FROM pg_prepared_statements WHERE statement = $1", ("text",))
        name = await self._tx.fetchval(found, text=statement.text)
        values = ", ".join(map(_literal, statement.arguments(parameters)))
        explain = Statement(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name} {values and f'({values})'}", ())
        self.plans.append((await self._tx.fetchval(explain))[0]["Plan"])


def _literal(value: object) -> str:
    if isinstance(value, list):
        texts = [_text(each).replace("\\", r"\\") for each in cast("list[object]", value)]
        return "'{" + ", ".join(texts) + "}'"
    return "NULL" if value is None else f"'{_text(value)}'"


def _text(value: object) -> str:
    return rf"\x{value.hex()}" if isinstance(value, bytes) else str(value)


@asynccontextmanager
async def filled(database_url: str, *, analyzed: bool = False, replanned: bool = False) -> AsyncGenerator[Database]:
    """Eight sessions of 600 messages in tables that nobody has analyzed, or that were `analyzed` when the sessions had
    two turns each, as the server may do by itself.

    The one connection made its plans, which it keeps, at that time: the worst that a fresh installation does. Or it has
    `replanned` them since, as it does when the server lost track of what changed.
    """
    url = past_pooler(database_url)
    database = Database(url, pool_size=1)
    connection = await cast(Any, asyncpg).connect(url)
    try:
        await connection.execute(_SETTLED + _FILL.format(first=1, last=2) + ("; ANALYZE" if analyzed else ""))
        async with database.begin() as tx:
            await window_turns(tx, SESSION, 0, 4, "ours", step_failed=False, take_bytes=unlimited)
            await turns_with(tx, SESSION, [1, 2], "ours")
            await timeline_turns(tx, SESSION, [1, 2])
            await settled_columns(tx, SESSION, 0, await settled_through(tx, SESSION, 3), "ours", as_it_is, unlimited)
            await copy_past(tx, SESSION, SessionId(UUID(int=101)), await fork_point(tx, SESSION, None), is_branch=True)
        await connection.execute(_FILL.format(first=3, last=TURNS))
        if replanned:
            async with database.autocommit() as tx:
                await tx.fetch(Statement("DISCARD PLANS", ()))
        yield database
    finally:
        await connection.close()
        await database.aclose()


def as_it_is(turn: Turn) -> Turn:
    return turn


def unlimited(size_bytes: int) -> None:
    pass


def nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def rows_of_index_ranges(plans: list[Any]) -> dict[str, int]:
    """How many rows these statements read of each table, all of them by index ranges, without a join."""
    found = [node for plan in plans for node in nodes(plan)]
    assert not [
        node["Node Type"] for node in found if "Join" in node["Node Type"] or node["Node Type"] == "Nested Loop"
    ]
    scans = [node for node in found if "Relation Name" in node]
    assert all(node["Node Type"] in ("Index Scan", "Index Only Scan", "Bitmap Heap Scan") for node in scans), scans
    assert all(node["Actual Loops"] == 1 for node in scans)
    read: Counter[str] = Counter()
    for node in scans:
        read[node["Relation Name"]] += node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return read


@pytest.mark.parametrize("after_seq", [0, 40, 99, 580])
async def test_a_window_is_read_by_one_index_range_a_table(database_url: str, after_seq: int) -> None:
    async with filled(database_url) as database, database.begin() as transaction:
        tx = Explained(transaction)
        window = await window_turns(tx, SESSION, after_seq, MESSAGES, "ours", step_failed=False, take_bytes=unlimited)
        of_sizes = ceil((MESSAGES - after_seq - 16) / 128)
        slices = of_sizes + 1 if MESSAGES - after_seq > 16 else 1
        assert len(tx.plans) == of_sizes + 2 * slices, "messages and counts, 16 and then 128 messages at a time"
        read = rows_of_index_ranges(tx.plans)
        assert read["messages"] <= 2 * (MESSAGES - after_seq) + 5, "and once for their sizes"
        assert read["turns"] + read["message_token_counts"] <= 1.5 * (MESSAGES - after_seq) + 5

        sent = [message for turn in window for message in turn.messages]
        expected = [seq for seq in range(after_seq + 1, MESSAGES + 1) if (seq + 1) // 2 % 50]
        assert [message.seq for message in sent] == expected
        assert all(message.turn_id == turn.id for turn in window for message in turn.messages)
        assert [message.tokens for message in sent] == [
            3 if seq % 3 else UNCOUNTED if seq == 3 else 5 for seq in expected
        ]


@pytest.mark.parametrize("after_seq", [40, 98, 500])
async def test_a_settled_past_is_read_as_columns_by_index_ranges(database_url: str, after_seq: int) -> None:
    async with filled(database_url) as database, database.begin() as transaction:
        tx = Explained(transaction)
        through_seq = await settled_through(tx, SESSION, TURNS)
        assert through_seq == MESSAGES - 4, "before the newest turn that ended, which is not the rejected one behind it"
        assert sum(rows_of_index_ranges(tx.plans).values()) <= 5
        tx.plans.clear()

        columns = await settled_columns(tx, SESSION, after_seq, through_seq, "ours", as_it_is, unlimited)
        assert [*columns.turn_seqs] == [seq for seq in range(after_seq // 2 + 1, through_seq // 2 + 1) if seq % 50]
        read = rows_of_index_ranges(tx.plans)
        past = through_seq - after_seq
        assert read["messages"] <= 3 * past + 5, "as texts, and again, with their sizes, where the counts are others"
        rejected = TURNS // 50
        assert read["turns"] <= 2 * past / 2 + 10 + rejected, "the rejected ones by their own index"
        assert read["message_token_counts"] <= past


@pytest.mark.parametrize("replanned", [False, True])
@pytest.mark.parametrize("analyzed", [False, True])
async def test_recalled_messages_are_read_by_key_and_the_turns_of_those_that_completed_not_at_all(
    database_url: str, analyzed: bool, replanned: bool
) -> None:
    tables = filled(database_url, analyzed=analyzed, replanned=replanned)
    async with tables as database, database.begin() as transaction:
        tx = Explained(transaction)
        seqs = [1, 2, 99, 100, *range(201, 261)]
        turns = await turns_with(tx, SESSION, seqs, "ours")
        scans = [node for plan in tx.plans for node in nodes(plan) if "Relation Name" in node]
        assert all(node["Node Type"] in ("Index Scan", "Index Only Scan", "Bitmap Heap Scan") for node in scans), scans
        read = dict.fromkeys(("messages", "turns", "message_token_counts"), 0)
        for node in scans:
            rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            read[node["Relation Name"]] += rows * node["Actual Loops"]
        others = TURNS // 50
        assert read["messages"] <= len(seqs)
        assert read["turns"] <= 3 * others
        assert read["message_token_counts"] <= len(seqs)

        sent = [message.seq for turn in turns for message in turn.messages]
        assert sent == [seq for seq in seqs if (seq + 1) // 2 % 50], "without those of rejected turns"


@pytest.mark.parametrize("replanned", [False, True])
@pytest.mark.parametrize("analyzed", [False, True])
async def test_the_terms_of_a_sessions_last_messages_are_read_by_one_index_range(
    database_url: str, analyzed: bool, replanned: bool
) -> None:
    tables = filled(database_url, analyzed=analyzed, replanned=replanned)
    async with tables as database, database.begin() as transaction:
        tx = Explained(transaction)
        read_terms = await stored_terms(tx, SESSION, 0, 500, 98)
        assert (read_terms["unpacked"], read_terms["after_seq"]) == (98, 400), "without a rejected turn's"
        read = rows_of_index_ranges(tx.plans)
        assert read["messages"] <= 100
        assert read["turns"] <= TURNS // 50


@pytest.mark.parametrize("replanned", [False, True])
@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_search_over_sessions_looks_up_turns_by_key_and_only_those_of_messages_with_the_words(
    database_url: str, analyzed: bool, replanned: bool
) -> None:
    tables = filled(database_url, analyzed=analyzed, replanned=replanned)
    async with tables as database, database.begin() as transaction:
        tx = Explained(transaction)
        sessions = {SessionId(UUID(int=number)): MESSAGES - 100 for number in (1, 2)}
        for words, most_turns in ((["text"], 2 * 100 + 6), (["text", "other"], 0)):
            found = await messages_with_words(tx, sessions, words, (UUID(int=9), 0), 20, most_of_each=3)
            assert [row["seq"] for row in found.rows] == ([598, 597, 596] * 2 if most_turns else [])
            read = read_rows(tx.plans)
            assert (read["messages"], read["turns"] <= most_turns) == (2 * 100, True)
            tx.plans.clear()


@pytest.mark.parametrize("replanned", [False, True])
@pytest.mark.parametrize("analyzed", [False, True])
async def test_turns_of_a_timeline_are_read_by_key(database_url: str, analyzed: bool, replanned: bool) -> None:
    tables = filled(database_url, analyzed=analyzed, replanned=replanned)
    async with tables as database, database.begin() as transaction:
        tx = Explained(transaction)
        seqs = [1, 2, 99, 250]
        assert [row["seq"] for row in await timeline_turns(tx, SESSION, seqs)] == seqs[::-1]
        assert read_rows(tx.plans)["turns"] == len(seqs)


@pytest.mark.parametrize("analyzed", [False, True])
async def test_counts_are_not_looked_for_where_every_message_has_its_own(database_url: str, analyzed: bool) -> None:
    async with filled(database_url, analyzed=analyzed) as database, database.begin() as transaction:
        tx = Explained(transaction)
        await window_turns(tx, SESSION, MESSAGES - 2, MESSAGES - 1, "ours", step_failed=False, take_bytes=unlimited)
        assert len(tx.plans) == 1


async def test_the_keys_of_a_large_fork_are_checked_by_index_once_the_tables_are_analyzed(database_url: str) -> None:
    async with filled(database_url) as database:
        assert await fetched_by_a_fork(database, 102) > 20 * (MESSAGES + TURNS)
        async with database.autocommit() as tx:
            await tx.fetch(Statement("UPDATE sessions SET last_message_seq = 1001 WHERE id = $1", ("id",)), id=SESSION)
            await analyze_for(tx, SESSION)
        assert await fetched_by_a_fork(database, 103) <= 2 * (MESSAGES + TURNS)


async def fetched_by_a_fork(database: Database, number: int) -> int:
    """Rows of `turns` that are read by index while a session is forked."""
    target = SessionId(UUID(int=number))
    fetched = Statement("SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'turns'", ())
    async with database.begin() as tx:
        before = await tx.fetchval(fetched)
        await copy_past(tx, SESSION, target, await fork_point(tx, SESSION, None), is_branch=True)
        copied = Statement("SELECT count(*) FROM messages WHERE session_id = $1", ("id",))
        assert await tx.fetchval(copied, id=target) == MESSAGES
        return await tx.fetchval(fetched) - before


async def test_a_large_import_is_analyzed_and_a_small_one_is_not(database_url: str) -> None:
    known = "SELECT reltuples FROM pg_class WHERE oid = CAST('messages' AS regclass)"
    async with service(database_url) as at:
        before = await at.rows(known)
        for turns in (1, 501):
            messages = [{"role": role, "content": "Hi"} for _ in range(turns) for role in ("user", "assistant")]
            assert await at.rows(known) == before
            await at.imported({"messages": messages})
        assert await at.rows(known) == [{"reltuples": 1004}]


SESSIONS, OLD_TURNS = 400, 2_000
_YEAR = """
    ALTER TABLE sessions SET (autovacuum_enabled = off);
    INSERT INTO sessions (id, tenant_id, model_alias, policy, metadata)
    SELECT u(s), CASE s % 2 WHEN 0 THEN 'default' ELSE u(s)::text END, 'm', '{{}}', '{{}}'
    FROM generate_series(1, {sessions}) s;
    INSERT INTO turns (
        id, session_id, seq, status, user_input, assistant_output, model_alias, request_sha256, created_at)
    SELECT u(10000 * s + t), u(s), t,
        CASE WHEN t % 100 = 0 THEN 'rejected'
            WHEN t = 2 AND (s % 10 = 1 OR s = 10) THEN 'awaiting_tools' ELSE 'completed' END,
        'x', 'y', 'm', '', now() - interval '1 day' + 10 * s * interval '1 s' + t * interval '1 ms'
    FROM generate_series(1, {sessions}) s, LATERAL generate_series(1, CASE s WHEN 2 THEN {turns} ELSE 2 END) t;
    INSERT INTO messages (id, session_id, turn_id, seq, role, content, token_estimate, token_encoding)
    SELECT u(1000000 + 2 * row_number() OVER (ORDER BY t.id)::int + m), t.session_id, t.id, 2 * t.seq - 1 + m,
        CASE m WHEN 0 THEN 'user' ELSE 'assistant' END, '"text"', 3, 'ours'
    FROM turns t, generate_series(0, 1) m;
    """


@asynccontextmanager
async def of_a_year(database_url: str) -> AsyncGenerator[Database]:
    """A session of 2,000 turns among 400 short ones, in analyzed tables: the planner expects few sessions of a tenant,
    and few turns of a session. Half of the sessions are one tenant's, and each other one is another's; one of that
    tenant's and forty others wait for tools."""
    url = past_pooler(database_url)
    database = Database(url, pool_size=1)
    connection = await cast(Any, asyncpg).connect(url)
    try:
        await connection.execute(_SETTLED.replace("1, 8", "1, 0") + _YEAR.format(sessions=SESSIONS, turns=OLD_TURNS))
        await connection.execute("VACUUM ANALYZE")
        yield database
    finally:
        await connection.close()
        await database.aclose()


def read_rows(plans: list[Any]) -> Counter[str]:
    """How many rows these statements read, by table, in any way."""
    read: Counter[str] = Counter()
    for node in (node for plan in plans for node in nodes(plan)):
        rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0)
        if "Relation Name" in node:
            read[node["Relation Name"]] += rows * node["Actual Loops"]
    return read


@pytest.mark.parametrize("analyzed", [False, True])
async def test_the_messages_of_a_long_turn_are_exported_without_reading_all_of_them_for_each_page(
    database_url: str, analyzed: bool
) -> None:
    """An export of 60,000 messages of one turn took 20 seconds."""
    async with filled(database_url, analyzed=analyzed) as database, database.begin() as transaction:
        first = "SELECT id FROM turns WHERE session_id = u(2) AND seq = 1"
        of_one_turn = f"UPDATE messages SET turn_id = ({first}) WHERE session_id = u(2)"  # noqa: S608 - ours
        await transaction.execute(Statement(of_one_turn, ()))
        tx = Explained(transaction)
        point = await fork_point(transaction, SESSION, None)
        pages = [[row["seq"] for row in page] async for page in exported_rows(tx, SESSION, "messages", point)]
        assert pages == [[*range(at + 1, at + 101)] for at in range(0, MESSAGES, 100)]
        read = read_rows(tx.plans)
        assert read["messages"] <= 2 * MESSAGES
        assert read["turns"] <= TURNS


_STEPS = """
    INSERT INTO turn_steps (id, turn_id, session_id, seq, kind, status, detail, started_at)
    SELECT gen_random_uuid(), id, session_id, n, 'gather', 'success', '{}', now()
    FROM turns, generate_series(1, CASE WHEN session_id = u(2) AND seq = 7 THEN 500 WHEN seq = 8 THEN 0 ELSE 3 END) n
    """
_AUDITS = """
    INSERT INTO turn_context_audit (id, turn_id, session_id, round, attempt, model_alias, model_context_limit,
        context_limit_source, output_reserve, overhead_reserve, input_budget, estimator, calibration_ratio,
        estimated_input_tokens_before, estimated_input_tokens_after_summary, estimated_input_tokens_after_prune,
        estimated_wire_tokens, summary_triggered, prune_triggered, overflow_rejected, regions, context_trim_log)
    SELECT id, turn_id, session_id, (seq + 1) / 2, 1 + (seq + 1) % 2, 'm', 1, 'x', 1, 1, 1, 'x', 1, 1, 1, 1, 1, false,
        false, false, '{}', '{"actions": []}'
    FROM turn_steps
    """


@pytest.mark.parametrize("section", ["steps", "audits"])
async def test_a_long_session_is_exported_without_reading_what_follows_for_each_page(
    database_url: str, section: str
) -> None:
    """Each of 9,000 pages of a session with 300,000 turns took a second."""
    async with of_a_year(database_url) as database, database.begin() as transaction:
        for rows in (_STEPS, _AUDITS):
            await transaction.fetch(Statement(rows, ()))
        for table in ("turns", "turn_steps", "turn_context_audit"):
            # As if there were very many sessions, none of them long.
            await transaction.fetch(Statement(f"ALTER TABLE {table} ALTER session_id SET (n_distinct = -0.5)", ()))
            await transaction.fetch(Statement(f"ANALYZE {table}", ()))
        point = await fork_point(transaction, SESSION, None)
        tx = Explained(transaction)
        found = [row async for page in exported_rows(tx, SESSION, section, point) for row in page]
        rows_of = {7: 500, 8: 0}
        assert [(row["turn_id"].int - 20_000, _place(row)) for row in found] == [
            (turn, place) for turn in range(1, OLD_TURNS + 1) for place in range(1, rows_of.get(turn, 3) + 1)
        ]
        table = {"steps": "turn_steps", "audits": "turn_context_audit"}[section]
        assert read_rows(tx.plans)[table] <= 1.1 * len(found)


def _place(row: JsonObject) -> int:
    """The number within its turn of a step, or of the audit that was made of it."""
    return row["seq"] if "seq" in row else 2 * row["round"] - 2 + row["attempt"]


async def test_rows_are_looked_up_by_their_keys_however_many_their_session_has(database_url: str) -> None:
    """In a session of 600,000 messages it took 0.2 seconds to look one up."""
    async with of_a_year(database_url) as database, database.begin() as transaction:
        blocks = """
            INSERT INTO prompt_blocks (session_id, sha256, content)
            SELECT u(2), n::text, 'x' FROM generate_series(1, 3000) n
            UNION ALL SELECT u(s), 'x', 'x' FROM generate_series(3, 400) s
            """
        await transaction.fetch(Statement(blocks, ()))
        await transaction.fetch(Statement("ANALYZE prompt_blocks", ()))
        seven = "SELECT id FROM messages WHERE session_id = $1 AND seq = 7"
        message_id = await transaction.fetchval(Statement(seven, ("id",)), id=SESSION)
        tx = Explained(transaction)
        assert await blocks_by_sha256(tx, SESSION, ("5", "7")) == {"5": "x", "7": "x"}
        assert await has_messages(tx, SESSION, {message_id})
        assert not await has_messages(tx, SESSION, {message_id, UUID(int=1)})
        assert [each.seq for each in (await messages_by_id(tx, SESSION, [message_id, message_id])).rows] == [7]
        assert await turn_numbers(tx, SESSION, [TurnId(UUID(int=20_005))]) == {UUID(int=20_005): 5}
        read = read_rows(tx.plans)
        assert (read["prompt_blocks"], read["turns"]) == (2, 2), "and the turn of the message"
        assert read["messages"] in {2, 3}, "PostgreSQL 15 reads the one that was asked for twice once"


async def test_the_calls_of_a_turn_are_read_without_those_of_other_turns(database_url: str) -> None:
    """Each request with `previous_response_id` to a session of 300,000 calls read all of them, for 0.2 seconds."""
    async with of_a_year(database_url) as database, database.begin() as transaction:
        for rows in (
            """INSERT INTO usage_records (id, session_id, turn_id, purpose, model_alias, prompt_tokens,
                cached_prompt_tokens, completion_tokens, round)
            SELECT id, session_id, id, 'turn', 'm', 7, 0, 1, 1 FROM turns""",
            """INSERT INTO responses (session_id, reply_seq, turn_id, round, first_seq, request_sha256, is_stored, form,
                created_at)
            SELECT session_id, 2 * seq, id, 1, 2 * seq - 1, seq::text, true, '{}', created_at FROM turns""",
            "ANALYZE usage_records",
            "ANALYZE responses",
        ):
            await transaction.fetch(Statement(rows, ()))
        tx = Explained(transaction)
        newest = await get_response(tx, TenantId("default"), ResponseRef(SESSION, 2 * (OLD_TURNS - 1)))
        assert newest is not None
        assert newest.usage == Usage(7, 1)
        session = SessionRef(TenantId("default"), SESSION)
        of_request = await response_of_request(tx, session, newest.turn_id, str(OLD_TURNS - 1))
        assert of_request is not None
        assert of_request.ref == newest.ref
        assert await stated_of_turn(tx, SESSION, newest.turn_id) == (Usage(7, 1), None)
        read = read_rows(tx.plans)
        assert read["usage_records"] == 3
        assert read["responses"] <= 20


@pytest.mark.parametrize("newest_first", [True, False])
async def test_sessions_of_a_tenant_are_listed_and_searched_without_those_of_others(
    database_url: str, newest_first: bool
) -> None:
    """A planner that knows of two tenants read all of the other's newer sessions first."""
    async with of_a_year(database_url) as database, database.begin() as transaction:
        divide = "UPDATE sessions SET tenant_id = CASE WHEN (id <= u(200)) = $1 THEN 'default' ELSE 'other' END"
        await transaction.execute(Statement(divide, ("older",)), older=newest_first)
        await transaction.fetch(Statement("ANALYZE sessions", ()))
        tx, tenant, last = Explained(transaction), TenantId("default"), UUID(int=2**128 - 1)
        page = await list_sessions(tx, tenant, PageBounds(UUID(int=0), last, 20, newest_first))
        first = 200 if newest_first else 201
        assert (page.rows[0].id.int, page.has_more) == (first, True)
        newest = 200 if newest_first else SESSIONS
        found, horizon = await search_sessions(tx, tenant, "nowhere", before=last, limit=5, most_looked_through=20)
        assert (found.rows, horizon) == ([], UUID(int=newest - 19))
        to_search = await sessions_with_messages(tx, tenant, first=last, limit=20)
        assert [session_id.int for session_id, _ in to_search] == [*range(newest, newest - 20, -1)]
        assert read_rows(tx.plans)["sessions"] <= 21 + 2 * 20 + 20


@pytest.mark.parametrize("newest_first", [True, False])
async def test_a_page_of_sessions_is_read_without_the_others_however_many_there_are(
    database_url: str, newest_first: bool
) -> None:
    """With few tenants, the planner sorted all sessions of all of them for each page: 60 ms of 100,000."""
    many = """
        INSERT INTO sessions (id, tenant_id, model_alias, policy, metadata)
        SELECT u(s), 'default', 'm', '{}', '{}' FROM generate_series(1000, 20999) s
    """
    async with of_a_year(database_url) as database, database.begin() as transaction:
        await transaction.execute(Statement(many, ()))
        await transaction.execute(Statement("UPDATE sessions SET tenant_id = 'default'", ()))
        await transaction.fetch(Statement("ANALYZE sessions", ()))
        tx, bounds = Explained(transaction), PageBounds(UUID(int=0), UUID(int=2**128 - 1), 20, newest_first)
        page = await list_sessions(tx, TenantId("default"), bounds)
        assert (page.rows[0].id.int, page.has_more) == (20_999 if newest_first else 1, True)
        assert await turns_begun_by(tx, TenantId("another"), "", after_id=UUID(int=0), limit=20) == []
        assert read_rows(tx.plans)["sessions"] <= 21


async def test_the_newest_messages_are_read_without_the_turns_of_a_long_session(database_url: str) -> None:
    async with of_a_year(database_url) as database, database.begin() as transaction:
        tx = Explained(transaction)
        newest = await newest_messages(tx, SESSION, 34, 1_048_576)
        assert [message.seq for message in newest] == [*range(2 * OLD_TURNS - 35, 2 * OLD_TURNS - 1)]
        read = read_rows(tx.plans)
        assert read["messages"] <= 34 + 2
        assert read["turns"] == OLD_TURNS // 100, "those that were rejected"


@pytest.mark.parametrize("newest_first", [True, False])
async def test_a_page_of_messages_is_read_without_the_other_turns_of_a_long_session(
    database_url: str, newest_first: bool
) -> None:
    async with of_a_year(database_url) as database, database.begin() as transaction:
        # As if every session had thousands of messages, and few turns.
        await transaction.fetch(Statement("ALTER TABLE messages ALTER session_id SET (n_distinct = 1)", ()))
        await transaction.fetch(Statement("ANALYZE messages", ()))
        tx = Explained(transaction)
        page = await page_of_messages(tx, SESSION, PageBounds(0, 2**63 - 1, 20, newest_first))
        session = SessionRef(TenantId("default"), SESSION)
        items = await page_of_item_messages(tx, session, PageBounds(0, 2**62, 20, newest_first))
        first = 2 * OLD_TURNS if newest_first else 1
        assert (page.rows[0].seq, page.rows[0].turn_seq) == (first, (first + 1) // 2)
        assert items.rows[0].seq == (first - 2 if newest_first else first)
        read = read_rows(tx.plans)
        assert read["messages"] <= 2 * 21 + 2
        assert read["turns"] <= 21 + OLD_TURNS // 100, "those of the page, and those that were rejected"


async def test_runs_of_messages_are_read_by_their_ranges(database_url: str) -> None:
    async with of_a_year(database_url) as database, database.begin() as transaction:
        tx = Explained(transaction)
        found = await messages_in_runs(tx, SESSION, [(1, 3), (3990, 3992)], [(101, 108)])
        assert sorted(found) == [1, 2, 3, 101, 103, 105, 107, 3990, 3991, 3992]
        assert read_rows(tx.plans)["messages"] <= 14


async def test_numbered_messages_are_read_without_the_other_sessions_of_their_tenant(database_url: str) -> None:
    async with of_a_year(database_url) as database, database.begin() as transaction:
        tx = Explained(transaction)
        places = [(SESSION, 7), (SESSION, 9), (SessionId(UUID(int=3)), 1)]
        found = await numbered_messages(tx, TenantId("default"), places)
        assert [*found] == [(SESSION, 7), (SESSION, 9)], "the third is another tenant's"
        assert read_rows(tx.plans)["sessions"] <= 3


async def test_a_search_of_sessions_reads_no_more_than_it_looks_through(database_url: str) -> None:
    async with of_a_year(database_url) as database, database.begin() as transaction:
        tx = Explained(transaction)
        last = UUID(int=2**128 - 1)
        found, horizon = await search_sessions(
            tx, TenantId("default"), "nowhere", before=last, limit=5, most_looked_through=20
        )
        assert (found.rows, horizon) == ([], UUID(int=SESSIONS - 38))
        assert read_rows(tx.plans)["sessions"] <= 2 * 20
        # Goals and inputs of 1.4 MB each, which take some 200 blocks.
        long = "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 45000) AS n"
        grow = f"UPDATE sessions SET room_goal = (SELECT goal FROM ({long}) AS x(goal)) WHERE id > $1"  # noqa: S608 - ours
        await transaction.execute(Statement(grow, ("horizon",)), horizon=horizon)
        said = f"UPDATE turns SET user_input = (SELECT said FROM ({long}) AS x(said)) WHERE session_id > $1"  # noqa: S608 - ours
        await transaction.execute(Statement(said, ("horizon",)), horizon=horizon)
        tx.plans.clear()
        await search_sessions(tx, TenantId("default"), "nowhere", before=last, limit=5, most_looked_through=20)
        page = await list_sessions(tx, TenantId("default"), PageBounds(UUID(int=0), last, 20, newest_first=True))
        assert (len(page.rows), page.has_more) == (5, True)
        await page_of_turns(tx, page.rows[0].id, PageBounds(0, 1000, 20, newest_first=True))
        assert sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in tx.plans) < 20 * 40


async def test_the_calls_of_listed_sessions_are_read_once(database_url: str) -> None:
    async with of_a_year(database_url) as database, database.begin() as transaction:
        calls = """
            INSERT INTO usage_records (id, session_id, purpose, model_alias, prompt_tokens, cached_prompt_tokens,
                completion_tokens)
            SELECT u(n), u(2), 'turn', 'm', 7, 0, 1 FROM generate_series(1, 3000) n
            """
        await transaction.fetch(Statement(calls, ()))
        await transaction.fetch(Statement("ANALYZE usage_records", ()))  # of one session
        tx = Explained(transaction)
        found = await session_figures(tx, [UUID(int=number) for number in range(2, 32)])
        assert [figures.prompt_tokens for figures in found.values() if figures.prompt_tokens] == [21_000]
        assert read_rows(tx.plans)["usage_records"] <= 3000


@pytest.mark.parametrize("analyzed", [False, True])
async def test_of_very_many_summaries_for_a_turn_the_newest_are_read(database_url: str, analyzed: bool) -> None:
    """An import may have a hundred thousand of them: to list them all blocked the event loop for 150 ms."""
    async with filled(database_url, analyzed=analyzed) as database, database.begin() as transaction:
        many = """
            INSERT INTO session_summaries (id, session_id, from_message_id, to_message_id, to_message_seq, summary_text,
                key_facts, open_questions, decisions, action_items, status, origin, model_alias, token_estimate,
                token_encoding, created_at)
            SELECT u(n), u(2), u(1), u(1), 2, '', '[]', '[]', '[]', '[]', 'superseded', 'model', 'm', 1, 'ours',
                now() + n * interval '1 second' FROM generate_series(1, 10050) n
            """
        await transaction.fetch(Statement(many, ()))
        made = await summaries_between(transaction, SESSION, 1, TURNS)
        assert [row["id"].int for row in made] == [*range(51, 10_051)]


async def test_what_changed_is_read_without_the_sessions_and_the_older_turns_of_a_tenant(database_url: str) -> None:
    async with of_a_year(database_url) as database, database.begin() as transaction:
        begin_now = "UPDATE turns SET created_at = now() WHERE seq = 2 AND session_id IN ($1, $2)"
        await transaction.execute(Statement(begin_now, ("mine", "other")), mine=UUID(int=4), other=UUID(int=5))
        tx = Explained(transaction)
        watched = {(UUID(int=10), UUID(int=100_002)): "running"}
        changed = await changed_turns(tx, [TenantId("default")], watched, within_s=6.0, limit=5_000)
        assert [row["session_id"].int for row in changed] == [10, 4], "by age"
        read = read_rows(tx.plans)
        assert read["sessions"] <= 6
        assert read["turns"] <= 12


async def test_open_turns_are_found_without_looking_through_all_turns(database_url: str) -> None:
    async with of_a_year(database_url) as database, database.begin() as transaction:
        await transaction.fetch(Statement("SET LOCAL plan_cache_mode = force_custom_plan", ()))
        tx = Explained(transaction)
        found = await open_turns(tx, TenantId("default"), 1)
        assert [row["session_id"].int for row in found] == [10]
        read = read_rows(tx.plans)
        assert read["turns"] <= SESSIONS // 10 + 1
        assert read["sessions"] <= 2 * read["turns"], "the tenant of each, not all sessions"


async def test_turns_that_wait_for_tools_are_counted_by_their_index_alone(database_url: str) -> None:
    async with of_a_year(database_url) as database, database.begin() as transaction:
        tx = Explained(transaction)
        counted = await count_open_turns(tx)
        assert [counted[TurnStatus.AWAITING_TOOLS].turns, len(counted)] == [SESSIONS // 10 + 1, 1]
        waiting, _running = (node for node in nodes(tx.plans[0]) if node.get("Relation Name") == "turns")
        assert (waiting["Index Name"], waiting["Node Type"]) == ("uq_turns_one_open", "Index Only Scan")


async def test_sessions_that_are_due_are_found_by_their_time_also_after_many_were(database_url: str) -> None:
    due = "UPDATE sessions SET erase_after = CASE WHEN $1 THEN now() - interval '1 day' ELSE 'infinity' END"
    async with of_a_year(database_url) as database, database.begin() as transaction:
        await transaction.execute(Statement(due, ("due",)), due=True)
        await transaction.fetch(Statement("ANALYZE sessions", ()))
        assert len(await due_sessions(transaction, 10)) == 10, "the plan was made while all were due"
        await transaction.execute(Statement(due, ("due",)), due=False)
        tx = Explained(transaction)
        assert await due_sessions(tx, 10) == []
        assert read_rows(tx.plans)["sessions"] == 0


async def test_a_list_that_begins_as_a_long_session_did_is_found_without_reading_what_followed(
    database_url: str,
) -> None:
    async with of_a_year(database_url) as database, database.begin() as transaction:
        known = "UPDATE turns SET conversation_sha256 = sha256(int8send(seq)) WHERE session_id = $1 AND seq <= 64"
        await transaction.execute(Statement(known, ("id",)), id=SESSION)
        digests = [sha256(pack(">q", seq)).digest() for seq in range(64, 0, -1)]
        tx = Explained(transaction)
        found = await turn_of_list(tx, TenantId("default"), digests, None)
        assert found is not None
        assert (found.place, found.is_last, found.is_repeated) == (0, False, False), "the newest beginning"
        assert read_rows(tx.plans)["turns"] <= 3 * 64


async def test_of_very_many_sessions_that_begin_alike_only_the_newest_are_looked_at(database_url: str) -> None:
    """40,000 that began with "Hi" and the same reply took a quarter of a second in each turn of any of them."""
    many = """
        INSERT INTO sessions (id, tenant_id, model_alias, policy, metadata)
        SELECT u(s), 'default', 'm', '{}', '{}' FROM generate_series(1000, 3999) s;
    """
    begun = """
        INSERT INTO turns (
            id, session_id, seq, status, user_input, assistant_output, model_alias, request_sha256, conversation_sha256)
        SELECT gen_random_uuid(), u(s), t, 'completed', 'Hi', 'Hello!', 'm', '', sha256(int8send(t))
        FROM generate_series(1000, 3999) s, generate_series(1, CASE s WHEN 3900 THEN 1 ELSE 2 END) t
    """
    async with of_a_year(database_url) as database, database.begin() as transaction:
        await transaction.execute(Statement(many, ()))
        await transaction.execute(Statement(begun, ()))
        await transaction.fetch(Statement("ANALYZE turns", ()))
        tx, first = Explained(transaction), sha256(pack(">q", 1)).digest()
        found = await turn_of_list(tx, TenantId("default"), [first], None)
        assert found is not None
        assert (found.session_id.int, found.is_last, found.place) == (3900, True, 0)
        read = read_rows(tx.plans)
        assert read["sessions"] <= 256
        assert read["turns"] <= 3 * 256
        unknown = sha256(b"unknown").digest()
        assert await turn_of_list(tx, TenantId("default"), [unknown, first], None) == replace(found, place=1)


@pytest.mark.parametrize("analyzed", [False, True])
async def test_what_follows_a_gap_of_message_numbers_is_read_in_slices_too(database_url: str, analyzed: bool) -> None:
    async with filled(database_url, analyzed=analyzed) as database, database.begin() as transaction:
        move = "UPDATE messages SET seq = seq + 100000 WHERE session_id = $1 AND seq > 60"
        await transaction.execute(Statement(move, ("id",)), id=SESSION)
        tx = Explained(transaction)
        through_seq = 100_000 + MESSAGES - 4
        columns = await settled_columns(tx, SESSION, 40, through_seq, "ours", as_it_is, unlimited, slice_messages=50)
        assert columns.turn_seqs[-1] == (MESSAGES - 4) // 2
        scans = [node for plan in tx.plans for node in nodes(plan) if node.get("Relation Name") == "messages"]
        assert max(node["Actual Rows"] for node in scans) <= 128


def test_no_statement_leaves_it_to_the_server_whether_a_not_in_becomes_a_join() -> None:
    """PostgreSQL 19 makes an anti join of it; `IN (…) IS NOT TRUE` is a lookup in a hash in all versions."""
    statements = {path.name: path.read_text() for path in Path(db.__file__).parent.glob("*.py")}
    assert "messages.py" in statements
    assert not [name for name, text in statements.items() if re.search(r"NOT IN \(\s*SELECT", text)]
