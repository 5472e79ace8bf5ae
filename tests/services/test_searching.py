"""Search over a real database: in the window and out of it, by the index and beyond it, and never another tenant's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.db.claims import claim_turn
from app.db.records import TurnEnd, record_end
from app.domain.errors import NotFound
from app.domain.figures import FoundMessage
from app.domain.incoming import IncomingMessage
from app.domain.stored import message_row
from app.domain.types import JsonObject, SessionId, SessionRef, TenantId, TurnStatus
from app.engine.recall.index import packed_terms
from app.engine.recall.terms import excerpt, query_terms
from app.services.archive.transfer import fork_session
from app.services.sessions import search_sessions
from app.services.turn.claim import draft_turn
from app.services.turn.types import TurnRequest
from app.services.views.search import search_messages, search_session
from tests.services.service import TENANT, Service, ref_of, service

FACTS = ("My sister Ottilie keeps bees behind the lighthouse.", "The invoice of the harbour crane is number 4711.")
_MANY: list[JsonObject] = [
    {"role": "user", "content": r"100%_of \\the words"},
    *({"role": "user", "content": f"100 of them, {number}"} for number in range(700)),
]


async def _talked(at: Service, turns: int = 12) -> SessionId:
    session = await at.session()
    for number in range(turns):
        await at.turn(
            session.id, FACTS[number] if number < len(FACTS) else f"Small talk about the weather, part {number}."
        )
    return session.id


async def _found(at: Service, session_id: SessionId, words: str, limit: int = 10) -> Sequence[FoundMessage]:
    return (await search_session(at.rt, ref_of(session_id), words, limit)).items


async def test_what_left_the_window_and_what_is_in_it_are_found_by_their_words(database_url: str) -> None:
    async with service(database_url) as at:
        session = await _talked(at)
        assert await at.rows("SELECT 1 FROM session_summaries"), "some left the window"
        for words, seq, text in (
            ("crane invoice", 2, FACTS[1]),
            ("weather part 11", 12, "Small talk about the weather, part 11."),
        ):
            best = next(hit for hit in await _found(at, session, words) if hit.role == "user")
            assert (best.turn_seq, best.excerpt, best.complete) == (seq, text, True)
        assert await _found(at, session, "zeppelin") == []
        assert await _found(at, session, "the of and") == []


async def test_words_of_every_message_are_found_too_and_no_more_than_the_limit(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.session()
        for number in range(10):
            await at.turn(session.id, f"The ledger again, page {number}.")
        answer = await search_session(at.rt, ref_of(session.id), "ledger", 3)
        assert len(answer.items) == 3
        assert all("ledger" in hit.excerpt for hit in answer.items)
        assert (answer.searched_messages, answer.unsearched_messages) == (20, 0)


async def test_a_fork_is_searched_at_once_and_messages_without_packed_terms_are_counted(database_url: str) -> None:
    async with service(database_url) as at:
        fork = (await fork_session(at.rt, ref_of(await _talked(at)), None)).id
        assert (await _found(at, fork, "lighthouse bees"))[0].excerpt == FACTS[0]
        at.rt.pasts.forget(fork)
        await at.rows("UPDATE messages SET terms = NULL WHERE session_id = :fork AND seq <= 6", fork=fork)
        answer = await search_session(at.rt, ref_of(fork), "lighthouse bees", 10)
        assert (answer.items, answer.searched_messages, answer.unsearched_messages) == ([], 18, 6)
        unpacked = "SELECT 1 FROM messages WHERE session_id = :fork AND terms IS NULL"
        assert len(await at.rows(unpacked, fork=fork)) == 6, "it wrote"


async def test_the_answer_of_a_turn_that_ran_during_a_search_is_found_by_the_next(database_url: str) -> None:
    """Its number is given out before it is stored: what is kept of the session must not go past it."""
    async with service(database_url) as at:
        session = await at.session()
        await at.turn(session.id, "Hello.")
        draft = await draft_turn(at.rt, TurnRequest(content="Where is the lighthouse?", request_sha256="x"), None)
        async with at.rt.database.begin() as tx:
            claim = await claim_turn(tx, ref_of(session.id), draft, at.rt.turn_lease_s)
        assert claim is not None
        assert [hit.seq for hit in await _found(at, session.id, "lighthouse")] == [3]
        reply = "The lighthouse is behind the harbour."
        terms = packed_terms("assistant", reply)
        row = message_row(at.rt.new_id(), IncomingMessage(0, "assistant", reply), (8, 0), "o200k_base", terms)
        row |= {"seq": claim.assistant_seq}
        end = TurnEnd(TurnStatus.COMPLETED, "offline", [], [], messages=[row], assistant_output=reply)
        async with at.rt.database.begin() as tx:
            assert await record_end(tx, claim, end)
        assert {hit.seq for hit in await _found(at, session.id, "lighthouse")} == {3, 4}


async def test_another_tenants_session_is_not_searched(database_url: str) -> None:
    async with service(database_url) as at:
        session = await _talked(at, 2)
        with pytest.raises(NotFound):
            await search_session(at.rt, SessionRef(TenantId("other"), session), "lighthouse", 10)


@pytest.mark.parametrize("longest_s", [0.0, 60.0])
async def test_all_sessions_are_searched_part_by_part_also_if_each_call_has_no_time_for_a_second_part(
    database_url: str, longest_s: float
) -> None:
    """One statement searched 20,000 messages, for as long as it took: 8 s for 200 MB and ten words."""
    async with service(database_url) as at:
        made = [(await at.imported({"messages": _MANY})).id for _ in range(4)]
        found: list[tuple[SessionId, int]] = []
        pages, cursor = 0, None
        while not pages or cursor:
            page = await search_messages(at.rt, TENANT, r"100%_of \\the", 50, cursor, longest_s=longest_s)
            found += [(item.session_id, item.seq) for item in page.items]
            pages, cursor = pages + 1, page.next_cursor
        assert found == [(session_id, 1) for session_id in reversed(made)]
        assert pages == (2 if longest_s == 0 else 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ÜBER die École", "über école"),
        ("Привет, мир", "ПРИВЕТ МИР"),
        ("ΑΘΗΝΑΣ", "αθηνας"),
        ("αθηνας", "ΑΘΗΝΑΣ"),
        ("İstanbul in GROẞ", "istanbul groß"),
        ("istanbul in groß", "İSTANBUL GROẞ"),
        ("東京 [x-1]^*", "東京 [X-1]^*"),
    ],
)
async def test_all_sessions_are_searched_for_words_in_any_case(database_url: str, text: str, words: str) -> None:
    """The server of the tests knows the letters of ASCII only, as the embedded one does."""
    async with service(database_url) as at:
        session = await at.session(room_goal=text)
        await at.turn(session.id, text)
        await at.session(room_goal="another")
        first = words.split(maxsplit=1)[0]
        assert [found.id for found in (await search_sessions(at.rt, TENANT, first, 10, None)).items] == [session.id]
        found = (await search_messages(at.rt, TENANT, words, 10, None)).items
        assert text in [item.excerpt for item in found]


@pytest.mark.parametrize("place", [0, 300, 2000, 3990])
def test_an_excerpt_is_of_the_length_and_has_the_word(place: int) -> None:
    text = ("x " * 2000)[:place] + "Lighthouse" + ("y " * 2000)[: 4000 - place]
    part = excerpt(text, query_terms("lighthouses"), 200)
    assert len(part) <= 200
    assert "Lighthouse" in part
    assert (part[0] == "…", part[-1] == "…") == (place > 50, place + 200 < len(text))
