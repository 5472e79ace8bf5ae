"""Large windows are read in bounded slices, and the bytes that a process holds for windows are bounded too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.db.database import Record, Transaction
from app.db.messages import window_turns
from app.db.sql import Statement
from app.domain.errors import InvalidRequest, ProcessBusy
from app.domain.types import SessionId
from app.services.turn.gather import session_window
from tests.providers.server import Answer, serving
from tests.services.service import Service, chat, models_toml, ref_of, service

MIB = 1024 * 1024


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
        """UPDATE messages SET content = to_jsonb(repeat('x', x.size))
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
            with pytest.raises(InvalidRequest, match="4194304 bytes"):
                await at.turn(session_id, "Hello?")
            with pytest.raises(InvalidRequest, match="4194304 bytes"):
                await session_window(at.rt, ref_of(session_id))
        assert (await at.rows("SELECT count(*) AS turns FROM turns"))[0]["turns"] == 5
        assert not server.seen
        small = await with_messages(at, [10] * 10)
        assert (await at.turn(small, "Hello?")).turn.assistant_output == "Yes.", "the refused ones hold nothing"


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
