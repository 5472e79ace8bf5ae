"""Calibrations of two tenants at one alias: what the one sends does not change what counts for the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.db.learned import forget_unused_calibrations
from app.domain.types import TenantId
from app.engine.window.calibration import SUPPORTED_TOKENS
from app.services.learned import UNUSED, Calibrations
from app.services.sessions import create_session
from app.tokenizers.counters import Tokenizers
from tests.providers.server import Answer, Seen, serving
from tests.services.service import TENANT, Service, chat, service
from tests.services.test_model_faults import unknown_window

OTHER = TenantId("other")
ENCODING = "o200k_base"
KANJI = "漢字仮名交文章例" * 19
ENGLISH = "word " * 3000
"""Fits 5,530 tokens of input budget as long as it is multiplied with less than 1.8."""


def poor_at_kanji(request: Seen) -> Answer:
    """A model whose tokenizer needs 2.4 tokens for each of ours where there are kanji, and one elsewhere."""
    text = "".join(str(message["content"]) for message in request.json["messages"])
    factor = 2.4 if any(ord(letter) > 0x3000 for letter in text) else 1.0
    return chat("Hi.", prompt_tokens=int(Tokenizers().estimator(ENCODING)(text) * factor))


def ratio(at: Service, tenant_id: TenantId) -> float:
    return at.rt.calibrations.ratio(tenant_id, "main", ENCODING)


async def merged(at: Service) -> None:
    await at.rt.calibrations.flush(at.rt.database)
    await at.rt.calibrations.load(at.rt.database)


async def test_three_prompts_of_kanji_do_not_refuse_another_tenants_english_turn(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(poor_at_kanji) as server,
        service(database_url, unknown_window(server), folder=tmp_path) as at,
    ):
        prompts = (KANJI, KANJI, KANJI, *[KANJI * 12] * 10)
        sent = [await at.turn((await at.session()).id, prompt) for prompt in prompts][-1]
        assert sent.turn.prompt_tokens is not None
        assert sent.turn.prompt_tokens > 2.3 * sent.context["estimated_wire_tokens"], "the tokenizers agree"
        assert ratio(at, TENANT) > 1.5, "the tenant's own prompts taught it nothing"
        await merged(at)
        assert ratio(at, OTHER) <= 1.02
        theirs = await create_session(at.rt, OTHER, {})
        done = await at.turn(theirs.id, ENGLISH, tenant_id=OTHER)
        assert done.context["estimated_input_tokens_before"] < 1.02 * done.context["estimated_wire_tokens"]


async def test_a_tenants_own_short_prompts_of_another_script_do_not_refuse_its_long_ones(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(poor_at_kanji) as server,
        service(database_url, unknown_window(server), folder=tmp_path) as at,
    ):
        for _ in range(3):
            await at.turn((await at.session()).id, KANJI)
        await at.turn((await at.session()).id, ENGLISH)


@pytest.mark.parametrize("factors", [(3.0,), (0.5,), (3.0, 0.5)], ids=["high", "low", "both"])
async def test_a_thousand_adversarial_turns_move_another_tenants_estimate_by_two_percent_at_most(
    database_url: str, tmp_path: Path, factors: tuple[float, ...]
) -> None:
    """Among ten tenants, which agree on 1.3, and for one that has sent a little and one that is new."""
    async with serving(chat("Hi.")) as server, service(database_url, unknown_window(server), folder=tmp_path) as at:
        for number in range(10):
            for _ in range(5):
                at.rt.calibrations.observe(
                    TenantId(f"honest-{number}"), "main", ENCODING, estimated=10_000, actual=13_000
                )
        at.rt.calibrations.observe(OTHER, "main", ENCODING, estimated=1000, actual=1100)
        await merged(at)
        observers = (OTHER, TenantId("new"), TenantId("honest-3"))
        before = [ratio(at, each) for each in observers]
        for turn in range(1000):
            estimated = 300 if turn % 3 else 100_000
            at.rt.calibrations.observe(
                TENANT, "main", ENCODING, estimated=estimated, actual=int(estimated * factors[turn % len(factors)])
            )
            if turn % 50 == 49:
                await merged(at)
                for was, each in zip(before, observers, strict=True):
                    assert was / 1.02 <= ratio(at, each) <= was * 1.02
        (row,) = await at.rows("SELECT observed_tokens FROM calibrations WHERE tenant_id = :it", it=TENANT)
        assert row["observed_tokens"] > SUPPORTED_TOKENS, "nothing of the attack was kept"


async def test_processes_that_merge_the_same_rows_at_once_lose_none_of_each_others(
    database_url: str, tmp_path: Path
) -> None:
    tenants = [TenantId(f"t{number:03}") for number in range(300)]
    async with service(database_url) as at:
        processes = [Calibrations() for _ in range(4)]
        for turn, process in enumerate(processes):
            for tenant in tenants if turn % 2 else reversed(tenants):
                process.observe(tenant, "main", ENCODING, estimated=1000, actual=1100)
        await asyncio.gather(*(process.flush(at.rt.database) for process in processes))
        rows = await at.rows("SELECT count(*) AS n, min(observed_tokens) AS tokens FROM calibrations")
        assert rows == [{"n": 300, "tokens": 4000}]


async def test_memory_holds_the_latest_tenants_and_no_more(database_url: str) -> None:
    tenants = [TenantId(f"t{number:03}") for number in range(100)]
    async with service(database_url) as at:
        calibrations = Calibrations(most_known=20)
        for number, tenant in enumerate(tenants):
            calibrations.observe(tenant, "main", ENCODING, estimated=10_000, actual=30_000)
            if number % 10 == 9:
                await calibrations.flush(at.rt.database)
        assert (await at.rows("SELECT count(*) AS n FROM calibrations"))[0]["n"] == 100
        for process in (calibrations, Calibrations(most_known=20)):
            await process.load(at.rt.database)
            known = [tenant for tenant in tenants if process.ratio(tenant, "main", ENCODING) > 1.05]
            assert known == tenants[-20:]


async def test_calibrations_unused_for_a_month_are_deleted(database_url: str) -> None:
    async with service(database_url) as at:
        for tenant in (TENANT, OTHER):
            at.rt.calibrations.observe(tenant, "main", ENCODING, estimated=1000, actual=1100)
        await at.rt.calibrations.flush(at.rt.database)
        older = "UPDATE calibrations SET updated_at = updated_at - interval '31 days' WHERE tenant_id = :it RETURNING 1"
        assert len(await at.rows(older, it=OTHER)) == 1
        await at.rt.database.run(forget_unused_calibrations, UNUSED.total_seconds())
        assert await at.rows("SELECT tenant_id FROM calibrations") == [{"tenant_id": TENANT}]
