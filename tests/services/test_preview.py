"""A preview is the turn that follows it: the same context, messages and hash; and it leaves no trace."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import ContextBudgetExceeded, InvalidRequest, NotFound
from app.domain.types import Pin, Session, SessionId, SessionRef, TenantId
from app.services.sessions import put_pin
from app.services.summaries import summarize_now
from app.services.turn.take import cancel_turn
from app.services.turn.types import TurnOptions, TurnOutcome, TurnRequest
from app.services.views.preview import Preview, preview_turn
from app.services.views.turns import get_audit, get_prompt
from tests.engine.pictures import image, png
from tests.providers.server import Answer, Seen, serving
from tests.services.service import Service, chat, client_tools, model, models_toml, ref_of, service
from tests.services.test_tools import TOOLS, calls
from tests.services.untouched import contents

LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 20


async def preview(
    at: Service,
    session_id: SessionId,
    content: Any,
    *,
    model_alias: str | None = None,
    **options: Any,
) -> Preview:
    """The preview of a turn, seen to leave every table as it was."""
    before = await contents(at)
    request = TurnRequest(content, "", TurnOptions(**options), model_alias)
    seen = await preview_turn(at.rt, ref_of(session_id), request)
    assert await contents(at) == before
    return seen


async def previewed_turn(
    at: Service, session: Session, content: Any, *, model_alias: str | None = None, **options: Any
) -> TurnOutcome:
    """Previews a turn, posts it, and holds the one to the other."""
    seen = await preview(at, session.id, content, model_alias=model_alias, **options)
    outcome = await at.turn(session.id, content, model_alias=model_alias, **options)
    assert not seen.summary_pending
    assert seen.refusal is None
    assert seen.seq == outcome.turn.seq
    assert seen.context == outcome.context
    prompt = await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, None)
    assert list(seen.messages) == prompt.messages
    assert list(seen.tools) == prompt.tools
    assert seen.context["prompt_sha256"] == prompt.prompt_sha256
    return outcome


async def test_over_a_session_of_every_kind_of_turn_each_turn_is_what_its_preview_showed(
    database_url: str, tmp_path: Path
) -> None:
    """Layers, goal, pins, tools, media, a summary, an undone turn, another encoding: equal to the hash."""
    small = '[models.small]\nprovider = "openai"\nmodel = "gpt-4"\nbase_url = "{}"\ncontext_window = 7000\n'

    def reply(request: Seen) -> Answer:
        asks_for_tools = client_tools(request) and request.json["messages"][-1]["role"] == "user"
        return calls("call-1") if asks_for_tools else chat("Noted. " * 20)

    async with serving(model(reply)) as server:
        models = models_toml(server, window=8000, extra=small.format(server.base_url))
        async with service(database_url, models, folder=tmp_path) as at:
            session = await at.session(room_goal="Reconcile June", instructions="Be brief.")
            await previewed_turn(at, session, "Hello")
            await put_pin(at.rt, ref_of(session.id), Pin("ledger", "Account 4711 is closed.", 0.5))
            await previewed_turn(at, session, "With a pin now")
            waiting = await previewed_turn(at, session, "Look it up", tools=TOOLS)
            await at.outputs(session.id, waiting.turn.id, {"call-1": LONG})
            await previewed_turn(at, session, [{"type": "text", "text": "What is this?"}, image(png(800, 600))])
            await previewed_turn(at, session, "After media")
            waiting = await previewed_turn(at, session, "Look again", tools=TOOLS)
            await cancel_turn(at.rt, ref_of(session.id), waiting.turn.id)
            await previewed_turn(at, session, "After a cancelled turn")
            await previewed_turn(at, session, "In another encoding", model_alias="small")
            await summarize_now(at.rt, ref_of(session.id))
            outcome = await previewed_turn(at, session, "After a summary")
            assert outcome.context["regions"]["summary"] > 0
            assert outcome.context["regions"]["pins"] > 0


async def test_a_prune_is_previewed_action_by_action(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(LONG)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"auto_summarize": False})
        outcomes = [await previewed_turn(at, session, f"Question {number}") for number in range(1, 12)]
        assert any(outcome.context["prune_triggered"] for outcome in outcomes)


async def test_a_summary_that_is_due_is_pending_and_reckoned_at_its_cap(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=16000), folder=tmp_path) as at,
    ):
        session = await at.session()
        for number in range(1, 9):
            await previewed_turn(at, session, f"Point {number}. {LONG}")
        hits = server.hits
        seen = await preview(at, session.id, "The ninth")
        assert server.hits == hits, "a preview called a model"
        assert seen.summary_pending
        context = seen.context
        assert context["summary_triggered"]
        assert context["prompt_sha256"] is None
        assert "stands a summary that takes turns 1 to 4" in str(seen.messages[0])
        outcome = await at.turn(session.id, "The ninth")
        same = ("estimated_input_tokens_before", "input_budget", "summary_triggered", "overflow_rejected")
        assert {name: context[name] for name in same} == {name: outcome.context[name] for name in same}
        assert outcome.context["estimated_wire_tokens"] < context["estimated_wire_tokens"]
        folded = [a for a in context["context_trim_log"]["actions"] if a["target"].startswith("turns:")]
        assert [each["count"] for each in folded] == [4]
        assert context["regions"]["summary"] == sum(a["tokens_removed_est"] for a in folded) * 3 // 4
        without_summary = {**context["regions"], "summary": 0}
        assert without_summary == {**outcome.context["regions"], "summary": 0}


async def test_a_turn_that_would_be_refused_is_a_preview_that_says_so(database_url: str, tmp_path: Path) -> None:
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        await at.turn(session.id, "Hello")
        too_long = "word " * 5000
        seen = await preview(at, session.id, too_long)
        with pytest.raises(ContextBudgetExceeded) as refused:
            await at.turn(session.id, too_long)
        rejected = (await at.rows("SELECT id FROM turns WHERE status = 'rejected'"))[0]
        audit = await get_audit(at.rt, ref_of(session.id), rejected["id"], None)
        assert seen.context == {name: getattr(audit, name) for name in seen.context}
        assert seen.context["overflow_rejected"]
        assert (list(seen.messages), list(seen.tools)) == ([], [])
        assert seen.refusal is not None
        assert seen.refusal["budget"] == refused.value.budget
        assert seen.refusal["regions"] == refused.value.regions
        await previewed_turn(at, session, "Short again")


async def test_a_preview_works_while_a_turn_runs_and_says_which_turn_it_is_of(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(Answer(chat("Late.").body, after=(seen_meanwhile := asyncio.Event()).is_set)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        running = asyncio.create_task(at.turn(session.id, "Slow question"))
        await server.arrived.wait()
        seen = await preview(at, session.id, "Next question")
        assert not running.done()
        seen_meanwhile.set()
        outcome = await running
        assert (seen.seq, seen.open_turn_id) == (2, outcome.turn.id)
        assert [message["content"] for message in seen.messages] == ["Slow question", "Next question"]
        assert outcome.turn.assistant_output == "Late."


async def test_a_preview_takes_another_policy_and_model_over_the_sessions_own(
    database_url: str, tmp_path: Path
) -> None:
    extra = '[models.tiny]\nprovider = "offline"\ncontext_window = 4000\n'
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, extra=extra), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"max_context_tokens": 3500})
        own = await preview(at, session.id, "Hello")
        assert own.context["model_context_limit"] == 3500
        smaller = await preview(at, session.id, "Hello", policy={"max_context_tokens": 2500})
        assert smaller.context["model_context_limit"] == 2500
        uncapped = await preview(at, session.id, "Hello", policy={"max_context_tokens": None}, model_alias="tiny")
        assert uncapped.context["model_context_limit"] == 4000
        assert uncapped.context["model_alias"] == "tiny"
        outcome = await at.turn(session.id, "Hello")
        assert outcome.context == own.context, "an override outlived its preview"


async def test_a_preview_refuses_what_the_turn_would_refuse(database_url: str, tmp_path: Path) -> None:
    async with serving(model()) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        for wrong in ({"nonsense": 1}, {"summary_trigger_ratio": 2}):
            with pytest.raises(InvalidRequest) as refused:
                await preview(at, session.id, "Hello", policy=wrong)
            assert refused.value.where[:2] == ("body", "policy")
        with pytest.raises(NotFound):
            await preview_turn(at.rt, SessionRef(TenantId("other"), session.id), TurnRequest("Hello", ""))
