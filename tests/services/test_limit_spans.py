"""A call is settled in the spans in which it was reserved, and in no other."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from app.services.limits import clear_limits, set_limits
from app.services.sessions import change_session
from app.services.turn.claim import claim_drafted, draft_turn
from app.services.turn.take import cancel_turn
from app.services.turn.types import TurnOptions, TurnRequest
from tests.services.service import TENANT, Service, ref_of, service

_MOST = Decimal(100_000)
_ROWS = "SELECT turns, tokens, reserved_tokens, starts_at FROM {} WHERE span = 'day'"


async def _of_a_day(at: Service) -> list[Any]:
    return [await at.rows(_ROWS.format(table)) for table in ("tenant_usage", "session_usage")]


async def test_a_turn_changes_no_span_in_which_only_the_other_of_tenant_and_session_has_a_limit(
    database_url: str,
) -> None:
    """Its row may be there: there was a limit once."""
    async with service(database_url) as at:
        session = ref_of((await at.session(limits={"tokens_per_day": 100_000})).id)
        await set_limits(at.rt.database, TENANT, {"tokens_per_day": _MOST})
        await at.turn(session.id, "Hi")
        of_tenant, of_session = await _of_a_day(at)
        assert of_tenant == of_session
        await change_session(at.rt, session, {"limits": {"tokens_total": 100_000}})
        await at.turn(session.id, "Hi")
        of_tenant, unchanged = await _of_a_day(at)
        assert unchanged == of_session
        assert of_tenant != of_session, "the turn counted in the tenant's day"
        await change_session(at.rt, session, {"limits": {"tokens_per_day": 100_000}})
        await clear_limits(at.rt.database, TENANT)
        await set_limits(at.rt.database, TENANT, {"tokens_total": _MOST})
        of_tenant, of_session = await _of_a_day(at)
        await at.turn(session.id, "Hi")
        unchanged, later = await _of_a_day(at)
        assert unchanged == of_tenant
        assert later != of_session, "the turn counted in the session's day"


async def test_a_turn_changes_no_span_that_began_after_it(database_url: str) -> None:
    async with service(database_url) as at:
        session = ref_of((await at.session(limits={"tokens_per_day": 100_000})).id)
        await set_limits(at.rt.database, TENANT, {"tokens_per_day": _MOST})
        draft = await draft_turn(at.rt, TurnRequest(content="Hi", request_sha256="x"), None)
        await claim_drafted(at.rt, session, draft, TurnOptions())
        reserved = await _of_a_day(at)
        assert all(row["reserved_tokens"] > 0 for (row,) in reserved)
        for table in ("tenant_usage", "session_usage"):  # as the first turn of the next day does
            await at.rows(f"UPDATE {table} SET starts_at = '2100-01-01' RETURNING span")  # noqa: S608
        next_day = await _of_a_day(at)
        await cancel_turn(at.rt, session, draft.turn_id)
        assert await _of_a_day(at) == next_day
