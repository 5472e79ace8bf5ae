"""What is paid for attempts that gave no answer is recorded: those that are repeated, those that are left for a
fallback, and those of a turn that fails."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import LimitExceeded, ProviderDown, ProviderError
from app.services.limits import clear_limits, list_limits, set_limits
from app.services.sessions import session_usage
from tests.providers.server import Answer, ScriptedServer, Seen, Stream, serving
from tests.providers.wires import ANTHROPIC, OPENAI, ModelReply, Wire, event, message_event
from tests.services.service import TENANT, Service, models_toml, service

OK = OPENAI.whole(ModelReply("Noted."))
FAILED = OPENAI.whole(ModelReply("Half of it", stop="error"))
"""An answer of OpenRouter that its upstream did not finish; it has been paid for."""
UNUSABLE = Answer({"choices": [{"message": "?"}], "usage": {"prompt_tokens": 50, "completion_tokens": 20}})


async def used(at: Service) -> list[tuple[str, int, int]]:
    rows = await at.rows("SELECT model_alias, prompt_tokens, completion_tokens FROM usage_records ORDER BY id")
    return [(row["model_alias"], row["prompt_tokens"], row["completion_tokens"]) for row in rows]


def another(alias: str, server: ScriptedServer) -> str:
    at = f'base_url = "{server.base_url}"\ncontext_window = 4096\n'
    return f'[models.{alias}]\nprovider = "openai"\nmodel = "{alias}"\n{at}'


def arguments_then_nothing(arguments: str) -> Stream:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "write", "arguments": arguments}}
    return Stream((event({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}),), ending="cut")


async def test_an_attempt_that_is_repeated_is_paid_for_and_counted(database_url: str, tmp_path: Path) -> None:
    async with serving(FAILED, OK) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await set_limits(at.rt.database, TENANT, {"tokens_total": Decimal(100_000)})
        session = await at.session()
        outcome = await at.turn(session.id, "Hi")
        assert server.hits == 2
        assert await used(at) == [("main", 11, 3), ("main", 11, 3)]
        assert (await session_usage(at.rt, session.id))[0].calls == 2
        assert (await list_limits(at.rt.database, TENANT))[0].used == 28
        assert (outcome.turn.prompt_tokens, outcome.turn.completion_tokens) == (11, 3), "the answer's own"


async def test_a_stream_that_breaks_in_the_input_of_a_tool_counts_with_its_prompt_and_what_had_come(
    database_url: str, tmp_path: Path
) -> None:
    script = arguments_then_nothing('{"text": "' + "many words " * 400), OPENAI.stream(ModelReply("Noted."))
    async with serving(*script) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        outcome = await at.turn(session.id, "Hi", listen=lambda _: None)
        assert server.hits == 2
        broken, answered = await used(at)
        assert broken[1] == outcome.context["estimated_wire_tokens"]
        assert 1_000 < broken[2] < 1_200
        assert answered == ("main", 11, 3)


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC], ids=lambda wire: wire.name)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_an_attempt_that_is_left_for_the_fallback_counts_at_its_own_alias(
    database_url: str, tmp_path: Path, wire: Wire, streamed: bool
) -> None:
    overloaded = {"error": {"type": "overloaded_error", "message": "Overloaded"}}
    begun: dict[str, Any] = {"usage": {"prompt_tokens": 50, "completion_tokens": 0}, "choices": []}
    failed_stream = {
        "openai": Stream((event(begun), event(overloaded))),
        "anthropic": Stream((*ANTHROPIC.begin(), message_event("error", **overloaded))),
    }[wire.name]
    failed_answer = {"openai": UNUSABLE, "anthropic": Answer(ANTHROPIC.answer(ModelReply()) | {"content": "?"})}
    failing = failed_stream if streamed else failed_answer[wire.name]
    async with (
        serving(failing) as first,
        serving(OK if not streamed else OPENAI.stream(ModelReply("Noted."))) as second,
    ):
        models = models_toml(first, extra='fallbacks = ["backup"]\n').replace('"openai"', f'"{wire.name}"') + another(
            "backup", second
        )
        async with service(database_url, models, folder=tmp_path) as at:
            session = await at.session()
            outcome = await at.turn(session.id, "Hi", listen=(lambda _: None) if streamed else None)
            assert outcome.turn.model_alias == "backup"
            *failed, answered = await used(at)
            assert len(failed) == first.hits == (3 if streamed else 1)
            paid = {True: {"openai": (50, 0), "anthropic": (11, 1)}, False: {"openai": (50, 20), "anthropic": (11, 3)}}
            assert set(failed) == {("main", *paid[streamed][wire.name])}
            assert answered == ("backup", 11, 3)


@pytest.mark.parametrize("fails", ["repeated", "fallback"])
@pytest.mark.parametrize("room_for", [1, 2])
async def test_an_attempt_after_one_that_was_paid_for_is_made_if_limits_allow_it_once_more(
    database_url: str, tmp_path: Path, fails: str, room_for: int
) -> None:
    """A reservation covered one attempt, and a turn paid for up to six."""
    first_answers = (FAILED, OK) if fails == "repeated" else (UNUSABLE,)
    async with serving(*first_answers) as first, serving(OK) as backup:
        models = models_toml(first, extra='fallbacks = ["backup"]\n' if fails == "fallback" else "")
        async with service(database_url, models + another("backup", backup), folder=tmp_path) as at:
            await set_limits(at.rt.database, TENANT, {"tokens_total": Decimal(1)})
            with pytest.raises(LimitExceeded) as refused:
                await at.turn((await at.session()).id, "Hi")
            attempt_tokens = refused.value.limit["asked"]
            await set_limits(at.rt.database, TENANT, {"tokens_total": Decimal(room_for * attempt_tokens)})
            session = await at.session()
            with pytest.raises(ProviderError) if room_for == 1 else nullcontext():
                await at.turn(session.id, "Hi")
            assert (first.hits, backup.hits) == ((room_for, 0) if fails == "repeated" else (1, room_for - 1))
            counted = sum(prompt + completion for _, prompt, completion in await used(at))
            limits = await at.rows("SELECT tokens, reserved_tokens FROM tenant_usage")
            assert limits == [{"tokens": counted, "reserved_tokens": 0}]


async def test_an_attempt_that_no_limit_counts_takes_nothing_off_what_others_used(
    database_url: str, tmp_path: Path
) -> None:
    """The limits were cleared before the attempt and set anew during it; its turn gave back what it had not counted."""
    answers = [asyncio.Event(), asyncio.Event()]
    steps = [replace(step, after=may.is_set) for step, may in zip((FAILED, OK), answers, strict=True)]

    def play(request: Seen) -> Answer:
        return steps.pop(0) if "Repeated" in str(request.json["messages"]) else OK

    async with serving(play) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await set_limits(at.rt.database, TENANT, {"tokens_total": Decimal(100_000)})
        repeated = asyncio.create_task(at.turn((await at.session()).id, "Repeated"))
        await _until(server, hits=1)
        await clear_limits(at.rt.database, TENANT)
        answers[0].set()
        await _until(server, hits=2)
        await set_limits(at.rt.database, TENANT, {"tokens_total": Decimal(100_000)})
        await at.turn((await at.session()).id, "Another")
        answers[1].set()
        await repeated
        assert (await list_limits(at.rt.database, TENANT))[0].used == 3 * 14


async def _until(server: ScriptedServer, *, hits: int) -> None:
    async with asyncio.timeout(20):
        while server.hits < hits:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


async def test_a_turn_that_fails_keeps_what_its_attempts_cost(database_url: str, tmp_path: Path) -> None:
    async with serving(FAILED) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        await set_limits(at.rt.database, TENANT, {"tokens_total": Decimal(100_000), "turns_total": Decimal(5)})
        session = await at.session()
        with pytest.raises(ProviderDown):
            await at.turn(session.id, "Hi")
        assert await used(at) == [("main", 11, 3)] * server.hits
        counted = {limit.name: limit.used for limit in await list_limits(at.rt.database, TENANT)}
        assert counted == {"tokens_total": 14 * server.hits, "turns_total": 1}


async def test_an_answer_without_usage_costs_the_most_that_was_reserved_also_after_an_attempt_with_it(
    database_url: str, tmp_path: Path
) -> None:
    unreported = Answer({**OPENAI.answer(ModelReply("Noted.")), "usage": None})
    async with (
        serving(unreported, FAILED, unreported) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        await set_limits(at.rt.database, TENANT, {"tokens_total": Decimal(100_000)})
        counted = [Decimal(0)]
        for hits in (1, 3):
            outcome = await at.turn((await at.session()).id, "Hi")
            assert server.hits == hits
            assert outcome.turn.cost_usd is None
            counted.append((await list_limits(at.rt.database, TENANT))[0].used)
        assert counted[1] - counted[0] == counted[2] - counted[1] > 500


async def test_what_failed_calls_of_a_summarizer_cost_is_that_of_the_summary(database_url: str, tmp_path: Path) -> None:
    async with serving(OK) as server, serving(FAILED) as summarizer:
        models = models_toml(server) + another("mini", summarizer)
        async with service(database_url, models, folder=tmp_path) as at:
            session = await at.session(policy={"summary_model": "mini", "summary_call": "separate"})
            for number in range(9):
                await at.turn(session.id, f"Point {number}. " + "Many words of it. " * 30)
            assert summarizer.hits == 3
            totals = {(each.model_alias, each.purpose): each for each in await session_usage(at.rt, session.id)}
            assert totals["mini", "summary"].calls == 3
            assert totals["mini", "summary"].prompt_tokens == 33


@pytest.mark.parametrize("body", [b"", {"error": {"message": "Overloaded"}, "usage": {"prompt_tokens": 0}}])
async def test_an_attempt_that_answered_nothing_has_no_usage(database_url: str, tmp_path: Path, body: Any) -> None:
    async with (
        serving(Answer(body, status=503, headers={"retry-after": "0"})) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        with pytest.raises(ProviderError):
            await at.turn(session.id, "Hi", listen=lambda _: None)
        assert server.hits == 3
        assert await used(at) == []
