"""A standby took over without the primary's last commits, or the database was set back to an older backup: workers that
go on have cached more of a session than is stored, and its numbers are given again, to other messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from app.domain.types import SessionId
from app.services.pasts import Pasts
from app.services.views.search import search_session
from app.services.views.turns import get_prompt, list_turns
from tests.providers.server import Answer, Seen, serving
from tests.services.meaning import POLICY, answers, models_with
from tests.services.service import OLDEST, Service, chat, model, models_toml, ref_of, service
from tests.services.test_tools import TOOLS, calls

_LOSE_TURNS = """
    WITH lost AS (DELETE FROM turns WHERE session_id = :session_id AND seq > :turn_seq RETURNING id),
    gone AS (DELETE FROM messages WHERE session_id = :session_id AND turn_id IN (SELECT id FROM lost)),
    summaries AS (DELETE FROM session_summaries WHERE session_id = :session_id),
    vectors AS (DELETE FROM message_vectors WHERE session_id = :session_id),
    audits AS (DELETE FROM turn_context_audit WHERE session_id = :session_id AND turn_id IN (SELECT id FROM lost))
    UPDATE sessions SET last_turn_seq = :turn_seq, last_message_seq = (
        SELECT max(seq) FROM messages
        WHERE session_id = :session_id AND turn_id NOT IN (SELECT id FROM lost))
    WHERE id = :session_id RETURNING last_message_seq
    """

_LOSE_ROUNDS = """
    WITH gone AS (DELETE FROM messages WHERE session_id = :session_id AND seq > :message_seq),
    audits AS (DELETE FROM turn_context_audit WHERE session_id = :session_id AND round > :round)
    UPDATE sessions SET last_message_seq = :message_seq WHERE id = :session_id RETURNING id
    """


def _answer(request: Seen) -> Answer:
    return chat("Noted: " + str(request.json["messages"][-1]["content"]))


@pytest.mark.parametrize("goes_on_at_once", [True, False])
async def test_a_worker_sends_what_is_stored_after_commits_that_it_has_cached_were_lost(
    database_url: str, tmp_path: Path, goes_on_at_once: bool
) -> None:
    async with (
        serving(model(_answer)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        other = Service(replace(at.rt, pasts=Pasts(1 << 24, monotonic, at.rt.telemetry)))
        session_id: SessionId = (await at.session()).id
        for number in range(6):
            await at.turn(session_id, f"Lost {number}." if number > 1 else f"Kept {number}.")
        await at.rows(_LOSE_TURNS, session_id=session_id, turn_seq=2)
        users = ["Kept 0.", "Kept 1."]
        for number in range(8):
            worker = at if number == 7 or (number == 0 and goes_on_at_once) else other
            users.append(f"New {number}.")
            await worker.turn(session_id, users[-1])
            sent = [message["content"] for message in server.seen[-1].json["messages"] if message["role"] == "user"]
            assert sent == users
        for turn in (await list_turns(at.rt, ref_of(session_id), OLDEST)).items:
            await get_prompt(at.rt, ref_of(session_id), turn.id, None)  # rebuilt, and held against its hash


async def test_a_round_sends_what_is_stored_after_rounds_of_its_turn_were_lost(
    database_url: str, tmp_path: Path
) -> None:
    def answer(request: Seen) -> Answer:
        return calls(f"call {len(request.json['messages'])}")

    async with serving(model(answer)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        other = Service(replace(at.rt, pasts=Pasts(1 << 24, monotonic, at.rt.telemetry)))
        session_id = (await at.session()).id
        turn = (await at.turn(session_id, "Look.", tools=TOOLS)).turn
        for number in range(8):
            turn = (await at.outputs(session_id, turn.id, {turn.tool_calls[0].id: f"Lost {number}."})).turn
        await at.rows(_LOSE_ROUNDS, session_id=session_id, message_seq=10, round=5)
        open_call = "call 9"
        for number in range(8):
            worker = at if number == 7 else other  # by then it has as many messages again
            turn = (await worker.outputs(session_id, turn.id, {open_call: f"New {number}."})).turn
            open_call = turn.tool_calls[0].id
        sent = [message["content"] for message in server.seen[-1].json["messages"] if message["role"] == "tool"]
        assert sent == [f"Lost {number}." for number in range(4)] + [f"New {number}." for number in range(8)]
        await get_prompt(at.rt, ref_of(session_id), turn.id, None)  # rebuilt, and held against its hash


async def test_messages_get_vectors_after_commits_with_those_of_their_numbers_were_lost(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(answers()) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        session_id = (await at.session(policy=POLICY)).id
        made: list[list[int]] = []
        for _ in range(2):
            for number in range(9):
                await at.turn(session_id, f"The weather of day {number}.")
                await at.rt.chores.settle()
            rows = await at.rows(
                "SELECT message_seq AS seq FROM message_vectors WHERE session_id = :id ORDER BY 1", id=session_id
            )
            made.append([row["seq"] for row in rows])
            await at.rows(_LOSE_TURNS, session_id=session_id, turn_seq=1)
        assert len(made[0]) > 6
        assert made[1][: len(made[0])] == made[0]


@pytest.mark.parametrize("has_past", [True, False], ids=["with the past", "the index alone"])
async def test_a_search_finds_what_is_stored_after_commits_that_its_worker_has_indexed_were_lost(
    database_url: str, tmp_path: Path, *, has_past: bool
) -> None:
    async with (
        serving(model(_answer)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        other = Service(replace(at.rt, pasts=Pasts(1 << 24, monotonic, at.rt.telemetry)))
        session_id = (await at.session()).id
        for number in range(6):
            await (at if has_past else other).turn(session_id, f"Lost {number} zebra.")

        async def found(words: str) -> list[int]:
            return [row.turn_seq for row in (await search_session(at.rt, ref_of(session_id), words, 50)).items]

        assert sorted({*await found("zebra")}) == [1, 2, 3, 4, 5, 6]
        await at.rows(_LOSE_TURNS, session_id=session_id, turn_seq=2)
        for number in range(8):
            await other.turn(session_id, f"New {number} okapi.")
        assert sorted({*await found("zebra")}) == [1, 2]
        assert sorted({*await found("okapi")}) == [3, 4, 5, 6, 7, 8, 9, 10]
