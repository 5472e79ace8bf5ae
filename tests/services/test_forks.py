"""Forks: the same past with the same ids, that decides and replays the same, and a source nothing happens to."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from app.db.archive import COPIES
from app.db.audits import whole_refs
from app.db.tables import metadata
from app.domain.errors import (
    ContextBudgetExceeded,
    DatabaseUnavailable,
    NotFound,
    ProviderError,
    SummaryNotActive,
    TurnCancelled,
    TurnInProgress,
)
from app.domain.types import Pin, SessionId, SessionRef, SummaryId, TenantId, TurnId, TurnStatus
from app.services.archive.transfer import fork_session
from app.services.process_state import Allowance
from app.services.sessions import delete_session, list_pins, put_pin
from app.services.summaries import list_summaries, summarize_now, undo_summary
from app.services.turn.take import cancel_turn, prepare_regeneration, regenerate_turn, retry_turn
from app.services.turn.types import TurnOptions, TurnRequest
from app.services.views.activity import Activity, Follower, next_event
from app.services.views.context import window_now
from app.services.views.turns import get_audit, get_expanded_audit, get_prompt, get_turn, list_turns
from tests.api.conftest import as_sent
from tests.providers.server import Answer, Seen, Stream, serving
from tests.services.service import (
    NEWEST,
    OLDEST,
    TENANT,
    Service,
    chat,
    client_tools,
    model,
    models_toml,
    ref_of,
    service,
)
from tests.services.test_tools import TOOLS, calls
from torture.databases import citus_servers, execute

LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 20
NOT_COPIED = {"usage_records", "session_usage", "responses"}


async def _turns(at: Service, session_id: SessionId) -> list[Any]:
    return (await list_turns(at.rt, ref_of(session_id), OLDEST)).items


_LOST_WHEN_CLAIMED = (
    """
    CREATE FUNCTION lose_connection() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE 'lost' USING ERRCODE = 'admin_shutdown'; END $$
    """,
    """
    CREATE TRIGGER lost_when_claimed BEFORE INSERT ON turns
    FOR EACH ROW WHEN (NEW.status = 'running') EXECUTE FUNCTION lose_connection()
    """,
)


@pytest.mark.skipif(citus_servers() is not None, reason="distributed tables have no triggers")
async def test_a_turn_whose_claim_fails_when_it_is_run_again_leaves_no_session_behind(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.session()
        last = (await at.turn(session.id, "One")).turn
        request = TurnRequest(None, "0" * 64)
        await execute(database_url, *_LOST_WHEN_CLAIMED)
        prepared = await prepare_regeneration(at.rt, ref_of(session.id), last.id, request)
        with pytest.raises(DatabaseUnavailable):
            await regenerate_turn(at.rt, TENANT, prepared)
        assert await at.rows("SELECT id FROM sessions") == [{"id": session.id}]


async def test_a_session_for_a_turn_that_is_run_again_is_erased_unless_the_turn_is_claimed(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.session()
        last = (await at.turn(session.id, "One")).turn
        prepared = await prepare_regeneration(at.rt, ref_of(session.id), last.id, TurnRequest(None, "0" * 64))
        erased_later = "SELECT id FROM sessions WHERE erase_after < statement_timestamp() + interval '2 hours'"
        assert await at.rows(erased_later) == [{"id": prepared[0].id}]
        await regenerate_turn(at.rt, TENANT, prepared)
        assert await at.rows(erased_later) == []


async def _fork(at: Service, session_id: SessionId, through: Any = None) -> SessionId:
    return (await fork_session(at.rt, ref_of(session_id), through and TurnId(through))).id


async def _ids(at: Service, session_id: SessionId) -> set[str]:
    """Every id of the session's rows."""
    rows = await at.rows(
        " UNION ALL ".join(
            f"SELECT id FROM {table} WHERE session_id = CAST(:sid AS uuid)"  # noqa: S608 - names of tables
            for table in ("turns", "messages", "turn_steps", "session_summaries", "turn_context_audit")
        ),
        sid=session_id,
    )
    return {str(row["id"]) for row in rows}


