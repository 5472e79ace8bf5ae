"""Nothing acknowledged is lost or doubled: two writers, retries, dead workers, faults of the model and our own."""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.db.claims import claim_turn, reclaim_turn, waiting_turn
from app.db.records import TurnEnd, record_end
from app.db.sql import Statement
from app.domain.errors import (
    IdempotencyInFlight,
    IdempotencyKeyReused,
    InvalidRequest,
    NotFound,
    PlimsollError,
    ProviderError,
    ProviderRefused,
    SessionBusy,
    StoredFailure,
    TurnCancelled,
    TurnInProgress,
    TurnLost,
    TurnNotOpen,
)
from app.domain.types import RecordedReply, SessionId, ToolCall, TurnStatus
from app.services.background import end_lost_turns, renew_forever, sweep_forever
from app.services.sessions import delete_session
from app.services.turn.additions import draft_outputs
from app.services.turn.claim import claim_drafted, draft_turn
from app.services.turn.take import cancel_turn, retry_turn
from app.services.turn.types import TurnOptions, TurnRequest
from app.services.views.context import window_now
from app.services.views.turns import get_prompt, get_turn
from app.tokenizers.counters import Tokenizers
from bench.wire import Tally, counting_proxy
from tests.providers.server import Answer, Seen, serving
from tests.services.service import chat, is_summary, model, models_toml, outputs_of, ref_of, service, sound_summary
from torture.databases import citus_servers

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 20
_WAITS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
_LOCK = Statement("SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE", ("session_id",))


