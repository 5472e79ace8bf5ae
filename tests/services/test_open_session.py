"""The session of a request that names none: new, or a fork. What is refused or interrupted leaves none."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

import pytest

from app.domain.errors import ContextBudgetExceeded, IdempotencyInFlight, NotFound, TurnInProgress
from app.domain.frozen import replace
from app.domain.incoming import Compaction, IncomingMessage
from app.domain.responses import Lifetime, ResponseNote
from app.domain.types import SessionRef, ToolCall, TurnStatus
from app.openai.known_lists import known_list
from app.services.archive.transfer import fork_session
from app.services.openai.chat import ChatRequest
from app.services.openai.open_session import Target, open_session, respond
from app.services.turn import take
from app.services.turn.decide import decide
from app.services.turn.record import Record
from app.services.turn.types import TurnOptions, TurnOutcome, TurnPlan
from bench.wire import Tally, counting_proxy
from tests.providers.server import Answer, Seen, serving
from tests.services.service import TENANT, Service, chat, model, models_toml, service
from tests.services.test_tools import TOOLS
from tests.services.test_tools import calls as calling

YES = "Yes."
KEPT = "SELECT id FROM sessions WHERE erase_after IS NULL"


def listed(*texts: str) -> ChatRequest:
    """The request of a client that resends everything: its words and the model's by turns."""
    messages = tuple(IncomingMessage(at, "assistant" if at % 2 else "user", text) for at, text in enumerate(texts))
    known = known_list(("owner",), messages)
    digest = sha256("|".join(texts).encode()).hexdigest()
    return ChatRequest(messages, TurnOptions(list_sha256=known.whole), "main", digest, known=known)


async def opened(at: Service, request: ChatRequest) -> Target:
    return await open_session(at.rt, TENANT, None, request)


async def answered(at: Service, request: ChatRequest) -> TurnOutcome:
    return await respond(at.rt, await opened(at, request))


async def test_a_new_conversation_is_stored_in_the_transaction_of_its_first_turn(
    database_url: str, tmp_path: Path
) -> None:
    """Counted on the wire. A transaction before the turn's could commit and be the last that its process does."""
    tally = Tally()
    async with (
        counting_proxy(database_url, tally) as counted_url,
        serving(chat(YES)) as server,
        service(counted_url, models_toml(server), folder=tmp_path) as at,
    ):
        await answered(at, listed("Warm up"))
        tally.clear()
        await answered(at, listed("Hello"))
        assert (len(tally.statements), tally.transactions) == (5, 2), tally


