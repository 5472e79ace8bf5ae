"""What a process reads of large messages is bounded: windows by slices and in all, lists by pages that end earlier."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from app.db.database import Transaction
from app.db.driver import Record
from app.db.messages import window_turns
from app.db.recall import found_messages
from app.db.sql import Statement
from app.domain.errors import InvalidRequest, ProcessBusy
from app.domain.responses import item_id, read_item_id
from app.domain.types import Pin, Session, SessionId, TurnStatus
from app.services.archive.transfer import fork_session
from app.services.openai.conversations import page_of_items, withdraw_item
from app.services.paging import Page, PageRequest
from app.services.sessions import list_sessions, put_pin, search_sessions
from app.services.turn.gather import session_window
from app.services.views.search import search_messages, search_session
from app.services.views.turns import get_messages, list_messages, list_turns
from tests.providers.server import Answer, serving
from tests.services.service import TENANT, Service, chat, models_toml, ref_of, service

MIB = 1024 * 1024
Item = TypeVar("Item")


class Noted(Transaction):
    """Notes how many bytes of content each statement read, and refuses statements without end."""

    def __init__(self, of: Transaction) -> None:
        super().__init__(of._connection)  # pyright: ignore[reportPrivateUsage] - the same transaction, watched
        self.read: list[int] = []

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Record]:
        rows = await super().fetch(statement, **parameters)
        self.read.append(sum(len(row["content"] or "") for row in rows if "content" in dict(row)))
        assert len(self.read) < 500, "statements of empty ranges"
        return rows


async def with_messages(at: Service, sizes: list[int]) -> SessionId:
    """A session of short messages that are made these sizes; what is stored compresses to next to nothing."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": "Hello."} for number in range(len(sizes))]
    session = await at.imported({"messages": messages})
    await at.rows(
        """UPDATE messages SET content = CAST('"' || repeat('x', x.size) || '"' AS jsonb)
           FROM unnest(CAST(:sizes AS int[])) WITH ORDINALITY AS x(size, seq)
           WHERE session_id = :id AND messages.seq = x.seq RETURNING id""",
        id=session.id,
        sizes=sizes,
    )
    return session.id


async def read(at: Service, session_id: SessionId, last_seq: int) -> tuple[list[int], list[int], int]:
    """The sizes of the messages that a window has, the bytes that each statement read, and those that were counted."""
    taken: list[int] = []
    async with at.rt.database.autocommit() as tx:
        noted = Noted(tx)
        turns = await window_turns(noted, session_id, 0, last_seq, "any", step_failed=False, take_bytes=taken.append)
    return [len(str(message.content)) for turn in turns for message in turn.messages], noted.read, sum(taken)


@pytest.mark.parametrize(
    "sizes",
    [[300_000] * 60, [10] * 300 + [3 * MIB] * 6, [10] * 16 + [9 * MIB, 10, 9 * MIB], [10] * 16, [10] * 145, [10] * 10],
)
async def test_no_statement_reads_more_of_a_window_than_a_slice_or_one_message(
    database_url: str, sizes: list[int]
) -> None:
    async with service(database_url) as at:
        session_id = await with_messages(at, sizes)
        found, read_bytes, taken = await read(at, session_id, len(sizes))
        assert found == sizes
        assert max(read_bytes) <= max(8 * MIB, *sizes)
        assert sum(sizes) <= taken <= sum(sizes) + 2 * len(sizes), "with the quotation marks"


async def test_a_gap_of_message_numbers_costs_no_statements(database_url: str) -> None:
    """An import of an earlier version could leave any gap."""
    async with service(database_url) as at:
        session_id = await with_messages(at, [10] * 20)
        for seq in (20, 19, 18):
            await at.rows(
                "UPDATE messages SET seq = seq + 1000000000000 WHERE session_id = :id AND seq = :seq RETURNING seq",
                id=session_id,
                seq=seq,
            )
        found, read_bytes, _ = await read(at, session_id, 2_000_000_000_000)
        assert found == [10] * 20
        assert len(read_bytes) < 10


