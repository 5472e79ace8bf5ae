"""What turns cost at published prices: summaries included and marked as such, caches at prices of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from app.domain.errors import TurnCancelled
from app.domain.types import TurnId, TurnStatus
from app.providers.registry import Catalogue, load_catalogue
from app.services.process_state import Leases
from app.services.sessions import session_usage
from app.services.turn.summarize import summarize_after_turn
from app.services.turn.take import cancel_turn
from app.services.turn.types import TurnOptions, TurnRequest
from app.services.views.preview import preview_turn
from app.services.views.turns import get_turn
from app.tokenizers.counters import encoding_for_model
from tests.providers.server import Answer, Play, Seen, serving
from tests.providers.wires import ANTHROPIC, OPENAI, ModelReply, Wire
from tests.services.service import Service, is_summary, ref_of, service, sound_summary

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 20
OPENAI_CALL = Decimal(7 * 15 + 3 * 60) / 10**8 + Decimal(4 * 75) / 10**9
"""gpt-4o-mini: 7 prompt tokens at $0.15 a million, 4 cached ones at $0.075, 3 of completion at $0.60."""
ANTHROPIC_CALL = Decimal(5 * 100 + 4 * 10 + 2 * 125 + 3 * 500) / 10**8
"""claude-haiku-4-5: 5 tokens at $1, 4 read from a cache at $0.10, 2 written to it at $1.25, 3 of completion at $5."""


@asynccontextmanager
async def sold_by(database_url: str, folder: Path, wire: Wire, model: str, *script: Play) -> AsyncGenerator[Service]:
    """A service whose model has its maker's window and prices, and answers from a scripted server."""
    entry = f'default = "main"\n[models.main]\nprovider = "{wire.name}"\nmodel = "{model}"\n'
    at_its_maker = folder / "maker.toml"
    at_its_maker.write_text(f'{entry}api_key_env = "K"\n')
    listed = load_catalogue(
        at_its_maker,
        environ={"K": "sk"},
        fallback_window=8192,
        now=lambda: NOW,
        encoding_for_model=encoding_for_model,
        estimator=lambda _: len,
    )
    async with (
        serving(*(script or [wire.whole(ModelReply("Noted."))])) as server,
        service(database_url, f'{entry}base_url = "{server.base_url}"\n', folder=folder) as at,
    ):
        catalogue = Catalogue(
            "main",
            listed.instructions,
            {"main": replace(listed.model("main"), context_window=16_384)},
            {"main": at.rt.catalogue.provider("main")},
        )
        yield Service(replace(at.rt, catalogue=catalogue))
    await listed.aclose()


@pytest.mark.parametrize(
    ("wire", "model", "call"),
    [(OPENAI, "gpt-4o-mini", OPENAI_CALL), (ANTHROPIC, "claude-haiku-4-5", ANTHROPIC_CALL)],
    ids=["openai", "anthropic"],
)
async def test_a_turn_costs_what_its_calls_cost_at_the_makers_prices_its_summary_included(
    database_url: str, tmp_path: Path, wire: Wire, model: str, call: Decimal
) -> None:
    async with sold_by(database_url, tmp_path, wire, model) as at:
        session = await at.session(policy={"summary_call": "separate"})
        outcomes = [await at.turn(session.id, f"Point {number}. {LONG}") for number in range(1, 10)]
        assert [outcome.context["summary_triggered"] for outcome in outcomes] == [False] * 8 + [True]
        assert [outcome.turn.cost_usd for outcome in outcomes] == [call] * 8 + [2 * call]
        totals = {used.purpose: used for used in await session_usage(at.rt, session.id)}
        assert (totals["turn"].calls, totals["summary"].calls) == (9, 1)
        assert totals["turn"].cost_usd == pytest.approx(float(9 * call))
        assert totals["summary"].cost_usd == pytest.approx(float(call))
        assert totals["turn"].cached_prompt_tokens == 9 * 4
        assert totals["turn"].cache_write_prompt_tokens == (9 * 2 if wire is ANTHROPIC else 0)
        step = (await at.rows("SELECT detail FROM turn_steps WHERE kind = 'summarize'"))[0]["detail"]
        assert Decimal(str(step["cost_usd"])) == call
        metrics = at.rt.telemetry.render()[0].decode().splitlines()
        for purpose, calls in (("turn", 9), ("summary", 1)):
            name = f'model_cost_usd_total{{model_alias="main",purpose="{purpose}"}} '
            (line,) = [line for line in metrics if line.startswith(name)]
            assert float(line.removeprefix(name)) == pytest.approx(float(calls * call))


async def test_a_call_that_reports_no_usage_leaves_the_known_costs_of_the_others(
    database_url: str, tmp_path: Path
) -> None:
    """The cost was that of the summary alone: one unknown cost had made that of all calls of the model unknown."""

    def answer(seen: Seen) -> Answer:
        if is_summary(seen) or "Point 9" not in str(seen.json["messages"][-1]):
            return OPENAI.whole(ModelReply("Noted."))
        of_the_ninth.append(seen)
        if len(of_the_ninth) == 1:
            return OPENAI.whole(ModelReply("Half of it", stop="error"))
        return Answer({**OPENAI.answer(ModelReply("Noted.")), "usage": None})

    of_the_ninth = list[Seen]()
    async with sold_by(database_url, tmp_path, OPENAI, "gpt-4o-mini", answer) as at:
        session = await at.session(policy={"summary_call": "separate"})
        for number in range(1, 9):
            await at.turn(session.id, f"Point {number}. {LONG}")
        turn = (await at.turn(session.id, f"Point 9. {LONG}")).turn
        assert len(of_the_ninth) == 2
        assert turn.cost_usd == 2 * OPENAI_CALL
        used = await at.rows("SELECT sum(cost_usd) AS usd FROM usage_records WHERE turn_id = :id", id=turn.id)
        assert used == [{"usd": turn.cost_usd}]


