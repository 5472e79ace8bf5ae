"""A client's list of messages beside other requests to its session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from app.db.turns import newest_messages
from app.domain.errors import ProviderRefused
from app.domain.incoming import IncomingMessage
from app.domain.responses import item_id
from app.domain.types import SessionRef
from app.services.openai.chat import ChatRequest, complete_chat, store_list
from app.services.openai.conversations import withdraw_item
from app.services.turn.types import TurnOptions, TurnOutcome
from tests.providers.server import Answer, ScriptedServer, Seen, serving
from tests.services.service import Service, chat, models_toml, ref_of, service

QUESTION = "What did the harbour crane cost?"


def _posted(*, all_new: bool, **changes: Any) -> ChatRequest:
    digest = sha256(QUESTION.encode()).hexdigest()
    message = IncomingMessage(0, "user", QUESTION)
    return ChatRequest((message,), TurnOptions(), "main", digest, all_new=all_new, **changes)


def _listed(*texts: str) -> ChatRequest:
    """The user's words and the model's by turns."""
    messages = tuple(IncomingMessage(at, "assistant" if at % 2 else "user", text) for at, text in enumerate(texts))
    return ChatRequest(messages, TurnOptions(), "main", sha256("|".join(texts).encode()).hexdigest())


@dataclass(frozen=True)
class _Overtaken:
    """A request that has read the session, and waits for the vector of its question before it claims its turn until it
    `goes_on`; another service with the same session; and the model that answers both."""

    at: Service
    elsewhere: Service
    session: SessionRef
    answer: asyncio.Task[TurnOutcome]
    goes_on: asyncio.Event
    server: ScriptedServer


@asynccontextmanager
async def _overtaken(
    database_url: str,
    folder: Path,
    request: ChatRequest,
    before: Callable[[Service, SessionRef], Awaitable[object]] | None = None,
) -> AsyncGenerator[_Overtaken]:
    waits, goes_on = asyncio.Event(), asyncio.Event()

    def play(seen: Seen) -> Answer:
        if seen.path.endswith("/embeddings"):
            waits.set()
            return Answer({"data": [{"index": 0, "embedding": [1.0, 0.0]}]}, after=goes_on.is_set)
        return Answer({"choices": [{"index": 0, "message": {"content": "A lot."}, "finish_reason": "stop"}]})

    async with serving(play) as server:
        vectors = f'[models.vectors]\nprovider = "openai"\nmodel = "vectors-1"\nbase_url = "{server.base_url}"\n'
        models = models_toml(server, extra=vectors)
        async with (
            service(database_url, models, folder=folder, embeds_with="vectors") as at,
            service(database_url, models, folder=folder) as elsewhere,
        ):
            session = ref_of((await at.session()).id)
            if before is not None:
                await before(elsewhere, session)
            assert at.rt.embeddings is not None
            at.rt.embeddings.compared_in(session, "recall")
            answer = asyncio.create_task(complete_chat(at.rt, session, request))
            await asyncio.wait_for(waits.wait(), 20)
            yield _Overtaken(at, elsewhere, session, answer, goes_on, server)


@pytest.mark.parametrize("all_new", [False, True], ids=["whole list", "new items"])
async def test_a_request_that_its_own_retry_overtakes_is_answered_as_the_retry_was(
    database_url: str, tmp_path: Path, all_new: bool
) -> None:
    async with _overtaken(database_url, tmp_path, _posted(all_new=all_new)) as first:
        retry = await complete_chat(first.elsewhere.rt, first.session, _posted(all_new=all_new, is_retry=True))
        first.goes_on.set()
        assert (await first.answer).turn.id == retry.turn.id
        assert await first.at.rows("SELECT seq FROM turns") == [{"seq": 1}]
        assert sum(seen.path.endswith("/chat/completions") for seen in first.server.seen) == 1


async def test_a_request_that_an_equal_one_with_another_key_overtakes_gets_a_turn_and_an_answer_of_its_own(
    database_url: str, tmp_path: Path
) -> None:
    """With the other's answer its own key would stand for no turn, and its repetition would get another answer."""
    request = _posted(all_new=True, idempotency_key="first")
    async with _overtaken(database_url, tmp_path, request) as first:
        await complete_chat(first.elsewhere.rt, first.session, _posted(all_new=True, idempotency_key="second"))
        first.goes_on.set()
        answered = (await first.answer).turn
        stored = await first.at.rows("SELECT idempotency_key FROM turns ORDER BY seq")
        assert [row["idempotency_key"] for row in stored] == ["second", "first"]
        assert (await complete_chat(first.at.rt, first.session, request)).turn == answered


