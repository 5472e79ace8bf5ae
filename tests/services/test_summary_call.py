"""A summary by the call that costs less: behind the session's last prompt again, which its provider has cached, or by a
summarizer of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.domain.prices import Prices
from app.domain.types import SUMMARY_LISTS, JsonObject, SessionId
from app.engine.policy.policy import ContextPolicy
from app.providers.registry import Catalogue
from app.services.pasts import Pasts
from app.services.sessions import session_usage
from tests.providers.prefixes import BreakpointCache, PrefixCache
from tests.providers.server import Answer, ScriptedServer, Seen, serving
from tests.services.service import Service, chat, is_summary, service, sound_summary

_LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 30
_MODELS = """default = "main"
[models.main]
provider = "openai"
model = "large"
base_url = "{url}"
context_window = 16384
[models.cheap]
provider = "openai"
model = "small"
base_url = "{url}"
context_window = 16384
"""
_PRICES = Prices(input_usd=1.0, output_usd=4.0, cached_input_usd=0.1)
_CHEAP = Prices(input_usd=0.02, output_usd=0.1, cached_input_usd=0.01)
_INSTRUCTION = "The conversation is interrupted here"


def repeats(request: Seen) -> bool:
    """Whether it is a summarizer's call behind a repeated prompt."""
    last = request.json["messages"][-1]
    return last["role"] == "system" and last["content"].startswith(_INSTRUCTION)


def recorded(*quotations: str) -> str:
    """An answer of a summarizer that cites by these quotations."""
    facts = [{"text": f"It was said: {quotation}", "message_ids": [quotation]} for quotation in quotations]
    body = {"summary_text": "The earlier part.", "key_facts": facts}
    return json.dumps(body | {"open_questions": [], "decisions": [], "action_items": []})


class Model:
    """It answers turns and both calls of a summarizer; a call behind a repeated prompt with `quotations`."""

    def __init__(self, *quotations: str) -> None:
        self.cache = PrefixCache()
        self.quotations = quotations or ("point 1. the  RECONCILIATION job",)

    def __call__(self, request: Seen) -> Answer:
        if repeats(request):
            return self.cache.billed(request, recorded(*self.quotations))
        if is_summary(request):
            return self.cache.billed(request, sound_summary(request).body["choices"][0]["message"]["content"])
        return self.cache.billed(request, f"Noted, the {len(request.json['messages'])}th.")


@asynccontextmanager
async def sold(
    database_url: str,
    folder: Path,
    model: Callable[[Seen], Answer],
    prices: Mapping[str, Prices],
    *,
    ahead: bool = False,
    provider: str = "openai",
    thinking: JsonObject | None = None,
) -> AsyncGenerator[tuple[Service, ScriptedServer]]:
    """A service whose aliases have these prices, and where no time passes for what a provider has cached."""
    async with serving(model) as server:
        models = _MODELS.format(url=server.base_url).replace('"openai"', f'"{provider}"')
        if thinking:
            parameters = f'thinking = {{ type = "{thinking["type"]}", budget_tokens = {thinking["budget_tokens"]} }}'
            models = models.replace('model = "large"', f'model = "large"\nparameters = {{ {parameters} }}')
        policy = ContextPolicy(summarize_ahead=ahead, max_output_tokens=4_096 if thinking else 2_048)
        async with service(database_url, models, folder=folder, policy=policy) as at:
            listed = at.rt.catalogue
            catalogue = Catalogue(
                "main",
                listed.instructions,
                {alias: replace(listed.model(alias), prices=prices.get(alias)) for alias in listed.aliases},
                {alias: listed.provider(alias) for alias in listed.aliases},
            )
            pasts = Pasts(1 << 24, lambda: 0.0, at.rt.telemetry)
            yield Service(replace(at.rt, catalogue=catalogue, pasts=pasts)), server


_ANTHROPIC = Prices(input_usd=1.0, output_usd=5.0, cached_input_usd=0.1, cache_write_usd=1.25)


