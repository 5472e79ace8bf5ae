"""The provider's own count: asked near a threshold where the catalogue wants it, and never waited for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import ContextBudgetExceeded
from app.domain.types import JsonObject, TurnStatus
from app.services.views.turns import get_audit
from app.tokenizers.counters import Tokenizers
from tests.providers.server import Answer, Reset, ScriptedServer, Seen, Step, serving
from tests.providers.wires import ANTHROPIC, ModelReply
from tests.services.service import Service, ref_of, service

ESTIMATE = Tokenizers().estimator("o200k_base")
INPUT_BUDGET = 2253  # of a window of 4,096
NEAR_BUDGET, OVER_BUDGET = "word " * 2200, "word " * 2330


def tokens_of(seen: Seen) -> int:
    """The request in our own tokens, framing included."""
    messages: list[Any] = seen.json["messages"]
    texts = [block["text"] for message in messages for block in message["content"]]
    return sum(map(ESTIMATE, texts)) + 4 * len(messages) + 3


def counting(count: Callable[[Seen], Step]) -> Callable[[Seen], Step]:
    """A server whose counting endpoint answers with `count`; its summaries are of no use."""

    def play(seen: Seen) -> Step:
        if seen.path.endswith("/count_tokens"):
            return count(seen)
        body = ANTHROPIC.answer(ModelReply("Noted."))
        return Answer(body | {"usage": {"input_tokens": tokens_of(seen), "output_tokens": 3}})

    return play


def times(factor: float) -> Callable[[Seen], Step]:
    """A model that counts `factor` tokens for each of ours."""
    return lambda seen: Answer({"input_tokens": int(factor * tokens_of(seen))})


def models(server: ScriptedServer, wanted: str = "exact_counts = true\n") -> str:
    return (
        'default = "main"\n[models.main]\nprovider = "anthropic"\nmodel = "test-model"\n'
        f'base_url = "{server.base_url}"\ncontext_window = 4096\ntimeout_s = 20\nencoding = "o200k_base"\n{wanted}'
    )


def counts_asked(server: ScriptedServer) -> int:
    return sum(seen.path.endswith("/count_tokens") for seen in server.seen)


async def count_steps(at: Service) -> list[JsonObject]:
    rows = await at.rows("SELECT status, detail FROM turn_steps WHERE kind = 'count_tokens' ORDER BY started_at")
    assert {row["status"] for row in rows} <= {"success"}
    return [row["detail"] for row in rows]


async def test_a_prompt_that_the_estimate_would_refuse_is_sent_when_the_provider_counts_less(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(counting(times(0.9))) as server,
        service(database_url, models(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        done = await at.turn(session.id, OVER_BUDGET)
        assert done.turn.status is TurnStatus.COMPLETED
        assert done.context["estimated_input_tokens_before"] < INPUT_BUDGET < done.context["estimated_wire_tokens"]
        audit = await get_audit(at.rt, ref_of(session.id), done.turn.id, None)
        assert (audit.estimator, audit.calibration_ratio) == ("provider", pytest.approx(0.9, abs=0.01))
        (step,) = await count_steps(at)
        assert step["counted_tokens"] == int(0.9 * step["estimated_wire_tokens"])
        assert counts_asked(server) == 1


async def test_a_prompt_that_the_estimate_would_send_is_refused_when_the_provider_counts_more(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(counting(times(1.2))) as server,
        service(database_url, models(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        with pytest.raises(ContextBudgetExceeded):
            await at.turn(session.id, NEAR_BUDGET)
        assert server.hits == counts_asked(server) == 1, "something was sent to the model"
        audit = (await at.rows("SELECT estimator, overflow_rejected FROM turn_context_audit"))[0]
        assert audit == {"estimator": "provider", "overflow_rejected": True}


@pytest.mark.parametrize(("factor", "summarized_at"), [(1.1, 15), (1.0, 16), (0.93, 17)])
async def test_near_the_summary_trigger_the_provider_says_when_it_is_reached(
    database_url: str, tmp_path: Path, factor: float, summarized_at: int
) -> None:
    """Each turn adds about a hundred tokens; by the estimate the trigger of 1,577 is reached in the sixteenth."""
    async with (
        serving(counting(times(factor))) as server,
        service(database_url, models(server), folder=tmp_path) as at,
    ):
        policy = {"mandatory_summary_turn": 100, "protected_turns": 2}
        session = await at.session(policy=policy)
        outcomes = [await at.turn(session.id, f"Point {number}. " + "word " * 93) for number in range(1, 18)]
        triggered = [outcome.turn.seq for outcome in outcomes if outcome.context["summary_triggered"]]
        assert triggered[0] == summarized_at
        asked = await at.rows("SELECT count(*) AS n FROM turn_steps WHERE kind = 'count_tokens' GROUP BY turn_id")
        assert {row["n"] for row in asked} <= {1, 2}
        assert asked


async def test_far_from_every_threshold_and_without_exact_counts_nothing_is_called(
    database_url: str, tmp_path: Path
) -> None:
    for wanted, content in (("exact_counts = true\n", "Hello"), ("", NEAR_BUDGET)):
        async with (
            serving(counting(times(1.2))) as server,
            service(database_url, models(server, wanted), folder=tmp_path) as at,
        ):
            session = await at.session()
            done = await at.turn(session.id, content)
            assert done.turn.status is TurnStatus.COMPLETED
            assert counts_asked(server) == 0
            audit = await get_audit(at.rt, ref_of(session.id), done.turn.id, None)
            assert audit.estimator == "o200k_base"


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (Answer({"error": {"type": "overloaded_error", "message": "x"}}, 529), "provider_error"),
        (Answer({"input_tokens": 5}, delay_s=600), "provider_timeout"),
        (Reset(), "provider_error"),
        (Answer({}, 404), "not_offered"),
        (Answer({"input_tokens": 7}), "not_credible"),
    ],
    ids=["overloaded", "slow", "torn down", "no such endpoint", "nonsense"],
)
async def test_a_count_that_cannot_be_had_leaves_the_decision_to_the_estimate_and_is_noted(
    database_url: str, tmp_path: Path, answer: Step, word: str
) -> None:
    async with (
        serving(counting(lambda _: answer)) as server,
        service(database_url, models(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        done = await at.turn(session.id, NEAR_BUDGET)
        assert done.turn.status is TurnStatus.COMPLETED
        assert counts_asked(server) == 1, "the fault was not met, or met again and again"
        (step,) = await count_steps(at)
        assert step["fell_back"] == word
        audit = await get_audit(at.rt, ref_of(session.id), done.turn.id, None)
        assert (audit.estimator, audit.calibration_ratio) == ("o200k_base", 1.0)


async def test_no_connection_is_held_while_the_provider_counts(database_url: str, tmp_path: Path) -> None:
    looked = asyncio.Event()

    def slowly(seen: Seen) -> Step:
        return Answer({"input_tokens": tokens_of(seen)}, after=looked.is_set)

    async with (
        serving(counting(slowly)) as server,
        service(database_url, models(server), folder=tmp_path) as at,
    ):
        sessions = [await at.session() for _ in range(8)]
        turns = [asyncio.create_task(at.turn(session.id, NEAR_BUDGET)) for session in sessions]
        for _ in range(3000):
            await asyncio.sleep(0.01)
            if counts_asked(server) == 8:
                break
        assert counts_asked(server) == 8, "eight turns on five connections did not come so far"
        held = await at.rows(
            "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() "
            "AND state LIKE 'idle in transaction%'"
        )
        assert held[0]["n"] == 0
        looked.set()
        await asyncio.gather(*turns)