async def _text_of(at: Service, session_id: SessionId) -> str:
    """All that is stored of a session but its own row, as one text."""
    rows: list[str] = []
    for table in metadata.tables:
        if "session_id" in metadata.tables[table].columns and table not in NOT_COPIED:
            found = await at.rows(f"SELECT to_jsonb(x) AS x FROM {table} x WHERE session_id = :sid", sid=session_id)  # noqa: S608
            rows += (f"{table} {json.dumps(row['x'], default=str)}" for row in found)
    return "\n".join(sorted(rows))


async def busy_session(at: Service) -> SessionId:
    """Nineteen turns of every kind: plain, with tools, failed, rejected, with an image; two summaries, two pins."""
    session = await at.session(room_goal="Ship", instructions="Be brief.", metadata={"a": 1}, mode="m")
    await put_pin(at.rt, ref_of(session.id), Pin("a", "Pinned.", 0.5, "a.md"))
    for number in range(1, 20):
        if number == 3:
            waiting = await at.turn(session.id, "Look it up.", tools=TOOLS)
            await at.outputs(session.id, waiting.turn.id, {"a": "yes"})
        elif number == 7:
            with pytest.raises(ProviderError):
                await at.turn(session.id, "FAIL")
        elif number == 14:
            with pytest.raises(ContextBudgetExceeded):
                await at.turn(session.id, "word " * 200_000)
        elif number == 15:
            await at.turn(session.id, [{"type": "text", "text": "Look"}, _IMAGE], f"key-{number}")
        else:
            await at.turn(session.id, f"Point {number}. {LONG}", f"key-{number}")
    await put_pin(at.rt, ref_of(session.id), Pin("b", "Pinned late."))
    return session.id


_IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


def reply(request: Seen) -> Answer:
    newest = request.json["messages"][-1]
    if newest["content"] == "FAIL":
        return Answer({"error": {"message": "no"}}, status=400)
    if newest["role"] == "user" and client_tools(request):
        return calls("a")
    return chat("Noted.")


def uncounted(request: Seen) -> Answer:
    """An answer without usage, so that no calibration comes between two runs."""
    message = {"role": "assistant", "content": f"Noted {request.json['messages'][-1]['content'][:9]}"}
    return Answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


async def test_a_fork_has_the_same_past_with_the_same_ids_and_the_source_stays(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model(reply)) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        source = await busy_session(at)
        before = await _text_of(at, source)
        fork = await fork_session(at.rt, ref_of(source), None)
        assert await _text_of(at, source) == before
        turns, copied = await _turns(at, source), await _turns(at, fork.id)
        assert fork.forked_from == {"session_id": str(source), "turn_id": str(turns[-1].id)}
        assert (fork.room_goal, fork.instructions, fork.metadata, fork.mode) == ("Ship", "Be brief.", {"a": 1}, "m")
        assert {turn.status for turn in copied} == {TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.REJECTED}
        for turn, copy in zip(turns, copied, strict=True):
            assert (copy.seq, copy.status, copy.user_input, copy.assistant_output, copy.created_at) == (
                turn.seq,
                turn.status,
                turn.user_input,
                turn.assistant_output,
                turn.created_at,
            )
            assert copy.idempotency_key is None
        assert (await list_pins(at.rt, ref_of(fork.id), 9, None)).items == (
            await list_pins(at.rt, ref_of(source), 9, None)
        ).items
        assert await _ids(at, fork.id) == await _ids(at, source)
        text = await _text_of(at, fork.id)
        assert str(source) not in text
        without_keys = re.sub(r'"idempotency_key": "[^"]*"', '"idempotency_key": null', before)
        assert without_keys != before
        assert sorted(text.replace(str(fork.id), str(source)).splitlines()) == sorted(without_keys.splitlines())
        mentioned = [row for row in await at.rows("SELECT key_facts FROM session_summaries") if row["key_facts"]]
        assert mentioned, "no summary cites anything, so nothing was tested of that"