class _Gate:
    """A model that keeps its answers until `opened` is set."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    def __call__(self, _: Seen) -> Answer:
        return Answer(chat("Late.").body, after=self.opened.is_set)


async def _outcomes(gate: _Gate, *calls: Any) -> list[Any]:
    """What came of them; the model answers once all but one have ended."""
    running = {asyncio.ensure_future(call) for call in calls}
    left = running
    while len(left) > 1:
        _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
    gate.opened.set()
    return await asyncio.gather(*running, return_exceptions=True)


async def test_one_of_many_concurrent_posts_runs_and_the_others_get_a_retry_after(
    database_url: str, tmp_path: Path
) -> None:
    gate = _Gate()
    async with serving(gate) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        results = await _outcomes(gate, *(at.turn(session.id, f"Post {number}") for number in range(40)))
        # On a slow machine, some wait too long for the session's row: they get a Retry-After as well.
        refused = [result for result in results if isinstance(result, TurnInProgress | SessionBusy)]
        assert len(refused) == 39
        assert all(result.retry_after_s >= 1 for result in refused)
        assert server.hits == 1
        await at.turn(session.id, "And now")
        seqs = [row["seq"] for row in await at.rows("SELECT seq FROM turns ORDER BY seq")]
        assert seqs == [1, 2], "a turn number was given to a post that was refused"


async def test_a_repeated_key_is_answered_from_the_store_and_the_model_is_called_once(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(chat("Once.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        first = await at.turn(session.id, "Pay 10", key="k1")
        again = await at.turn(session.id, "Pay 10", key="k1")
        assert (again.turn, again.context) == (first.turn, first.context)
        assert server.hits == 1
        with pytest.raises(IdempotencyKeyReused):
            await at.turn(session.id, "Pay 20", key="k1")


async def test_a_replay_gives_the_context_in_the_order_of_the_first_answer(database_url: str, tmp_path: Path) -> None:
    """jsonb keeps no order; a client that compares or signs bodies would take a replay for another answer."""
    async with serving(chat("Once.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session(policy={"prune_trigger_ratio": 0.3, "summary_trigger_ratio": 0.2})
        for number in range(8):
            first = await at.turn(session.id, f"Point {number}. " + "word " * 150, key=f"k{number}")
            again = await at.turn(session.id, f"Point {number}. " + "word " * 150, key=f"k{number}")
            assert orjson.dumps(again.context) == orjson.dumps(first.context)


async def test_a_key_whose_turn_still_runs_is_in_flight(database_url: str, tmp_path: Path) -> None:
    gate = _Gate()
    async with serving(gate) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        results = await _outcomes(gate, *(at.turn(session.id, "Pay 10", key="k1") for _ in range(8)))
        assert sum(isinstance(result, IdempotencyInFlight) for result in results) == 7
        assert server.hits == 1


async def test_a_refused_and_a_failed_turn_are_answered_again_to_a_retry_with_their_key(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(Answer({"error": {"message": "no"}}, status=400)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        for content, key in (("word " * 5000, "big"), ("Hi", "failed")):
            with pytest.raises(PlimsollError) as first:
                await at.turn(session.id, content, key=key)
            with pytest.raises(StoredFailure) as again:
                await at.turn(session.id, content, key=key)
            assert again.value.stored() == first.value.stored()
        assert server.hits == 1


async def test_a_provider_that_refuses_leaves_the_users_message_and_a_failed_turn(
    database_url: str, tmp_path: Path
) -> None:
    script = [Answer({"error": {"message": "bad key"}}, status=401), chat("Better.")]
    async with serving(*script) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        with pytest.raises(ProviderRefused):
            await at.turn(session.id, "First")
        failed = (await at.rows("SELECT id, status, assistant_output FROM turns"))[0]
        assert (failed["status"], failed["assistant_output"]) == ("failed", None)
        outcome = await at.turn(session.id, "Second")
        sent = server.seen[-1].json["messages"]
        assert [message["content"] for message in sent] == ["First", "Second"]
        assert outcome.turn.status is TurnStatus.COMPLETED
        prompt = await get_prompt(at.rt, ref_of(session.id), failed["id"], None)
        assert [message["content"] for message in prompt.messages] == ["First"]


async def test_a_dead_workers_turn_ends_as_lost_and_the_session_goes_on(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(chat("Alive.")) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        request = TurnRequest(content="Never answered", request_sha256="x")
        draft = await draft_turn(at.rt, request, "dead")
        async with at.rt.database.begin() as tx:
            assert await claim_turn(tx, ref_of(session.id), draft, at.rt.turn_lease_s) is not None
        with pytest.raises(TurnInProgress):
            await at.turn(session.id, "Too early")
        await at.rows("UPDATE turns SET lease_expires_at = now() RETURNING id")
        outcome = await at.turn(session.id, "Later")
        assert outcome.turn.seq == 2
        lost = await get_turn(at.rt, ref_of(session.id), draft.turn_id)
        assert lost.status is TurnStatus.FAILED
        assert lost.error is not None
        assert lost.error["code"] == "worker_lost"
        assert server.hits == 1, "a lost turn was called again by itself"
        assert [message["content"] for message in server.seen[0].json["messages"]] == ["Never answered", "Later"]


async def test_the_sweeper_ends_lost_turns_without_a_further_post(database_url: str) -> None:
    async with service(database_url, lease_s=0.1) as at:
        session = await at.session()
        draft = await draft_turn(at.rt, TurnRequest(content="Never answered", request_sha256="x"), None)
        async with at.rt.database.begin() as tx:
            await claim_turn(tx, ref_of(session.id), draft, at.rt.turn_lease_s)
        sweeper = asyncio.create_task(sweep_forever(at.rt))
        try:
            swept = TurnStatus.RUNNING
            for _ in range(1500):
                await asyncio.sleep(0.02)
                swept = (await get_turn(at.rt, ref_of(session.id), draft.turn_id)).status
                if swept is TurnStatus.FAILED:
                    break
            assert swept is TurnStatus.FAILED
        finally:
            sweeper.cancel()


async def test_a_worker_that_lost_its_lease_can_not_write(database_url: str, tmp_path: Path) -> None:
    """The model takes longer than the lease and nobody renews it; meanwhile another post takes the session over."""
    gate = _Gate()
    async with (
        serving(gate, chat("Late.")) as server,
        service(database_url, models_toml(server), folder=tmp_path, lease_s=0.2) as at,
    ):
        session = await at.session()
        zombie = asyncio.create_task(at.turn(session.id, "Slow"))
        await server.arrived.wait()
        await asyncio.sleep(0.3)
        outcome = await at.turn(session.id, "Quick")
        gate.opened.set()
        with pytest.raises(TurnLost):
            await zombie
        rows = await at.rows("SELECT seq, status, assistant_output FROM turns ORDER BY seq")
        assert [(row["status"], row["assistant_output"]) for row in rows] == [("failed", None), ("completed", "Late.")]
        assert len(await at.rows("SELECT 1 FROM messages WHERE role = 'assistant'")) == 1
        assert outcome.turn.seq == 2


async def test_outputs_that_were_checked_against_an_earlier_round_are_not_stored_in_a_later_one(
    database_url: str,
) -> None:
    """Another process answers the calls and gets new ones between this one's check and its claim."""
    first, second = (RecordedReply(None, (ToolCall(name, "look", "{}"),)) for name in ("first", "second"))
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        turn = (await at.turn(session.id, "Look twice.", tools=(TOOL,), recorded_reply=first)).turn
        (output,) = await draft_outputs(at.rt, outputs_of({"first": "here"}))
        async with at.rt.database.begin() as tx:
            waiting = await waiting_turn(tx, session, turn.id)
            assert waiting is not None
            await at.outputs(session.id, turn.id, {"first": "here"}, second)
            assert await reclaim_turn(tx, session, turn.id, waiting, [output], 30) is None
        stored = await at.rows("SELECT tool_call_id FROM messages WHERE role = 'tool'")
        assert [row["tool_call_id"] for row in stored] == ["first"]
        done = await at.outputs(session.id, turn.id, {"second": "there"}, RecordedReply("Seen."))
        assert done.turn.assistant_output == "Seen."


