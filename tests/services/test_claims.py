"""What a turn is claimed for: by whom, in which state, and with all that its request gave."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.db.claims import Claim, renew_lease
from app.db.records import TurnEnd, record_end, recorded_before
from app.db.sessions import lock_session
from app.db.turns import fail_lost_turns, fail_unacknowledged_turn
from app.domain.errors import TurnInProgress
from app.domain.frozen import replace
from app.domain.types import RecordedReply, ToolCall, TurnId, TurnStatus
from app.services.turn.claim import claim_drafted, claim_retry, draft_turn
from app.services.turn.take import cancel_turn, retry_turn
from app.services.turn.types import TurnOptions, TurnRequest
from tests.providers.server import Answer, serving
from tests.services.service import Service, chat, model, models_toml, ref_of, service, sound_summary
from tests.services.test_tools import TOOLS, calls
from torture.databases import citus_servers

WAITS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.mark.parametrize("state", ["running", "awaiting_tools", "completed"])
async def test_a_turn_that_runs_or_waits_or_has_its_answer_is_not_tried_again(database_url: str, state: str) -> None:
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        if state == "running":  # in another process
            draft = await draft_turn(at.rt, TurnRequest(content="Hi", request_sha256="x"), None)
            await claim_drafted(at.rt, session, draft, TurnOptions())
        elif state == "awaiting_tools":
            reply = RecordedReply(None, (ToolCall("a", "look_up", "{}"),))
            await at.turn(session.id, "Look.", tools=TOOLS, recorded_reply=reply)
        else:
            await at.turn(session.id, "Hi")
        before = await at.rows("SELECT id, status, fence, assistant_output FROM turns")
        assert [row["status"] for row in before] == [state]
        with pytest.raises(TurnInProgress):
            await retry_turn(at.rt, session, before[0]["id"], TurnOptions(), "offline")
        assert await at.rows("SELECT id, status, fence, assistant_output FROM turns") == before


async def test_a_long_option_that_is_neither_a_system_prompt_nor_a_tool_is_sent_in_every_round(
    database_url: str, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {f"line_{at}": {"type": "string"} for at in range(100)}}
    options = {"response_format": {"type": "json_schema", "json_schema": {"name": "lines", "schema": schema}}}
    async with (
        serving(calls("a"), calls("b"), chat("{}")) as server,
        service(database_url, models_toml(server, window=65_536), folder=tmp_path) as at,
    ):
        session = await at.session()
        turn = (await at.turn(session.id, "Look.", tools=TOOLS, provider_options=options)).turn
        turn = (await at.outputs(session.id, turn.id, {"a": "Nothing."})).turn
        turn = (await at.outputs(session.id, turn.id, {"b": "Nothing."})).turn
        assert turn.status is TurnStatus.COMPLETED
        assert [seen.json["response_format"] for seen in server.seen] == [options["response_format"]] * 3


@pytest.mark.skipif(citus_servers() is not None, reason="it watches the locks of one server")
async def test_a_lease_that_is_renewed_while_a_sweep_waits_for_the_session_is_not_lost(database_url: str) -> None:
    """Its worker was late, and is at it."""
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        draft = await draft_turn(at.rt, TurnRequest(content="Hi", request_sha256="x"), None)
        claimed = await claim_drafted(at.rt, session, draft, TurnOptions())
        await at.rows("UPDATE turns SET lease_expires_at = statement_timestamp() - interval '1 s' RETURNING id")
        async with at.rt.heavy.database.begin() as held:
            assert await lock_session(held, session)
            sweeping = asyncio.ensure_future(at.rt.database.run(fail_lost_turns, session.id))
            while not await at.rows(WAITS):  # noqa: ASYNC110 - the database notifies nobody
                await asyncio.sleep(0.01)
            assert await at.rt.database.run(renew_lease, claimed.claim, 30)
        assert await sweeping == 0
        assert await at.rows("SELECT status FROM turns") == [{"status": "running"}]


async def test_a_renewal_waits_for_no_turn_that_is_being_ended(database_url: str) -> None:
    """The renewals of the process's other turns come after it."""
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        draft = await draft_turn(at.rt, TurnRequest(content="Hi", request_sha256="x"), None)
        claim = (await claim_drafted(at.rt, session, draft, TurnOptions())).claim
        async with at.rt.heavy.database.begin() as held:
            assert await record_end(held, claim, TurnEnd(TurnStatus.COMPLETED, "offline", steps=[], audits=[]))
            async with asyncio.timeout(30):
                assert await at.rt.database.run(renew_lease, claim, 30), "nobody else has it"


