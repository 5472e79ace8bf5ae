"""A turn that is cancelled or lost while it runs keeps what was sent, what was delivered of the answer, and what it
used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from app.db.claims import reclaim_turn, waiting_turn
from app.db.database import Database, Transaction
from app.db.sessions import lock_session
from app.domain.errors import DatabaseUnavailable, PlimsollError, ProviderError, TurnCancelled, TurnLost
from app.domain.frozen import replace
from app.domain.types import SessionId, SessionRef, ToolCall, TurnId, TurnRecord, TurnStatus
from app.engine.window.look_back import NAME
from app.services.background import end_lost_turns, renew_forever
from app.services.limits import set_limits
from app.services.process_state import Leases
from app.services.sessions import delete_session
from app.services.turn.take import cancel_turn, retry_turn
from app.services.turn.types import TurnEvent, TurnOptions
from app.services.views.turns import get_audit, get_prompt, get_turn
from tests.pooling import behind_pooler
from tests.providers.server import Answer, Seen, Step, Stream, serving
from tests.providers.wires import OPENAI, ModelReply, event
from tests.services.service import TENANT, Service, chat, models_toml, ref_of, service
from tests.services.test_costs import sold_by

_MODEL = "gpt-4o-mini"
_BEGUN = Stream((*OPENAI.begin(), *OPENAI.fragments(ModelReply("The answer is long"))), ending="open")
_LOOKS_BACK = OPENAI.stream(ModelReply("", calls=(ToolCall("l", NAME, '{"query": "anything"}'),)))
_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_USED = "SELECT purpose, round, prompt_tokens, completion_tokens, cost_usd FROM usage_records ORDER BY id"
_STEPS = "SELECT kind, status, detail FROM turn_steps ORDER BY seq"


class Running:
    """A streamed turn whose model has delivered a part of its answer and does not go on; `sent` are the requests."""

    def __init__(self, at: Service, session: SessionRef, sent: list[Seen]) -> None:
        self.at, self.session, self.sent = at, session, sent
        self._events: list[TurnEvent] = []
        self._begun = asyncio.Event()
        self.posted = asyncio.create_task(at.turn(session.id, "Hello", listen=self._listen))

    def _listen(self, event: TurnEvent) -> None:
        self._events.append(event)
        if self.text.endswith("long"):
            self._begun.set()

    @property
    def text(self) -> str:
        return "".join(event.data["text"] for event in self._events if event.name == "output.delta")

    @property
    def turn_id(self) -> TurnId:
        return TurnId(self._events[0].data["turn"]["id"])

    async def begun(self) -> Running:
        await self._begun.wait()
        return self

    async def cancelled(self) -> TurnRecord:
        """The turn as the request that cancels it gets it, once it has ended."""
        turn = await cancel_turn(self.at.rt, self.session, self.turn_id)
        with pytest.raises(TurnCancelled):
            await self.posted
        return turn


@asynccontextmanager
async def running(url: str, folder: Path, *script: Step, **fields: Any) -> AsyncGenerator[Running]:
    steps, sent = list(script), list[Seen]()

    def play(request: Seen) -> Step:
        sent.append(request)
        return steps.pop(0)

    async with sold_by(url, folder, OPENAI, _MODEL, play) as at:
        session = await at.session(**fields)
        yield await Running(at, ref_of(session.id), sent).begun()


async def lose(other: Service) -> None:
    """Ends the turns that run, as if their process had not renewed their leases."""
    await other.rows("UPDATE turns SET lease_expires_at = '-infinity' WHERE status = 'running' RETURNING id")
    assert await end_lost_turns(other.rt.database) == 1


class Ending(Enum):
    """How another process ends a turn, and the error that the client gets."""

    CANCELLED = TurnCancelled
    LOST = TurnLost

    @property
    def error(self) -> type[PlimsollError]:
        return self.value

    async def by(self, other: Service, turn: Running) -> TurnRecord:
        if self is Ending.CANCELLED:
            return await cancel_turn(other.rt, turn.session, turn.turn_id)
        await lose(other)
        return await get_turn(other.rt, turn.session, turn.turn_id)


ENDINGS = list(Ending)


async def test_a_cancelled_turn_keeps_its_prompt_its_steps_what_was_delivered_and_what_that_cost(
    database_url: str, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path, _BEGUN) as turn:
        cancelled = await turn.cancelled()
        assert cancelled == await get_turn(turn.at.rt, turn.session, turn.turn_id)
        assert (cancelled.status, cancelled.assistant_output) == (TurnStatus.CANCELLED, None)
        assert cancelled.error is not None
        assert (cancelled.error["code"], cancelled.error["partial_output"]) == ("turn_cancelled", "The answer is long")
        audit = await get_audit(turn.at.rt, turn.session, turn.turn_id, None)
        prompt = await get_prompt(turn.at.rt, turn.session, turn.turn_id, None)
        assert prompt.prompt_sha256 == audit.prompt_sha256
        assert turn.sent[0].json["messages"] == prompt.messages
        (used,) = await turn.at.rows(_USED)
        delivered = turn.at.rt.tokenizers.estimator("o200k_base")("The answer is long")
        assert (used["prompt_tokens"], used["completion_tokens"]) == (audit.estimated_wire_tokens, delivered)
        assert cancelled.cost_usd == used["cost_usd"] == Decimal(15 * used["prompt_tokens"] + 60 * delivered) / 10**8
        *_, called = await turn.at.rows(_STEPS)
        detail = {"model_alias": "main", "code": "turn_cancelled"}
        assert called == {"kind": "model_call", "status": "failed", "detail": detail}


async def test_what_calls_before_the_cancelled_one_used_is_kept(database_url: str, tmp_path: Path) -> None:
    async with running(database_url, tmp_path, _LOOKS_BACK, _BEGUN, policy={"look_back": "on"}) as turn:
        await turn.cancelled()
        audits = [await get_audit(turn.at.rt, turn.session, turn.turn_id, number) for number in (1, 2)]
        assert [(audit.round, audit.actual_prompt_tokens) for audit in audits] == [(1, 11), (2, None)]
        looked, begun = await turn.at.rows(_USED)
        assert (looked["round"], looked["prompt_tokens"], looked["completion_tokens"]) == (1, 11, 3)
        assert (begun["round"], begun["prompt_tokens"]) == (2, audits[1].estimated_wire_tokens)
        assert [step["kind"] for step in await turn.at.rows(_STEPS)][-3:] == ["look_back", "assemble", "model_call"]
        prompt = await get_prompt(turn.at.rt, turn.session, turn.turn_id, 2)
        assert turn.sent[1].json["messages"] == prompt.messages


@pytest.mark.parametrize("streamed", [True, False])
async def test_what_attempts_before_the_cancelled_one_used_is_kept(
    database_url: str, tmp_path: Path, streamed: bool
) -> None:
    begun: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 3}}
    failed: Step = OPENAI.whole(ModelReply("Half of it", stop="error"))
    if streamed:
        failed = Stream((event(begun), event({"error": {"type": "overloaded_error", "message": "Overloaded"}})))
    repeated = asyncio.Event()

    def play(_: Seen) -> Step:
        repeated.set()
        return Answer(after=lambda: False)

    async with sold_by(database_url, tmp_path, OPENAI, _MODEL, failed, play) as at:
        session = ref_of((await at.session()).id)
        posted = asyncio.create_task(at.turn(session.id, "Hello", listen=(lambda _: None) if streamed else None))
        await asyncio.wait_for(repeated.wait(), 20)
        (turn,) = await at.rows("SELECT id FROM turns")
        cancelled = await cancel_turn(at.rt, session, TurnId(turn["id"]))
        with pytest.raises(TurnCancelled):
            await posted
        (used,) = await at.rows(_USED)
        assert (used["round"], used["prompt_tokens"], used["completion_tokens"]) == (1, 11, 3)
        assert cancelled.cost_usd == used["cost_usd"]


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
async def test_what_was_streamed_before_a_look_back_is_a_part_of_the_answer_too(
    database_url: str, tmp_path: Path, ends: str
) -> None:
    first = OPENAI.stream(ModelReply("Let me see.", calls=(ToolCall("l", NAME, '{"query": "anything"}'),)))
    second = _BEGUN if ends == "cancelled" else Stream(_BEGUN.pieces, ending="cut")
    async with running(database_url, tmp_path, first, second, policy={"look_back": "on"}) as turn:
        if ends == "cancelled":
            await turn.cancelled()
        else:
            with pytest.raises(ProviderError):
                await turn.posted
        error = (await get_turn(turn.at.rt, turn.session, turn.turn_id)).error
        assert error is not None
        assert error["partial_output"] == turn.text == "Let me see.\n\nThe answer is long"
        used = [row["completion_tokens"] for row in await turn.at.rows(_USED)]
        streamed = turn.at.rt.tokenizers.estimator("o200k_base")("\n\nThe answer is long")
        assert used == [3, streamed]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_turn_that_another_process_ends_gets_what_it_used_when_its_call_is_stopped(
    database_url: str, tmp_path: Path, ending: Ending
) -> None:
    async with running(database_url, tmp_path, _BEGUN) as turn, service(database_url) as other:
        ended = await ending.by(other, turn)
        assert ended.cost_usd is None
        turn.at.rt.leases.cancel(turn.session.id, turn.turn_id)  # as the next renewal of its lease does
        with pytest.raises(ending.error):
            await turn.posted
        (used,) = await turn.at.rows(_USED)
        after = await get_turn(other.rt, turn.session, turn.turn_id)
        assert after.cost_usd == used["cost_usd"] > 0
        assert (after.status, after.completed_at) == (ended.status, ended.completed_at)
        assert after.error == {**(ended.error or {}), "partial_output": "The answer is long"}
        assert (await get_audit(other.rt, turn.session, turn.turn_id, None)).round == 1


async def test_a_renewal_does_not_stop_the_recording_of_a_turn_that_was_cancelled(
    database_url: str, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path, _BEGUN) as turn, service(database_url) as other:
        await cancel_turn(other.rt, turn.session, turn.turn_id)
        renewing = asyncio.create_task(renew_forever(replace(turn.at.rt, turn_lease_s=0.03)))
        async with other.rt.database.begin() as tx:
            await lock_session(tx, turn.session)
            await asyncio.sleep(0.3)  # the recording waits for the session during many renewals
        with pytest.raises(TurnCancelled):
            await turn.posted
        renewing.cancel()
        assert len(await turn.at.rows(_USED)) == 1


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_answer_that_came_whole_after_another_process_ended_the_turn_is_paid_for(
    database_url: str, tmp_path: Path, ending: Ending
) -> None:
    goes_on = asyncio.Event()
    pieces = b"".join(_BEGUN.pieces), b"".join(OPENAI.end(ModelReply()))
    whole = Stream(pieces, after=goes_on.is_set)
    async with running(database_url, tmp_path, whole) as turn, service(database_url) as other:
        await ending.by(other, turn)
        goes_on.set()
        with pytest.raises(ending.error):
            await turn.posted
        (used,) = await turn.at.rows(_USED)
        assert (used["prompt_tokens"], used["completion_tokens"]) == (11, 3)
        assert await turn.at.rows("SELECT 1 FROM messages WHERE role = 'assistant'") == []
        error = (await get_turn(other.rt, turn.session, turn.turn_id)).error
        assert error is not None
        assert error["partial_output"] == "The answer is long"


@pytest.mark.parametrize(("reports", "counted"), [(True, 14), (False, None)], ids=["reported", "unreported"])
async def test_what_a_lost_turn_used_counts_under_limits_although_its_reservation_was_given_back(
    database_url: str, tmp_path: Path, reports: bool, counted: int | None
) -> None:
    goes_on = asyncio.Event()
    answer = {"choices": [{"index": 0, "message": {"content": "Late."}, "finish_reason": "stop"}]}
    answer |= {"usage": {"prompt_tokens": 11, "completion_tokens": 3}} if reports else {}
    models = Answer(answer, after=goes_on.is_set)
    async with sold_by(database_url, tmp_path, OPENAI, _MODEL, models) as at, service(database_url) as other:
        await set_limits(at.rt.database, TENANT, {"turns_total": Decimal(9), "tokens_per_day": Decimal(10**6)})
        session = await at.session(limits={"tokens_total": 10**6})
        posted = asyncio.create_task(at.turn(session.id, "Hello"))
        while not (held := await at.rows("SELECT reserved_tokens FROM session_usage")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await lose(other)
        goes_on.set()
        with pytest.raises(TurnLost):
            await posted
        tables = "SELECT span, turns, tokens, reserved_tokens FROM {}_usage ORDER BY span"
        rows = [*await at.rows(tables.format("tenant")), *await at.rows(tables.format("session"))]
        assert [row["span"] for row in rows] == ["day", "total", "total"]
        tokens = held[0]["reserved_tokens"] if counted is None else counted
        assert {(row["turns"], row["tokens"], row["reserved_tokens"]) for row in rows} == {(1, tokens, 0)}


async def test_what_a_lost_turn_used_is_kept_although_it_breaks_here(database_url: str, tmp_path: Path) -> None:
    goes_on = asyncio.Event()
    stream = Stream(OPENAI.stream(ModelReply("Late.")).pieces, after=goes_on.is_set)

    def listen(event: TurnEvent) -> None:
        if event.name == "output.delta":
            raise RuntimeError("the listener broke")

    async with sold_by(database_url, tmp_path, OPENAI, _MODEL, stream) as at, service(database_url) as other:
        session = await at.session()
        posted = asyncio.create_task(at.turn(session.id, "Hello", listen=listen))
        while not await at.rows("SELECT 1 FROM turns"):  # noqa: ASYNC110 - the database notifies nobody
            await asyncio.sleep(0.01)
        await lose(other)
        goes_on.set()
        with pytest.raises(TurnLost):
            await posted
        assert len(await at.rows(_USED)) == 1


async def test_what_was_stored_before_a_turn_was_ended_elsewhere_is_not_stored_twice(
    database_url: str, tmp_path: Path
) -> None:
    """The commit of the end was not acknowledged, and the turn was cancelled before the next try."""
    call = OPENAI.whole(ModelReply("", calls=(ToolCall("c", "look", "{}"),)))
    async with sold_by(database_url, tmp_path, OPENAI, _MODEL, call) as at, service(database_url) as other:
        session = ref_of((await at.session()).id)

        class Unacknowledged(Database):
            fired = 0

            @asynccontextmanager
            async def autocommit(self) -> AsyncGenerator[Transaction]:
                async with super().autocommit() as tx:
                    yield tx
                if not self.fired and await at.rows("SELECT 1 FROM turns WHERE status = 'awaiting_tools'"):
                    self.fired += 1
                    (turn,) = await at.rows("SELECT id FROM turns")
                    await cancel_turn(other.rt, session, TurnId(turn["id"]))
                    raise DatabaseUnavailable("The database did not answer.")

        database = Unacknowledged(database_url, pool_size=2, transaction_pooler=behind_pooler())
        async with aclosing(database):
            with pytest.raises(TurnCancelled):
                await Service(replace(at.rt, database=database)).turn(session.id, "Hello", tools=(_TOOL,))
        assert database.fired == 1
        (used,) = await at.rows(_USED)
        assert [row["cost_usd"] for row in await at.rows("SELECT cost_usd FROM turns")] == [used["cost_usd"]]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_ended_turn_that_has_run_again_meanwhile_is_not_touched(
    database_url: str, tmp_path: Path, ending: Ending
) -> None:
    async with running(database_url, tmp_path, _BEGUN) as turn, serving(chat("Again.")) as server:
        models = models_toml(server)
        (tmp_path / "other").mkdir()
        async with service(database_url, models, folder=tmp_path / "other") as other:
            await ending.by(other, turn)
            again = await retry_turn(other.rt, turn.session, turn.turn_id, TurnOptions(), "main")
            turn.at.rt.leases.cancel(turn.session.id, turn.turn_id)
            with pytest.raises(TurnCancelled):
                await turn.posted
            assert await get_turn(other.rt, turn.session, turn.turn_id) == again.turn
            assert [row["round"] for row in await turn.at.rows(_USED)] == [1]


async def test_who_cancels_a_turn_gets_it_cancelled_even_if_it_runs_again_at_once(
    database_url: str, tmp_path: Path
) -> None:
    async with running(database_url, tmp_path, _BEGUN) as turn, serving(chat("Again.")) as server:
        (tmp_path / "other").mkdir()
        async with service(database_url, models_toml(server), folder=tmp_path / "other") as other:

            class Overtaken(Leases):
                """The turn is tried again elsewhere before this process has stopped it."""

                def cancel(self, session_id: SessionId, *turn_ids: TurnId) -> list[asyncio.Task[Any]]:
                    session = replace(turn.session, id=session_id)
                    return [asyncio.create_task(retry_turn(other.rt, session, turn_ids[0], TurnOptions(), "main"))]

            cancelled = await cancel_turn(replace(turn.at.rt, leases=Overtaken()), turn.session, turn.turn_id)
            assert cancelled.status is TurnStatus.CANCELLED
            assert (await get_turn(other.rt, turn.session, turn.turn_id)).status is TurnStatus.COMPLETED
            turn.at.rt.leases.cancel(turn.session.id, turn.turn_id)
            with pytest.raises(TurnCancelled):
                await turn.posted


async def test_a_retry_that_was_read_before_the_cancelled_turn_was_recorded_is_not_claimed(
    database_url: str, tmp_path: Path
) -> None:
    """It would number its rounds and steps as those of the cancelled call."""
    async with running(database_url, tmp_path, _BEGUN) as turn, service(database_url) as other:
        await cancel_turn(other.rt, turn.session, turn.turn_id)
        async with other.rt.database.begin() as tx:
            read = await waiting_turn(tx, turn.session, turn.turn_id)
        assert read is not None
        turn.at.rt.leases.cancel(turn.session.id, turn.turn_id)
        with pytest.raises(TurnCancelled):
            await turn.posted
        async with other.rt.database.begin() as tx:
            ended_as = [TurnStatus.CANCELLED]
            assert await reclaim_turn(tx, turn.session, turn.turn_id, read, (), 30, ended_as=ended_as) is None
            now = await waiting_turn(tx, turn.session, turn.turn_id)
            assert now is not None
            assert (now.rounds, now.steps > read.steps) == (1, True)
            assert await reclaim_turn(tx, turn.session, turn.turn_id, now, (), 30, ended_as=ended_as) is not None


async def test_nothing_is_stored_of_a_turn_whose_session_was_deleted(database_url: str, tmp_path: Path) -> None:
    async with running(database_url, tmp_path, _BEGUN) as turn:
        await delete_session(turn.at.rt, turn.session)
        with pytest.raises(TurnCancelled):
            await turn.posted
        for table in ("turns", "usage_records", "turn_context_audit", "turn_steps"):
            assert await turn.at.rows(f"SELECT 1 FROM {table}") == []  # noqa: S608 - names of our own
