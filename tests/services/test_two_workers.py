"""Two workers that do something with the same turn at the same moment: every pair of what can be done with it.

A third transaction holds the session's row until both wait for it, or are done: first the one comes, then the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from app.domain.errors import (
    NotFound,
    ProviderError,
    ToolOutputsMismatch,
    TurnCancelled,
    TurnInProgress,
    TurnNotLast,
    TurnNotOpen,
)
from app.domain.types import SessionId, TurnId
from app.services.sessions import delete_session
from app.services.turn.take import cancel_turn, prepare_regeneration, regenerate_turn, retry_turn
from app.services.turn.types import TurnOptions, TurnOutcome, TurnRequest
from tests.pooling import own_connection
from tests.providers.server import Answer, Seen, serving
from tests.services.service import TENANT, Service, chat, models_toml, ref_of, service
from tests.services.test_tools import TOOLS, calls
from torture.databases import citus_servers

_LOCK = "SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE"
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
_REFUSALS = (NotFound, ToolOutputsMismatch, TurnCancelled, TurnInProgress, TurnNotLast, TurnNotOpen)

_Deed: TypeAlias = Callable[[Service, SessionId, TurnId], Awaitable[object]]


async def _outputs(at: Service, session_id: SessionId, turn_id: TurnId) -> object:
    return await at.outputs(session_id, turn_id, {"a": "Nothing."})


async def _retry(at: Service, session_id: SessionId, turn_id: TurnId) -> object:
    return await retry_turn(at.rt, ref_of(session_id), turn_id, TurnOptions(), "main")


async def _cancel(at: Service, session_id: SessionId, turn_id: TurnId) -> object:
    return await cancel_turn(at.rt, ref_of(session_id), turn_id)


async def _regenerate(at: Service, session_id: SessionId, turn_id: TurnId) -> object:
    prepared = await prepare_regeneration(at.rt, ref_of(session_id), turn_id, TurnRequest(None, "0" * 64))
    return await regenerate_turn(at.rt, TENANT, prepared)


async def _post(at: Service, session_id: SessionId, _: TurnId) -> object:
    return await at.turn(session_id, "And another thing.")


async def _delete(at: Service, session_id: SessionId, _: TurnId) -> object:
    return await delete_session(at.rt, ref_of(session_id))


_DEEDS: dict[str, _Deed] = {
    "outputs": _outputs,
    "retry": _retry,
    "cancel": _cancel,
    "regenerate": _regenerate,
    "post": _post,
    "delete": _delete,
}
_CASES = [
    (state, one) for state in ("awaiting_tools", "failed") for one in _DEEDS if (state, one) != ("failed", "outputs")
]


@pytest.mark.skipif(citus_servers() is not None, reason="it watches the locks of one server")
@pytest.mark.parametrize(("state", "one"), _CASES, ids=["-".join(case) for case in _CASES])
async def test_of_two_workers_at_the_same_turn_each_answer_is_made_and_stored_once(
    database_url: str, tmp_path: Path, state: str, one: str
) -> None:
    script: list[Answer] = []
    late: list[Seen] = []

    def reply(request: Seen) -> Answer:
        if script:
            return script.pop()
        late.append(request)
        return chat("Late.")

    async with (
        serving(reply) as server,
        service(database_url, models_toml(server), folder=tmp_path) as first,
        service(database_url, models_toml(server), folder=tmp_path) as second,
        own_connection(database_url) as holder,
        own_connection(database_url) as watch,
    ):
        for other, deed in _DEEDS.items():
            script.append(calls("a") if state == "awaiting_tools" else Answer({"error": {"message": "no"}}, status=400))
            late.clear()
            session_id, turn_id = await _turn_that_is(state, first)
            async with holder.transaction():
                await holder.fetch(_LOCK, session_id)
                running = [asyncio.ensure_future(_DEEDS[one](first, session_id, turn_id))]
                await _until_waiting(watch, running)
                running.append(asyncio.ensure_future(deed(second, session_id, turn_id)))
                await _until_waiting(watch, running)
            results = await asyncio.gather(*running, return_exceptions=True)
            for result in results:
                assert not isinstance(result, BaseException) or isinstance(result, _REFUSALS), (other, result)
            outcomes = [result for result in results if isinstance(result, TurnOutcome)]
            assert len(late) >= len(outcomes), other
            await _assert_each_once(first, session_id, outcomes, is_erased="delete" in (one, other))
            await first.rows("DELETE FROM sessions RETURNING id")


async def _turn_that_is(state: str, at: Service) -> tuple[SessionId, TurnId]:
    session = await at.session()
    with suppress(ProviderError):
        await at.turn(session.id, "Look.", tools=TOOLS)
    (turn,) = await at.rows("SELECT id, status FROM turns")
    assert turn["status"] == state
    return session.id, turn["id"]


async def _until_waiting(watch: Any, running: Sequence[asyncio.Future[object]]) -> None:
    """Returns when all that are not done wait for a lock."""
    while await watch.fetchval(_WAITING) < sum(not each.done() for each in running):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def _assert_each_once(
    at: Service, session_id: SessionId, outcomes: list[TurnOutcome], *, is_erased: bool
) -> None:
    assert await at.rows("SELECT id FROM turns WHERE status = 'running'") == []
    for found in await at.rows("SELECT array_agg(seq ORDER BY seq) AS seqs FROM turns GROUP BY session_id"):
        assert found["seqs"] == [*range(1, len(found["seqs"]) + 1)]
    late = "FROM messages WHERE content = '\"Late.\"' GROUP BY session_id, turn_id"
    assert await at.rows(f"SELECT turn_id {late} HAVING count(*) > 1") == []
    if is_erased:
        for table in ("turns", "messages", "turn_context_audit", "prompt_blocks", "usage_records"):
            assert await at.rows(f"SELECT 1 FROM {table} WHERE session_id = :id", id=session_id) == []  # noqa: S608
        with pytest.raises(NotFound):
            await at.turn(session_id, "Are you there?")
        return
    assert len(await at.rows("SELECT id FROM turns WHERE assistant_output = 'Late.'")) == len(outcomes)
    for turn in await at.rows("SELECT session_id, id FROM turns WHERE status = 'awaiting_tools'"):
        await cancel_turn(at.rt, ref_of(turn["session_id"]), turn["id"])
    assert (await at.turn(session_id, "Are you there?")).turn.assistant_output == "Late."