async def test_every_prompt_of_a_fork_is_rebuilt_with_the_hash_it_was_sent_with(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model(reply)) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        source = await busy_session(at)
        fork = await _fork(at, source)
        rebuilt = 0
        for turn, copy in zip(await _turns(at, source), await _turns(at, fork), strict=True):
            rounds = (1, 2) if turn.seq == 3 else (1,)
            for number in rounds if turn.status is not TurnStatus.REJECTED else ():
                original = await get_prompt(at.rt, ref_of(source), turn.id, number)
                assert as_sent(await get_prompt(at.rt, ref_of(fork), copy.id, number)) == as_sent(original)
                rebuilt += 1
        assert rebuilt == 19
        ids = await _ids(at, fork)
        audits = [await get_expanded_audit(at.rt, ref_of(fork), copy.id, None) for copy in await _turns(at, fork)]
        actions = [action for audit in audits for action in audit.context_trim_log["actions"]]
        assert {"summary_folded", "assistant_dropped"} == {action["kind"] for action in actions}
        # A prompt that was refused keeps its ranges, which name no ids.
        sent = [audit for audit in audits if not audit.overflow_rejected]
        targets = [action["target"] for audit in sent for action in audit.context_trim_log["actions"]]
        assert {target.partition(":")[2] for target in targets} <= ids


@pytest.mark.parametrize("window", [128_000, 5_000], ids=["by turns", "by tokens"])
async def test_the_same_messages_give_the_same_prompts_in_a_fork_as_in_its_source(
    database_url: str, tmp_path: Path, window: int
) -> None:
    """The promise of a fork: the same messages give the same prompts, wherever it was made, summaries included."""
    async with (
        serving(model(uncounted)) as server,
        service(database_url, models_toml(server, window=window), folder=tmp_path) as at,
    ):
        session = await at.session()
        originals = [await at.turn(session.id, f"Point {number}. {LONG}") for number in range(1, 19)]
        summarized = [outcome.turn.seq for outcome in originals if outcome.context["summary_triggered"]]
        assert len(summarized) > 1
        for through in sorted({1, 5, 11, 18, *(seq + by for seq in summarized for by in (-1, 0, 1))} - {19}):
            fork = await _fork(at, session.id, originals[through - 1].turn.id)
            for original in originals[through : through + 9]:
                outcome = await at.turn(fork, original.turn.user_input)
                assert outcome.context["prompt_sha256"] == original.context["prompt_sha256"], (through, original.turn)


