"""Looking back: the model of a turn reads what left its window, and the client sees nothing but the answer."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.api.routes.sessions import spooled
from app.domain.errors import LimitExceeded, ProviderError, StoredFailure, TurnCancelled
from app.domain.types import JsonObject, ToolCall, TurnStatus, Usage
from app.engine.window.look_back import AT_THE_CAP, LOOK_BACK, MOST_CALLS, NAME
from app.engine.window.plan import assert_tool_pairing
from app.services.archive.transfer import export_session, fork_session
from app.services.sessions import change_session
from app.services.turn.take import cancel_turn, retry_turn
from app.services.turn.types import TurnEvent, TurnOptions
from app.services.views.turns import get_audit, get_prompt
from tests.providers.server import Answer, Seen, Stream, serving
from tests.providers.wires import OPENAI, ModelReply
from tests.services.service import Service, chat, model, models_toml, ref_of, service
from tests.services.test_tools import TOOLS, calls

SECRET = "The vault code is a marigold and seven herons."
"""No exact value, which a summary would keep."""


def looks_back(*asked: JsonObject, text: str | None = None, more: tuple[JsonObject, ...] = ()) -> Answer:
    """An answer that calls `look_back`, and the calls of `more` beside it."""
    own = [
        {"id": f"back_{at}", "type": "function", "function": {"name": NAME, "arguments": json.dumps(each)}}
        for at, each in enumerate(asked)
    ]
    message = {"role": "assistant", "content": text, "tool_calls": [*own, *more]}
    return Answer(
        {
            "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
            "usage": {"prompt_tokens": 50, "completion_tokens": 10},
        }
    )


async def summarized(at: Service, turns: int = 12, **fields: Any) -> Any:
    """A session with a secret in its first turn, and the oldest turns in a summary that says nothing of it."""
    session = await at.session(**fields)
    await at.turn(session.id, f"Remember for later. {SECRET}")
    for number in range(turns):
        await at.turn(session.id, f"Tell me about the harbour, part {number}: " + "boats and cranes " * 20)
    assert await at.rows("SELECT 1 FROM session_summaries WHERE status = 'active'")
    return session


def tools_of(seen: Seen) -> list[str]:
    return [tool["function"]["name"] for tool in seen.json.get("tools", ())]


def answering(*script: Answer) -> Callable[[Seen], Answer]:
    """A model that says "Noted." until it is asked for the vault code, and then plays the script."""
    left = list(script)

    def reply(seen: Seen) -> Answer:
        asks = any(
            "vault code?" in str(message["content"]) for message in seen.json["messages"] if message["role"] == "user"
        )
        return left.pop(0) if asks and left else chat("Noted.")

    return model(reply)


async def test_a_model_reads_back_what_was_summarized_and_the_client_sees_only_its_answer(
    database_url: str, tmp_path: Path
) -> None:
    script = (looks_back({"query": "vault code"}), chat("It is 7319-KILO.", prompt_tokens=70, completion_tokens=7))
    async with serving(answering(*script)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await summarized(at, policy={"recall": {"enabled": False}})
        before = len(server.seen)
        outcome = await at.turn(session.id, "What is the vault code?")
        first, second = server.seen[before:]
        assert tools_of(first) == [NAME]
        assert SECRET not in first.body.decode()
        assert SECRET in second.json["messages"][-1]["content"]
        assert outcome.turn.status is TurnStatus.COMPLETED
        assert (outcome.turn.assistant_output, outcome.turn.tool_calls) == ("It is 7319-KILO.", ())
        assert (outcome.turn.prompt_tokens, outcome.turn.completion_tokens) == (120, 17)
        for number, seen in enumerate((first, second), 1):
            prompt = await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, number)
            assert prompt.messages == seen.json["messages"]
            assert_tool_pairing(prompt.messages)
            assert prompt.tools == [LOOK_BACK]
        audit = await get_audit(at.rt, ref_of(session.id), outcome.turn.id, None)
        assert (audit.round, audit.context_trim_log["looked_back"]["messages"]) == (2, 2)
        steps = await at.rows("SELECT detail FROM turn_steps WHERE kind = 'look_back'")
        assert [step["detail"]["calls"][0]["query"] for step in steps] == ["vault code"]
        roles = await at.rows("SELECT role FROM messages WHERE turn_id = :id ORDER BY seq", id=outcome.turn.id)
        assert [row["role"] for row in roles] == ["user", "assistant"]
        await at.turn(session.id, "Thanks")
        assert NAME not in json.dumps(server.seen[-1].json["messages"])


async def test_the_same_words_again_never_show_the_same_messages(database_url: str, tmp_path: Path) -> None:
    again = looks_back({"query": "harbour cranes"})
    script = (again, again, chat("Cranes."))
    async with serving(answering(*script)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await summarized(at)
        before = len(server.seen)
        await at.turn(session.id, "What is the vault code?")
        first, second = (
            set(re.findall(r"^\[(m\d+) ", seen.json["messages"][-1]["content"], re.MULTILINE))
            for seen in server.seen[before + 1 :]
        )
        assert first
        assert not first & second


async def test_nothing_is_offered_before_anything_has_left_or_where_the_policy_or_the_alias_says_no(
    database_url: str, tmp_path: Path
) -> None:
    extra = '[models.plain]\nprovider = "openai"\nmodel = "plain"\ntools = false\ncontext_window = 4096\n'
    async with serving(model()) as server:
        models = models_toml(server, extra=extra + f'base_url = "{server.base_url}"\n')
        async with service(database_url, models, folder=tmp_path) as at:
            session = await summarized(at)
            assert tools_of(server.seen[0]) == []
            cases: list[tuple[dict[str, Any], list[str]]] = [
                ({}, [NAME]),
                ({"policy": {"look_back": "off"}}, []),
                ({"model_alias": "plain"}, []),
                ({"tools": TOOLS}, ["look_up", NAME]),
                ({"tools": TOOLS, "tool_choice": "none"}, ["look_up"]),
                ({"tools": (LOOK_BACK,)}, [NAME]),
            ]
            for options, offered in cases:
                await at.turn(session.id, "Go on", **options)
                assert tools_of(server.seen[-1]) == offered, options
            fresh = await at.session()
            await at.turn(fresh.id, "Hello", policy={"look_back": "on"})
            assert tools_of(server.seen[-1]) == [NAME]


async def test_a_model_that_looks_back_for_ever_gets_one_refusal_and_is_not_offered_it_again(
    database_url: str, tmp_path: Path
) -> None:
    loop = [looks_back({"query": f"harbour cranes {n}"}) for n in range(MOST_CALLS + 5)]
    async with serving(answering(*loop)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await summarized(at)
        before = len(server.seen)
        outcome = await at.turn(session.id, "What is the vault code?")
        rounds = server.seen[before:]
        assert outcome.turn.status is TurnStatus.COMPLETED
        assert (outcome.turn.assistant_output, outcome.turn.tool_calls) == ("", ())
        assert len(rounds) <= MOST_CALLS + 2
        assert [tools_of(seen) for seen in rounds] == [[NAME]] * (len(rounds) - 1) + [[]]
        assert rounds[-1].json["messages"][-1]["content"] == AT_THE_CAP
        for number in range(1, len(rounds) + 1):
            audit = await get_audit(at.rt, ref_of(session.id), outcome.turn.id, number)
            assert audit.estimated_input_tokens_after_prune <= audit.input_budget
            assert (await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, number)).messages
        await at.turn(session.id, "Go on.")
        sent = server.seen[-1].json["messages"]
        replies = [each["content"] for each in sent if each["role"] == "assistant" and "tool_calls" not in each]
        assert replies[-1] == "", "OpenAI refuses null without calls, in this and every later turn"


async def test_calls_of_the_client_beside_a_look_back_are_handed_out_and_the_turn_goes_on_with_both(
    database_url: str, tmp_path: Path
) -> None:
    look_up = calls("a").body["choices"][0]["message"]["tool_calls"][0]
    script = (looks_back({"query": "vault code"}, more=(look_up,)), chat("Done."))
    async with serving(answering(*script)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await summarized(at, policy={"recall": {"enabled": False}})
        waiting = await at.turn(session.id, "What is the vault code?", tools=TOOLS)
        assert [call.name for call in waiting.turn.tool_calls] == ["look_up"]
        at.rt.pasts.forget(session.id)  # as another process would go on
        done = await at.outputs(session.id, waiting.turn.id, {"a": "paid"})
        assert done.turn.assistant_output == "Done."
        sent = server.seen[-1].json["messages"]
        assert [message["role"] for message in sent[-5:]] == ["user", "assistant", "tool", "assistant", "tool"]
        assert SECRET in sent[-3]["content"]
        assert_tool_pairing(sent)
        prompt = await get_prompt(at.rt, ref_of(session.id), done.turn.id, 2)
        assert prompt.messages == sent


async def test_what_is_streamed_is_the_answer_with_what_was_said_before_a_look_back(
    database_url: str, tmp_path: Path
) -> None:
    back = ToolCall("back", NAME, '{"query": "vault code"}')
    script = [ModelReply("Let me see.", calls=(back,)), ModelReply("It is 7319-KILO.")]

    def play(seen: Seen) -> Answer | Stream:
        return OPENAI.stream(script.pop(0)) if seen.json.get("stream") else model()(seen)

    events: list[TurnEvent] = []
    async with serving(play) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await summarized(at)
        outcome = await at.turn(session.id, "What is the vault code?", listen=events.append)
        assert outcome.turn.assistant_output == "Let me see.\n\nIt is 7319-KILO."
        deltas = [event.data["text"] for event in events if event.name == "output.delta"]
        assert "".join(deltas) == outcome.turn.assistant_output
        assert [event.name for event in events if event.name != "output.delta"] == ["turn.created", "context.assembled"]
        assert outcome.completion.usage == Usage(22, 6, 8)
        stored = await at.rows("SELECT content FROM messages WHERE turn_id = :id ORDER BY seq", id=outcome.turn.id)
        assert stored[-1]["content"] == outcome.turn.assistant_output


@pytest.mark.parametrize(
    "arguments",
    [
        *("", "[]", "{", "null", '{"query": 7}', '{"handle": "m0"}', '{"handle": "m99999"}', '{"page": 2}', "[" * 2000),
        '{"query": "' + "vault " * 5000 + '"}',
        '{"query": "\\u0000vault\\ud800", "page": -1}',
        '{"query": "code", "page": 900}',
    ],
    ids=range(12),
)
async def test_a_call_that_cannot_be_understood_or_finds_nothing_gets_a_result_that_says_so(
    database_url: str, tmp_path: Path, arguments: str
) -> None:
    hostile = OPENAI.whole(ModelReply("", calls=(ToolCall("", NAME, arguments),) * 9))
    script = [hostile, chat("Well.")]
    async with (
        serving(lambda _: script.pop(0)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"look_back": "on"})
        outcome = await at.turn(session.id, "Hello")
        assert outcome.turn.assistant_output == "Well."
        sent = server.seen[-1].json["messages"]
        assert_tool_pairing(sent)
        assert [message["role"] for message in sent] == ["user", "assistant"] + ["tool"] * (MOST_CALLS + 1)
        assert all(message["content"] for message in sent[2:])
        assert sent[-1]["content"] == AT_THE_CAP
        assert len(server.seen[-1].body) < 8_000
        assert (await get_prompt(at.rt, ref_of(session.id), outcome.turn.id, 2)).messages == sent


async def test_when_the_model_is_away_after_a_look_back_the_turn_fails_once_and_is_paid_for_once(
    database_url: str, tmp_path: Path
) -> None:
    script = [looks_back({"query": "anything"}), Answer({"error": {"message": "No."}}, status=400), chat("Here.")]
    async with (
        serving(lambda _: script.pop(0)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"look_back": "on"})
        with pytest.raises(ProviderError):
            await at.turn(session.id, "Hello", "key")
        (turn,) = await at.rows("SELECT id, status FROM turns")
        assert turn["status"] == "failed"
        used = await at.rows("SELECT round, prompt_tokens FROM usage_records")
        assert used == [{"round": 1, "prompt_tokens": 50}]
        with pytest.raises(StoredFailure):
            await at.turn(session.id, "Hello", "key")
        again = await retry_turn(at.rt, ref_of(session.id), turn["id"], TurnOptions(), "main")
        assert again.turn.assistant_output == "Here."
        assert [message["role"] for message in server.seen[-1].json["messages"]] == ["user"]
        audits = await at.rows("SELECT round, attempt FROM turn_context_audit ORDER BY round, attempt")
        assert audits == [{"round": number, "attempt": 1} for number in (1, 2, 3)]


async def test_every_call_of_a_turn_that_looks_back_counts_against_limits_and_one_too_many_ends_it(
    database_url: str, tmp_path: Path
) -> None:
    script = [looks_back({"query": "anything"}), chat("Done.", prompt_tokens=70, completion_tokens=7)] * 2
    async with (
        serving(lambda _: script.pop(0)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"look_back": "on"}, limits={"tokens_total": 2200})
        await at.turn(session.id, "Hello")
        counted = "SELECT turns, tokens, reserved_tokens FROM session_usage"
        assert await at.rows(counted) == [{"turns": 1, "tokens": 137, "reserved_tokens": 0}]
        await change_session(at.rt, ref_of(session.id), {"limits": {"tokens_total": 1300}})
        with pytest.raises(LimitExceeded):
            await at.turn(session.id, "Hello again")
        assert server.hits == 3
        assert await at.rows(counted) == [{"turns": 2, "tokens": 197, "reserved_tokens": 0}]
        turn = (await at.rows("SELECT id, status FROM turns ORDER BY seq"))[-1]
        assert turn["status"] == "failed"
        sent = await get_prompt(at.rt, ref_of(session.id), turn["id"], None)
        assert sent.messages[-1]["content"] == "Hello again", "the call that was made has its audit"


async def test_the_words_after_a_look_back_count_against_limits_though_their_stream_broke(
    database_url: str, tmp_path: Path
) -> None:
    call = ToolCall("back_0", NAME, json.dumps({"query": "anything"}))
    broken = Stream((*OPENAI.begin(), *OPENAI.fragments(ModelReply("A long answer that breaks off"))), ending="cut")
    script = [OPENAI.stream(ModelReply("", calls=(call,))), broken]
    async with (
        serving(lambda _: script.pop(0)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"look_back": "on"}, limits={"tokens_total": 100_000})
        with pytest.raises(ProviderError):
            await at.turn(session.id, "Hello", listen=lambda _: None)
        assert server.hits == 2
        (counted,) = await at.rows("SELECT turns, tokens, reserved_tokens FROM session_usage")
        used = await at.rows("SELECT prompt_tokens + completion_tokens AS tokens FROM usage_records ORDER BY round")
        assert len(used) == 2
        assert counted == {"turns": 1, "tokens": sum(row["tokens"] for row in used), "reserved_tokens": 0}


async def test_a_turn_is_cancelled_while_it_looks_back(database_url: str, tmp_path: Path) -> None:
    hold = asyncio.Event()
    script = [looks_back({"query": "anything"}), replace(chat("Late."), after=hold.is_set)]
    async with (
        serving(lambda _: script.pop(0)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"look_back": "on"})
        posted = asyncio.create_task(at.turn(session.id, "Hello"))
        while server.hits < 2:
            server.arrived.clear()
            await server.arrived.wait()
        (turn,) = await at.rows("SELECT id FROM turns")
        await cancel_turn(at.rt, ref_of(session.id), turn["id"])
        with pytest.raises(TurnCancelled):
            await posted
        hold.set()
        assert await at.rows("SELECT status FROM turns") == [{"status": "cancelled"}]


async def test_a_fork_and_an_export_of_a_session_that_looked_back_rebuild_the_same_prompts(
    database_url: str, tmp_path: Path
) -> None:
    script = (looks_back({"query": "vault code"}), chat("It is 7319-KILO."))
    async with serving(answering(*script)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await summarized(at)
        turn = (await at.turn(session.id, "What is the vault code?")).turn
        sent = await get_prompt(at.rt, ref_of(session.id), turn.id, 2)
        fork = await fork_session(at.rt, ref_of(session.id), None)
        copied = await get_prompt(at.rt, ref_of(fork.id), turn.id, 2)
        assert (copied.messages, copied.prompt_sha256) == (sent.messages, sent.prompt_sha256)
        with await spooled(export_session(at.rt, ref_of(session.id))) as file:
            imported = await at.imported(json.load(file))
        turns = await at.rows("SELECT id FROM turns WHERE session_id = :id ORDER BY seq DESC LIMIT 1", id=imported.id)
        copied = await get_prompt(at.rt, ref_of(imported.id), turns[0]["id"], 2)
        assert (copied.messages, copied.prompt_sha256) == (sent.messages, sent.prompt_sha256)


@pytest.mark.parametrize("size", [12_000, 120_000])
async def test_any_value_of_a_tool_output_is_read_within_two_calls(
    database_url: str, tmp_path: Path, size: int
) -> None:
    rows = [f"order {number:05d} total {number * 37 % 9973}.50 EUR" for number in range(size // 30)]
    wanted = rows[len(rows) * 2 // 3]
    order = wanted.split()[1]

    def reply(seen: Seen) -> Answer:
        messages = seen.json["messages"]
        if not any("which total" in str(message["content"]) for message in messages if message["role"] == "user"):
            return calls("a") if messages[-1]["role"] == "user" and "look_up" in tools_of(seen) else chat("Noted.")
        if messages[-1]["role"] == "user":
            return looks_back({"query": "orders total"})
        if wanted in messages[-1]["content"]:
            return chat(wanted)
        handle = re.search(r"\[(m\d+) tool result", messages[-1]["content"])
        assert handle, messages[-1]["content"]
        return looks_back({"handle": handle[1], "query": f"order {order}"})

    async with serving(model(reply)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session(policy={"recall": {"enabled": False}})
        turn = (await at.turn(session.id, "Read the orders", tools=TOOLS)).turn
        await at.outputs(session.id, turn.id, {"a": "\n".join(rows)})
        for number in range(10):
            await at.turn(session.id, f"Next, {number}")
        outcome = await at.turn(session.id, f"Of order {order}, which total?")
        assert outcome.turn.assistant_output == wanted


@pytest.mark.parametrize("policy", [{}, {"look_back": "on"}], ids=["auto", "on"])
async def test_a_model_that_reasons_only_without_tools_is_not_offered_the_tool_unless_the_policy_insists(
    database_url: str, tmp_path: Path, policy: JsonObject
) -> None:
    """OpenAI's models from 5.4 on, in chat completions."""
    refusal = {"message": "Function tools with reasoning_effort are not supported.", "param": "reasoning_effort"}

    def play(seen: Seen) -> Answer:
        is_refused = seen.json.get("tools") and seen.json.get("reasoning_effort") != "none"
        return Answer({"error": refusal}, 400) if is_refused else model()(seen)

    models = 'parameters = { reasoning_effort = "low" }\n'
    async with serving(play) as server, service(database_url, models_toml(server, extra=models), folder=tmp_path) as at:
        session = await summarized(at, policy=policy)
        await at.turn(session.id, "Hi")
        assert any(NAME in tools_of(seen) for seen in server.seen), "it was never offered, so nothing was learned"
        insists = bool(policy)
        assert tools_of(server.seen[-1]) == ([NAME] if insists else [])
        assert server.seen[-1].json["reasoning_effort"] == ("none" if insists else "low")
        await at.turn(session.id, "Hi", tools=TOOLS)
        assert tools_of(server.seen[-1])[-1] == NAME
        assert server.seen[-1].json["reasoning_effort"] == "none"