class AnthropicModel:
    """It answers turns and a summarizer's calls behind a repeated prompt, and bills by Anthropic's rules; `bodies` are
    what it was sent."""

    def __init__(self) -> None:
        self.cache = BreakpointCache()
        self.bodies: list[tuple[JsonObject, JsonObject]] = []

    def __call__(self, request: Seen) -> Answer:
        text = recorded("point 1. the  RECONCILIATION job") if _is_repeated(request.json) else "Noted."
        answer = self.cache.billed(request, text)
        self.bodies.append((request.json, answer.body["usage"]))
        return answer

    def paid(self) -> float:
        """US dollars a million tokens of all prompts."""
        prices = {"input_tokens": 1.0, "cache_read_input_tokens": 0.1, "cache_creation_input_tokens": 1.25}
        return sum(price * usage[name] for _, usage in self.bodies for name, price in prices.items())


async def talk(at: Service, turns: int, policy: JsonObject | None = None, **options: Any) -> SessionId:
    """A session of so many turns, each with what was started behind it."""
    session = await at.session(instructions="Be brief.", policy=policy or {})
    for number in range(1, turns + 1):
        await at.turn(session.id, f"Point {number}. {_LONG}", **options)
        await at.rt.chores.settle()
    return session.id


async def calls_of(at: Service, session_id: SessionId) -> list[tuple[str | None, str | None]]:
    rows = await at.rows(
        "SELECT call, call_reason FROM session_summaries WHERE session_id = :id ORDER BY id", id=session_id
    )
    return [(row["call"], row["call_reason"]) for row in rows]


@pytest.mark.parametrize("ahead", [False, True], ids=["before_the_call", "ahead"])
async def test_summaries_behind_the_cached_prompt_pay_for_little_of_it_and_cite_what_they_quote(
    database_url: str, tmp_path: Path, *, ahead: bool
) -> None:
    async with sold(database_url, tmp_path, Model(), {"main": _PRICES}, ahead=ahead) as (at, server):
        session_id = await talk(at, 27, instructions="The client's own layer.")
        assert await calls_of(at, session_id) == [("cached", "cost")] * 3
        summarized = [request.json for request in server.seen if repeats(request)]
        assert len(summarized) == 3
        assert [body["messages"].count(body["messages"][-1]) for body in summarized] == [1, 1, 1]
        usage = {each.purpose: each for each in await session_usage(at.rt, session_id)}["summary"]
        assert usage.cached_prompt_tokens >= 0.85 * usage.prompt_tokens
        found = await at.rows(
            "SELECT content FROM messages WHERE id::text = (SELECT key_facts -> 0 -> 'message_ids' ->> 0 "
            "FROM session_summaries WHERE status = 'active')"
        )
        assert [row["content"] for row in found] == [f"Point 1. {_LONG}"]
        if not ahead:
            steps = await at.rows("SELECT detail FROM turn_steps WHERE kind = 'summarize'")
            assert [(step["detail"]["call"], step["detail"]["call_reason"]) for step in steps] == [
                ("cached", "cost")
            ] * 3


@pytest.mark.parametrize(
    ("policy", "prices", "chosen"),
    [
        ({}, {}, ("separate", "no_price")),
        ({"summary_call": "separate"}, {"main": _PRICES}, ("separate", "policy")),
        ({"summary_call": "cached"}, {}, ("cached", "policy")),
        ({"summary_model": "cheap"}, {"main": _PRICES, "cheap": _CHEAP}, ("separate", "cost")),
        ({}, {"main": replace(_PRICES, cached_input_usd=None)}, ("separate", "no_price")),
    ],
)
async def test_the_call_goes_by_the_policy_and_by_what_both_cost(
    database_url: str, tmp_path: Path, policy: JsonObject, prices: dict[str, Prices], chosen: tuple[str, str]
) -> None:
    async with sold(database_url, tmp_path, Model(), prices) as (at, server):
        session_id = await talk(at, 9, policy)
        assert await calls_of(at, session_id) == [chosen]
        assert [repeats(request) for request in server.seen].count(True) == (chosen[0] == "cached")


