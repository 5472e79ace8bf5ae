"""Recall over a real database: what left the window and matches comes back, in its place, its log and its replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from app.domain.types import MessageId, SessionId, TurnId
from app.engine.policy.policy import ContextPolicy, Recall
from app.engine.recall.bm25 import Query
from app.engine.recall.index import EMPTY, Packed, packed_terms, packed_text
from app.engine.recall.ranking import candidates
from app.engine.recall.terms import MOST_TERMS_OF_A_MESSAGE
from app.engine.window.recalled import RECALL_NOTE
from app.services import pasts
from app.services.archive.transfer import export_session, fork_session
from app.services.pasts import Pasts
from app.services.sessions import delete_session
from app.services.turn import recall
from app.services.turn.recall import extended_index, settled_index
from app.services.views.context import read_timeline, window_now
from app.services.views.search import search_session
from app.services.views.turns import get_audit, get_prompt
from app.telemetry.metrics import Telemetry
from tests.providers.server import Seen, serving
from tests.services.service import NEWEST, Service, chat, model, models_toml, ref_of, service

FACTS = (
    "My sister Ottilie keeps bees behind the lighthouse.",
    "The invoice of the harbour crane is number 4711.",
    "We painted the boathouse green last August.",
    "Please always answer in short sentences.",
)


def _reply(request: Seen) -> Any:
    return chat(
        f"Noted {len(str(request.json['messages'][-1]['content']))}. " + "The clouds drift on and nobody minds. " * 6
    )


async def _talked(at: Service, turns: int = 10, **fields: Any) -> SessionId:
    """A session whose facts have been said, and summarized away by what was said after them."""
    session = await at.session(**fields)
    for number in range(turns):
        said = FACTS[number] if number < len(FACTS) else f"Small talk about the weather, part {number}."
        await at.turn(session.id, said)
    return session.id


_OF_MANY_WORDS = " ".join(map("word{}".format, range(MOST_TERMS_OF_A_MESSAGE)))
_MORE_MESSAGES = """
    INSERT INTO messages (id, session_id, turn_id, seq, role, content, token_estimate, token_encoding, terms)
    SELECT gen_random_uuid(), s.id, t.id, s.last_message_seq + number, 'user', '"said"', 3, 'o200k_base', :terms
    FROM sessions s JOIN turns t ON t.session_id = s.id AND t.seq = s.last_turn_seq,
        generate_series(1, CAST(:messages AS int)) AS number
    WHERE s.id = :session_id
    """


async def _contents(at: Service, session_id: SessionId, turn_id: TurnId) -> list[str]:
    prompt = await get_prompt(at.rt, ref_of(session_id), turn_id, None)
    return [message["content"] for message in prompt.messages]


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
async def test_what_left_the_window_comes_back_verbatim_just_before_the_question_and_is_logged_and_replayed(
    database_url: str, tmp_path: Path, encoding: str
) -> None:
    models = f'encoding = "{encoding}"\n'
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192, extra=models), folder=tmp_path) as at,
    ):
        session_id = await _talked(at)
        outcome = await at.turn(session_id, "Where does Ottilie keep her bees?")
        sent = [message["content"] for message in server.seen[-1].json["messages"]]
        assert sent[-1] == "Where does Ottilie keep her bees?"
        assert FACTS[0] in sent[sent.index(RECALL_NOTE) : -1]
        log = outcome.context["context_trim_log"]
        stored = {row["id"]: row["content"] for row in await at.rows("SELECT id, content FROM messages")}
        recalled = [stored[MessageId(type(next(iter(stored)))(row["message_id"]))] for row in log["recalled"]]
        assert sent[sent.index(RECALL_NOTE) + 1 : -1] == recalled
        assert outcome.context["regions"]["recall"] > 0
        assert sum(outcome.context["regions"].values()) == outcome.context["estimated_wire_tokens"]
        assert await _contents(at, session_id, outcome.turn.id) == sent
        audit = await get_audit(at.rt, ref_of(session_id), outcome.turn.id, None)
        assert (audit.context_trim_log, audit.regions) == (log, outcome.context["regions"])
        assert list(audit.public()) == list(outcome.context)
        point = (await read_timeline(at.rt, ref_of(session_id), NEWEST)).items[0]
        assert point.window
        assert point.window.regions == outcome.context["regions"]
        recalls = [event for event in point.events if event["kind"] == "recall"]
        assert [event["count"] for event in recalls] == [len(recalled)]
        (row,) = await at.rows("SELECT context_trim_log FROM turn_context_audit ORDER BY turn_id DESC LIMIT 1")
        assert row["context_trim_log"].keys() == {"actions", "recalled"}
        assert not outcome.context["summary_triggered"]


async def test_what_a_summary_takes_in_can_come_back_in_the_very_turn_it_was_made_for(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at, turns=8)
        outcome = await at.turn(session_id, "Which number has the invoice of the crane?")
        assert outcome.context["summary_triggered"]
        assert FACTS[1] in await _contents(at, session_id, outcome.turn.id)


async def test_a_turn_before_anything_was_evicted_looks_for_nothing(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at, turns=5)
        outcome = await at.turn(session_id, "Where does Ottilie keep her bees?")
        assert "recalled" not in outcome.context["context_trim_log"]
        assert at.rt.pasts.index(session_id, 0) is EMPTY


async def test_without_recall_in_the_policy_nothing_comes_back(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at, policy={"recall": {"enabled": False}})
        outcome = await at.turn(session_id, "Where does Ottilie keep her bees?")
        assert outcome.context["regions"]["recall"] == 0
        assert RECALL_NOTE not in await _contents(at, session_id, outcome.turn.id)
        assert at.rt.pasts.index(session_id, 0) is EMPTY


async def test_every_message_is_stored_with_its_packed_terms(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        await _talked(at, turns=3)
        rows = await at.rows("SELECT role, content, terms FROM messages")
        assert len(rows) == 6
        assert all(row["terms"] == packed_terms(row["role"], row["content"]) for row in rows)


async def test_messages_without_packed_terms_get_them_a_batch_a_turn_and_are_found_at_once(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "PACKED_A_TURN", 5)
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at)
        await at.rows("UPDATE messages SET terms = NULL")
        at.rt.pasts.forget(session_id)
        (active,) = await at.rows("SELECT to_message_seq FROM session_summaries WHERE status = 'active'")
        assert 5 < active["to_message_seq"] <= 10
        packed = "SELECT seq FROM messages WHERE terms IS NOT NULL AND seq <= 20"
        await at.turn(session_id, "Where does Ottilie keep her bees?")
        assert {row["seq"] for row in await at.rows(packed)} == set(range(1, 6))
        assert FACTS[0] in [message["content"] for message in server.seen[-1].json["messages"]]
        assert at.rt.pasts.index(session_id, 0) is EMPTY, "what is not complete is not kept"
        await at.turn(session_id, "Where does Ottilie keep her bees?")
        assert {row["seq"] for row in await at.rows(packed)} == set(range(1, active["to_message_seq"] + 1))
        assert at.rt.pasts.index(session_id, 0) is not EMPTY


async def test_looking_at_a_window_packs_nothing(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at)
        await at.rows("UPDATE messages SET terms = NULL")
        await window_now(at.rt, ref_of(session_id))
        assert await at.rows("SELECT 1 FROM messages WHERE terms IS NOT NULL") == []


async def test_messages_that_a_raw_window_holds_again_are_not_recalled_beside_it(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at)
        await at.rows("UPDATE session_summaries SET status = 'undone'")
        outcome = await at.turn(session_id, "Where does Ottilie keep her bees?")
        contents = await _contents(at, session_id, outcome.turn.id)
        assert contents.count(FACTS[0]) == 1


async def test_a_warm_process_recalls_what_a_cold_one_does_and_reads_only_what_is_new(
    database_url: str, tmp_path: Path
) -> None:
    """Another worker is another `Pasts`: it knows nothing of the session, or not its newest messages."""
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at)
        other = Pasts(2**20, lambda: 0.0, at.rt.telemetry)
        for last_seq in (8, 8, 20, 12):
            async with at.rt.database.begin() as tx:
                warm, _ = await settled_index(other, tx, session_id, 0, last_seq)
                cold, unpacked = await extended_index(tx, session_id, EMPTY, last_seq, other.most_index_bytes)
            assert unpacked == 0
            assert other.index(session_id, 0) is warm
            assert warm.through_seq == max(last_seq, warm.through_seq)
            assert warm.seqs[: len(cold)].tolist() == cold.seqs.tolist()
            for asked in ("Where does Ottilie keep her bees?", "weather part 6 noted", "What is green and noted?"):
                found = [candidates(i, Query(asked, last_seq), 4000, 0.05) for i in (warm, cold)]
                assert found[0] == found[1]
                assert found[0]


async def test_of_a_very_long_session_the_newest_messages_are_searched_and_the_others_are_counted(
    database_url: str, tmp_path: Path
) -> None:
    """Its index took more than the cache holds, and was read and made again by every turn."""
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at)
        session = ref_of(session_id)
        assert (await search_session(at.rt, session, "Where does Ottilie keep bees?", 5)).items
        newest = f"The heron nests on the weir. {_OF_MANY_WORDS}"
        await at.rows(_MORE_MESSAGES, session_id=session_id, messages=20_000, terms=packed_terms("user", newest))
        await at.rows("UPDATE sessions SET last_message_seq = last_message_seq + 20000")

        found = await search_session(at.rt, session, "Where does Ottilie keep bees?", 5)
        assert not found.items
        kept = at.rt.pasts.index(session_id, 0)
        assert kept.size_bytes <= 2 * at.rt.pasts.most_index_bytes < 20_000 * 8 * MOST_TERMS_OF_A_MESSAGE
        assert (found.unsearched_messages, found.searched_messages) == (20_020 - len(kept), len(kept))
        assert (await search_session(at.rt, session, "heron weir", 5)).items
        assert at.rt.pasts.index(session_id, 0) is kept, "it is kept, and not read again"


async def test_a_fork_has_its_terms_at_once(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        fork = await fork_session(at.rt, ref_of(await _talked(at)), None)
        assert await at.rows("SELECT 1 FROM messages WHERE session_id = :fork AND terms IS NULL", fork=fork.id) == []
        outcome = await at.turn(fork.id, "Where does Ottilie keep her bees?")
        assert FACTS[0] in await _contents(at, fork.id, outcome.turn.id)


async def test_a_fork_from_the_middle_finds_what_was_said_in_itself(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        source = await _talked(at)
        await at.turn(source, "Where does Ottilie keep her bees?")
        (second,) = await at.rows("SELECT id FROM turns WHERE seq = 2")
        assert at.rt.pasts.index(source, 0).through_seq > 4
        fork = (await fork_session(at.rt, ref_of(source), second["id"])).id
        for number in range(9):
            await at.turn(fork, "The grain silo has nine ladders." if not number else f"Talk of hats, part {number}.")
        outcome = await at.turn(fork, "How many ladders has the grain silo?")
        assert "The grain silo has nine ladders." in await _contents(at, fork, outcome.turn.id)


async def test_what_was_taken_back_or_rejected_does_not_come_back(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at)
        await at.turn(session_id, "Where does Ottilie keep her bees, and where is the boathouse?")
        assert at.rt.pasts.index(session_id, 0) is not EMPTY
        await at.rows("UPDATE messages SET withdrawn = true WHERE seq = 1")
        await at.rows("UPDATE turns SET status = 'rejected' WHERE seq = 3")
        outcome = await at.turn(session_id, "Where does Ottilie keep her bees, and where is the boathouse?")
        contents = await _contents(at, session_id, outcome.turn.id)
        assert FACTS[0] not in contents
        assert FACTS[2] not in contents


async def test_an_erased_session_leaves_no_past_behind(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at)
        await at.turn(session_id, "Where does Ottilie keep her bees?")
        assert at.rt.pasts.size_bytes > 0
        await delete_session(at.rt, ref_of(session_id))
        assert at.rt.pasts.size_bytes == 0


def test_cached_pasts_stay_within_their_bytes_and_are_evicted_when_unused() -> None:
    """The rule for what another process erased."""
    now = [0.0]
    telemetry = Telemetry(())
    one, two, three = (SessionId(UUID(int=number)) for number in (1, 2, 3))
    index = EMPTY.extended(Packed(np.arange(1, 101), np.full(100, 5), packed_text("bees and cranes") * 100), 100)
    entry_bytes = index.size_bytes + pasts.ENTRY_BYTES
    kept = Pasts(2 * entry_bytes, lambda: now[0], telemetry)
    for session_id in (one, two):
        kept.keep_index(session_id, index, 0)
    assert kept.index(one, 0) is index
    kept.keep_index(three, index, 0)
    assert kept.index(two, 0) is EMPTY, "used longest ago"
    assert kept.size_bytes == 2 * entry_bytes
    assert f"session_cache_bytes {float(kept.size_bytes)}" in telemetry.render()[0].decode()
    now[0] = pasts.IDLE_S / 2
    assert kept.index(one, 0) is index
    now[0] = pasts.IDLE_S
    kept.forget_idle()
    assert (kept.index(three, 0), kept.index(one, 0)) == (EMPTY, index)
    assert kept.size_bytes == entry_bytes
    terms = packed_text(_OF_MANY_WORDS) * 11_000
    kept.keep_index(three, EMPTY.extended(Packed(np.arange(11_000), np.full(11_000, 5), terms), 11_000), 0)
    assert kept.index(three, 0) is EMPTY, "the next turn reads a smaller one"
    nothing = Pasts(0, lambda: now[0], telemetry)
    nothing.keep_index(one, index, 0)
    assert nothing.index(one, 0) is EMPTY


async def test_a_preset_without_recall_can_switch_it_on(database_url: str, tmp_path: Path) -> None:
    policy = ContextPolicy(recall=Recall(enabled=False))
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path, policy=policy) as at,
    ):
        session_id = await _talked(at, policy={"recall": {"enabled": True, "min_score_ratio": 0.9}})
        outcome = await at.turn(session_id, "Where does Ottilie keep her bees?")
        assert [row["score"] > 0 for row in outcome.context["context_trim_log"]["recalled"]] == [True]


async def test_an_export_names_what_was_recalled_as_any_messages(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at)
        outcome = await at.turn(session_id, "Where does Ottilie keep her bees?")
        audits = [
            row
            async for section, rows in export_session(at.rt, ref_of(session_id))
            if section == "audits"
            for row in rows
        ]
        assert audits[-1]["context_trim_log"] == outcome.context["context_trim_log"]
        assert {item[0] for row in audits for item in row["prompt_refs"]["items"]} <= {"b", "m"}
        assert ["recall", len(outcome.context["context_trim_log"]["recalled"]) + 1] in audits[-1]["prompt_refs"][
            "regions"
        ]
