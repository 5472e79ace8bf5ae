"""Tenants share one poll of what their turns do: none fills it for the others."""

from __future__ import annotations

from app.domain.types import TenantId
from app.services.process_state import Allowance
from app.services.sessions import create_session
from app.services.views.activity import Activity, Follower, next_event
from tests.services.service import Service, service

_ANNA, _BERT = TenantId("anna"), TenantId("bert")
_TURNS_OF_ANY_TIME = """
    WITH imported AS (
        INSERT INTO turns (id, session_id, seq, status, user_input, model_alias, request_sha256, created_at)
        SELECT gen_random_uuid(), :session_id, n, 'failed', '', 'offline', '', now() - interval '3 seconds'
        FROM generate_series(1, 6000) AS n RETURNING 1
    ) SELECT count(*) AS turns FROM imported
    """
"""An import stores turns with the times that its document has."""


async def test_turns_that_one_tenant_imports_keep_no_event_from_another(database_url: str) -> None:
    """5,000 rows were read for all tenants together, the oldest first: others got a `stream.gap` in place of events."""
    async with service(database_url) as at:
        activity = Activity(Allowance("event streams", 2, 0.5), poll_s=0.01)
        with activity.follow(at.rt, _ANNA) as anna, activity.follow(at.rt, _BERT) as bert:
            imported = (await create_session(at.rt, _ANNA, {})).id
            assert (await at.rows(_TURNS_OF_ANY_TIME, session_id=imported))[0]["turns"] == 6_000
            assert await _hears_of_a_turn(at, bert)
            assert not bert.missed
            assert anna.missed
            assert anna.events.qsize() < 6_000


async def _hears_of_a_turn(at: Service, follower: Follower) -> bool:
    session_id = (await create_session(at.rt, follower.tenant_id, {})).id
    turn = (await at.turn(session_id, "Hello.", tenant_id=follower.tenant_id)).turn
    while event := await next_event(follower, 10):
        if (event.turn_id, event.status) == (turn.id, turn.status):
            return True
    return False