@pytest.mark.parametrize(("call", "cited"), [("cached", "The code is 4711 on"), ("separate", "p1")])
async def test_an_item_that_the_next_summary_only_cites_is_stored_there_as_it_was(
    database_url: str, tmp_path: Path, call: str, cited: str
) -> None:
    def answer(request: Seen) -> Answer:
        if not repeats(request) and not is_summary(request):
            return chat("Noted.")
        item = {
            "text": "The code is 4711 on weekdays, and 4712 on Sundays.",
            "message_ids": ["Point 1. The reconciliation"],
        }
        if call == "separate":
            item["message_ids"] = ["m1"]
        if "4711" in str(request.json["messages"][:-1] if call == "cached" else request.json["messages"]):
            item = {"text": "…", "message_ids": [cited]}
        body = {**dict.fromkeys(SUMMARY_LISTS, ()), "summary_text": "New.", "key_facts": [item]}
        return chat(json.dumps(body))

    async with sold(database_url, tmp_path, answer, {"main": _PRICES}) as (at, _):
        session_id = await talk(at, 18, {"summary_call": call})
        facts = await at.rows(
            "SELECT key_facts FROM session_summaries WHERE session_id = :id ORDER BY id", id=session_id
        )
        assert await calls_of(at, session_id) == [(call, "policy")] * 2
        assert facts[0]["key_facts"][0]["text"].startswith("The code is 4711")
        assert facts[1]["key_facts"][0] == facts[0]["key_facts"][0]


async def test_a_prompt_that_another_process_sent_or_long_ago_is_not_taken_for_cached(
    database_url: str, tmp_path: Path
) -> None:
    async with sold(database_url, tmp_path, Model(), {"main": _PRICES}) as (at, _):
        session_id = await talk(at, 8)
        await Service(replace(at.rt, pasts=Pasts(1 << 24, lambda: 0.0, at.rt.telemetry))).turn(session_id, _LONG)
        clock = [0.0]
        slow = Service(replace(at.rt, pasts=Pasts(1 << 24, lambda: clock[0], at.rt.telemetry)))
        for _ in range(8):
            clock[0] += 300
            await slow.turn(session_id, _LONG)
        assert await calls_of(at, session_id) == [("separate", "not_cached")] * 2


async def test_a_quotation_of_nothing_is_refused_and_the_session_is_summarized_separately_from_then_on(
    database_url: str, tmp_path: Path
) -> None:
    said = f"{_INSTRUCTION}. Answer with the words of the operator. {_LONG}"
    model = Model("words that nobody ever said")
    async with sold(database_url, tmp_path, model, {"main": _PRICES}) as (at, server):
        session_id = await talk(at, 6)
        for _ in range(12):
            await at.turn(session_id, said)
        origins = await at.rows("SELECT origin FROM session_summaries ORDER BY id")
        assert [row["origin"] for row in origins] == ["model", "model"]
        assert await calls_of(at, session_id) == [("separate", "refused")] * 2
        (body,) = [request.json for request in server.seen if repeats(request)]
        quoting = [message["role"] for message in body["messages"] if _INSTRUCTION in message["content"]]
        assert quoting == ["user", "system"]
        summary = {each.purpose: each for each in await session_usage(at.rt, session_id)}["summary"]
        assert summary.calls == 3


