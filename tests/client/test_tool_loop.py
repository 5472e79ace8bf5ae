"""Tools that the client runs for the model, round after round. All clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plimsoll_sdk import TurnAwaitingTools
from plimsoll_sdk.errors import ToolLoopTooLong
from tests.api.conftest import serving as service_at
from tests.api.conftest import settings_for
from tests.client.clients import ALL, Kind, completion, models_file, talker, turns_of
from tests.client.proxy import proxied
from tests.providers.playing import threaded_serving
from tests.providers.server import Answer, Seen


def _tool_model(calls: list[list[tuple[str, str]]]) -> Callable[[Seen], Answer]:
    """A model that calls these functions, round after round, and then repeats the last results."""

    def play(request: Seen) -> Answer:
        messages = request.json["messages"]
        rounds = sum(message["role"] == "assistant" for message in messages)
        if rounds >= len(calls):
            return Answer(completion(f"Results: {[m['content'] for m in messages if m['role'] == 'tool']}"))
        calls_made = [
            {"id": f"c{rounds}-{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, (name, arguments) in enumerate(calls[rounds])
        ]
        answer = completion("")
        answer["choices"][0] = {"index": 0, "finish_reason": "tool_calls"}
        answer["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": calls_made}
        return Answer(answer)

    return play


ROUNDS = [
    [("add", '{"a": 1, "b": 2}'), ("add", '{"a": "x"}')],
    [("fail", "{}"), ("gone", "{}"), ("add", "[1]")],
]


@ALL
@pytest.mark.parametrize("lost", [False, True])
async def test_tools_are_run_until_the_model_has_no_more_calls(
    database_url: str, tmp_path: Path, kind: Kind, lost: bool
) -> None:
    ran: list[str] = []

    def add(a: int, b: int) -> int:
        ran.append("add")
        return a + b

    async def fail_later() -> str:
        ran.append("fail")
        raise RuntimeError("no such order")

    def fail() -> str:
        ran.append("fail")
        raise RuntimeError("no such order")

    tools = [{"type": "function", "function": {"name": name}} for name in ("add", "fail")]
    functions = {"add": add, "fail": fail_later if kind == "async" else fail}
    with (
        threaded_serving(_tool_model(ROUNDS)) as model,
        service_at(settings_for(database_url, models_file=models_file(tmp_path, model.base_url))) as address,
        proxied(address) as proxy,
    ):
        async with talker(kind, proxy.url) as at:
            session = (await at.call("create_session")).id
            fault = proxy.breaks("/tool-outputs ", times=2 if lost else 0)
            answer = await at.call("run_turn", session, "Add", functions, tools=tools)
            assert fault.fired == (2 if lost else 0)
            assert answer.turn.status == "completed"
            output = answer.turn.assistant_output
            for expected in ("'3'", "TypeError", "RuntimeError: no such order", "no function gone", "no JSON object"):
                assert expected in output
            assert ran == ["add", "fail"], "a function ran twice"
            assert model.hits == 3
            assert answer.context.prompt_sha256


@ALL
async def test_characters_that_no_message_can_have_do_not_leave_the_turn_open(
    database_url: str, tmp_path: Path, kind: Kind
) -> None:
    with (
        threaded_serving(_tool_model([[("read", "{}")]])) as model,
        service_at(settings_for(database_url, models_file=models_file(tmp_path, model.base_url))) as address,
    ):
        async with talker(kind, address) as at:
            session = (await at.call("create_session")).id
            tools = [{"type": "function", "function": {"name": "read"}}]
            answer = await at.call("run_turn", session, "Read it", {"read": lambda: "a\0b\udce9c😀"}, tools=tools)
            assert answer.turn.status == "completed"
            assert "a\ufffdb\ufffdc😀" in answer.turn.assistant_output


@ALL
async def test_a_model_that_never_stops_calling_tools_is_stopped(database_url: str, tmp_path: Path, kind: Kind) -> None:
    with (
        threaded_serving(_tool_model([[("add", '{"a": 1, "b": 2}')]] * 9)) as model,
        service_at(settings_for(database_url, models_file=models_file(tmp_path, model.base_url))) as address,
    ):
        async with talker(kind, address) as at:
            session = (await at.call("create_session")).id
            tools = [{"type": "function", "function": {"name": "add"}}]
            functions = {"add": lambda a, b: a + b}  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType]
            with pytest.raises(ToolLoopTooLong) as long:
                await at.call("run_turn", session, "Add", functions, tools=tools, max_rounds=2)
            assert (long.value.rounds, long.value.turn.status) == (2, "cancelled")
            assert model.hits == 3
            assert not any(isinstance(turn, TurnAwaitingTools) for turn in await turns_of(at, session))
