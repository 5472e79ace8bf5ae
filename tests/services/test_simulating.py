"""A simulation says what the service does: the same triggers at the same turns, and nothing of it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.db.simulation_rows import stored_turns
from app.db.sql import sql
from app.domain.errors import ContextBudgetExceeded, DatabaseUnavailable, InvalidRequest, NotFound
from app.domain.types import JsonObject, Pin, SessionId, SessionRef, TenantId
from app.services.sessions import put_pin
from app.services.views.simulation import BATCH_TURNS, THRESHOLDS, Variant, simulate, variant_of
from tests.providers.server import Answer, Seen, serving
from tests.services.service import Service, chat, client_tools, is_summary, models_toml, ref_of, service
from tests.services.test_tools import TOOLS, calls
from tests.services.untouched import contents

SENTENCE = "The reconciliation job compares ledger rows with bank lines and reports each difference. "
POLICIES: Mapping[str, JsonObject] = {
    "guarded": {},
    "early": {"summary_trigger_ratio": 0.4, "protected_turns": 2},
    "late": {"summary_trigger_ratio": 0.95, "prune_trigger_ratio": 0.95, "mandatory_summary_turn": 100},
    "pruned alone": {"auto_summarize": False},
    "smaller": {"max_context_tokens": 3200},
    "heuristic": {"estimator": "heuristic"},
    "post_turn": {"preset": "post_turn", "protected_turns": 2},
    "rolling": {"preset": "rolling"},
    "allocated": {"preset": "allocated"},
    "turn_atomic": {"preset": "turn_atomic", "max_messages": 14},
    "as a user": {"summary_role": "user", "prune_protected": False},
}


def _no_summarizer(request: Seen) -> Answer:
    """A model that answers, calls a tool when it is offered one, and never gives a summary."""
    if is_summary(request):
        return Answer({"error": {"message": "no"}}, status=400)
    messages = request.json["messages"]
    asked = str(messages[-1]["content"])
    if client_tools(request) and messages[-1]["role"] == "user":
        return Answer({**calls(f"call-{len(messages)}").body, "usage": {"prompt_tokens": 0, "completion_tokens": 10}})
    # Reporting no prompt tokens, it leaves the estimates uncorrected: a simulation reckons with today's correction.
    return chat(SENTENCE * (len(asked) % 17), prompt_tokens=0, completion_tokens=11)


async def _converse(at: Service, session_id: SessionId, turns: int = 26) -> None:
    """Turns of many lengths, some with tools and one far too long, whatever each comes to."""
    for number in range(1, turns + 1):
        content = f"Point {number}. " + SENTENCE * (number * 7 % 13)
        if number == 15:
            content = "word " * 9000
        with suppress(ContextBudgetExceeded):
            outcome = await at.turn(session_id, content, tools=TOOLS if number % 6 == 0 else ())
            if outcome.turn.tool_calls:
                await at.outputs(session_id, outcome.turn.id, {outcome.turn.tool_calls[0].id: SENTENCE * 12})
        await at.rt.chores.settle()
        if number == 10:
            await put_pin(at.rt, ref_of(session_id), Pin("rule", "Never write to the ledger.", 1.0))


@pytest.mark.parametrize("name", POLICIES)
async def test_replaying_a_session_under_its_own_policy_gives_what_happened(
    database_url: str, tmp_path: Path, name: str
) -> None:
    async with (
        serving(_no_summarizer) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(room_goal="Reconcile June", instructions="Be brief.", policy=POLICIES[name])
        await _converse(at, session.id)
        before = await contents(at)
        report = await simulate(at.rt, ref_of(session.id), [Variant("same", {})])
        assert await contents(at) == before
        happened, (same,) = report["happened"], report["policies"]
        assert same["per_turn"] == happened["per_turn"]
        assert 15 in same["rejections"]
        assert same["calls"] > 26
        for loss in ("turns_folded", "messages_folded", "actions"):
            assert same["lost"][loss] == happened["lost"][loss]
        assert same["output_tokens"] == happened["output_tokens"]
        if name in ("guarded", "early"):
            assert len(same["summaries"]) > 1


async def test_other_policies_are_what_a_session_under_them_then_does(database_url: str, tmp_path: Path) -> None:
    """The triggers that a simulation tells of one session are those of another that is run under that policy."""
    async with (
        serving(_no_summarizer) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        await _converse(at, session.id, turns=14)
        variants = [Variant(name, POLICIES[name]) for name in ("early", "late", "as a user", "smaller")]
        report = await simulate(at.rt, ref_of(session.id), variants)
        for variant, simulated in zip(variants, report["policies"], strict=True):
            run = await at.session(policy=variant.overrides)
            await _converse(at, run.id, turns=14)
            happened = (await simulate(at.rt, ref_of(run.id), [Variant("same", {})]))["happened"]
            of_the_turn = ("seq", "calls", "wire_tokens", "summary", "prune", "rejected")
            # What the run's own window had refused has no reply to compare with: up to there they are one.
            end = min([*happened["rejections"], 15]) - 1
            assert [[turn[name] for name in of_the_turn] for turn in simulated["per_turn"][:end]] == [
                [turn[name] for name in of_the_turn] for turn in happened["per_turn"][:end]
            ]


async def test_the_documented_thresholds_side_by_side_summarize_ever_later(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(_no_summarizer) as server,
        service(database_url, models_toml(server, window=8000), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"mandatory_summary_turn": 100})
        await _converse(at, session.id, turns=40)
        report = await simulate(at.rt, ref_of(session.id), THRESHOLDS)
        assert [policy["name"] for policy in report["policies"]] == ["at 70 %", "at 80 %", "at 90 %", "at 95 %"]
        firsts = [policy["summaries"][0] for policy in report["policies"]]
        assert firsts == sorted(firsts)
        assert firsts[0] < firsts[-1]
        assert report["policies"][0]["per_turn"] == report["happened"]["per_turn"]
        (full,) = report["full_history"]
        assert all(policy["wire_tokens"] < full["wire_tokens"] for policy in report["policies"])
        assert full["first_turn_over_the_window"] < 40
        for policy in report["policies"]:
            lost = policy["lost"]
            assert 0 < lost["users_words_verbatim_at_end"] < lost["users_words_verbatim_mean"] < 1
            assert policy["summarizer_prompt_tokens"] > policy["summarizer_completion_tokens"] > 0
            assert lost["messages_folded"] >= 2 * lost["turns_folded"] > 0


PRICED = """
[models.mini]
provider = "openai"
model = "gpt-4o-mini"
api_key_env = "KEY"
context_window = 6000
[models.big]
provider = "openai"
model = "gpt-4o"
api_key_env = "KEY"
"""


async def test_cost_is_by_the_catalogues_prices_and_unknown_where_one_is_missing(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(_no_summarizer) as server:
        models = models_toml(server, extra=PRICED)
        async with service(database_url, models, folder=tmp_path, environ={"KEY": "sk-not-used"}) as at:
            session = await at.session()
            await _converse(at, session.id, turns=12)
            variants = [Variant("own", {}), Variant("by big", {"summary_model": "big"})]
            report = await simulate(at.rt, ref_of(session.id), variants, ["main", "mini"])
            main, mini, _, mini_by_big = report["policies"]
            assert [(p["name"], p["model_alias"]) for p in report["policies"]] == [
                ("own", "main"),
                ("own", "mini"),
                ("by big", "main"),
                ("by big", "mini"),
            ]
            assert main["cost_usd"] is None
            assert report["full_history"][0]["cost_usd"] is None
            prompt, output = mini["wire_tokens"], mini["output_tokens"]
            asked, written = mini["summarizer_prompt_tokens"], mini["summarizer_completion_tokens"]
            assert mini["cost_usd"] == pytest.approx((0.15 * (prompt + asked) + 0.60 * (output + written)) / 1e6)
            assert mini["summaries_cost_usd"] == pytest.approx((0.15 * asked + 0.60 * written) / 1e6)
            assert mini_by_big["summaries_cost_usd"] == pytest.approx((2.5 * asked + 10 * written) / 1e6)
            assert mini["output_tokens"] == report["happened"]["output_tokens"] == 11 * 12 + 10 * 2


async def test_a_turn_that_was_refused_is_sent_where_it_fits_and_one_that_was_sent_is_refused_where_it_does_not(
    database_url: str, tmp_path: Path
) -> None:
    other = '[models.{}]\nprovider = "offline"\ncontext_window = {}\n'
    extra = other.format("large", 64000) + other.format("tiny", 1600)
    async with (
        serving(_no_summarizer) as server,
        service(database_url, models_toml(server, extra=extra), folder=tmp_path) as at,
    ):
        session = await at.session()
        await _converse(at, session.id, turns=18)
        report = await simulate(at.rt, ref_of(session.id), [Variant("own", {})], ["large", "tiny"])
        large, tiny = report["policies"]
        assert 15 in report["happened"]["rejections"]
        assert large["rejections"] == []
        assert large["per_turn"][14]["calls"] == 1
        assert set(report["happened"]["rejections"]) < set(tiny["rejections"])
        assert all(tiny["per_turn"][seq - 1]["wire_tokens"] == 0 for seq in tiny["rejections"] if seq % 6)


@pytest.mark.parametrize(("prefix", "unresolved"), [("", False), ("another_", True)])
async def test_a_step_that_succeeded_on_a_retry_leaves_its_turn_resolved(
    database_url: str, prefix: str, unresolved: bool
) -> None:
    async with service(database_url) as at:
        session = await at.session()
        await at.turn(session.id, "Which port?")
        await at.rows("UPDATE turn_steps SET seq = seq + 10 RETURNING id")
        await at.rows(
            "INSERT INTO turn_steps (id, turn_id, session_id, seq, kind, status, detail, started_at) "
            "SELECT gen_random_uuid(), turn_id, session_id, seq - 10, :prefix || kind, 'error', '{}', started_at "
            "FROM turn_steps RETURNING id",
            prefix=prefix,
        )
        async with at.rt.database.autocommit() as tx:
            (turn,) = await stored_turns(tx, session.id, 0, 1, limit=1)
        assert turn.unresolved == unresolved


async def test_a_limit_leaves_later_turns_out_and_says_so(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(_no_summarizer) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        await _converse(at, session.id, turns=9)
        whole = await simulate(at.rt, ref_of(session.id), [Variant("own", {})])
        steps: list[tuple[int, int]] = []
        part = await simulate(
            at.rt,
            ref_of(session.id),
            [Variant("own", {})],
            most_turns=5,
            progress=lambda done, of: steps.append((done, of)),
        )
        assert (whole["truncated"], whole["turns"], whole["stored_turns"]) == (False, 9, 9)
        assert (part["truncated"], part["turns"], part["stored_turns"]) == (True, 5, 9)
        assert part["policies"][0]["per_turn"] == whole["policies"][0]["per_turn"][:5]
        assert part["happened"]["per_turn"] == whole["happened"]["per_turn"][:5]
        assert steps == [(5, 5)]
        empty = await at.session()
        nothing = await simulate(at.rt, ref_of(empty.id), THRESHOLDS)
        assert nothing["policies"][0]["per_turn"] == []


async def test_turns_of_large_messages_are_read_few_at_a_time(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(_no_summarizer) as server,
        service(database_url, models_toml(server, window=16000), folder=tmp_path) as at,
    ):
        session = await at.session()
        for number in range(6):
            await at.turn(session.id, f"Point {number}.")
        steps: list[int] = []
        whole = await simulate(at.rt, ref_of(session.id), THRESHOLDS, progress=lambda done, _: steps.append(done))
        assert steps == [6]
        for seq, characters in ((3, 3_000_000), (5, 3_000_000), (7, 20_000_000)):
            await at.rows(
                "UPDATE messages SET content = to_jsonb(repeat('w', :characters)) WHERE seq = :seq RETURNING id",
                characters=characters,
                seq=seq,
            )
        again = await simulate(at.rt, ref_of(session.id), THRESHOLDS, progress=lambda done, _: steps.append(done))
        assert steps == [6, 3, 4, 6]
        assert again["happened"]["per_turn"] == whole["happened"]["per_turn"]


async def test_another_tenants_session_and_an_impossible_policy_are_not_simulated(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(_no_summarizer) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        with pytest.raises(NotFound):
            await simulate(at.rt, SessionRef(TenantId("other"), session.id), THRESHOLDS)
        for wrong in ({"nonsense": 1}, {"preset": "nobody"}, {"summary_model": "nobody"}, {"protected_turns": -1}):
            with pytest.raises(InvalidRequest) as refused:
                await simulate(at.rt, ref_of(session.id), [Variant("own", {}), variant_of(wrong)])
            assert refused.value.where[:3] == ("body", "policies", "1")
        with pytest.raises(InvalidRequest):
            await simulate(at.rt, ref_of(session.id), THRESHOLDS, ["nobody"])


async def test_the_database_itself_refuses_to_write_while_a_simulation_reads(database_url: str, tmp_path: Path) -> None:
    """Even a statement that would write is refused in the transactions that a simulation reads in."""
    async with (
        serving(_no_summarizer) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        erase = sql("DELETE FROM sessions WHERE id = CAST(:id AS uuid)")
        with pytest.raises(DatabaseUnavailable) as refused:
            async with at.rt.database.read_only() as tx:
                await tx.execute(erase, id=session.id)
        assert isinstance(refused.value.__cause__, asyncpg.ReadOnlySQLTransactionError)


def test_a_policy_is_named_by_its_preset_its_name_or_its_overrides() -> None:
    policies: list[tuple[Any, str, JsonObject]] = [
        ("rolling", "rolling", {"preset": "rolling"}),
        ({"name": "mine", "protected_turns": 2}, "mine", {"protected_turns": 2}),
        ({"protected_turns": 2}, '{"protected_turns":2}', {"protected_turns": 2}),
        ({}, "as the session has it", {}),
    ]
    for given, name, overrides in policies:
        assert variant_of(given) == Variant(name, overrides)


async def test_the_service_goes_on_while_a_simulation_computes(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(_no_summarizer) as server,
        service(database_url, models_toml(server, window=16000), folder=tmp_path) as at,
    ):
        session = await at.session()
        # One batch: on the event loop nothing else would come in between.
        await _converse(at, session.id, turns=BATCH_TURNS)
        simulated = asyncio.create_task(simulate(at.rt, ref_of(session.id), THRESHOLDS * 12))
        beats = 0
        while not simulated.done():
            await asyncio.sleep(0.002)
            beats += 1
        await simulated
        assert beats > 20
