"""Recall over a real database: what left the window and matches comes back, in its place, its log and its replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.db.recall import SearchBounds, add_postings, find_evicted
from app.domain.content import content_text
from app.domain.types import MessageId, SessionId, Turn, TurnId, TurnStatus
from app.engine.policy.policy import ContextPolicy, Recall
from app.engine.recall.ranking import match, rarity
from app.engine.recall.terms import query_terms, weighed_terms
from app.engine.simulation.recall_shelf import Shelf
from app.engine.window.recalled import RECALL_NOTE
from app.services.turn import recall
from app.services.views.context import window_now
from app.services.views.turns import get_audit, get_prompt
from bench.fidelity.recorded import numbered_message
from tests.providers.server import Seen, serving
from tests.services.service import TENANT, Service, chat, model, models_toml, service

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


async def _contents(at: Service, session_id: SessionId, turn_id: TurnId) -> list[str]:
    prompt = await get_prompt(at.rt, TENANT, session_id, turn_id, None)
    return [message["content"] for message in prompt["messages"]]


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
        assert (await get_audit(at.rt, TENANT, session_id, outcome.turn.id, None)).context_trim_log == log
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
        assert await at.rows("SELECT 1 FROM message_terms") == []


async def test_without_recall_in_the_policy_nothing_comes_back_and_nothing_is_indexed(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at, policy={"recall": {"enabled": False}})
        outcome = await at.turn(session_id, "Where does Ottilie keep her bees?")
        assert outcome.context["regions"]["recall"] == 0
        assert RECALL_NOTE not in await _contents(at, session_id, outcome.turn.id)
        assert await at.rows("SELECT 1 FROM message_terms") == []


async def test_a_session_that_was_never_indexed_is_caught_up_with_a_batch_a_turn(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "CATCH_UP_MESSAGES", 5)
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at)
        await at.rows("DELETE FROM message_terms")
        await at.rows("UPDATE sessions SET recall_indexed_seq = 0")
        (active,) = await at.rows("SELECT to_message_seq FROM session_summaries WHERE status = 'active'")
        far: list[int] = []
        for _ in range(2):
            await at.turn(session_id, "Where does Ottilie keep her bees?")
            far += [row["recall_indexed_seq"] for row in await at.rows("SELECT recall_indexed_seq FROM sessions")]
        assert far == [5, active["to_message_seq"]]
        assert {row["message_seq"] for row in await at.rows("SELECT message_seq FROM message_terms")} == set(
            range(1, active["to_message_seq"] + 1)
        )
        seen = server.seen[-1].json["messages"]
        assert FACTS[0] in [message["content"] for message in seen]


async def test_looking_at_a_window_writes_no_index(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at)
        await at.rows("DELETE FROM message_terms")
        await at.rows("UPDATE sessions SET recall_indexed_seq = 0")
        await window_now(at.rt, TENANT, session_id)
        assert await at.rows("SELECT 1 FROM message_terms") == []


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


async def test_erasing_a_session_erases_its_index(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        await _talked(at)
        assert await at.rows("SELECT 1 FROM message_terms")
        await at.rows("DELETE FROM sessions")
        assert await at.rows("SELECT 1 FROM message_terms") == []


async def test_a_preset_without_recall_can_switch_it_on(database_url: str, tmp_path: Path) -> None:
    policy = ContextPolicy(recall=Recall(enabled=False))
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path, policy=policy) as at,
    ):
        session_id = await _talked(at, policy={"recall": {"enabled": True, "min_score_ratio": 0.9}})
        outcome = await at.turn(session_id, "Where does Ottilie keep her bees?")
        assert [row["score"] > 0 for row in outcome.context["context_trim_log"]["recalled"]] == [True]


async def test_the_database_finds_what_the_pure_search_finds(database_url: str, tmp_path: Path) -> None:
    """The bench measures with `Shelf`, the service answers with SQL: the same hits and scores, also where lists are
    longer than their bound."""
    async with (
        serving(model(_reply)) as server,
        service(database_url, models_toml(server, window=8192), folder=tmp_path) as at,
    ):
        session_id = await _talked(at)
        rows = await at.rows("SELECT seq, content FROM messages WHERE seq <= 18 ORDER BY seq")
        estimate = at.rt.tokenizers.estimator("o200k_base")
        shelf, turn_id = Shelf(), TurnId(session_id)
        for row in rows:
            message = numbered_message(turn_id, row["seq"], "user", row["content"], estimate)
            shelf.add([Turn(turn_id, row["seq"], TurnStatus.COMPLETED, unresolved=False, messages=(message,))])
        await at.rows("DELETE FROM message_terms")
        async with at.rt.database.begin() as tx:
            await at.rows("UPDATE sessions SET recall_indexed_seq = 0")
            weighed = {row["seq"]: weighed_terms(content_text(row["content"])) for row in rows}
            await add_postings(tx, session_id, weighed, after_seq=0, last_seq=18)
            for asked in ("Where does Ottilie keep her bees?", "weather part 6 noted", "What is green and noted?"):
                terms = query_terms(asked)
                found = await find_evicted(
                    tx, session_id, terms, last_seq=18, encoding="o200k_base", most_tokens=4000, bounds=recall.BOUNDS
                )
                expected = shelf.find(asked, 4000)
                assert expected is not None
                assert found.seen_in == expected.seen_in
                scores = {hit.seq: pytest.approx((hit.score, hit.coverage), rel=1e-4) for hit in expected.hits}
                assert {hit.seq: (hit.score, hit.coverage) for hit in found.hits} == scores
                rarities = {term: rarity(found.seen_in.get(term, 0), 18) for term in terms}
                assert {hit.seq for hit in match(terms, weighed, rarities)} == set(scores)
            cut = await find_evicted(
                tx,
                session_id,
                query_terms("noted"),
                last_seq=18,
                encoding="o200k_base",
                most_tokens=4000,
                bounds=SearchBounds(3, 64, 0, 0, 1.0, 8),
            )
            assert [hit.seq for hit in sorted(cut.hits, key=lambda hit: hit.seq)] == [14, 16, 18]
            assert cut.seen_in == {query_terms("noted")[0]: 3 * 18 // 5}