async def test_a_window_that_alone_is_over_the_share_is_refused_and_nothing_is_stored(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(chat("Yes.")) as server,
        service(database_url, models_toml(server), folder=tmp_path, max_windows_bytes=4 * MIB) as at,
    ):
        session_id = await with_messages(at, [MIB // 2] * 10)
        for _ in range(3):
            with pytest.raises(InvalidRequest, match=r"4194304 bytes\. Fork .* or delete its largest items"):
                await at.turn(session_id, "Hello?")
            with pytest.raises(InvalidRequest, match="4194304 bytes"):
                await session_window(at.rt, ref_of(session_id))
        assert (await at.rows("SELECT count(*) AS turns FROM turns"))[0]["turns"] == 5
        assert not server.seen
        small = await with_messages(at, [10] * 10)
        assert (await at.turn(small, "Hello?")).turn.assistant_output == "Yes.", "the refused ones hold nothing"
        turns = await list_turns(at.rt, ref_of(session_id), PageRequest(10, None, newest_first=False), 1)
        forked = await fork_session(at.rt, ref_of(session_id), turns.items[2].id)
        assert (await at.turn(forked.id, "Hello?")).turn.assistant_output == "Yes."
        for seq in range(1, 5):
            await withdraw_item(at.rt, ref_of(session_id), item_id("msg", session_id, seq))
        assert (await at.turn(session_id, "Hello?")).turn.assistant_output == "Yes."


async def test_windows_share_the_bytes_of_a_process_until_their_turns_end(database_url: str, tmp_path: Path) -> None:
    claimed, may_answer = asyncio.Event(), asyncio.Event()
    answers = [Answer(chat("Yes.").body, after=may_answer.is_set), chat("Yes.")]
    async with (
        serving(*answers) as server,
        service(database_url, models_toml(server), folder=tmp_path, max_windows_bytes=4 * MIB) as at,
    ):
        sessions = [await with_messages(at, [MIB // 2] * 5) for _ in range(2)]
        waiting = asyncio.create_task(at.turn(sessions[0], "Hello?", listen=lambda _: claimed.set()))
        await claimed.wait()
        with pytest.raises(ProcessBusy, match="bytes of windows"):
            await at.turn(sessions[1], "Hello?")
        may_answer.set()
        await waiting
        assert (await at.turn(sessions[1], "Hello?")).turn.assistant_output == "Yes."


@pytest.mark.parametrize("large", ["pins", "instructions", "goal"])
async def test_pins_instructions_and_goal_are_bytes_of_a_window(database_url: str, tmp_path: Path, large: str) -> None:
    """Twelve turns that waited for a model each kept 16 MB of pins, of which a policy with shares sent a little."""
    claimed, may_answer = asyncio.Event(), asyncio.Event()
    answers = [Answer(chat("Yes.").body, after=may_answer.is_set), chat("Yes.")]
    async with (
        serving(*answers) as server,
        service(database_url, models_toml(server, window=2_000_000), folder=tmp_path, max_windows_bytes=4 * MIB) as at,
    ):
        text = "word " * (MIB // 2)
        fields = {"instructions": {"instructions": text}, "goal": {"room_goal": text}}.get(large, {})
        sessions = [await at.session(**fields) for _ in range(2)]
        for session in sessions if large == "pins" else ():
            await put_pin(at.rt, ref_of(session.id), Pin("p", text))
        waiting = asyncio.create_task(at.turn(sessions[0].id, "Hello?", listen=lambda _: claimed.set()))
        await claimed.wait()
        with pytest.raises(ProcessBusy, match="bytes of windows"):
            await at.turn(sessions[1].id, "Hello?")
        may_answer.set()
        await waiting
        assert (await at.turn(sessions[1].id, "Hello?")).turn.assistant_output == "Yes."


async def listed(page: Callable[[PageRequest], Awaitable[Page[Item]]], *, newest_first: bool) -> list[list[Item]]:
    """The items of all pages of a list, page by page."""
    pages: list[list[Item]] = []
    cursor: str | None = None
    while not pages or cursor:
        found = await page(PageRequest(200, cursor, newest_first))
        pages.append(found.items)
        cursor = found.next_cursor
        assert len(pages) < 50
    return pages


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("sizes", [[3 * MIB] * 7, [10] * 9 + [9 * MIB] * 3 + [10] * 4, [10] * 8])
async def test_a_page_ends_before_it_grows_too_large_and_its_cursor_continues_there(
    database_url: str, sizes: list[int], *, newest_first: bool
) -> None:
    async with service(database_url) as at:
        session_id = await with_messages(at, sizes)
        of_messages = await listed(partial(list_messages, at.rt, ref_of(session_id)), newest_first=newest_first)
        found = [len(str(message.content)) for page in of_messages for message in page]
        assert found == (sizes[::-1] if newest_first else sizes)
        assert all(len(page) <= 2 or sum(len(str(each.content)) for each in page) <= 8 * MIB for page in of_messages)
        assert (len(of_messages) == 1) == (sum(sizes) < 8 * MIB)

        ids = [message.id for page in of_messages for message in page]
        if sum(sizes) < 8 * MIB:
            assert len((await get_messages(at.rt, ref_of(session_id), ids)).items) == len(sizes)
        else:
            with pytest.raises(InvalidRequest, match="fit on one page"):
                await get_messages(at.rt, ref_of(session_id), ids)

        seqs: list[int] = []
        cursor, more = None, True
        while more:
            items, more = await page_of_items(at.rt, ref_of(session_id), PageRequest(100, cursor, newest_first))
            cursor = items[-1]["id"]
            seqs += [at_item[1] for item in items if (at_item := read_item_id(item["id"]))]
        assert seqs == sorted(range(1, len(sizes) + 1), reverse=newest_first)


async def test_lists_of_turns_and_sessions_end_a_page_before_it_grows_too_large(database_url: str) -> None:
    async with service(database_url) as at:
        session_id = await with_messages(at, [10] * 12)
        await at.rows("UPDATE turns SET user_input = repeat('x', 3000000) RETURNING id")
        pages = await listed(partial(list_turns, at.rt, ref_of(session_id)), newest_first=False)
        assert [[turn.seq for turn in page] for page in pages] == [[1, 2], [3, 4], [5, 6]]
        sessions = [(await at.session(instructions="x" * 3_000_000)).id for _ in range(5)]
        listed_sessions = await listed(partial(list_sessions, at.rt, TENANT), newest_first=False)
        assert [len(page) for page in listed_sessions] == [3, 2, 1]
        assert [each.id for page in listed_sessions for each in page] == [session_id, *sessions]

        async def searched(wanted: PageRequest) -> Page[Session]:
            return await search_sessions(at.rt, TENANT, "0", wanted.limit, wanted.cursor)

        found_sessions = await listed(searched, newest_first=True)
        assert [len(page) for page in found_sessions] == [2, 2, 2]
        assert [each.id for page in found_sessions for each in page] == [session_id, *sessions][::-1]


async def test_a_turn_and_a_search_end_in_a_session_with_a_gap_of_message_numbers(database_url: str) -> None:
    """An import of an earlier version could leave any gap."""
    async with service(database_url) as at:
        session_id = await with_messages(at, [20] * 60)
        last_seq = 1_000_000_000_060
        await at.rows("UPDATE messages SET seq = seq + 1000000000000 WHERE seq > 21 RETURNING seq")
        await at.rows("UPDATE sessions SET last_message_seq = :seq RETURNING id", seq=last_seq)
        async with asyncio.timeout(20):
            turn = await at.turn(session_id, "Hello?")
            found = await search_session(at.rt, ref_of(session_id), "Hello", 5)
        assert turn.turn.status is TurnStatus.COMPLETED
        assert found.items[0].seq == last_seq + 1


async def test_a_search_of_a_session_reads_its_best_matches_page_by_page(database_url: str) -> None:
    async with service(database_url) as at:
        session_id = await with_messages(at, [3 * MIB] * 9)
        await at.rows("UPDATE messages SET withdrawn = true WHERE seq = 8 RETURNING seq")
        async with at.rt.database.autocommit() as tx:
            page = await found_messages(noted := Noted(tx), session_id, [5, 8, 3, 9, 1], 4)
        assert ([row["seq"] for row in page.rows], page.has_more) == ([5, 3], True)
        assert max(noted.read) <= 8 * MIB
        found = await search_session(at.rt, ref_of(session_id), "Hello", 6)
        assert [item.seq for item in found.items] == [9, 7, 6, 5, 4, 3]
        assert not any(item.complete for item in found.items)


async def test_a_page_of_found_messages_ends_before_it_grows_too_large(database_url: str) -> None:
    async with service(database_url) as at:
        sessions = [await with_messages(at, [3 * MIB] * 4) for _ in range(4)]
        found: list[tuple[SessionId, int]] = []
        cursor = None
        while not found or cursor:
            page = await search_messages(at.rt, TENANT, "XX", 50, cursor)
            assert len(page.items) <= 2
            found += [(item.session_id, item.seq) for item in page.items]
            cursor = page.next_cursor
        assert found == [(session_id, seq) for session_id in reversed(sessions) for seq in (4, 3, 2)]
