"""Reasoning over whole turns: stored as it came, sent back where its server wants it, counted there, and rebuilt."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.api.routes.sessions import spooled
from app.domain.errors import ProviderRefused
from app.domain.types import JsonObject, ToolCall, TurnId, TurnStatus
from app.services.archive.transfer import export_session, fork_session
from app.services.turn.take import continue_turn
from app.services.turn.types import OutputsRequest, TurnEvent
from app.services.views.turns import get_audit, get_expanded_audit, get_prompt
from tests.providers.server import Answer, ScriptedServer, Seen, Stream, serving
from tests.providers.wires import ANTHROPIC, OPENAI, RESPONSES, ModelReply, Wire, event
from tests.services.service import (
    Service,
    chat,
    is_summary,
    models_toml,
    outputs_of,
    ref_of,
    service,
    sound_summary,
)
from tests.services.test_tools import TOOLS

THOUGHT = "They ask for both, so I look them up one after the other."
SCRIPT = (
    ModelReply("", THOUGHT, (ToolCall("call_a", "look_up", '{"id": "a"}'),)),
    ModelReply("", THOUGHT, (ToolCall("call_b", "look_up", '{"id": "b"}'),)),
    ModelReply("Both are paid.", THOUGHT),
    ModelReply("Gladly.", THOUGHT),
)


def anthropic_toml(server: ScriptedServer, extra: str = "") -> str:
    return (
        'default = "main"\n[models.main]\nprovider = "anthropic"\nmodel = "test-model"\n'
        f'base_url = "{server.base_url}"\ncontext_window = 65536\ntimeout_s = 10\n{extra}'
    )


THINKING = 'parameters = { thinking = { type = "enabled", budget_tokens = 1024 } }\n'


def script_of(wire: Wire) -> list[Answer]:
    return [wire.whole(said) for said in SCRIPT]


async def two_rounds_and_another_turn(at: Service) -> tuple[Any, Any]:
    """A turn of two rounds of tools, and a plain one after it: their outcomes."""
    session = await at.session()
    turn = (await at.turn(session.id, "Are a and b paid?", tools=TOOLS)).turn
    await at.outputs(session.id, turn.id, {"call_a": "yes"})
    first = await at.outputs(session.id, turn.id, {"call_b": "yes"})
    assert first.turn.status is TurnStatus.COMPLETED
    return first, await at.turn(session.id, "Thank you")


def thoughts_sent(server: ScriptedServer) -> list[int]:
    """How many messages of each request carry reasoning."""
    marks = ("reasoning_content", "signature")
    return [
        sum(any(mark in json.dumps(message) for mark in marks) for message in seen.json["messages"])
        for seen in server.seen
    ]


async def assert_prompts_hold(at: Service, turn_id: Any, session_id: Any, rounds: int) -> list[Any]:
    """Every round's prompt is rebuilt to its hash (which `get_prompt` checks); gives the prompts."""
    prompts = [await get_prompt(at.rt, ref_of(session_id), turn_id, number) for number in range(1, rounds + 1)]
    for number, prompt in enumerate(prompts, 1):
        audit = await get_audit(at.rt, ref_of(session_id), turn_id, number)
        assert prompt.prompt_sha256 == audit.prompt_sha256
    return prompts


async def test_reasoning_is_counted_in_the_single_actions_of_a_prompt_that_lost_it(
    database_url: str, tmp_path: Path
) -> None:
    def answer(seen: Seen) -> Answer:
        return OPENAI.whole(SCRIPT[0 if seen.json["messages"][-1]["role"] == "user" else 2])

    wants = 'return_reasoning = "tool_turns"\n'
    async with (
        serving(answer) as server,
        service(database_url, models_toml(server, window=1900, extra=wants), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"summarize_when": "never", "protected_turns": 0})

        async def used() -> TurnId:
            turn = (await at.turn(session.id, "Is a paid?", tools=TOOLS)).turn
            await at.outputs(session.id, turn.id, {turn.tool_calls[0].id: "yes, it is " * 60})
            return turn.id

        *_, last = [await used() for _ in range(3)]
        log, listed = [
            (await read(at.rt, ref_of(session.id), last, None)).context_trim_log["actions"]
            for read in (get_audit, get_expanded_audit)
        ]
        assert len(listed) > len(log)
        removed = [sum(action["tokens_removed_est"] for action in actions) for actions in (log, listed)]
        assert removed[0] == removed[1]


def _is_shortened(message: Any) -> bool:
    return "characters of this answer left out" in (message["content"] or "")