async def test_two_branches_at_once_are_never_one_anothers_past(database_url: str, tmp_path: Path) -> None:
    """The second is opened when the fork of the first is there, and its turn is not."""
    async with serving(chat(YES)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await answered(at, listed("One"))
        await answered(at, listed("One", YES, "Two"))
        targets = [await opened(at, listed("One", YES, text)) for text in ("This", "That")]
        for target, text in zip(reversed(targets), ("That", "This"), strict=True):
            await respond(at.rt, target)
            assert [message["content"] for message in server.seen[-1].json["messages"]] == ["One", YES, text]
        assert len(await at.rows(KEPT)) == 3


async def test_an_equal_list_with_another_key_is_a_branch_and_each_key_keeps_its_turn(
    database_url: str, tmp_path: Path
) -> None:
    """It was taken for a repetition, and answered behind the reply to the other."""
    async with serving(chat(YES)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await answered(at, listed("One"))
        requests = [replace(listed("One", YES, "Two"), idempotency_key=key) for key in ("this", "that")]
        outcomes = [await answered(at, request) for request in requests]
        assert [message["content"] for message in server.seen[-1].json["messages"]] == ["One", YES, "Two"]
        assert len(await at.rows(KEPT)) == 2
        await answered(at, listed("One", YES, "Two", YES, "Three"))
        assert [(await answered(at, request)).turn for request in requests] == [each.turn for each in outcomes]


async def test_a_branch_that_is_requested_twice_at_once_with_one_key_is_answered_once(
    database_url: str, tmp_path: Path
) -> None:
    """Both have their forks before either has its turn."""
    async with serving(chat(YES)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await answered(at, listed("One"))
        await answered(at, listed("One", YES, "Two"))
        request = replace(listed("One", YES, "This"), idempotency_key="key")
        first, second = await opened(at, request), await opened(at, request)
        outcome = await respond(at.rt, first)
        with pytest.raises(IdempotencyInFlight):
            await respond(at.rt, second)
        assert (await answered(at, request)).turn == outcome.turn
        assert (server.hits, len(await at.rows("SELECT id FROM sessions"))) == (3, 2)


@pytest.mark.parametrize("fork_first", [True, False])
async def test_a_request_is_answered_once_if_its_twin_was_given_a_fork_because_of_a_turn_that_was_then_rejected(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork_first: bool
) -> None:
    async with serving(chat(YES)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await answered(at, listed("One"))
        request = replace(listed("One", YES, "Two"), idempotency_key="key")
        found = list[Target]()

        async def opened_meanwhile(record: Record) -> TurnPlan:
            found.append(await opened(at, request))
            return await decide(record)

        with monkeypatch.context() as patched:
            patched.setattr(take, "decide", opened_meanwhile)
            with pytest.raises(ContextBudgetExceeded):
                await answered(at, listed("One", YES, "Too long. " * 10_000))
        found.append(await opened(at, request))
        first, second = found if fork_first else reversed(found)
        outcome = await respond(at.rt, first)
        with pytest.raises(IdempotencyInFlight):
            await respond(at.rt, second)
        assert (await answered(at, request)).turn == outcome.turn
        assert server.hits == 2


async def test_a_branch_is_not_answered_in_a_fork_that_a_person_made_at_the_same_point(
    database_url: str, tmp_path: Path
) -> None:
    """Such a fork may have other instructions and another policy."""
    async with serving(chat(YES)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        first = (await answered(at, listed("One"))).turn
        persons = await fork_session(at.rt, SessionRef(TENANT, first.session_id), first.id)
        await answered(at, listed("One", YES, "Two"))
        branch = (await answered(at, listed("One", YES, "This"))).turn
        assert branch.seq == 2
        assert branch.session_id not in (first.session_id, persons.id)


async def test_a_request_is_never_answered_in_the_fork_of_one_that_is_not_to_be_stored(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(chat(YES)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await answered(at, listed("One"))
        await answered(at, listed("One", YES, "Two"))
        request = replace(listed("One", YES, "Quiet"), lifetime=Lifetime.FOR_ANSWER)
        note = ResponseNote(request.request_sha256, {}, at.rt.now(), is_stored=False)
        quiet = await opened(at, replace(request, options=TurnOptions(note=note)))
        kept = await opened(at, listed("One", YES, "Kept"))
        await respond(at.rt, quiet)
        assert (await respond(at.rt, kept)).turn.status is TurnStatus.COMPLETED
        assert len(await at.rows(KEPT)) == len(await at.rows("SELECT id FROM sessions")) == 2


async def test_a_fork_whose_request_is_interrupted_before_its_turn_is_erased(database_url: str, tmp_path: Path) -> None:
    """The request waits for the vector of its question when it is cancelled."""
    waits = asyncio.Event()

    def play(request: Seen) -> Answer:
        if request.path.endswith("/embeddings"):
            waits.set()
            return Answer({"data": [{"index": 0, "embedding": [1.0, 0.0]}]}, delay_s=60)
        return chat(YES)

    async with serving(play) as server:
        vectors = f'[models.vectors]\nprovider = "openai"\nmodel = "vectors-1"\nbase_url = "{server.base_url}"\n'
        models = models_toml(server, extra=vectors)
        async with service(database_url, models, folder=tmp_path, embeds_with="vectors") as at:
            await answered(at, listed("One"))
            await answered(at, listed("One", YES, "Two"))
            branch = await opened(at, listed("One", YES, "What did the harbour crane cost?"))
            assert at.rt.embeddings is not None
            at.rt.embeddings.compared_in(branch.session, "recall")
            running = asyncio.create_task(respond(at.rt, branch))
            await asyncio.wait_for(waits.wait(), 20)
            assert len(await at.rows("SELECT id FROM sessions")) == 2
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert len(await at.rows("SELECT id FROM sessions")) == 1


async def test_a_fork_in_which_a_failed_turn_is_tried_again_is_kept(database_url: str, tmp_path: Path) -> None:
    """Behind a compaction, where the session has gone on since the turn failed."""
    fails = [True]

    def play(request: Seen) -> Answer:
        return Answer({}, status=400) if fails[0] and "Fail" in str(request.json["messages"][-1]) else chat(YES)

    async with serving(model(play)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = (await answered(at, listed("One"))).turn.session_id
        again = replace(listed("Fail"), known=None, compaction=Compaction(session, 2))
        named = await open_session(at.rt, TENANT, session, replace(again, compaction=None))
        with pytest.raises(Exception, match="400"):
            await respond(at.rt, named)
        await at.turn(session, "Three")
        fails[0] = False
        branch = await opened(at, again)
        assert branch.session.id != session
        outcome = await respond(at.rt, branch)
        assert (outcome.turn.seq, outcome.text) == (2, YES)
        assert {row["id"] for row in await at.rows(KEPT)} == {session, branch.session.id}


async def test_a_session_that_is_not_made_before_its_turn_is_not_found(database_url: str) -> None:
    async with service(database_url) as at:
        new = await opened(at, replace(listed("One"), model_alias="offline"))
        assert await at.rows("SELECT id FROM sessions") == []
        with pytest.raises(NotFound):
            await at.turn(new.session.id, "Hello")


async def test_two_that_answer_the_same_calls_differently_at_once_are_never_one_anothers_past(
    database_url: str, tmp_path: Path
) -> None:
    """The second is opened when the calls wait, and answered when the first has answered them."""
    asked = [IncomingMessage(0, "user", "One"), IncomingMessage(1, "assistant", YES), IncomingMessage(2, "user", "Two")]

    def with_output(text: str | None) -> ChatRequest:
        called = IncomingMessage(3, "assistant", None, (ToolCall("a", "look_up", '{"id": "a"}'),))
        messages = (*asked, called, IncomingMessage(4, "tool", text, tool_call_id="a")) if text else tuple(asked)
        known = known_list(("owner",), messages)
        options = TurnOptions(tools=TOOLS, list_sha256=known.whole)
        return ChatRequest(messages, options, "main", sha256(f"{text}".encode()).hexdigest(), known=known)

    async with (
        serving(chat(YES), calling("a"), chat(YES)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        await answered(at, listed("One"))
        await answered(at, with_output(None))
        targets = [await opened(at, with_output(text)) for text in ("paid", "open", "paid")]
        await respond(at.rt, targets[0])
        with pytest.raises(TurnInProgress):
            await respond(at.rt, targets[1])
        await respond(at.rt, targets[2])
        assert len(server.seen) == 3
        await answered(at, with_output("open"))
        assert [message["content"] for message in server.seen[-1].json["messages"]] == ["One", YES, "Two", None, "open"]
        assert len(await at.rows(KEPT)) == 2