@pytest.mark.parametrize("held", ["summary", "turn"])
async def test_a_turn_that_another_process_cancels_costs_what_was_called_before_that(
    database_url: str, tmp_path: Path, held: str
) -> None:
    """Cancelled while its summary is made, its own model is not called."""
    waits, goes_on, calls = asyncio.Event(), asyncio.Event(), list[Seen]()

    def answer(seen: Seen) -> Answer:
        calls.append(seen)
        waits_here = is_summary(seen) if held == "summary" else "Point 9" in str(seen.json["messages"][-1])
        if waits_here:
            waits.set()
        return replace(OPENAI.whole(ModelReply("Noted.")), after=goes_on.is_set if waits_here else None)

    async with sold_by(database_url, tmp_path, OPENAI, "gpt-4o-mini", answer) as at:
        session = await at.session(policy={"summary_call": "separate"})
        for number in range(1, 9):
            await at.turn(session.id, f"Point {number}. {LONG}")
        calls.clear()
        posted = asyncio.create_task(at.turn(session.id, f"Point 9. {LONG}"))
        await asyncio.wait_for(waits.wait(), 20)
        (row,) = await at.rows("SELECT id FROM turns WHERE status = 'running'")
        await cancel_turn(replace(at.rt, leases=Leases()), ref_of(session.id), TurnId(row["id"]))
        goes_on.set()
        with pytest.raises(TurnCancelled):
            await posted
        assert [is_summary(seen) for seen in calls] == {"summary": [True], "turn": [True, False]}[held]
        (used,) = await at.rows("SELECT sum(cost_usd) AS usd FROM usage_records WHERE turn_id = :id", id=row["id"])
        assert used["usd"] == len(calls) * OPENAI_CALL
        turn = await get_turn(at.rt, ref_of(session.id), TurnId(row["id"]))
        assert (turn.status, turn.cost_usd) == (TurnStatus.CANCELLED, len(calls) * OPENAI_CALL)


@pytest.mark.parametrize("for_turn", [True, False])
async def test_a_summary_that_is_stopped_between_two_of_its_calls_costs_what_was_answered(
    database_url: str, tmp_path: Path, for_turn: bool
) -> None:
    """The process ends while it makes the summary of a turn that was cancelled, or one behind an answer."""
    waits, calls = asyncio.Event(), list[Seen]()

    def answer(seen: Seen) -> Answer:
        calls.append(seen)
        if len(calls) == 2:
            waits.set()
        said = sound_summary(seen).body["choices"][0]["message"]["content"]
        return replace(OPENAI.whole(ModelReply(said)), after=(lambda: False) if len(calls) == 2 else None)

    async with sold_by(database_url, tmp_path, OPENAI, "gpt-4o-mini", answer) as at:
        said = [(role, f"Point {number}. {LONG * 20}") for number in range(9) for role in ("user", "assistant")]
        messages = [{"role": role, "content": content} for role, content in said]
        policy = {"summary_call": "separate", "summarize_when": "both"}
        session = ref_of((await at.imported({"messages": messages, "policy": policy})).id)
        turn_id = None
        if for_turn:
            posted = asyncio.create_task(at.turn(session.id, "Hello"))
            await asyncio.wait_for(waits.wait(), 20)
            ((turn_id,),) = [row.values() for row in await at.rows("SELECT id FROM turns WHERE status = 'running'")]
            await cancel_turn(at.rt, session, TurnId(turn_id))
            with pytest.raises(TurnCancelled):
                await posted
        else:
            at.rt.chores.start(summarize_after_turn(at.rt, session, ()), "the summary")
            await asyncio.wait_for(waits.wait(), 20)
        await at.rt.chores.drain(0)
        assert len(calls) == 2
        (used,) = await at.rows("SELECT purpose, turn_id, cost_usd FROM usage_records")
        assert used == {"purpose": "summary", "turn_id": turn_id, "cost_usd": OPENAI_CALL}
        costs = await at.rows("SELECT cost_usd FROM turns WHERE status = 'cancelled' AND id = :id", id=turn_id)
        assert costs == ([{"cost_usd": OPENAI_CALL}] if for_turn else [])
        assert await at.rows("SELECT summary_lease_id AS lease FROM sessions") == [{"lease": None}]


async def test_a_preview_says_what_sending_its_prompt_costs(database_url: str, tmp_path: Path) -> None:
    async with sold_by(database_url, tmp_path, OPENAI, "gpt-4o-mini") as at:
        session = await at.session()
        seen = await preview_turn(at.rt, ref_of(session.id), TurnRequest("Hello", "", TurnOptions(), None))
        tokens = seen.context["estimated_wire_tokens"]
        assert seen.estimated_prompt_cost_usd == pytest.approx(tokens * 0.15 / 10**6)
        too_long = TurnRequest("Hello " * 20_000, "", TurnOptions(), None)
        refused = await preview_turn(at.rt, ref_of(session.id), too_long)
        assert refused.refusal is not None
        assert refused.refusal["code"] == "context_budget_exceeded"
        assert refused.estimated_prompt_cost_usd is None