async def test_a_prompt_with_a_shortened_message_and_its_reasoning_is_the_same_in_forks_and_imports(
    database_url: str, tmp_path: Path
) -> None:
    said = ModelReply("I look it up. " * 100, THOUGHT, SCRIPT[0].calls)

    def answer(seen: Seen) -> Answer:
        return OPENAI.whole(said if seen.json["messages"][-1]["content"] == "Is a paid?" else SCRIPT[2])

    wants = 'return_reasoning = "tool_turns"\n'
    async with (
        serving(answer) as server,
        service(database_url, models_toml(server, window=2100, extra=wants), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"summarize_when": "never", "protected_turns": 0, "prune_block_share": 0})
        for _ in range(2):
            turn = (await at.turn(session.id, "Is a paid?", tools=TOOLS)).turn
            await at.outputs(session.id, turn.id, {turn.tool_calls[0].id: "yes"})
        last = (await at.turn(session.id, "Thank you")).turn
        forked = await fork_session(at.rt, ref_of(session.id), None)
        with await spooled(export_session(at.rt, ref_of(session.id))) as file:
            imported = await at.imported(json.load(file))
        (copied,) = await at.rows(
            "SELECT id FROM turns WHERE session_id = :id AND seq = :seq", id=imported.id, seq=last.seq
        )
        places = ((session.id, last.id), (forked.id, last.id), (imported.id, copied["id"]))
        prompts = [await get_prompt(at.rt, ref_of(each), turn_id, None) for each, turn_id in places]
        assert server.seen[-1].json["messages"] == prompts[0].messages
        thoughts = ["reasoning_content" in message for message in prompts[0].messages if _is_shortened(message)]
        assert thoughts
        assert all(thoughts)
        assert len({prompt.prompt_sha256 for prompt in prompts}) == 1


async def test_signed_thoughts_go_back_in_the_running_loop_and_no_further(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(*script_of(ANTHROPIC)) as server,
        service(database_url, anthropic_toml(server, THINKING), folder=tmp_path) as at,
    ):
        first, after = await two_rounds_and_another_turn(at)
        assert all("thinking" in seen.json for seen in server.seen), "a round was asked without thinking"
        assert thoughts_sent(server) == [0, 1, 2, 0]
        block = {"type": "thinking", "thinking": THOUGHT, "signature": "sig"}
        assert server.seen[1].json["messages"][1]["content"][0] == block
        stored = await at.rows("SELECT reasoning, reasoning_blocks FROM messages WHERE role = 'assistant'")
        assert stored == [{"reasoning": THOUGHT, "reasoning_blocks": [block]}] * 4
        prompts = await assert_prompts_hold(at, first.turn.id, first.turn.session_id, 3)
        assert [message.get("reasoning_blocks") for message in prompts[2].messages] == [
            None,
            [block],
            None,
            [block],
            None,
        ]
        (prompt,) = await assert_prompts_hold(at, after.turn.id, after.turn.session_id, 1)
        assert "reasoning" not in json.dumps(prompt, default=str)


async def test_thoughts_that_are_sent_are_counted_and_those_that_are_not_do_not_count(
    database_url: str, tmp_path: Path
) -> None:
    wire_tokens: dict[str, list[int]] = {}
    for name, parameters in (("thinks", THINKING), ("does not", "")):
        async with (
            serving(*script_of(ANTHROPIC)) as server,
            service(database_url, anthropic_toml(server, parameters), folder=tmp_path) as at,
        ):
            first, after = await two_rounds_and_another_turn(at)
            audits = [await get_audit(at.rt, ref_of(first.turn.session_id), first.turn.id, n) for n in (1, 2, 3)]
            wire_tokens[name] = [audit.estimated_wire_tokens for audit in audits]
            wire_tokens[name].append(after.context["estimated_wire_tokens"])
            one = (await at.rows("SELECT DISTINCT reasoning_tokens FROM messages WHERE role = 'assistant'"))[0]
    more = [sent - unsent for sent, unsent in zip(wire_tokens["thinks"], wire_tokens["does not"], strict=True)]
    thought = one["reasoning_tokens"]
    assert thought > 5
    assert more == [0, thought, 2 * thought, 0]


def insists(seen: Seen) -> Answer:
    """A server as DeepSeek's: all that was said in turns with tools has to bring its reasoning, in every request."""
    messages = seen.json["messages"]
    turns: list[list[Any]] = []
    for message in messages:
        if message["role"] == "user":
            turns.append([])
        turns[-1].append(message)
    used = [message for turn in turns if any("tool_calls" in each for each in turn) for message in turn]
    said = [message for message in used if message["role"] == "assistant"]
    if any(not message.get("reasoning_content") for message in said):
        refusal = "The `reasoning_content` in the thinking mode must be passed back to the API."
        return Answer({"error": {"message": refusal, "type": "invalid_request_error", "param": None}}, 400)
    done = len(said)
    return OPENAI.whole(SCRIPT[min(done, len(SCRIPT) - 1)])


