"""The spans of limits: in which a call counts, when they end, and that a call is settled where it was reserved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.domain.errors import LimitExceeded
from app.domain.limits import LIMITS
from app.domain.types import TenantId
from app.services.limits import clear_limits, list_limits, set_limits
from app.services.sessions import change_session
from app.services.summaries import summarize_now
from app.services.turn.claim import claim_drafted, draft_turn
from app.services.turn.take import cancel_turn
from app.services.turn.types import TurnOptions, TurnRequest
from tests.providers.wires import OPENAI
from tests.services.service import TENANT, Service, ref_of, service
from tests.services.test_costs import sold_by

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


@pytest.mark.parametrize("scope", ["tenant", "session"])
@pytest.mark.parametrize("name", ["turns_per_minute", "turns_per_day", "usd_per_month"])
async def test_a_refusal_says_when_the_span_ends(database_url: str, tmp_path: Path, name: str, scope: str) -> None:
    async with sold_by(database_url, tmp_path, OPENAI, "gpt-4o-mini") as at:
        session = await at.session(limits={name: 0} if scope == "session" else None)
        if scope == "tenant":
            await set_limits(at.rt.database, TENANT, {name: Decimal(0)})
        began_at = datetime.now(UTC)
        with pytest.raises(LimitExceeded) as refused:
            await at.turn(session.id, "Hi")
        ended_at = datetime.now(UTC)
        resets_at, retry_after_s = refused.value.limit["resets_at"], refused.value.retry_after_s or 0
        assert resets_at in [f"{_end_of(name, at):%Y-%m-%dT%H:%M:%SZ}" for at in (began_at, ended_at)]
        left = [(datetime.fromisoformat(resets_at) - at).total_seconds() for at in (ended_at, began_at)]
        assert left[0] <= retry_after_s <= left[1] + 1


async def test_a_day_has_24_hours_where_the_clocks_of_the_database_change(database_url: str) -> None:
    began_at = datetime.now(UTC)
    today = began_at.timetuple().tm_yday - 1
    zone = f"WINTER0SUMMER,{today}/12,{(today + 100) % 365}/12"
    async with service(database_url) as at:
        await at.rows(f"ALTER DATABASE {urlsplit(database_url).path[1:]} SET timezone = '{zone}'")
    async with service(database_url) as at:
        await set_limits(at.rt.database, TENANT, {"turns_per_day": Decimal(5)})
        await at.turn((await at.session()).id, "Hi")
        (limit,) = await list_limits(at.rt.database, TENANT)
    assert limit.resets_at in [_end_of("turns_per_day", at) for at in (began_at, datetime.now(UTC))]


def _end_of(name: str, at: datetime) -> datetime:
    begun = at.replace(second=0, microsecond=0)
    if name == "turns_per_minute":
        return begun + timedelta(minutes=1)
    day = begun.replace(hour=0, minute=0)
    return (
        day + timedelta(days=1) if name == "turns_per_day" else (day.replace(day=1) + timedelta(days=32)).replace(day=1)
    )


@pytest.mark.parametrize("scope", ["tenant", "session"])
async def test_a_minute_has_no_more_turns_than_its_limit(database_url: str, scope: str) -> None:
    async with service(database_url) as at:
        session = await at.session(limits={"turns_per_minute": 1} if scope == "session" else None)
        if scope == "tenant":
            await set_limits(at.rt.database, TENANT, {"turns_per_minute": Decimal(1)})
        minutes: list[datetime] = []
        for number in range(3):  # each of which may be the first of another minute
            try:
                await at.turn(session.id, f"Post {number}")
            except LimitExceeded:
                break
            (counted,) = await at.rows(f"SELECT starts_at FROM {scope}_usage")  # noqa: S608 - one of our two tables
            assert counted["starts_at"] not in minutes
            minutes.append(counted["starts_at"])


@pytest.mark.parametrize("scope", ["tenant", "session"])
async def test_the_dollars_of_a_summary_count_against_limits(database_url: str, tmp_path: Path, scope: str) -> None:
    async with sold_by(database_url, tmp_path, OPENAI, "gpt-4o-mini") as at:
        limits = {"usd_total": 1}
        session = await at.session(
            limits=limits if scope == "session" else None, policy={"protected_turns": 1, "summarize_when": "never"}
        )
        if scope == "tenant":
            await set_limits(at.rt.database, TENANT, {"usd_total": Decimal(1)})
        for number in range(4):
            await at.turn(session.id, f"Turn {number}. " + "A sentence of some length about the port. " * 12)
        await summarize_now(at.rt, ref_of(session.id))
        (paid,) = await at.rows("SELECT count(*) AS calls, sum(cost_usd) AS usd FROM usage_records")
        (counted,) = await at.rows(f"SELECT usd, reserved_usd FROM {scope}_usage")  # noqa: S608 - one of our two tables
        assert paid["calls"] > 4
        assert (counted["usd"], counted["reserved_usd"]) == (paid["usd"], 0)
        await at.turn(session.id, "One more. " + "A sentence of some length about the port. " * 12)
        (counted,) = await at.rows(f"SELECT usd FROM {scope}_usage")  # noqa: S608 - as above
        if scope == "tenant":
            await set_limits(at.rt.database, TENANT, {"usd_total": counted["usd"]})
        else:
            await change_session(at.rt, ref_of(session.id), {"limits": {"usd_total": float(counted["usd"])}})
        with pytest.raises(LimitExceeded) as refused:
            await summarize_now(at.rt, ref_of(session.id))
        assert refused.value.limit["used"] == float(counted["usd"])


_COUNTED = """
    INSERT INTO tenant_usage (tenant_id, span, starts_at, turns, tokens, usd, reserved_tokens, reserved_usd)
    SELECT tenant_id, span, '2100-01-01Z', n + 1, n + 2, n + 3, n + 40, n + 50
    FROM unnest(ARRAY['minute', 'day', 'month', 'total'], ARRAY[100, 200, 300, 400]) AS x(span, n),
        unnest(ARRAY['default', 'b']) AS tenant_id RETURNING span
    """
_SUMS = (
    "SELECT turns, tokens, usd, reserved_tokens, reserved_usd FROM tenant_usage WHERE tenant_id = '{}' ORDER BY span"
)


async def test_a_list_of_limits_has_what_was_used_of_each_and_when_its_span_ends(database_url: str) -> None:
    async with service(database_url) as at:
        for tenant_id in (TENANT, TenantId("a")):
            await set_limits(at.rt.database, tenant_id, dict.fromkeys(LIMITS, _MOST))
        await at.rows(_COUNTED)

        async def listed(tenant_id: TenantId | None) -> list[tuple[str, str, Decimal, datetime | None]]:
            found = await list_limits(at.rt.database, tenant_id)
            assert {each.value for each in found} == {_MOST}
            return [(each.tenant_id, each.name, each.used, each.resets_at) for each in found]

        used = {"turns": 1, "tokens": 2 + 40, "usd": 3 + 50}
        ends = {
            "minute": (100, datetime(2100, 1, 1, 0, 1, tzinfo=UTC)),
            "day": (200, datetime(2100, 1, 2, tzinfo=UTC)),
            "month": (300, datetime(2100, 2, 1, tzinfo=UTC)),
            "total": (400, None),
        }
        current: list[tuple[str, str, Decimal, datetime | None]] = []
        for name, (unit, span) in sorted(LIMITS.items()):
            counted = 1 if unit == "turns" else 2  # settled, and reserved
            current.append((TENANT, name, Decimal(used[unit] + counted * ends[span][0]), ends[span][1]))
        nothing = [("a", name, Decimal(0), None) for name in sorted(LIMITS)]
        assert await listed(TENANT) == current
        assert await listed(None) == nothing + current
        await at.rows("UPDATE tenant_usage SET starts_at = '2000-01-01Z' RETURNING span")
        of_total = [each for each in current if each[1].endswith("_total")]
        assert [each for each in await listed(TENANT) if each[2] or each[3]] == of_total, "a span that ended counts"

        of_another = await at.rows(_SUMS.format("b"))
        await clear_limits(at.rt.database, TENANT)
        assert await listed(None) == nothing
        kept = await at.rows(_SUMS.format(TENANT))
        assert [tuple(row.values()) for row in kept] == [(0, 0, 0, n + 40, n + 50) for n in (200, 100, 300, 400)]
        assert await at.rows(_SUMS.format("b")) == of_another
