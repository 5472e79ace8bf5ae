"""Turns with tools: rounds, exact pairing, long outputs, cancelling, and prompts that stay valid whatever happened."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.domain.content import JsonMessages
from app.domain.errors import (
    ContextBudgetExceeded,
    ProviderError,
    ToolOutputsMismatch,
    TurnCancelled,
    TurnInProgress,
    TurnNotOpen,
)
from app.domain.types import Completion, CompletionRequest, ToolCall, TurnId, TurnStatus
from app.engine.window.plan import assert_tool_pairing
from app.services.turn.provider_call import with_own_ids
from app.services.turn.take import cancel_turn
from app.services.views.turns import get_audit, get_prompt, get_turn
from tests.providers.server import Answer, Seen, serving
from tests.providers.wires import ANTHROPIC, ModelReply
from tests.services.service import chat, models_toml, ref_of, service

TOOLS = (
    {
        "type": "function",
        "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"id": {"type": "string"}}}},
    },
)


def calls(*ids: str, text: str | None = None) -> Answer:
    """An answer that calls `look_up` once for each id."""
    return Answer(
        {
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "tool_calls",
                    "message": {
                        "role": "assistant",
                        "content": text,
                        "tool_calls": [
                            {
                                "id": call_id,
                                "type": "function",
                                "function": {"name": "look_up", "arguments": json.dumps({"id": call_id})},
                            }
                            for call_id in ids
                        ],
                    },
                }
            ],
            "usage": {"prompt_tokens": 50, "completion_tokens": 10},
        }
    )


async def test_a_turn_goes_round_by_round_until_the_model_has_an_answer(database_url: str, tmp_path: Path) -> None:
    script = [calls("a", "b"), calls("c"), chat("Both are paid.", prompt_tokens=90, completion_tokens=7)]
    async with serving(*script) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        waiting = await at.turn(session.id, "Are a and b paid?", tools=TOOLS, tool_choice="required")
        assert waiting.turn.status is TurnStatus.AWAITING_TOOLS
        assert waiting.turn.assistant_output is None
        assert [call.id for call in waiting.turn.tool_calls] == ["a", "b"]
        assert (await get_turn(at.rt, ref_of(session.id), waiting.turn.id)).tool_calls == waiting.turn.tool_calls
        assert waiting.context["regions"]["tools"] > 0
        with pytest.raises(TurnInProgress):
            await at.turn(session.id, "Impatient")
        again = await at.outputs(session.id, waiting.turn.id, {"b": "yes", "a": "no"})
        assert [call.id for call in again.turn.tool_calls] == ["c"]
        done = await at.outputs(session.id, waiting.turn.id, {"c": "settled on the 3rd"})
        assert done.turn.status is TurnStatus.COMPLETED
        assert done.turn.assistant_output == "Both are paid."
        assert (done.turn.prompt_tokens, done.turn.completion_tokens) == (190, 27)
        assert [message["role"] for message in server.seen[-1].json["messages"]] == [
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
            "tool",
        ]
        assert [seen.json.get("tool_choice") for seen in server.seen] == ["required", "auto", "auto"]
        for number in (1, 2, 3):
            audit = await get_audit(at.rt, ref_of(session.id), done.turn.id, number)
            prompt = await get_prompt(at.rt, ref_of(session.id), done.turn.id, number)
            assert audit.round == number
            assert prompt.messages == server.seen[number - 1].json["messages"]
            assert prompt.tools == list(TOOLS)
        steps = await at.rows("SELECT seq FROM turn_steps ORDER BY seq")
        assert [row["seq"] for row in steps] == list(range(1, 10))


async def test_outputs_must_answer_exactly_the_open_calls(database_url: str, tmp_path: Path) -> None:
    async with serving(calls("a", "b")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        turn = (await at.turn(session.id, "Go", tools=TOOLS)).turn
        for outputs, missing, unknown in (
            ({"a": "1"}, ["b"], []),
            ({"a": "1", "b": "2", "x": "3"}, [], ["x"]),
            ({"x": "3"}, ["a", "b"], ["x"]),
        ):
            with pytest.raises(ToolOutputsMismatch) as refused:
                await at.outputs(session.id, turn.id, outputs)
            assert (refused.value.missing, refused.value.unknown) == (missing, unknown)
        assert await at.rows("SELECT 1 FROM messages WHERE role = 'tool'") == []
        assert (await get_turn(at.rt, ref_of(session.id), turn.id)).status is TurnStatus.AWAITING_TOOLS
        assert server.hits == 1


async def test_of_two_answers_to_the_same_calls_one_is_taken(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(calls("a"), chat("Done.")) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        turn = (await at.turn(session.id, "Go", tools=TOOLS)).turn
        results = await asyncio.gather(
            *(at.outputs(session.id, turn.id, {"a": "1"}) for _ in range(8)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, TurnInProgress | TurnNotOpen)]
        assert len(refused) == 7
        assert server.hits == 2
        assert len(await at.rows("SELECT 1 FROM messages WHERE role = 'tool'")) == 1


@pytest.mark.parametrize("window", [8192, 1_000_000])
async def test_calls_of_a_server_that_gives_each_the_same_id_are_told_apart_and_go_on_at_anthropic(
    database_url: str, tmp_path: Path, window: int
) -> None:
    """TGI numbers every call 0, others begin anew in each answer. Clients pair results with calls by id alone, and
    Anthropic answers 400, "`tool_use` ids must be unique"."""
    signed = {"extra_content": {"google": {"thought_signature": "c2lnbmVk"}}}
    begun, again = calls("call_0"), calls("call_0", "call_0")
    for answer in (begun, again):
        answer.body["choices"][0]["message"]["tool_calls"][0] |= signed
    script = [begun, again, chat("Paid."), calls("call_0"), chat("So is it.")]
    claude = f'[models.claude]\nprovider = "anthropic"\nmodel = "c"\ncontext_window = {window}\n'
    async with serving(*script) as server, serving(ANTHROPIC.whole(ModelReply())) as other:
        models = models_toml(server, window=window, extra='return_reasoning = "signatures"\n')
        models += f'{claude}base_url = "{other.base_url}"\n'
        async with service(database_url, models, folder=tmp_path) as at:
            session = await at.session()
            text = "Is it paid? " * (100_000 if window > 8192 else 1)
            turn = (await at.turn(session.id, text, tools=TOOLS)).turn
            assert [call.id for call in turn.tool_calls] == ["call_0"], "an id that is new was changed"
            turn = (await at.outputs(session.id, turn.id, {"call_0": "no"})).turn
            first, second = (call.id for call in turn.tool_calls)
            await at.outputs(session.id, turn.id, {first: "yes", second: "perhaps"})
            sent = server.seen[2].json["messages"][3]["tool_calls"]
            assert ["extra_content" in call for call in sent] == [True, False], "a signature lost its call"
            turn = (await at.turn(session.id, "And the other?", tools=TOOLS)).turn
            await at.outputs(session.id, turn.id, {turn.tool_calls[0].id: "yes"})
            await at.turn(session.id, "Thanks.", model_alias="claude")
        blocks = [block for message in other.seen[0].json["messages"] for block in message["content"]]
        used = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert used == [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert len(set(used)) == 4


def test_the_id_that_a_call_is_given_is_in_no_history_of_another_session() -> None:
    """A client may resend calls here whose ids they got as the same calls of another session."""
    history = [_called("call_2_1_0"), _called("call_2_1_1")]
    prompt = JsonMessages([orjson.dumps(each) for each in history], len(history))
    answer = Completion(None, "tool_calls", None, tuple(ToolCall(each, "look_up", "{}") for each in ("", "", "new")))
    named = with_own_ids(answer, CompletionRequest(prompt, max_output_tokens=1), ["2_1", "0a1b2c3d_1"])
    assert [call.id for call in named.tool_calls] == ["call_0a1b2c3d_1_0", "call_0a1b2c3d_1_1", "new"]
    elsewhere = with_own_ids(answer, CompletionRequest((), max_output_tokens=1), ["2_1", "0a1b2c3d_1"])
    assert [call.id for call in elsewhere.tool_calls] == ["call_2_1_0", "call_2_1_1", "new"]


def _called(call_id: str) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def test_a_turn_whose_tools_never_answer_is_cancelled_and_leaves_no_half_of_a_call(
    database_url: str, tmp_path: Path
) -> None:
    script = [calls("a"), calls("b"), chat("Moving on.")]
    async with serving(*script) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        turn = (await at.turn(session.id, "Go", tools=TOOLS)).turn
        await at.outputs(session.id, turn.id, {"a": "1"})
        cancelled = await cancel_turn(at.rt, ref_of(session.id), turn.id)
        assert cancelled.status is TurnStatus.CANCELLED
        with pytest.raises(TurnNotOpen):
            await cancel_turn(at.rt, ref_of(session.id), turn.id)
        with pytest.raises(TurnNotOpen):
            await at.outputs(session.id, turn.id, {"b": "2"})
        await at.turn(session.id, "Never mind")
        sent = server.seen[-1].json["messages"]
        assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
        assert_tool_pairing(sent)


async def test_a_running_turn_can_be_cancelled_and_its_late_answer_is_not_stored(
    database_url: str, tmp_path: Path
) -> None:
    def late(_: Seen) -> Answer:
        return Answer(chat("Late.").body, delay_s=60)

    async with (
        serving(late, chat("Next.")) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        created: list[Any] = []
        running = asyncio.create_task(at.turn(session.id, "Slow", listen=created.append))
        await server.arrived.wait()
        turn_id = TurnId(created[0].data["turn"]["id"])
        await cancel_turn(at.rt, ref_of(session.id), turn_id)
        with pytest.raises(TurnCancelled):
            await running
        assert (await at.turn(session.id, "Go on")).turn.assistant_output == "Next."
        assert (await get_turn(at.rt, ref_of(session.id), turn_id)).assistant_output is None


async def test_a_failed_round_keeps_complete_groups_and_the_next_prompt_is_valid(
    database_url: str, tmp_path: Path
) -> None:
    script = [calls("a"), Answer({"error": {"message": "no"}}, status=400), chat("Again.")]
    async with serving(*script) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        turn = (await at.turn(session.id, "Go", tools=TOOLS)).turn
        with pytest.raises(ProviderError):
            await at.outputs(session.id, turn.id, {"a": "1"})
        assert (await get_turn(at.rt, ref_of(session.id), turn.id)).status is TurnStatus.FAILED
        await at.turn(session.id, "Once more")
        sent = server.seen[-1].json["messages"]
        assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
        assert_tool_pairing(sent)


async def test_a_long_tool_loop_drops_whole_older_groups_and_keeps_the_users_words(
    database_url: str, tmp_path: Path
) -> None:
    """Twelve rounds of outputs that would fill the window three times over."""
    script = [*(calls(f"call_{number}") for number in range(12)), chat("Done.")]
    async with serving(*script) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        outcome = await at.turn(session.id, "Walk through all rows", tools=TOOLS)
        rounds = 0
        while outcome.turn.status is TurnStatus.AWAITING_TOOLS:
            outputs = {call.id: f"row {rounds} " + "value 17 " * 200 for call in outcome.turn.tool_calls}
            outcome = await at.outputs(session.id, outcome.turn.id, outputs)
            rounds += 1
        assert rounds == 12
        kinds: set[str] = set()
        for number in range(1, 14):
            audit = await get_audit(at.rt, ref_of(session.id), outcome.turn.id, number)
            kinds |= {action["kind"] for action in audit.context_trim_log["actions"]}
            assert audit.estimated_input_tokens_after_prune <= audit.input_budget
        assert "tool_group_dropped" in kinds
        for seen in server.seen:
            sent = seen.json["messages"]
            assert_tool_pairing(sent)
            assert sent[0]["content"] == "Walk through all rows"
        assert "row 11" in str(server.seen[-1].json["messages"][-1]["content"])


async def test_tool_definitions_that_fill_the_window_are_refused(database_url: str, tmp_path: Path) -> None:
    huge = ({"type": "function", "function": {"name": "huge", "description": "word " * 5000}},)
    async with serving(chat("Hi.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        with pytest.raises(ContextBudgetExceeded) as refused:
            await at.turn(session.id, "Hi", tools=huge)
        assert refused.value.regions["tools"] > 5000 - 1024  # less what the overhead reserve pays for
        assert server.hits == 0
