"""A turn under a policy of its own: over the session's, for that turn and its tool rounds, and for nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import InvalidRequest
from app.domain.types import TurnStatus
from app.engine.policy.policy import ContextPolicy
from app.services.sessions import change_session
from app.services.summaries import list_summaries
from app.services.turn.take import prepare_regeneration, regenerate_turn, take_turn
from app.services.turn.types import TurnOptions, TurnRequest
from app.services.views.turns import get_audit
from tests.providers.server import Answer, Seen, serving
from tests.services.service import (
    NEWEST,
    TENANT,
    Service,
    chat,
    client_tools,
    is_summary,
    model,
    models_toml,
    ref_of,
    service,
)
from tests.services.test_preview import LONG, previewed_turn
from tests.services.test_tools import TOOLS, calls

CAPPED = {"max_context_tokens": 3000}


def _limit(context: dict[str, Any]) -> int:
    return context["model_context_limit"]


def calling_first(request: Seen) -> Answer:
    """A model that calls a tool when it is offered one, and answers once it has the result."""
    offered = client_tools(request) and request.json["messages"][-1]["role"] == "user"
    return calls("call-1") if offered else chat("Noted.")


async def test_a_turn_under_a_policy_is_what_its_preview_under_that_policy_showed(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model(LONG)) as server,
        service(database_url, models_toml(server, window=16_000), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"auto_summarize": False})
        for number in range(1, 7):
            await at.turn(session.id, f"Question {number}")
        plain = await previewed_turn(at, session, "As the session says")
        tight = await previewed_turn(at, session, "In little room", policy=CAPPED)
        assert (_limit(plain.context), _limit(tight.context)) == (16_000, 3000)
        assert tight.context["prune_triggered"]
        shared = await previewed_turn(at, session, "Shared out", policy={"preset": "allocated", **CAPPED})
        assert shared.context["output_reserve"] != tight.context["output_reserve"]
        assert _limit((await previewed_turn(at, session, "And back")).context) == 16_000


async def test_its_tool_rounds_are_run_under_it_too(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(calling_first)) as server,
        service(database_url, models_toml(server, window=16_000), folder=tmp_path) as at,
    ):
        session = await at.session()
        waiting = await at.turn(session.id, "Look it up", tools=TOOLS, policy=CAPPED)
        await change_session(at.rt, ref_of(session.id), {"policy": {"max_context_tokens": 9000}})
        outcome = await at.outputs(session.id, waiting.turn.id, {"call-1": "4711"})
        audits = [await get_audit(at.rt, ref_of(session.id), waiting.turn.id, number) for number in (1, 2)]
        assert [audit.model_context_limit for audit in audits] == [3000, 3000]
        assert _limit(outcome.context) == 3000
        assert _limit((await at.turn(session.id, "Next")).context) == 9000


async def test_run_again_it_has_the_policy_it_had_unless_another_one_is_requested(
    database_url: str, tmp_path: Path
) -> None:
    async def again(at: Service, session_id: Any, turn_id: Any, **options: Any) -> int:
        wanted = TurnRequest(None, "", TurnOptions(**options))
        prepared = await prepare_regeneration(at.rt, ref_of(session_id), turn_id, wanted)
        return _limit((await regenerate_turn(at.rt, TENANT, prepared)).context)

    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        turn = (await at.turn(session.id, "Hello", policy=CAPPED)).turn
        assert await again(at, session.id, turn.id) == 3000
        assert await again(at, session.id, turn.id, policy={"max_context_tokens": 2000}) == 2000
        assert await again(at, session.id, turn.id, policy={}) == 4096, "the session's own"


async def test_run_again_without_tools_or_a_policy_it_has_the_options_it_had(database_url: str, tmp_path: Path) -> None:
    options = TurnOptions(max_output_tokens=50, instructions="Answer in French.", provider_options={"temperature": 0.3})
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        turn = (await take_turn(at.rt, ref_of(session.id), TurnRequest("Hello", "first", options), None)).turn
        wanted = TurnRequest(None, "", TurnOptions(max_output_tokens=60))
        for request, most_tokens in ((TurnRequest(None, ""), 50), (wanted, 60)):
            prepared = await prepare_regeneration(at.rt, ref_of(session.id), turn.id, request)
            await regenerate_turn(at.rt, TENANT, prepared)
            first, again = server.seen[0].json, server.seen[-1].json
            assert first["max_tokens"] == 50
            assert again == first | {"max_tokens": most_tokens}


@pytest.mark.parametrize(("own", "asked"), [("guarded", "post_turn"), ("post_turn", "guarded")])
async def test_what_is_done_after_the_turn_goes_by_the_sessions_own_policy(
    database_url: str, tmp_path: Path, own: str, asked: str
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=16_000), folder=tmp_path) as at,
    ):
        # Each is due from the first turns on, where it is looked at; before the call none is, in these few.
        due = {"usage_threshold": 0.02, "protected_turns": 1}
        session = await at.session(policy={"preset": own, **due} if own == "post_turn" else {"preset": own})
        for number in range(1, 6):
            await at.turn(session.id, f"Point {number}. {LONG}", policy={"preset": asked, **due})
            await at.rt.chores.drain(5)
        made = (await list_summaries(at.rt, ref_of(session.id), NEWEST)).items
        asked_after_turns = any(is_summary(request) for request in server.seen)
        assert bool(made) is asked_after_turns is (own == "post_turn")


@pytest.mark.parametrize(
    ("policy", "where"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"summary_trigger_ratio": 2}, "summary_trigger_ratio"),
        ({"summary_trigger_ratio": 0.95}, "prune_trigger_ratio"),
    ],
)
async def test_a_policy_that_can_not_be_is_named_by_its_place_and_nothing_is_stored(
    database_url: str, policy: dict[str, Any], where: str
) -> None:
    async with service(database_url) as at:
        session = await at.session()
        with pytest.raises(InvalidRequest) as refused:
            await at.turn(session.id, "Hello", policy=policy)
        assert refused.value.where == ("body", "policy", where)
        assert await at.rows("SELECT id FROM turns") == []


async def test_a_combination_is_judged_over_what_the_session_has(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.session(policy={"prune_trigger_ratio": 0.98})
        outcome = await at.turn(session.id, "Hello", policy={"summary_trigger_ratio": 0.95})
        assert outcome.turn.assistant_output


async def test_a_turn_is_answered_though_the_sessions_own_policy_is_no_longer_allowed(database_url: str) -> None:
    """The turn's policy makes it a possible one. What is done after the turn goes by the session's own."""
    async with service(database_url) as at:
        session = await at.session(policy={"summary_trigger_ratio": 0.88})
    async with service(database_url, policy=ContextPolicy(prune_trigger_ratio=0.85)) as at:
        with pytest.raises(InvalidRequest):
            await at.turn(session.id, "Hello")
        outcome = await at.turn(session.id, "Hello", policy={"prune_trigger_ratio": 0.95})
        assert outcome.turn.status is TurnStatus.COMPLETED