async def claimed_twice(at: Service) -> tuple[Claim, Claim]:
    """Two claims of one turn: the first was cancelled, the second tries it again."""
    session = ref_of((await at.session()).id)
    draft = await draft_turn(at.rt, TurnRequest(content="Hi", request_sha256="x"), None)
    first = (await claim_drafted(at.rt, session, draft, TurnOptions())).claim
    await cancel_turn(at.rt, session, draft.turn_id)
    return first, (await claim_retry(at.rt, session, draft.turn_id, TurnOptions(), "offline")).claim


async def test_an_older_claim_renews_no_lease_of_a_newer_one_and_learns_that_it_is_not_the_newest(
    database_url: str,
) -> None:
    async with service(database_url) as at:
        first, second = await claimed_twice(at)
        lease = "SELECT lease_expires_at FROM turns"
        before = await at.rows(lease)
        assert not await at.rt.database.run(renew_lease, first, 3_600)
        assert await at.rows(lease) == before
        assert await at.rt.database.run(renew_lease, second, 3_600)
        assert await at.rows(lease) != before


async def test_of_unacknowledged_claims_only_a_first_one_ends_its_turn(database_url: str) -> None:
    """Another request may have claimed a later round, with the same fence, after the first request's claim was lost."""
    async with service(database_url) as at:
        session = ref_of((await at.session()).id)
        draft = await draft_turn(at.rt, TurnRequest(content="Hi", request_sha256="x"), None)
        await claim_drafted(at.rt, session, draft, TurnOptions())

        async def ended(turn_id: TurnId) -> int:
            async with at.rt.database.begin() as tx:
                return await fail_unacknowledged_turn(tx, session.id, turn_id)

        assert await ended(TurnId(at.rt.new_id())) == 0
        assert await ended(draft.turn_id) == 1
        await claim_retry(at.rt, session, draft.turn_id, TurnOptions(), "offline")
        assert await ended(draft.turn_id) == 0
        assert [row["status"] for row in await at.rows("SELECT status FROM turns")] == ["running"]


async def test_an_end_is_stored_once_and_by_the_newest_claim_only(database_url: str) -> None:
    async with service(database_url) as at:
        first, second = await claimed_twice(at)
        end = TurnEnd(TurnStatus.COMPLETED, "offline", steps=[], audits=[])
        for claim, output, is_stored in (
            (first, "Early.", False),
            (second, "Hello.", True),
            (second, "Twice.", False),
            (first, "Late.", False),
        ):
            async with at.rt.database.begin() as tx:
                stored = await record_end(tx, claim, replace(end, assistant_output=output))
            assert (stored is not None) is is_stored
            if stored is None:  # was it a commit whose answer was lost?
                found = await at.rt.database.run(recorded_before, claim)
                assert (found and found.assistant_output) == (None if claim is first else "Hello.")
        assert await at.rows("SELECT assistant_output FROM turns") == [{"assistant_output": "Hello."}]


async def test_a_replay_states_the_usage_of_the_turn_without_that_of_its_summary(
    database_url: str, tmp_path: Path
) -> None:
    def cached(answer: Answer, tokens: int) -> Answer:
        usage = {**answer.body["usage"], "prompt_tokens_details": {"cached_tokens": tokens}}
        return Answer({**answer.body, "usage": usage})

    script = model(lambda _: cached(chat("Noted."), 4), lambda request: cached(sound_summary(request), 64))
    async with serving(script) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session(policy={"summary_call": "separate"})
        for number in range(10):
            words = f"Point {number}. " + "Many words of it. " * 30
            first = await at.turn(session.id, words, key=f"k{number}")
            again = await at.turn(session.id, words, key=f"k{number}")
            assert again.completion is not None
            assert first.completion is not None
            assert again.completion.usage == first.completion.usage
        assert await at.rows("SELECT 1 FROM usage_records WHERE purpose = 'summary' AND turn_id IS NOT NULL")