_FAIL_SECOND = """
    WITH reply AS (DELETE FROM messages WHERE seq = 4 RETURNING id)
    UPDATE turns SET status = 'failed', error = '{"code": "x"}' FROM reply WHERE seq = 2 RETURNING turns.id
    """


@pytest.mark.parametrize(
    ("more", "is_tried_again"),
    [((), False), (("More", "Fine."), False), ((), True)],
    ids=["new turn", "new past", "failed turn"],
)
async def test_a_message_that_is_removed_between_the_reading_of_a_list_with_it_and_the_claim_is_in_the_prompt(
    database_url: str, tmp_path: Path, more: tuple[str, ...], is_tried_again: bool
) -> None:
    """The list was compared with a session that had it."""
    texts = ("One", "A lot.", *more, QUESTION)

    async def before(at: Service, session: SessionRef) -> None:
        await complete_chat(at.rt, session, _listed(*texts[:1]))
        if is_tried_again:
            await complete_chat(at.rt, session, _listed(*texts))
            assert await at.rows(_FAIL_SECOND)

    async with _overtaken(database_url, tmp_path, _listed(*texts), before) as first:
        await withdraw_item(first.elsewhere.rt, first.session, item_id("msg", first.session.id, 2))
        first.goes_on.set()
        await first.answer
        sent = [message["content"] for message in first.server.seen[-1].json["messages"]]
        assert sent[-len(texts[1:]) :] == [*texts[1:]]


async def test_a_request_beside_which_a_message_is_removed_is_no_retry_of_an_equal_one_before(
    database_url: str, tmp_path: Path
) -> None:
    request = _posted(all_new=True, directions=("Be brief.",))

    async def before(at: Service, session: SessionRef) -> None:
        await complete_chat(at.rt, session, request)

    async with _overtaken(database_url, tmp_path, request, before) as first:
        await withdraw_item(first.elsewhere.rt, first.session, item_id("msg", first.session.id, 2))
        first.goes_on.set()
        assert (await first.answer).turn.seq == 2


@pytest.mark.parametrize("text", ["a" * 10_000, "".join(map(str, range(2_577)))], ids=["compressed", "not compressed"])
async def test_a_list_is_compared_with_the_newest_messages_up_to_a_number_of_bytes(
    database_url: str, text: str
) -> None:
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        messages = [IncomingMessage(place, role, text) for place, role in enumerate(("user", "assistant") * 3)]
        past = ChatRequest(tuple(messages), TurnOptions(), "offline", "", all_new=True, all_past=True)
        newest = await store_list(at.rt, session, past)

        async def compared(limit: int, most_bytes: int) -> list[int]:
            async with at.rt.database.autocommit() as tx:
                found = await newest_messages(tx, session.id, limit, most_bytes)
            assert all(message.content == text for message in found)
            return [message.seq for message in found]

        assert newest.last_message_seq == 6
        assert await compared(6, 1_000_000) == [1, 2, 3, 4, 5, 6]
        assert await compared(4, 1_000_000) == [3, 4, 5, 6]
        assert await compared(6, 25_000) == [5, 6]
        assert await compared(6, 9_000) == []


async def test_a_failed_turn_that_a_request_with_a_key_runs_again_is_the_turn_of_that_key(
    database_url: str, tmp_path: Path
) -> None:
    """Once another turn had followed it, a repetition of the key was a new turn."""
    script = [Answer({"error": {"message": "no"}}, status=401), chat("One."), chat("Two."), chat("Three.")]
    async with serving(*script) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = ref_of((await at.session()).id)
        with pytest.raises(ProviderRefused):
            await complete_chat(at.rt, session, _posted(all_new=False))
        request = _posted(all_new=False, idempotency_key="key")
        outcome = await complete_chat(at.rt, session, request)
        assert (outcome.turn.seq, outcome.turn.assistant_output) == (1, "One.")
        await at.turn(session.id, "What else?")
        assert (await complete_chat(at.rt, session, request)).turn == outcome.turn
