"""Search over a real database: in the window and out of it, by the index and beyond it, and never another tenant's."""

from __future__ import annotations

import pytest

from app.domain.errors import NotFound
from app.domain.types import JsonObject, SessionId, TenantId
from app.engine.recall.terms import excerpt, query_terms
from app.services.archive.fork import fork_session
from app.services.views.search import search_session
from tests.services.service import TENANT, Service, service

FACTS = ("My sister Ottilie keeps bees behind the lighthouse.", "The invoice of the harbour crane is number 4711.")


async def _talked(at: Service, turns: int = 12) -> SessionId:
    session = await at.session()
    for number in range(turns):
        await at.turn(
            session.id, FACTS[number] if number < len(FACTS) else f"Small talk about the weather, part {number}."
        )
    return session.id


async def _found(at: Service, session_id: SessionId, words: str, limit: int = 10) -> list[JsonObject]:
    return (await search_session(at.rt, TENANT, session_id, words, limit))["items"]


async def test_what_left_the_window_and_what_is_in_it_are_found_by_their_words(database_url: str) -> None:
    async with service(database_url) as at:
        session = await _talked(at)
        indexed = await at.rows("SELECT recall_indexed_seq AS seq, last_message_seq AS last FROM sessions")
        assert 0 < indexed[0]["seq"] < indexed[0]["last"], "a summary indexed what it took in, and no more"
        for words, seq, said in (
            ("crane invoice", 2, FACTS[1]),
            ("weather part 11", 12, "Small talk about the weather, part 11."),
        ):
            best = next(hit for hit in await _found(at, session, words) if hit["role"] == "user")
            assert (best["turn_seq"], best["excerpt"], best["complete"]) == (seq, said, True)
        assert await _found(at, session, "zeppelin") == []
        assert await _found(at, session, "the of and") == []


async def test_words_of_every_message_are_found_too_and_no_more_than_were_asked_for(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.session()
        for number in range(10):
            await at.turn(session.id, f"The ledger again, page {number}.")
        answer = await search_session(at.rt, TENANT, session.id, "ledger", 3)
        assert len(answer["items"]) == 3
        assert all("ledger" in hit["excerpt"] for hit in answer["items"])
        assert (answer["searched_messages"], answer["unsearched_messages"]) == (20, 0)


async def test_without_an_index_the_newest_messages_are_looked_through_and_the_rest_is_told(
    database_url: str,
) -> None:
    async with service(database_url) as at:
        fork = (await fork_session(at.rt, TENANT, await _talked(at), None)).id
        assert (await _found(at, fork, "lighthouse bees"))[0]["excerpt"] == FACTS[0]
        answer = await search_session(at.rt, TENANT, fork, "lighthouse bees", 10, most_unindexed_messages=6)
        assert (answer["items"], answer["searched_messages"], answer["unsearched_messages"]) == ([], 6, 18)
        assert await at.rows("SELECT 1 FROM message_terms WHERE session_id = :fork", fork=fork) == [], "it wrote"


async def test_another_tenants_session_is_not_searched(database_url: str) -> None:
    async with service(database_url) as at:
        session = await _talked(at, 2)
        with pytest.raises(NotFound):
            await search_session(at.rt, TenantId("other"), session, "lighthouse", 10)


@pytest.mark.parametrize("place", [0, 300, 2000, 3990])
def test_an_excerpt_is_of_the_length_and_has_the_word(place: int) -> None:
    text = ("x " * 2000)[:place] + "Lighthouse" + ("y " * 2000)[: 4000 - place]
    part = excerpt(text, query_terms("lighthouses"), 200)
    assert len(part) <= 200
    assert "Lighthouse" in part
    assert (part[0] == "…", part[-1] == "…") == (place > 50, place + 200 < len(text))
