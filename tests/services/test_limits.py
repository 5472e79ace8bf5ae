"""No call is made that a limit does not allow: reserved before, settled after, given back where nothing was used."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from app.db.sql import sql
from app.domain.errors import (
    InvalidRequest,
    LimitExceeded,
    NotFound,
    PlimsollError,
    ProviderError,
    ProviderRefused,
    TurnCancelled,
    TurnInProgress,
)
from app.domain.types import (
    JsonObject,
    Pin,
    RecordedReply,
    Session,
    SessionId,
    SessionRef,
    TenantId,
    ToolCall,
    TurnStatus,
)
from app.services.background import sweep_forever
from app.services.limits import clear_limits, list_limits, set_limits
from app.services.sessions import create_session, put_pin
from app.services.summaries import summarize_now, undo_summary
from app.services.turn.claim import claim_drafted, draft_turn
from app.services.turn.take import cancel_turn, take_turn
from app.services.turn.types import TurnEvent, TurnOptions, TurnRequest
from bench.wire import Tally, counting_proxy
from tests.providers.server import Answer, Seen, Stream, serving
from tests.providers.wires import ANTHROPIC, OPENAI, ModelReply
from tests.services.service import TENANT, Service, chat, model, models_toml, ref_of, service
from tests.services.test_costs import sold_by
from tests.services.test_model_faults import unknown_window
from tests.services.test_summary_call import repeats

ALLOWED = 20
POSTS = 500


async def limit(at: Service, **values: float) -> None:
    """Limits of the tenant under test."""
    await set_limits(at.rt.database, TENANT, {name: Decimal(str(value)) for name, value in values.items()})


async def usage(at: Service, table: str = "tenant_usage") -> list[dict[str, Any]]:
    """What is counted, span by span."""
    return await at.rows(f"SELECT * FROM {table} ORDER BY span")  # noqa: S608 - one of our two tables


async def post_all(at: Service, sessions: list[SessionId]) -> list[LimitExceeded]:
    """Posts `POSTS` turns, at once, each again where one runs already; the refusals."""
    refused: list[LimitExceeded] = []

    async def post(number: int) -> None:
        while True:
            try:
                await at.turn(sessions[number % len(sessions)], f"Post {number}")
            except TurnInProgress:
                await asyncio.sleep(0.2)
            except LimitExceeded as error:
                if error.retry_after_s != 1:
                    refused.append(error)
                    return
                await asyncio.sleep(0.2)  # others hold the rest: some of it comes back
            else:
                return

    await asyncio.gather(*(post(number) for number in range(POSTS)))
    return refused


async def test_of_500_posts_of_a_tenant_with_room_for_20_turns_20_reach_the_model(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(chat("Yes.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await limit(at, turns_total=ALLOWED)
        sessions = [(await at.session()).id for _ in range(50)]
        refused = await post_all(at, sessions)
        assert server.hits == ALLOWED
        assert len(refused) == POSTS - ALLOWED
        assert {error.limit["name"] for error in refused} == {"turns_total"}
        assert len(await at.rows("SELECT 1 FROM turns")) == ALLOWED, "a refused turn was stored"
        assert (await usage(at))[0]["turns"] == ALLOWED


async def test_of_500_posts_to_a_session_with_room_for_20_turns_20_reach_the_model(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(model("Yes.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session(limits={"turns_total": ALLOWED}, policy={"summarize_when": "never"})
        refused = await post_all(at, [session.id])
        assert server.hits == ALLOWED
        assert len(refused) == POSTS - ALLOWED
        assert (await usage(at, "session_usage"))[0]["turns"] == ALLOWED


async def test_tokens_of_500_posts_never_go_over_the_limit(database_url: str, tmp_path: Path) -> None:
    """What is reserved is the worst case, so fewer run at once; in the end there is no room for another worst case."""
    tokens_a_turn = 150
    answer = chat("Yes.", prompt_tokens=100, completion_tokens=50)
    async with serving(answer) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await limit(at, tokens_total=ALLOWED * tokens_a_turn)
        refused = await post_all(at, [(await at.session()).id for _ in range(50)])
        (counted,) = await usage(at)
        assert counted["tokens"] == server.hits * tokens_a_turn
        assert counted["tokens"] <= ALLOWED * tokens_a_turn
        assert counted["reserved_tokens"] == 0
        assert 0 < server.hits <= ALLOWED
        assert refused


async def test_dollars_are_counted_at_the_published_price(database_url: str, tmp_path: Path) -> None:
    async with sold_by(database_url, tmp_path, OPENAI, "gpt-4o-mini") as at:
        await limit(at, usd_per_month=0.00005)
        session = await at.session()
        costs: list[float] = []

        async def post_until_refused() -> None:
            for number in range(ALLOWED):
                outcome = await at.turn(session.id, f"Post {number}", max_output_tokens=16)
                costs.append(float(outcome.turn.cost_usd or 0))

        with pytest.raises(LimitExceeded) as refused:
            await post_until_refused()
        spent = sum(costs)
        assert 0 < spent <= 0.00005
        exceeded = refused.value.limit
        assert (exceeded["scope"], exceeded["name"], exceeded["value"]) == ("tenant", "usd_per_month", 0.00005)
        assert exceeded["used"] == pytest.approx(spent)
        assert exceeded["resets_at"].endswith("-01T00:00:00Z")
        assert refused.value.retry_after_s is not None
        assert refused.value.retry_after_s > 1
        assert float((await usage(at))[0]["usd"]) == pytest.approx(spent)


@pytest.mark.parametrize("refusal", [Answer({"error": {"message": "no"}}, status=401), "too long"])
async def test_a_turn_that_failed_or_was_refused_gives_back_what_it_reserved(
    database_url: str, tmp_path: Path, refusal: Answer | str
) -> None:
    answers = [refusal] if isinstance(refusal, Answer) else []
    content = "Hi" if answers else "word " * 5000
    async with (
        serving(*answers, chat("Yes.")) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        await limit(at, turns_total=1, tokens_total=10_000, usd_total=1)
        session = await at.session()
        with pytest.raises(PlimsollError) as failed:
            await at.turn(session.id, content)
        assert isinstance(failed.value, ProviderRefused) or failed.value.code == "context_budget_exceeded"
        (counted,) = await usage(at)
        assert (counted["turns"], counted["tokens"], counted["reserved_tokens"]) == (0, 0, 0)
        await at.turn(session.id, "Again")
        with pytest.raises(LimitExceeded):
            await at.turn(session.id, "And again")


async def test_a_dead_workers_reservation_comes_back_when_its_turn_is_swept(database_url: str) -> None:
    async with service(database_url, lease_s=0.1) as at:
        await limit(at, turns_total=1, tokens_total=10_000)
        session = await at.session(limits={"turns_total": 1})
        draft = await draft_turn(at.rt, TurnRequest(content="Never answered", request_sha256="x"), None)
        await claim_drafted(at.rt, ref_of(session.id), draft, TurnOptions())
        (held,) = await usage(at)
        assert held["turns"] == 1
        assert held["reserved_tokens"] > 0
        sweeper = asyncio.create_task(sweep_forever(at.rt))
        try:
            for _ in range(1500):
                await asyncio.sleep(0.02)
                (held,) = await usage(at)
                if not held["turns"]:
                    break
        finally:
            sweeper.cancel()
        assert (held["turns"], held["tokens"], held["reserved_tokens"]) == (0, 0, 0)
        assert (await usage(at, "session_usage"))[0]["turns"] == 0
        await at.turn(session.id, "Room again")


async def test_a_turn_cancelled_while_its_model_runs_uses_what_it_reserved(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(Answer(chat("Late.").body, delay_s=60)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        await limit(at, tokens_total=10_000)
        session = await at.session()
        running = asyncio.create_task(at.turn(session.id, "Slow"))
        await server.arrived.wait()
        (held,) = await usage(at)
        turn_id = (await at.rows("SELECT id FROM turns"))[0]["id"]
        await cancel_turn(at.rt, ref_of(session.id), turn_id)
        with pytest.raises(TurnCancelled):
            await running
        (counted,) = await usage(at)
        assert (counted["tokens"], counted["reserved_tokens"]) == (held["reserved_tokens"], 0)


async def test_a_later_round_of_a_turn_reserves_tokens_and_counts_as_no_other_turn(database_url: str) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    async with service(database_url) as at:
        await limit(at, turns_total=1, tokens_total=100_000)
        session = await at.session()
        recorded = RecordedReply(None, tool_calls=(ToolCall("c1", "look", "{}"),))
        outcome = await at.turn(session.id, "Look", tools=(tool,), recorded_reply=recorded)
        assert outcome.turn.status is TurnStatus.AWAITING_TOOLS
        (after_one,) = await usage(at)
        assert (after_one["turns"], after_one["reserved_tokens"]) == (1, 0)
        done = await at.outputs(session.id, outcome.turn.id, {"c1": "Nothing there."})
        assert done.turn.status is TurnStatus.COMPLETED
        (after_two,) = await usage(at)
        assert after_two["turns"] == 1
        assert after_two["tokens"] > after_one["tokens"]


async def test_a_later_round_of_a_turn_goes_on_although_its_turn_would_not_be_allowed_by_now(
    database_url: str,
) -> None:
    """Limits apply from the next turn on. The outputs were refused, and the turn occupied its session."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    recorded = RecordedReply(None, tool_calls=(ToolCall("c1", "look", "{}"),))
    async with service(database_url) as at:
        await limit(at, turns_total=2)
        session = await at.session()
        await at.turn(session.id, "Hello")
        turn = (await at.turn(session.id, "Look", tools=(tool,), recorded_reply=recorded)).turn
        await limit(at, turns_total=1)
        done = await at.outputs(session.id, turn.id, {"c1": "Nothing there."})
        assert done.turn.status is TurnStatus.COMPLETED
        with pytest.raises(LimitExceeded):
            await at.turn(session.id, "One more")