async def test_a_server_that_insists_on_reasoning_content_gets_it_in_this_and_every_later_turn(
    database_url: str, tmp_path: Path
) -> None:
    wants = 'return_reasoning = "tool_turns"\n'
    async with (
        serving(insists) as server,
        service(database_url, models_toml(server, window=65_536, extra=wants), folder=tmp_path) as at,
    ):
        first, after = await two_rounds_and_another_turn(at)
        assert after.turn.assistant_output == "Gladly."
        assert thoughts_sent(server) == [0, 1, 2, 3]
        await assert_prompts_hold(at, first.turn.id, first.turn.session_id, 3)
        (prompt,) = await assert_prompts_hold(at, after.turn.id, after.turn.session_id, 1)
        assert prompt.messages == server.seen[-1].json["messages"]


async def test_a_server_that_requires_reasoning_refuses_and_the_error_names_return_reasoning(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(insists) as server,
        service(database_url, models_toml(server, window=65_536), folder=tmp_path) as at,
    ):
        session = await at.session()
        turn = (await at.turn(session.id, "Are a and b paid?", tools=TOOLS)).turn
        with pytest.raises(ProviderRefused, match="return_reasoning"):
            await at.outputs(session.id, turn.id, {"call_a": "yes"})


async def test_after_a_switch_to_it_what_another_model_answered_without_thinking_has_the_field_too(
    database_url: str, tmp_path: Path
) -> None:
    plain = [OPENAI.whole(ModelReply("", "", said.calls)) for said in SCRIPT[:1]] + [OPENAI.whole(ModelReply("Done."))]
    async with serving(*plain) as other, serving(insists) as server:
        models = models_toml(other, window=65_536) + (
            f'[models.deep]\nprovider = "openai"\nmodel = "d"\nbase_url = "{server.base_url}"\n'
            'context_window = 65536\nreturn_reasoning = "tool_turns"\n'
        )
        async with service(database_url, models, folder=tmp_path) as at:
            session = await at.session()
            turn = (await at.turn(session.id, "Is a paid?", tools=TOOLS)).turn
            await at.outputs(session.id, turn.id, {"call_a": "yes"})
            done = await at.turn(session.id, "And now you", model_alias="deep")
            assert done.turn.status is TurnStatus.COMPLETED
            assert server.hits == 1


def verifies(seen: Seen) -> Answer:
    """A server as Gemini's: each message of the running loop that calls tools has to bring its first call's signature.
    It signs nothing but calls."""
    messages = seen.json["messages"]
    newest = max(place for place, message in enumerate(messages) if message["role"] == "user")
    firsts = [message["tool_calls"][0] for message in messages[newest:] if "tool_calls" in message]
    if any(call.get("extra_content") != {"google": {"thought_signature": f"of {call['id']}"}} for call in firsts):
        refusal = "Function call is missing a thought_signature in functionCall parts."
        return Answer([{"error": {"code": 400, "message": refusal, "status": "INVALID_ARGUMENT"}}], 400)
    said = SCRIPT[min(sum(message["role"] == "assistant" for message in messages), len(SCRIPT) - 1)]
    answer = OPENAI.answer(replace(said, reasoning=""))
    for call in answer["choices"][0]["message"].get("tool_calls", []):
        call["extra_content"] = {"google": {"thought_signature": f"of {call['id']}"}}
    return Answer(answer)


async def test_signatures_of_calls_go_back_in_the_running_loop_and_no_further(
    database_url: str, tmp_path: Path
) -> None:
    wants = 'return_reasoning = "signatures"\n'
    async with (
        serving(verifies) as server,
        service(database_url, models_toml(server, window=65_536, extra=wants), folder=tmp_path) as at,
    ):
        first, after = await two_rounds_and_another_turn(at)
        assert after.turn.assistant_output == "Gladly."
        assert [seen.body.count(b"extra_content") for seen in server.seen] == [0, 1, 2, 0]
        assert b"reasoning_blocks" not in b"".join(seen.body for seen in server.seen)
        await assert_prompts_hold(at, first.turn.id, first.turn.session_id, 3)