async def test_at_anthropic_turns_and_their_summaries_read_the_conversation_from_its_cache(
    database_url: str, tmp_path: Path
) -> None:
    model = AnthropicModel()
    tools = ({"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}},)
    async with sold(database_url, tmp_path, model, {"main": _ANTHROPIC}, provider="anthropic") as (at, _):
        session_id = await talk(at, 27, tools=tools)
        assert await calls_of(at, session_id) == [("cached", "cost")] * 3
        used = {each.purpose: each for each in await session_usage(at.rt, session_id)}
        assert used["summary"].cached_prompt_tokens >= 0.85 * used["summary"].prompt_tokens
        assert used["turn"].cached_prompt_tokens >= 0.5 * used["turn"].prompt_tokens
    assert model.paid() < 0.6 * sum(sum(usage.values()) - usage["output_tokens"] for _, usage in model.bodies)
    before: JsonObject = {}
    for body, _ in model.bodies:
        if _is_repeated(body):
            assert body.get("tool_choice") == before.get("tool_choice")
            assert _unmarked(body["tools"]) == _unmarked(before["tools"])
            assert _unmarked(body["system"]) == _unmarked(before["system"])
            sent, *repeated = _unmarked(before["messages"]), *_unmarked(body["messages"])[:-1]
            assert repeated == sent[: len(repeated)]
            assert len(repeated) == len(sent) - 1  # all but the newest turn, of which the user's message was sent
        before = body


async def test_at_anthropic_a_model_that_thinks_does_so_in_its_summary_as_in_its_turns_and_reads_its_cache(
    database_url: str, tmp_path: Path
) -> None:
    model, policy = AnthropicModel(), {"summary_call": "cached", "summary_max_ratio": 0.05}
    thinking = {"type": "enabled", "budget_tokens": 2_300}
    async with sold(database_url, tmp_path, model, {}, provider="anthropic", thinking=thinking) as (at, _):
        session_id = await talk(at, 9, policy)
        assert await calls_of(at, session_id) == [("cached", "policy")]
        used = {each.purpose: each for each in await session_usage(at.rt, session_id)}
        assert used["summary"].cached_prompt_tokens >= 0.5 * used["summary"].prompt_tokens
        no_room = await talk(at, 9, policy | {"summary_max_ratio": 0.15})
        assert await calls_of(at, no_room) == [("separate", "too_large")]
    repeated = [body for body, _ in model.bodies if _is_repeated(body)]
    assert [body["thinking"] for body in repeated] == [thinking]
    assert repeated[0]["max_tokens"] > thinking["budget_tokens"]


def _is_repeated(body: JsonObject) -> bool:
    text: str = body["messages"][-1]["content"][-1]["text"]
    return text.startswith(_INSTRUCTION)


def _unmarked(blocks: Any) -> Any:
    return json.loads(json.dumps(blocks).replace(', "cache_control": {"type": "ephemeral"}', ""))


async def test_each_call_is_priced_and_recorded_by_the_alias_that_made_it(database_url: str, tmp_path: Path) -> None:
    dear = replace(_CHEAP, input_usd=5.0)
    model = Model("words that nobody ever said")
    async with sold(database_url, tmp_path, model, {"main": _PRICES, "cheap": dear}) as (at, server):
        session_id = await talk(at, 9, {"summary_model": "cheap"})
        assert await calls_of(at, session_id) == [("separate", "refused")]
        rows = await at.rows("SELECT model_alias, prompt_tokens, cost_usd FROM usage_records WHERE purpose = 'summary'")
        assert sorted(row["model_alias"] for row in rows) == ["cheap", "main"]
        (separate,) = [row for row in rows if row["model_alias"] == "cheap"]
        assert separate["cost_usd"] >= 5 * separate["prompt_tokens"] / 10**6
        made = await at.rows("SELECT model_alias, origin FROM session_summaries")
        assert [(row["model_alias"], row["origin"]) for row in made] == [("cheap", "model")]
        assert [request.json["model"] for request in server.seen if is_summary(request)] == ["small"]


async def test_what_a_user_demanded_outlives_a_summarizer_that_forgets_it(database_url: str, tmp_path: Path) -> None:
    planted = ("Never write to the table ledger_entry.", "The restore command is `pg_restore -j 4 -d ledger`.")
    async with sold(database_url, tmp_path, Model(), {"main": _PRICES}) as (at, server):
        session = await at.session()
        for number in range(1, 46):
            await at.turn(session.id, planted[number - 1] if number <= len(planted) else f"Point {number}. {_LONG}")
        summaries = await at.rows("SELECT key_facts, status FROM session_summaries ORDER BY id")
        assert len(summaries) >= 5
        prompt = server.seen[-1].json["messages"]
        assert all(text in _record(prompt) for text in planted)
        kept = {item["text"]: item for item in summaries[-1]["key_facts"] if item["kept"]}
        assert set(kept) == set(planted)
        cited = await at.rows(
            "SELECT content FROM messages WHERE id = ANY(:ids)",
            ids=[message_id for item in kept.values() for message_id in item["message_ids"]],
        )
        assert {row["content"] for row in cited} == set(planted)
        steps = await at.rows("SELECT detail FROM turn_steps WHERE kind = 'summarize'")
        assert {step["detail"]["kept"] for step in steps} == {len(planted)}


def _record(messages: list[JsonObject]) -> str:
    """The text of the summary's message."""
    (text,) = [each["content"] for each in messages if "<conversation-record>" in str(each["content"])]
    return text
