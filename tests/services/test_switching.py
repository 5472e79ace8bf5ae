"""A session whose alias changes to a smaller window summarizes, prunes, or is refused; it never overflows."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import ContextBudgetExceeded
from app.domain.types import Pin, TenantId, TurnStatus
from app.services.process_state import COOLDOWN_S, Cooldowns
from app.services.sessions import change_session, create_session, put_pin
from tests.providers.server import Answer, ScriptedServer, Seen, serving
from tests.services.service import Service, chat, is_summary, models_toml, ref_of, service, sound_summary
from tests.services.test_model_faults import LONG, strict_window
from tests.services.test_repeated_attempts import another


@dataclass(frozen=True)
class Both:
    """A session on a window of 65,536 and a second alias whose server refuses what is over its 4,096."""

    at: Service
    small: ScriptedServer
    refusals: list[Seen]


@asynccontextmanager
async def both(database_url: str, folder: Path, reply: str = "Fine.") -> AsyncGenerator[Both]:
    strict, refusals = strict_window(4096), list[Seen]()

    def play(request: Seen) -> Answer:
        answer: Answer = strict(request)
        if answer.status != 200:
            refusals.append(request)
        return sound_summary(request) if is_summary(request) and answer.status == 200 else answer

    async with serving(chat(reply)) as large, serving(play) as small:
        models = models_toml(large, window=65_536) + (
            f'[models.small]\nprovider = "openai"\nmodel = "s"\nbase_url = "{small.base_url}"\ncontext_window = 4096\n'
        )
        async with service(database_url, models, folder=folder) as at:
            yield Both(at, small, refusals)


@pytest.mark.parametrize(
    ("policy", "did"), [({}, "summary_triggered"), ({"summarize_when": "never"}, "prune_triggered")]
)
async def test_a_smaller_window_is_met_by_a_summary_or_by_pruning(
    database_url: str, tmp_path: Path, policy: dict[str, Any], did: str
) -> None:
    async with both(database_url, tmp_path, reply=LONG * 2) as on:
        session = await on.at.session(policy={**policy, "protected_turns": 2})
        *_, before = [await on.at.turn(session.id, f"Point {number}.") for number in range(1, 8)]
        assert before.context["estimated_input_tokens_before"] > 2 * 1126, "it would have fitted anyway"
        await change_session(on.at.rt, ref_of(session.id), {"model_alias": "small"})
        after = [await on.at.turn(session.id, f"Point {number}. {LONG}") for number in range(8, 14)]
        assert after[0].context[did]
        assert {outcome.turn.model_alias for outcome in after} == {"small"}
        assert all(outcome.context["estimated_input_tokens_after_prune"] <= 2253 for outcome in after)
        assert on.small.hits >= 6
        assert on.refusals == [], "the smaller model was sent more than its window"


async def test_what_cannot_be_made_to_fit_the_smaller_window_is_refused_and_fits_the_larger_again(
    database_url: str, tmp_path: Path
) -> None:
    async with both(database_url, tmp_path) as on:
        session = await on.at.session()
        await put_pin(on.at.rt, ref_of(session.id), Pin("rules", LONG * 10))
        await on.at.turn(session.id, "Begin")
        await change_session(on.at.rt, ref_of(session.id), {"model_alias": "small"})
        with pytest.raises(ContextBudgetExceeded) as refused:
            await on.at.turn(session.id, "Go on")
        assert refused.value.budget["limit"] == 4096
        assert on.small.hits == 0, "something was sent to the model"
        await change_session(on.at.rt, ref_of(session.id), {"model_alias": "main"})
        assert (await on.at.turn(session.id, "Go on")).turn.status is TurnStatus.COMPLETED


def test_an_alias_that_was_down_is_called_again_when_it_has_rested() -> None:
    now = 100.0
    cooldowns = Cooldowns(lambda: now)
    assert cooldowns.awake("main", ("backup",)) == ("main", "backup")
    cooldowns.rest("main")
    assert cooldowns.awake("main", ("backup",)) == ("backup",)
    cooldowns.rest("backup")
    assert cooldowns.awake("main", ("backup",)) == ("main",), "with all at rest somebody has to be asked"
    now += COOLDOWN_S
    assert cooldowns.awake("main", ("backup",)) == ("main", "backup")
    assert not cooldowns.is_resting("main")


async def test_what_fails_for_one_tenant_is_called_for_others_until_it_fails_for_two(
    database_url: str, tmp_path: Path
) -> None:
    """A server that answers 500 to one tenant's requests kept all tenants on the fallback for as long as these came."""

    def play(request: Seen) -> Answer:
        is_poison = "poison" in request.json["messages"][-1]["content"]
        return Answer({"error": {"message": "Oops"}}, status=500) if is_poison else chat("Fine.")

    async with serving(play) as main, serving(chat("Fine.")) as backup:
        models = models_toml(main, extra='fallbacks = ["backup"]\n') + another("backup", backup)
        async with service(database_url, models, folder=tmp_path) as at:
            answered: list[str | None] = []
            for tenant, content in (("a", "poison"), ("a", "Hi"), ("b", "Hi"), ("b", "poison"), ("c", "Hi")):
                session = await create_session(at.rt, TenantId(tenant), {})
                outcome = await at.turn(session.id, content, tenant_id=TenantId(tenant))
                answered.append(outcome.turn.model_alias)
            assert answered == ["backup", "backup", "main", "backup", "backup"]