async def test_encrypted_reasoning_goes_back_over_responses_with_the_calls_that_have_it(
    database_url: str, tmp_path: Path
) -> None:
    def answer(seen: Seen) -> Answer:
        rounds = sum(item.get("type") == "function_call" for item in seen.json["input"])
        is_next_turn = seen.json["input"][-1].get("content") == "Thank you"
        said = SCRIPT[3 if is_next_turn else rounds]
        return RESPONSES.whole(replace(said, reasoning="") if rounds == 1 else said)  # it need not think for each call

    async with (
        serving(answer) as server,
        service(database_url, models_toml(server, window=65_536, extra='api = "responses"\n'), folder=tmp_path) as at,
    ):
        first, after = await two_rounds_and_another_turn(at)
        assert after.turn.assistant_output == "Gladly."
        assert [seen.body.count(b'"encrypted_content":') for seen in server.seen] == [0, 1, 1, 0]
        kinds = [item.get("type", item.get("role")) for item in server.seen[2].json["input"]]
        assert kinds[-6:] == ["user", "reasoning", *["function_call", "function_call_output"] * 2]
        await assert_prompts_hold(at, first.turn.id, first.turn.session_id, 3)


async def test_a_server_that_misses_a_signature_refuses_and_the_error_names_return_reasoning(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(verifies) as server,
        service(database_url, models_toml(server, window=65_536), folder=tmp_path) as at,
    ):
        session = await at.session()
        turn = (await at.turn(session.id, "Are a and b paid?", tools=TOOLS)).turn
        with pytest.raises(ProviderRefused, match="return_reasoning"):
            await at.outputs(session.id, turn.id, {"call_a": "yes"})


def refuses(seen: Seen) -> Answer:
    """A server as Groq's, which knows no such field."""
    if "reasoning" in seen.body.decode():
        said = "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property "
        return Answer({"error": {"message": said + "'reasoning_content' is unsupported)]"}}, 400)
    done = sum(message["role"] == "assistant" for message in seen.json["messages"])
    return OPENAI.whole(SCRIPT[min(done, len(SCRIPT) - 1)])


@pytest.mark.parametrize(("extra", "refused"), [("", 0), ('return_reasoning = "tool_loop"\n', 1)])
async def test_a_server_that_refuses_reasoning_content_is_not_sent_it_or_called_again_without(
    database_url: str, tmp_path: Path, extra: str, refused: int
) -> None:
    async with (
        serving(refuses) as server,
        service(database_url, models_toml(server, window=65_536, extra=extra), folder=tmp_path) as at,
    ):
        _, after = await two_rounds_and_another_turn(at)
        assert after.turn.status is TurnStatus.COMPLETED
        assert server.hits == 4 + refused
        assert sum(map(bool, thoughts_sent(server))) == refused
        stored = await at.rows("SELECT DISTINCT reasoning, reasoning_blocks FROM messages WHERE role = 'assistant'")
        assert stored == [{"reasoning": THOUGHT, "reasoning_blocks": None}]