async def test_of_two_limits_the_one_that_takes_longer_says_when_to_retry(database_url: str, tmp_path: Path) -> None:
    """The client was to post again after a second, because one of them only waited for a turn that runs."""
    goes_on = asyncio.Event()
    slow = Answer(chat("Slow.").body, after=goes_on.is_set)
    async with serving(slow) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await limit(at, turns_per_day=1, tokens_total=10**6)
        running = asyncio.create_task(at.turn((await at.session()).id, "Slow"))
        await server.arrived.wait()
        (_, held) = await usage(at)
        await limit(at, tokens_total=held["reserved_tokens"])
        with pytest.raises(LimitExceeded) as refused:
            await at.turn((await at.session()).id, "Hi")
        assert refused.value.limit["name"] == "turns_per_day"
        assert (refused.value.retry_after_s or 0) > 1
        await limit(at, turns_per_day=2)
        with pytest.raises(LimitExceeded) as refused:
            await at.turn((await at.session()).id, "Hi")
        assert (refused.value.limit["name"], refused.value.retry_after_s) == ("tokens_total", 1)
        goes_on.set()
        await running


async def test_summaries_count_against_limits_too(database_url: str, tmp_path: Path) -> None:
    async with serving(model("Yes.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await limit(at, tokens_total=1_000_000)
        session = await at.session(policy={"protected_turns": 1})
        for number in range(4):
            await at.turn(session.id, f"Turn {number}. " + "A sentence of some length about the port. " * 12)
        (before,) = await usage(at)
        await summarize_now(at.rt, ref_of(session.id))
        (after,) = await usage(at)
        assert after["tokens"] == before["tokens"] + 120


@pytest.mark.parametrize("values", [{"turns_total": 4}, {"tokens_total": 700}])
async def test_once_a_limit_is_reached_no_summary_is_requested_however_often_it_is_taken_back(
    database_url: str, tmp_path: Path, values: dict[str, float]
) -> None:
    reply = chat("Yes.", prompt_tokens=150, completion_tokens=20)
    async with (
        serving(model(lambda _: reply)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"protected_turns": 1})
        for number in range(4):
            await at.turn(session.id, f"Turn {number}. " + "A sentence of some length about the port. " * 12)
        await summarize_now(at.rt, ref_of(session.id))  # nothing is limited yet
        await limit(at, **values)
        await _use_up(at)
        calls = server.hits
        with pytest.raises(LimitExceeded):
            await at.turn(session.id, "One more")
        for _ in range(5):
            with suppress(NotFound):
                await undo_summary(at.rt, ref_of(session.id), None)
            with pytest.raises(LimitExceeded, match="this summary"):
                await summarize_now(at.rt, ref_of(session.id))
        assert server.hits == calls


async def _use_up(at: Service) -> None:
    """Other sessions of the tenant use what there is."""
    for number in range(ALLOWED):
        try:
            await at.turn((await at.session()).id, f"Another {number}")
        except LimitExceeded:
            return
    raise AssertionError("nothing was refused")


async def test_a_summary_on_demand_counts_as_a_turn_and_one_for_a_turn_does_not(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(model("Yes.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await limit(at, turns_total=100)
        session = await at.session(policy={"mandatory_summary_turn": 4, "protected_turns": 1})
        triggered = False
        for number in range(6):
            said = f"Turn {number}. " + "A sentence of some length about the port. " * 12
            triggered |= (await at.turn(session.id, said)).context["summary_triggered"]
        assert triggered
        assert (await usage(at))[0]["turns"] == 6
        await summarize_now(at.rt, ref_of(session.id))
        assert (await usage(at))[0]["turns"] == 7


async def test_a_summary_on_demand_counts_as_a_turn_although_its_first_call_was_refused(
    database_url: str, tmp_path: Path
) -> None:
    """The refused call, which used nothing, had counted as the turn; the one that was paid for then counted as none."""
    others = model("Yes.")

    def play(request: Seen) -> Answer:
        return Answer({"error": {"message": "no"}}, status=400) if repeats(request) else others(request)

    async with (
        serving(play) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        await limit(at, turns_total=100)
        session = await at.session(policy={"protected_turns": 1, "summary_call": "cached"})
        for number in range(4):
            await at.turn(session.id, f"Turn {number}. " + "A sentence of some length about the port. " * 12)
        await summarize_now(at.rt, ref_of(session.id))
        assert [repeats(request) for request in server.seen[4:]] == [True, False]
        assert (await usage(at))[0]["turns"] == 5


async def test_a_summary_of_a_turn_that_a_limit_does_not_allow_is_replaced_and_the_step_says_so(
    database_url: str, tmp_path: Path
) -> None:
    """The turn has room, and beside it there is none for the summarizer's prompt and its answer."""
    async with serving(model("Yes.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await limit(at, tokens_total=1300)
        session = await at.session(policy={"mandatory_summary_turn": 4, "protected_turns": 1})
        said = [f"Turn {number}. " + "A sentence of some length about the port. " * 12 for number in range(5)]
        *_, outcome = [await at.turn(session.id, content, max_output_tokens=16) for content in said]
        assert outcome.context["summary_triggered"]
        (step,) = await at.rows("SELECT status, detail FROM turn_steps WHERE kind = 'summarize'")
        assert (step["detail"]["failure"], step["detail"]["origin"]) == ("limit_exceeded", "fallback")
        assert server.hits == 5, "the summarizer was asked"
        assert (await at.rows("SELECT summary_failures FROM sessions"))[0]["summary_failures"] == 0
        assert (await usage(at))[0]["tokens"] == 5 * 15


async def test_a_summary_that_fails_gives_back_what_was_counted(database_url: str, tmp_path: Path) -> None:
    answers = model("Yes.", summary=lambda _: Answer({"error": {"message": "no"}}, status=401))
    async with serving(answers) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await limit(at, tokens_total=100_000, turns_total=50)
        session = await at.session(policy={"protected_turns": 1})
        for number in range(4):
            await at.turn(session.id, f"Turn {number}. " + "A sentence of some length about the port. " * 12)
        before = await usage(at)
        hits = server.hits
        await summarize_now(at.rt, ref_of(session.id))
        assert server.hits > hits, "the summarizer was not asked"
        assert await usage(at) == before


def _breaks_after(text: str) -> Stream:
    """A chat completion's stream that hangs up after the text."""
    return Stream((*OPENAI.begin(), *OPENAI.fragments(ModelReply(text))), ending="cut")


async def test_text_that_was_delivered_counts_though_its_stream_broke(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(_breaks_after("A long answer that breaks off")) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        await limit(at, turns_total=3, tokens_total=100_000)
        session = await at.session()
        got_text = 0
        for number in range(8):
            events: list[TurnEvent] = []
            with pytest.raises((ProviderError, LimitExceeded)):
                await at.turn(session.id, f"Turn {number}", listen=events.append)
            got_text += any(event.name == "output.delta" for event in events)
        assert got_text == server.hits == 3
        (counted,) = await usage(at)
        assert (counted["turns"], counted["reserved_tokens"]) == (3, 0)
        used = await at.rows("SELECT purpose, prompt_tokens, completion_tokens FROM usage_records")
        assert len(used) == 3
        assert counted["tokens"] == sum(row["prompt_tokens"] + row["completion_tokens"] for row in used)
        assert all(row["prompt_tokens"] > 0 and row["completion_tokens"] >= 6 for row in used)


async def test_what_a_provider_reported_of_a_stream_that_broke_is_what_counts(
    database_url: str, tmp_path: Path
) -> None:
    reported = b'data: {"choices": [], "usage": {"prompt_tokens": 70, "completion_tokens": 50}}\n\n'
    broken = _breaks_after("A few words")
    stream = Stream((*broken.pieces, reported), ending="cut")
    async with serving(stream) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await limit(at, tokens_total=100_000)
        session = await at.session()
        with pytest.raises(ProviderError):
            await at.turn(session.id, "Hi", listen=lambda _: None)
        assert (await usage(at))[0]["tokens"] == 120


async def test_another_tenants_use_counts_for_that_tenant_alone(database_url: str) -> None:
    other = TenantId("other")
    async with service(database_url) as at:
        await limit(at, turns_total=1)
        theirs = await create_session(at.rt, other, {})
        for number in range(3):
            await take_turn(at.rt, SessionRef(other, theirs.id), TurnRequest(f"Turn {number}", str(number)), None)
        session = await at.session()
        await at.turn(session.id, "Hi")
        with pytest.raises(LimitExceeded):
            await at.turn(session.id, "Again")


@pytest.mark.parametrize("step", ["- interval '2 days'", "+ interval '2 days'"], ids=["days later", "a clock set back"])
async def test_a_limit_starts_at_zero_in_a_new_period(database_url: str, step: str) -> None:
    """A span that has not begun yet is of a clock that was ahead: nobody waits until it begins."""
    async with service(database_url) as at:
        await limit(at, turns_per_day=1)
        session = await at.session()
        await at.turn(session.id, "Today")
        with pytest.raises(LimitExceeded) as refused:
            await at.turn(session.id, "Too much")
        assert 0 < (refused.value.retry_after_s or 0) <= 86_400
        async with at.rt.database.begin() as tx:
            # Citus takes nothing of a column here that goes by the session's time zone.
            moved = f"(starts_at AT TIME ZONE 'UTC' {step}) AT TIME ZONE 'UTC'"
            await tx.execute(sql(f"UPDATE tenant_usage SET starts_at = {moved}"))  # noqa: S608 - as above
        await at.turn(session.id, "Tomorrow")
        (counted,) = await usage(at)
        assert counted["turns"] == 1


async def test_a_key_is_answered_from_the_store_when_there_is_no_room_for_another_turn(database_url: str) -> None:
    async with service(database_url) as at:
        await limit(at, turns_total=1)
        session = await at.session()
        first = await at.turn(session.id, "Once", key="k")
        assert (await at.turn(session.id, "Once", key="k")).turn == first.turn


async def test_limits_are_set_listed_with_what_was_used_and_cleared(database_url: str) -> None:
    async with service(database_url) as at:
        await limit(at, turns_per_day=5, usd_per_month=2.5)
        await limit(at, turns_per_day=7)
        session = await at.session()
        await at.turn(session.id, "Hi")
        listed: Mapping[str, Any] = {row.name: row for row in await list_limits(at.rt.database, TENANT)}
        assert (listed["turns_per_day"].value, listed["turns_per_day"].used) == (7, 1)
        assert (listed["usd_per_month"].value, listed["usd_per_month"].used) == (Decimal("2.5"), 0)
        assert await clear_limits(at.rt.database, TENANT) == 2
        assert await list_limits(at.rt.database, None) == []


async def test_a_limit_with_more_digits_than_are_stored_is_refused_instead_of_rounded(database_url: str) -> None:
    async with service(database_url) as at:
        await limit(at, usd_per_day=1e-10)
        for smaller in (1e-30, 0.12345678901):
            with pytest.raises(InvalidRequest, match="10 digits"):
                await limit(at, usd_per_day=smaller)
        (listed,) = await list_limits(at.rt.database, TENANT)
        assert listed.value == Decimal("1e-10")


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "refused"])
async def test_a_turn_that_runs_while_limits_are_cleared_and_set_anew_leaves_nothing_reserved(
    database_url: str, tmp_path: Path, answered: bool
) -> None:
    goes_on = asyncio.Event()
    reply = {"choices": [{"index": 0, "message": {"content": "Yes."}, "finish_reason": "stop"}]}
    usage_of_call = {"prompt_tokens": 10, "completion_tokens": 5}
    body = reply | {"usage": usage_of_call} if answered else {"error": {"message": "no"}}
    play = Answer(body, status=200 if answered else 400, after=goes_on.is_set)
    async with serving(play) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await limit(at, tokens_total=10_000, turns_total=10)
        sessions = [await at.session() for _ in range(2)]
        turns: list[asyncio.Task[Any]] = []
        for number, session in enumerate(sessions, start=1):
            turns.append(asyncio.create_task(at.turn(session.id, "Hi")))
            while server.hits < number:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            if number == 1:
                await clear_limits(at.rt.database, TENANT)
                assert await list_limits(at.rt.database, TENANT) == []
                await limit(at, tokens_total=10_000, turns_total=10)
        goes_on.set()
        await asyncio.gather(*turns, return_exceptions=True)
        (row,) = await usage(at)
        assert (row["reserved_tokens"], row["reserved_usd"]) == (0, 0)
        assert (row["turns"], row["tokens"]) == ((1, 30) if answered else (0, 0))


async def test_a_turn_without_limits_pays_no_statement_and_one_of_a_limited_tenant_pays_three(
    database_url: str,
) -> None:
    tally = Tally()
    async with counting_proxy(database_url, tally) as counted_url, service(counted_url) as at:
        session = await at.session()
        for expected in (4, 7):
            await at.turn(session.id, "Warm up")
            tally.clear()
            await at.turn(session.id, "Counted")
            assert (len(tally.statements), tally.transactions) == (expected, 2), tally
            await limit(at, turns_per_day=100, tokens_per_day=10**9, usd_per_month=10)


async def test_a_reservation_includes_the_tokens_that_may_be_recalled(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        session = await at.session(limits={"tokens_total": 10_000_000})
        for number in range(1, 10):
            await at.turn(session.id, f"The harbour crane has invoice number {4700 + number}. " + "It is blue. " * 60)
        asked = "Which invoice number has the harbour crane?"
        draft = await draft_turn(at.rt, TurnRequest(asked, "0" * 64), None)
        claimed = await claim_drafted(at.rt, ref_of(session.id), draft, TurnOptions())
        evicted = claimed.rows.evicted
        recallable_tokens = sum(message.tokens for turn in evicted.turns for message in turn.messages)
        raw_tokens = sum(message.tokens for turn in claimed.rows.turns for message in turn.messages)
        assert recallable_tokens > 500
        assert claimed.reservation is not None
        output_tokens = at.rt.guarded.max_output_tokens
        assert claimed.reservation["tokens"] > recallable_tokens + raw_tokens + output_tokens


async def reserved(at: Service, session: Session, content: str, max_output_tokens: int | None) -> JsonObject:
    """What a turn with this content reserves. It stays claimed."""
    options = TurnOptions(max_output_tokens=max_output_tokens)
    draft = await draft_turn(at.rt, TurnRequest(content, "0" * 64, options), None)
    claimed = await claim_drafted(at.rt, ref_of(session.id), draft, options)
    assert claimed.reservation is not None
    return claimed.reservation


@pytest.mark.parametrize("factor", [1.0, 1.5])
async def test_a_reservation_is_counted_as_the_provider_counts(
    database_url: str, tmp_path: Path, factor: float
) -> None:
    """Once a provider is known to count more, a turn that would go over a limit by its count is refused."""
    words = "word " * 3_000
    answer = chat("Yes.", prompt_tokens=int(3_008 * factor), completion_tokens=5)
    async with (
        serving(answer) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        for _ in range(20):
            await at.turn((await at.session()).id, words)
        await limit(at, tokens_total=3_500)
        session = await at.session()
        if factor == 1.0:
            await at.turn(session.id, words, max_output_tokens=16)
        else:
            with pytest.raises(LimitExceeded):
                await at.turn(session.id, words, max_output_tokens=16)
        assert all(counted["tokens"] <= 3_500 for counted in await usage(at))


async def test_a_reservation_is_of_the_window_that_was_learned_for_its_tenant(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(chat("Yes.")) as server, service(database_url, unknown_window(server), folder=tmp_path) as at:
        session = await at.session(limits={"tokens_total": 10**6})
        at.rt.catalogue.learn({("main", None): 4096, ("main", TENANT): 2048})
        assert (await reserved(at, session, "word " * 7_000, None))["tokens"] <= 2048


async def test_a_reservation_includes_what_writing_to_the_providers_cache_costs(
    database_url: str, tmp_path: Path
) -> None:
    async with sold_by(database_url, tmp_path, ANTHROPIC, "claude-haiku-4-5") as at:
        held = await reserved(at, await at.session(limits={"usd_total": 10}), "word " * 3_000, 16)
        assert held["usd"] >= (3_000 * 1.25 + 16 * 5) / 10**6


async def test_a_reservation_has_the_longest_answer_of_a_policy_with_shares(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(chat("Yes.")) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        shares = {"goal_pct": 1, "pinned_files_pct": 1, "map_pct": 1, "reserved_for_output_pct": 90}
        policy = {"preset": "allocated", "allocation": shares}
        held = await reserved(at, await at.session(policy=policy, limits={"tokens_total": 10**6}), "Hello", None)
        done = await at.turn((await at.session(policy=policy)).id, "Hello")
        assert held["tokens"] >= done.context["estimated_wire_tokens"] + done.context["output_reserve"]
        assert done.context["output_reserve"] > 10_000


@pytest.mark.parametrize(
    "text",
    ["汉字没有空格。" * 400, "🙂" * 400, "ก็ไม่รู้" * 400, "q7x!" * 700],
    ids=["Chinese", "emoji", "Thai", "codes"],
)
async def test_a_reservation_covers_instructions_and_pins_in_any_script(
    database_url: str, tmp_path: Path, text: str
) -> None:
    async with (
        serving(chat("Yes.")) as server,
        service(database_url, models_toml(server, window=200_000), folder=tmp_path) as at,
    ):
        limited, free = [await at.session(instructions=text, limits=limits) for limits in ({"tokens_total": 10**7}, {})]
        for session in (limited, free):
            for number in range(40):
                await put_pin(at.rt, ref_of(session.id), Pin(f"p{number}", "x"))
        held = await reserved(at, limited, "Hello", 16)
        done = await at.turn(free.id, "Hello", max_output_tokens=16)
        assert held["tokens"] >= done.context["estimated_wire_tokens"] + 16