async def test_a_retry_that_was_read_while_another_one_ran_is_not_claimed_once_that_has_failed(
    database_url: str, tmp_path: Path
) -> None:
    """Its round and its steps would have the numbers of the other's, and its answer could not be stored."""
    gate, refused = asyncio.Event(), {"error": {"message": "no"}}
    script = [Answer(refused, status=401), Answer(refused, status=401, after=gate.is_set)]
    async with serving(*script) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = ref_of((await at.session()).id)
        with pytest.raises(ProviderRefused):
            await at.turn(session.id, "First")
        (failed,) = await at.rows("SELECT id FROM turns")
        server.arrived.clear()
        retry = asyncio.create_task(retry_turn(at.rt, session, failed["id"], TurnOptions(), "main"))
        await server.arrived.wait()
        async with at.rt.database.begin() as tx:
            running = await waiting_turn(tx, session, failed["id"])
            assert running is not None
            gate.set()
            with pytest.raises(ProviderRefused):
                await retry
            ended_as = (TurnStatus.FAILED,)
            assert await reclaim_turn(tx, session, failed["id"], running, (), 30, ended_as=ended_as) is None


async def test_a_failed_turn_is_not_run_again_once_another_one_followed_it(database_url: str, tmp_path: Path) -> None:
    """Its answer would stand after the later turn's messages."""
    script = [Answer({"error": {"message": "no"}}, status=401), chat("Yes."), chat("Too late.")]
    async with (
        serving(lambda _: script.pop(0)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        with pytest.raises(ProviderRefused):
            await at.turn(session.id, "First")
        await at.turn(session.id, "Second")
        (failed, _) = await at.rows("SELECT id FROM turns ORDER BY seq")
        with pytest.raises(TurnInProgress):
            await retry_turn(at.rt, ref_of(session.id), failed["id"], TurnOptions(), "main")
        assert server.hits == 2
        assert [row["status"] for row in await at.rows("SELECT status FROM turns ORDER BY seq")] == [
            "failed",
            "completed",
        ]


@pytest.mark.parametrize("erased", [False, True])
async def test_a_turn_that_another_process_cancels_or_erases_is_cancelled_for_its_waiting_client(
    database_url: str, tmp_path: Path, *, erased: bool
) -> None:
    """It was 503 `worker_lost`, upon which clients post again what somebody had just cancelled."""
    gate = _Gate()
    async with (
        serving(gate) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
        service(database_url, models_toml(server), folder=tmp_path) as other,
    ):
        session = await at.session()
        waiting = asyncio.create_task(at.turn(session.id, "Slow"))
        await server.arrived.wait()
        (turn,) = await at.rows("SELECT id FROM turns")
        if erased:
            await delete_session(other.rt, ref_of(session.id))
        else:
            await cancel_turn(other.rt, ref_of(session.id), turn["id"])
        gate.opened.set()
        with pytest.raises(TurnCancelled):
            await waiting
        assert await at.rows("SELECT 1 FROM messages WHERE role = 'assistant'") == []


@pytest.mark.parametrize("how", ["cancelled", "erased", "lost"])
async def test_the_call_of_a_turn_that_another_process_ended_is_stopped_by_the_next_renewal(
    database_url: str, tmp_path: Path, how: str
) -> None:
    async with (
        serving(_Gate()) as server,
        service(database_url, models_toml(server), folder=tmp_path, lease_s=0.9) as at,
        service(database_url, models_toml(server), folder=tmp_path) as other,
    ):
        session = await at.session()
        waiting = asyncio.create_task(at.turn(session.id, "Slow"))
        await server.arrived.wait()
        (turn,) = await at.rows("SELECT id FROM turns")
        if how == "cancelled":
            await cancel_turn(other.rt, ref_of(session.id), turn["id"])
        elif how == "erased":
            await delete_session(other.rt, ref_of(session.id))
        else:
            await other.rows("UPDATE turns SET lease_expires_at = '-infinity' RETURNING id")
            assert await end_lost_turns(other.rt.database) == 1
        keeper = asyncio.create_task(renew_forever(at.rt))
        with pytest.raises(TurnLost if how == "lost" else TurnCancelled):
            await waiting
        keeper.cancel()
        while server.open_connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert at.rt.leases.held() == ()


@pytest.mark.skipif(citus_servers() is not None, reason="it watches the locks of one server")
async def test_a_cancel_that_meets_the_end_of_the_turn_names_the_status_that_it_ended_with(database_url: str) -> None:
    """It was answered: "The turn is running; there is nothing to cancel."."""
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        draft = await draft_turn(at.rt, TurnRequest(content="Hi", request_sha256="x"), None)
        claimed = await claim_drafted(at.rt, session, draft, TurnOptions())
        async with at.rt.heavy.database.begin() as held:
            await held.fetch(_LOCK, session_id=session.id)
            cancelling = asyncio.ensure_future(cancel_turn(at.rt, session, draft.turn_id))
            while not await at.rows(_WAITS):  # noqa: ASYNC110 - the database notifies nobody
                await asyncio.sleep(0.01)
            end = TurnEnd(TurnStatus.COMPLETED, "offline", steps=[], audits=[], assistant_output="Hello.")
            assert await record_end(held, claimed.claim, end) is not None
        with pytest.raises(TurnNotOpen, match="The turn is completed"):
            await cancelling


async def test_a_lease_that_a_wait_for_the_session_ate_is_whole_again_when_it_counts(database_url: str) -> None:
    async with service(database_url, lease_s=3.0) as at:
        session = await at.session()
        async with at.rt.heavy.database.begin() as held:
            await held.fetch(_LOCK, session_id=session.id)
            draft = await draft_turn(at.rt, TurnRequest(content="Waits", request_sha256="x"), None)
            claiming = asyncio.create_task(claim_drafted(at.rt, ref_of(session.id), draft, TurnOptions()))
            await asyncio.sleep(1.5)  # half the lease
            assert not claiming.done(), "the claim did not wait"
        await claiming
        (turn,) = await at.rows("SELECT extract(epoch FROM lease_expires_at - created_at) AS lease_s FROM turns")
        assert turn["lease_s"] >= 3.0 + 1.0, "it was not renewed after the wait"


async def test_a_renewed_lease_outlives_a_slow_model(database_url: str, tmp_path: Path) -> None:
    gate = _Gate()
    async with serving(gate) as server, service(database_url, models_toml(server), folder=tmp_path, lease_s=3.0) as at:
        keepers = [asyncio.create_task(work(at.rt)) for work in (renew_forever, sweep_forever)]
        try:
            session = await at.session()
            running = asyncio.create_task(at.turn(session.id, "Slow"))
            await server.arrived.wait()
            ((_, task),) = at.rt.leases.held()
            ran = weakref.ref(task)
            del task
            await asyncio.sleep(at.rt.turn_lease_s)
            gate.opened.set()
            outcome = await running
            assert outcome.turn.status is TurnStatus.COMPLETED
            async with asyncio.timeout(5):  # a renewal may be at it; after that nothing keeps the turn in memory
                while ran() is not None:  # noqa: ASYNC110 - nothing says when it is freed
                    await asyncio.sleep(0.01)
        finally:
            for keeper in keepers:
                keeper.cancel()


async def test_a_worker_that_comes_late_with_its_summary_does_not_set_the_turn_count_back(
    database_url: str, tmp_path: Path
) -> None:
    gate = _Gate()
    late = model(summary=lambda request: replace(sound_summary(request), after=gate.opened.is_set))
    async with (
        serving(late) as slow,
        service(database_url, models_toml(slow), folder=tmp_path) as first,
        serving(model()) as quick,
        service(database_url, models_toml(quick), folder=tmp_path) as second,
    ):
        session = await first.session(policy={"mandatory_summary_turn": 3, "protected_turns": 2})
        for number in range(1, 4):
            await first.turn(session.id, f"Point {number}. {LONG}")
        running = asyncio.ensure_future(first.turn(session.id, "Summarized too late"))
        while not any(map(is_summary, slow.seen)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (turn,) = await second.rows("SELECT id FROM turns WHERE status = 'running'")
        await cancel_turn(second.rt, ref_of(session.id), turn["id"])
        # It is so late that its lease is over.
        await second.rows("UPDATE sessions SET summary_lease_expires_at = '-infinity' RETURNING id")
        triggered = [
            (await second.turn(session.id, f"Point {number}. {LONG}")).context["summary_triggered"]
            for number in range(5, 9)
        ]
        assert triggered == [True, False, False, True]
        assert (await window_now(second.rt, ref_of(session.id))).turns_to_next_summary == 2
        gate.opened.set()
        with pytest.raises(TurnCancelled):
            await running
        assert (await window_now(second.rt, ref_of(session.id))).turns_to_next_summary == 2


async def test_no_connection_is_held_while_the_model_thinks(database_url: str, tmp_path: Path) -> None:
    gate = _Gate()
    async with serving(gate) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        sessions = [await at.session() for _ in range(30)]
        running = [asyncio.create_task(at.turn(session.id, "Think")) for session in sessions]
        for _ in range(3000):
            await asyncio.sleep(0.01)
            if server.hits == 30:
                break
        assert server.hits == 30, "not all of them reached the model"
        busy = await at.rows(
            "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() "
            "AND state LIKE 'idle in transaction%'"
        )
        assert busy[0]["n"] == 0
        assert len([task for task in running if not task.done()]) == 30
        gate.opened.set()
        assert all(outcome.turn.status is TurnStatus.COMPLETED for outcome in await asyncio.gather(*running))
        assert server.hits == 30


async def test_a_reply_with_nul_bytes_and_half_a_surrogate_is_stored_all_the_same(
    database_url: str, tmp_path: Path
) -> None:
    body = (
        b'{"choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"a\\u0000b\\ud83dc"}}]}'
    )
    async with serving(Answer(body)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        outcome = await at.turn(session.id, "Hi")
        assert outcome.turn.status is TurnStatus.COMPLETED
        assert outcome.turn.assistant_output is not None
        assert outcome.turn.assistant_output.startswith("a")
        assert server.hits == 1


async def test_a_tokenizer_that_fails_is_replaced_by_the_heuristic_and_the_audit_says_so(
    database_url: str, tmp_path: Path
) -> None:
    failures: list[str] = []

    class Broken:
        def count(self, text: str) -> int:
            failures.append(text)
            raise RuntimeError("out of order")

    async with (
        serving(chat("Fine.")) as server,
        service(database_url, models_toml(server), folder=tmp_path, tokenizers=Tokenizers(lambda _: Broken())) as at,
    ):
        session = await at.session()
        outcome = await at.turn(session.id, "x" * 101)
        assert failures, "the fault never fired"
        assert outcome.context["regions"]["user"] == 32  # ceil(101 / 4 * 1.25)
        rows = await at.rows("SELECT estimator FROM turn_context_audit")
        assert rows[0]["estimator"] == "heuristic"
        stored = await at.rows("SELECT token_encoding FROM messages ORDER BY seq")
        assert [row["token_encoding"] for row in stored] == ["heuristic", "heuristic"]


async def test_a_request_that_cannot_run_stores_nothing(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.session()
        with pytest.raises(InvalidRequest):
            await at.turn(session.id, "Hi", model_alias="nobody")
        with pytest.raises(NotFound):
            await at.turn(SessionId(at.rt.new_id()), "Hi")
        assert await at.rows("SELECT 1 FROM turns") == []
        row = (await at.rows("SELECT last_turn_seq FROM sessions"))[0]
        assert row["last_turn_seq"] == 0


async def test_a_provider_that_is_down_is_called_three_times_at_most(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(Answer(status=503, headers={"retry-after": "0"})) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        with pytest.raises(ProviderError):
            await at.turn(session.id, "Hi")
        assert server.hits == 3


async def test_a_plain_turn_is_four_statements_in_two_transactions(database_url: str, tmp_path: Path) -> None:
    """Counted on the wire, where nothing can hide. BEGIN and COMMIT are counted apart."""
    tally = Tally()
    async with (
        counting_proxy(database_url, tally) as counted_url,
        serving(chat("Fine.")) as server,
        service(counted_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        await at.turn(session.id, "Warm up")
        tally.clear()
        await at.turn(session.id, "Counted")
        assert (len(tally.statements), tally.transactions) == (4, 2), tally