async def test_a_fork_of_the_middle_holds_nothing_that_came_later(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session()
        outcomes = [await at.turn(session.id, f"Point {number}. {LONG}") for number in range(1, 27)]
        first, second, third = (await list_summaries(at.rt, ref_of(session.id), NEWEST)).items[::-1]
        assert [summary.status for summary in (first, second, third)] == ["superseded", "superseded", "active"]
        fork = await _fork(at, session.id, outcomes[13].turn.id)
        kept = (await list_summaries(at.rt, ref_of(fork), NEWEST)).items
        assert [(each.status, each.summary_text) for each in kept] == [("active", first.summary_text)]
        text = await _text_of(at, fork)
        assert "Point 14." in text
        assert "Point 15." not in text
        counters = "SELECT last_turn_seq, last_message_seq, summary_count_after_seq FROM sessions WHERE id = :sid"
        assert await at.rows(counters, sid=fork) == [
            {"last_turn_seq": 14, "last_message_seq": 28, "summary_count_after_seq": 8}
        ]
        await undo_summary(at.rt, ref_of(fork), SummaryId(kept[0].id))
        now = await window_now(at.rt, ref_of(fork))
        assert (now.active_summary_id, now.raw_turns) == (None, 14)
        assert (await list_summaries(at.rt, ref_of(session.id), NEWEST)).items[::-1] == [first, second, third]


async def test_an_undo_of_the_source_holds_in_its_fork_and_the_forks_chain_can_be_undone(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session()
        for number in range(1, 19):
            await at.turn(session.id, f"Point {number}. {LONG}")
        third = await summarize_now(at.rt, ref_of(session.id))
        await undo_summary(at.rt, ref_of(session.id), SummaryId(third.id))
        fork = await _fork(at, session.id)
        newest, middle, oldest = (await list_summaries(at.rt, ref_of(fork), NEWEST)).items
        assert [each.status for each in (newest, middle, oldest)] == ["undone", "active", "superseded"]
        assert middle.previous_summary_id == oldest.id
        with pytest.raises(SummaryNotActive):
            await undo_summary(at.rt, ref_of(fork), SummaryId(newest.id))
        await undo_summary(at.rt, ref_of(fork), SummaryId(middle.id))
        assert (await window_now(at.rt, ref_of(fork))).active_summary_id == oldest.id


async def test_an_open_turn_is_not_copied_and_can_not_be_read(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(reply)) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session()
        await at.turn(session.id, "One.")
        waiting = await at.turn(session.id, "Look it up.", tools=TOOLS)
        fork = await _fork(at, session.id)
        assert [turn.user_input for turn in await _turns(at, fork)] == ["One."]
        assert "Look it up." not in await _text_of(at, fork)
        assert (await at.turn(fork, "Two.")).turn.seq == 2
        with pytest.raises(TurnInProgress):
            await _fork(at, session.id, waiting.turn.id)
        again = await _fork(at, fork)
        assert [turn.user_input for turn in await _turns(at, again)] == ["One.", "Two."]
        assert len(await at.rows("SELECT id FROM sessions")) == 3


async def test_an_empty_session_forks_and_what_is_not_there_does_not(database_url: str, tmp_path: Path) -> None:
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        fork = await fork_session(at.rt, ref_of(session.id), None)
        assert fork.forked_from == {"session_id": str(session.id), "turn_id": None}
        assert (await at.turn(fork.id, "One.")).turn.seq == 1
        with pytest.raises(NotFound, match="turn"):
            await _fork(at, session.id, uuid4())
        with pytest.raises(NotFound, match="session"):
            await fork_session(at.rt, SessionRef(TenantId("other"), session.id), None)
        assert len(await at.rows("SELECT id FROM sessions")) == 2


async def test_a_turn_that_runs_under_one_id_in_two_sessions_is_two_turns(database_url: str, tmp_path: Path) -> None:
    """Both retries of a turn that was forked after it had failed: leases, cancels and events keep them apart."""
    answers = [
        chat("Noted."),
        Answer({"error": {"message": "no"}}, status=400),
        Stream((), "open", content_type="application/json"),
    ]
    async with (
        serving(*answers) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        source = (await at.session()).id
        await at.turn(source, "One.")
        with pytest.raises(ProviderError):
            await at.turn(source, "Two.")
        turn_id = (await _turns(at, source))[-1].id
        both = (source, await _fork(at, source))
        activity = Activity(Allowance("event streams", 1, 1.0), poll_s=0.01)
        with activity.follow(at.rt, TENANT) as follower:
            running = [
                asyncio.create_task(retry_turn(at.rt, ref_of(session_id), turn_id, TurnOptions(), "main"))
                for session_id in both
            ]
            await _until_followed(follower, "running", both)
            assert {claim.session_id for claim, _ in at.rt.leases.held()} == set(both)
            for session_id, task in zip(both, running, strict=True):
                await cancel_turn(at.rt, ref_of(session_id), turn_id)
                with pytest.raises(TurnCancelled):
                    await task
                left = {claim.session_id for claim, _ in at.rt.leases.held()}
                assert left == ({both[1]} if session_id == source else set())
            await _until_followed(follower, "cancelled", both)


async def _until_followed(follower: Follower, status: str, sessions: tuple[SessionId, ...]) -> None:
    """Returns once the follower got the event that a turn of each session has this status."""
    missing = set(sessions)
    while missing:
        event = await next_event(follower, 30)
        assert event is not None, (status, missing)
        if event.status == status:
            missing.discard(event.session_id)


async def test_the_same_ids_in_another_tenants_session_give_no_access_to_its_rows(
    database_url: str, tmp_path: Path
) -> None:
    bert = TenantId("bert")
    async with (
        serving(model(reply)) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        source = await busy_session(at)
        fork = await _fork(at, source)
        await at.rows("UPDATE sessions SET tenant_id = 'bert' WHERE id = :sid", sid=fork)
        turns, summaries = await _turns(at, source), (await list_summaries(at.rt, ref_of(source), NEWEST)).items
        before = await _text_of(at, source)
        for turn in turns:
            for tenant_id, session_id in ((TENANT, fork), (bert, source)):
                with pytest.raises(NotFound):
                    await get_turn(at.rt, SessionRef(tenant_id, session_id), turn.id)
                with pytest.raises(NotFound):
                    await get_audit(at.rt, SessionRef(tenant_id, session_id), turn.id, None)
                with pytest.raises(NotFound):
                    await get_prompt(at.rt, SessionRef(tenant_id, session_id), turn.id, None)
            assert (await get_turn(at.rt, SessionRef(bert, fork), turn.id)).session_id == fork
        active = SummaryId(summaries[0].id)
        with pytest.raises(NotFound):
            await undo_summary(at.rt, SessionRef(bert, source), active)
        await undo_summary(at.rt, SessionRef(bert, fork), active)
        await delete_session(at.rt, SessionRef(bert, fork))
        assert await _text_of(at, source) == before


def test_every_column_of_a_session_is_copied_or_known_to_start_anew() -> None:
    anew = {
        "idempotency_key",
        "external_id",
        "created_at",
        "updated_at",
        "summary_lease_id",
        "summary_lease_expires_at",
    }
    anew |= {"erase_after"}
    inserted = COPIES["sessions"].text.partition("(")[2].partition(")")[0]
    assert {name.strip() for name in inserted.split(",")} == {
        column.name for column in metadata.tables["sessions"].columns
    } - anew


def test_every_table_below_a_session_is_copied_or_listed_as_not_copied() -> None:
    of_no_session = {"calibrations", "learned_windows", "api_keys", "limits", "tenant_usage"}
    assert set(COPIES) == set(metadata.tables) - NOT_COPIED - of_no_session
    assert all(statement.text.startswith(f"INSERT INTO {table} ") for table, statement in COPIES.items())


async def test_a_fork_has_the_blocks_of_prompts_that_were_stored_before_references_had_lines(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(reply) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        source = await busy_session(at)
        for row in await at.rows("SELECT id, prompt_refs FROM turn_context_audit WHERE session_id = :sid", sid=source):
            as_before = json.dumps(whole_refs(row["prompt_refs"]))
            await at.rows(
                "UPDATE turn_context_audit SET prompt_refs = CAST(CAST(:refs AS text) AS jsonb)"
                " WHERE session_id = CAST(:sid AS uuid) AND id = CAST(:id AS uuid) RETURNING id",
                sid=source,
                id=row["id"],
                refs=as_before,
            )
        await at.turn(source, "And one whose row is as it is now.")
        forked = await _fork(at, source)
        sent = [turn.id for turn in await _turns(at, source) if turn.status is TurnStatus.COMPLETED]
        for turn_id in sent:
            both = [await get_prompt(at.rt, ref_of(each), turn_id, None) for each in (source, forked)]
            assert both[0] == both[1]
