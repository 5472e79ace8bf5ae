"""What a request adds to its session with its turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

import pytest

from app.db.records import TurnEnd, record_end
from app.db.summaries import AttemptNote, get_summary, store_attempt
from app.db.turns import newest_of
from app.domain.errors import LimitExceeded
from app.domain.incoming import IncomingMessage
from app.domain.responses import item_id
from app.domain.stored import NewSummary
from app.domain.types import MessageId, SessionRef, Summary, SummaryBody, SummaryId, TurnId, TurnStatus
from app.openai.chat_messages import cut_turns
from app.services.archive.new_rows import BATCH_ROWS
from app.services.archive.transfer import draft_history
from app.services.openai.chat import ChatRequest, complete_chat
from app.services.openai.conversations import withdraw_item
from app.services.pasts import Pasts
from app.services.sessions import change_session, get_session
from app.services.turn.additions import Additions
from app.services.turn.claim import claim_drafted, draft_turn
from app.services.turn.gather import session_window
from app.services.turn.summarize import new_summary
from app.services.turn.take import retry_turn
from app.services.turn.types import ClaimedTurn, TurnOptions, TurnRequest
from app.services.views.search import search_session
from app.services.views.turns import get_prompt
from tests.services.service import Service, ref_of, service

LONG = 400
"""Messages of a past that a claim caches as it reads them."""
_FOUR = ("One", "Two", "Three", "Four")


def _said(texts: Sequence[str]) -> tuple[IncomingMessage, ...]:
    return tuple(IncomingMessage(at, "assistant" if at % 2 else "user", text) for at, text in enumerate(texts))


async def _claimed_with_four(at: Service, session: SessionRef, texts: Sequence[str] = _FOUR) -> ClaimedTurn:
    """A running turn, claimed together with four messages of past and instructions."""
    async with at.rt.database.autocommit() as tx:
        newest = await newest_of(tx, session)
    assert newest is not None
    history = await draft_history(at.rt, "offline", cut_turns(_said(texts)))
    draft = await draft_turn(at.rt, TurnRequest(content="Five", request_sha256="x"), None)
    return await claim_drafted(at.rt, session, draft, TurnOptions(), Additions(newest, None, history, ("Be brief.",)))


async def _summary_of_four(at: Service, session: SessionRef, previous: Summary | None = None) -> NewSummary:
    ids = [MessageId(row["id"]) for row in await at.rows("SELECT id FROM messages ORDER BY seq")]
    summary = Summary(SummaryId(at.rt.new_id()), SummaryBody("One to four."), ids[0], ids[3], 4, "model")
    return new_summary(session.id, summary, previous, "offline", at.rt.tokenizers.estimator("o200k_base"))


async def _reject(at: Service, claimed: ClaimedTurn) -> None:
    end = TurnEnd(TurnStatus.REJECTED, "offline", [], [], error={"code": "x"}, added=claimed.added)
    async with at.rt.database.begin() as tx:
        assert await record_end(tx, claimed.claim, end) is not None


@pytest.mark.parametrize("changed", [None, "Be kind."], ids=["as added", "changed meanwhile"])
async def test_what_was_added_with_a_rejected_turn_is_as_ineffective_as_the_turn(
    database_url: str, changed: str | None
) -> None:
    """Also a summary of it that the turn has made, but not instructions that somebody else has changed meanwhile."""
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        claimed = await _claimed_with_four(at, session)
        assert (claimed.claim.seq, claimed.claim.session.instructions) == (3, "Be brief.")
        row = await _summary_of_four(at, session)
        async with at.rt.database.autocommit() as tx:
            assert await store_attempt(tx, claimed.claim.session, row, AttemptNote(), claimed.claim)
        if changed:
            await change_session(at.rt, session, {"instructions": changed})
        await _reject(at, claimed)
        assert await at.rt.database.run(get_summary, session.id, None) is None
        assert {row["status"] for row in await at.rows("SELECT status FROM turns")} == {"rejected"}
        assert (await get_session(at.rt, session)).instructions == changed


async def test_no_summary_of_what_was_added_with_a_rejected_turn_stays(database_url: str) -> None:
    """The turn had folded one that was made in the background while it ran: this one became active again."""
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        claimed = await _claimed_with_four(at, session)
        read = await session_window(at.rt, session)
        async with at.rt.database.autocommit() as tx:
            behind = await _summary_of_four(at, session)
            assert await store_attempt(tx, read.session, behind, AttemptNote(), None)
        rows = await session_window(at.rt, session)
        async with at.rt.database.autocommit() as tx:
            own = await _summary_of_four(at, session, rows.summary)
            assert await store_attempt(tx, claimed.claim.session, own, AttemptNote(), claimed.claim)
        await _reject(at, claimed)
        assert await at.rows("SELECT status FROM session_summaries") == [{"status": "undone"}] * 2


async def test_a_search_while_a_turn_runs_finds_nothing_of_it_once_it_was_rejected(database_url: str) -> None:
    """The index that its worker had cached kept what was added with the turn, and counted it in every score."""
    texts = ("The bees are here.", "Two", "The bees are there.", "Four")
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        claimed = await _claimed_with_four(at, session, texts)
        other, fresh = [replace(at.rt, pasts=Pasts(1 << 20, monotonic, at.rt.telemetry)) for _ in range(2)]
        assert len((await search_session(other, session, "bees", 5)).items) == 2
        await _reject(at, claimed)
        again = (*_said(texts), IncomingMessage(4, "user", "And now?"))
        await complete_chat(at.rt, session, ChatRequest(again, TurnOptions(), "offline", "y"))
        found = [await search_session(rt, session, "bees", 5) for rt in (other, fresh)]
        assert len(found[1].items) == 2
        assert found[0] == found[1]


async def test_a_summary_that_read_what_was_added_is_not_stored_after_that_was_rejected(database_url: str) -> None:
    """One that is made in the background or on request, and belongs to no turn."""
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        claimed = await _claimed_with_four(at, session)
        read = await session_window(at.rt, session)
        row = await _summary_of_four(at, session)
        await _reject(at, claimed)
        assert not await at.rt.database.run(store_attempt, read.session, row, AttemptNote(), None)
        assert await at.rt.database.run(get_summary, session.id, None) is None


async def test_a_past_that_was_refused_with_its_turn_is_not_read_from_the_cache(database_url: str) -> None:
    async with service(database_url) as at:
        session = ref_of((await at.session(limits={"turns_total": 0})).id)

        async def posted(word: str) -> list[str]:
            messages = _said([f"{word} {at}" for at in range(LONG)] + ["What now?"])
            outcome = await complete_chat(at.rt, session, ChatRequest(messages, TurnOptions(), "offline", word))
            prompt = await get_prompt(at.rt, session, outcome.turn.id, None)
            return [message["content"] for message in prompt.messages]

        with pytest.raises(LimitExceeded):
            await posted("first")
        await change_session(at.rt, session, {"limits": None})
        sent = await posted("second")
        assert not [text for text in sent if text.startswith("first")]
        assert sent[-2] == f"second {LONG - 1}"


async def test_a_past_that_was_read_for_a_refused_retry_has_no_message_that_is_removed_after_it(
    database_url: str,
) -> None:
    async with service(database_url) as at:
        session = ref_of((await at.session(policy={"mandatory_summary_turn": None})).id)
        said = [f"First {at}" for at in range(LONG)]
        await complete_chat(at.rt, session, ChatRequest(_said([*said, "Last"]), TurnOptions(), "offline", "first"))
        (last,) = await at.rows(
            """UPDATE turns SET status = 'failed', error = '{"code": "x"}' WHERE seq = 201 RETURNING id"""
        )
        at.rt.pasts.forget(session.id)
        await change_session(at.rt, session, {"limits": {"turns_total": 0}})
        with pytest.raises(LimitExceeded):
            await retry_turn(at.rt, session, TurnId(last["id"]), TurnOptions(), "offline")
        await change_session(at.rt, session, {"limits": None})
        await withdraw_item(at.rt, session, item_id("msg", session.id, LONG - 3))
        outcome = await at.turn(session.id, "What now?")
        prompt = await get_prompt(at.rt, session, outcome.turn.id, None)
        assert f"First {LONG - 4}" not in [message["content"] for message in prompt.messages]


async def test_a_long_past_is_stored_in_statements_of_a_bounded_size(database_url: str) -> None:
    """One statement of 10,000 messages, 4 MB, took 12 ms of the event loop to encode and send."""
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        messages = _said([f"Word {at}" for at in range(LONG)] + ["What now?"])
        history = await draft_history(at.rt, "offline", cut_turns(messages[:-1]))
        assert sum(part.message_count for part in history) == LONG
        assert all(part.message_count <= BATCH_ROWS + 1 for part in history)
        await complete_chat(at.rt, session, ChatRequest(messages, TurnOptions(), "offline", "x"))
        stored = await at.rows("SELECT content, created_at FROM messages ORDER BY seq")
        assert [row["content"] for row in stored[:-1]] == [message.content for message in messages]
        assert len({row["created_at"] for row in stored[:LONG]}) == len(history) > 1