async def test_a_session_counted_in_another_encoding_counts_its_reasoning_there_too(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(insists) as server:
        wants = 'return_reasoning = "tool_turns"\n'
        models = models_toml(server, window=65_536, extra=wants) + (
            f'[models.other]\nprovider = "openai"\nmodel = "d"\nbase_url = "{server.base_url}"\n'
            f'context_window = 65536\nencoding = "cl100k_base"\n{wants}'
        )
        async with service(database_url, models, folder=tmp_path) as at:
            session = await at.session()
            turn = (await at.turn(session.id, "Is a paid?", tools=TOOLS)).turn
            await at.outputs(session.id, turn.id, {"call_a": "yes"})
            done = await at.outputs(session.id, turn.id, {"call_b": "yes"})
            for _ in range(2):
                await at.turn(session.id, "And now you", model_alias="other")
            counts = await at.rows(
                "SELECT c.reasoning_tokens FROM message_token_counts c JOIN messages m "
                "ON m.session_id = c.session_id AND m.id = c.message_id WHERE m.role = 'assistant' "
                "AND m.turn_id = CAST(:turn_id AS uuid)",
                turn_id=done.turn.id,
            )
            assert len(counts) == 3
            assert all(row["reasoning_tokens"] > 5 for row in counts)


def _detail(kind: str, **fields: Any) -> JsonObject:
    return {"type": f"reasoning.{kind}", "format": "anthropic-claude-v1", "index": 0, **fields}


PIECES = (
    _detail("text", text="They ask "),
    _detail("text", text="for both.", signature=None),
    _detail("text", signature="c2lnbmVk"),
    _detail("encrypted", data="c2VhbGVk", id="rs_1"),
    _detail("encrypted", data="b3RoZXI=", id="rs_2"),
    _detail("server_tool_call", name="search"),
)
"""As OpenRouter streams them: the signature of a block comes last and alone."""
DETAILS = [
    _detail("text", text="They ask for both.", signature="c2lnbmVk"),
    _detail("encrypted", data="c2VhbGVk", id="rs_1"),
    _detail("encrypted", data="b3RoZXI=", id="rs_2"),
]
WITH_DETAILS = 'return_reasoning = "signatures"\n'
"""As for OpenRouter's host."""


def details_sent(seen: Seen) -> list[Any]:
    return [m["reasoning_details"] for m in seen.json["messages"] if "reasoning_details" in m]


def streamed_details(reply: ModelReply) -> Stream:
    deltas = [{"reasoning_details": [piece], "reasoning": piece.get("text", "")} for piece in PIECES]
    chunks = [event({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    return Stream((*chunks, *OPENAI.stream(reply).pieces))


def whole_details(reply: ModelReply) -> Answer:
    answer = OPENAI.answer(reply)
    answer["choices"][0]["message"]["reasoning_details"] = DETAILS
    return Answer(answer)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_openrouters_details_of_reasoning_go_back_as_they_were_in_the_loop_of_their_tools(
    database_url: str, tmp_path: Path, streamed: bool
) -> None:
    answer = streamed_details if streamed else whole_details
    script = [answer(replace(said, reasoning="")) for said in SCRIPT]
    async with (
        serving(*script) as server,
        service(database_url, models_toml(server, extra=WITH_DETAILS), folder=tmp_path) as at,
    ):
        session = await at.session()
        heard: list[TurnEvent] = []
        listen = heard.append if streamed else None
        turn = (await at.turn(session.id, "Are a and b paid?", tools=TOOLS, listen=listen)).turn
        for call_id in ("call_a", "call_b"):
            outputs = OutputsRequest(outputs_of({call_id: "yes"}))
            await continue_turn(at.rt, ref_of(session.id), turn.id, outputs, listen=listen)
        assert list(map(details_sent, server.seen)) == [[], [DETAILS], [DETAILS, DETAILS]]
        await assert_prompts_hold(at, turn.id, session.id, 3)
        (stored, *_) = await at.rows("SELECT reasoning FROM messages WHERE role = 'assistant' ORDER BY seq")
        assert stored["reasoning"] == "They ask for both."


async def test_a_model_that_refuses_anothers_details_is_called_without_them_for_that_prompt_alone(
    database_url: str, tmp_path: Path
) -> None:
    """OpenRouter passes on what its upstream says of a block that another model signed."""
    said = "messages.1.content.0: Invalid `signature` in `thinking` block"

    def play(seen: Seen) -> Answer:
        if seen.json["messages"][-1]["role"] == "user":
            return whole_details(SCRIPT[0])
        is_refused = "Is a paid?" in str(seen.json["messages"]) and details_sent(seen)
        return Answer({"error": {"message": said, "code": 400}}, 400) if is_refused else whole_details(SCRIPT[2])

    async with (
        serving(play) as server,
        service(database_url, models_toml(server, extra=WITH_DETAILS), folder=tmp_path) as at,
    ):
        for question in ("Is a paid?", "Is b?"):
            session = await at.session()
            turn = (await at.turn(session.id, question, tools=TOOLS)).turn
            answered = await at.outputs(session.id, turn.id, {"call_a": "yes"})
            assert answered.turn.status is TurnStatus.COMPLETED
        assert [len(details_sent(seen)) for seen in server.seen] == [0, 1, 0, 0, 1]


async def test_a_model_that_thinks_in_tags_gets_its_answers_without_them_and_makes_summaries(
    database_url: str, tmp_path: Path
) -> None:
    def in_tags(answer: Answer) -> Answer:
        message = answer.body["choices"][0]["message"]
        return chat(f'<think>\nPerhaps {{"summary_text": "?"}}.\n</think>\n\n{message["content"]}')

    def answered(request: Seen) -> Answer:
        return in_tags(sound_summary(request) if is_summary(request) else chat("Noted."))

    async with (
        serving(answered) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        outcomes = [await at.turn(session.id, f"Remember port 84{number:02}. " * 40) for number in range(12)]
        answers = {(outcome.turn.assistant_output, outcome.turn.status) for outcome in outcomes}
        assert answers == {("Noted.", TurnStatus.COMPLETED)}
        assert any(map(is_summary, server.seen))
        assert "think>" not in json.dumps([seen.json for seen in server.seen])
        assert "The earlier part." in json.dumps(server.seen[-1].json)
