"""The OpenAI Agents SDK, unmodified, with agents that use tools: everything it keeps is on the service's database."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)

from tests.api.chatting import Chat, chat_service, say
from tests.api.test_chat import user
from tests.api.test_responses import TOOLS, output, sessions
from tests.providers.server import Answer, Play

QUIET = RunConfig(tracing_disabled=True)
LOOKED_UP: list[str] = []


@function_tool
def look_up(id: str) -> str:  # noqa: A002 - the scripted model calls it so
    """Says whether an invoice is paid."""
    LOOKED_UP.append(id)
    return f"{id} is paid"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is traced, and there is no key with which anything could be."""
    set_tracing_disabled(True)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    LOOKED_UP.clear()


@asynccontextmanager
async def agent_at(at: Chat, **settings: Any) -> AsyncGenerator[tuple[Agent[Any], openai.AsyncOpenAI]]:
    async with openai.AsyncOpenAI(base_url=f"{at.address}/v1", api_key="none") as client:
        yield (
            Agent(
                name="Clerk",
                instructions="Look invoices up.",
                tools=[look_up],
                model=OpenAIResponsesModel("main", client),
                model_settings=ModelSettings(**settings),
            ),
            client,
        )


def script() -> list[Play]:
    return [say("Let me see.", "a", "b"), say(None, "c"), say("All paid."), say("As I said: all.")]


ROLES = ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user"]


def roles(at: Chat) -> list[str]:
    assert at.sent()[0] == {"role": "system", "content": "Look invoices up."}
    return [message["role"] for message in at.sent()[1:]]


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
async def test_an_agent_runs_its_tools_in_a_conversation(database_url: str, tmp_path: Path, streamed: bool) -> None:
    with chat_service(database_url, tmp_path, *script()) as at:
        async with agent_at(at) as (agent, client):
            conversation = await client.conversations.create()
            if streamed:
                running = Runner.run_streamed(
                    agent, "Are a, b and c paid?", conversation_id=conversation.id, run_config=QUIET
                )
                kinds = [event.type async for event in running.stream_events()]
                assert {"raw_response_event", "run_item_stream_event"} <= set(kinds)
                final, usage = running.final_output, running.context_wrapper.usage
            else:
                ran = await Runner.run(agent, "Are a, b and c paid?", conversation_id=conversation.id, run_config=QUIET)
                final, usage = ran.final_output, ran.context_wrapper.usage
            assert (final, sorted(LOOKED_UP)) == ("All paid.", ["a", "b", "c"])
            assert (usage.requests, usage.input_tokens, usage.output_tokens) == (3, 60, 21)
            again = await Runner.run(agent, "Sure?", conversation_id=conversation.id, run_config=QUIET)
            assert again.final_output == "As I said: all."
        assert roles(at) == ROLES
        (session,) = sessions(at)
        assert [turn["status"] for turn in at.turns(session["id"])] == ["completed", "completed"]


async def test_an_agent_goes_on_behind_its_last_response(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, *script()) as at:
        async with agent_at(at) as (agent, _):
            ran = await Runner.run(agent, "Are a, b and c paid?", auto_previous_response_id=True, run_config=QUIET)
            assert (ran.final_output, sorted(LOOKED_UP)) == ("All paid.", ["a", "b", "c"])
            again = await Runner.run(agent, "Sure?", previous_response_id=ran.last_response_id, run_config=QUIET)
            assert again.final_output == "As I said: all."
        assert roles(at) == ROLES
        assert len(sessions(at)) == 1


@pytest.mark.parametrize("store", [None, False], ids=["stored", "not stored"])
async def test_an_agents_session_keeps_its_items_as_a_conversation(
    database_url: str, tmp_path: Path, store: bool | None
) -> None:
    with chat_service(database_url, tmp_path, *script()) as at:
        async with agent_at(at, store=store) as (agent, client):
            memory: Any = OpenAIConversationsSession(openai_client=client)
            ran = await Runner.run(agent, "Are a, b and c paid?", session=memory, run_config=QUIET)
            assert (ran.final_output, sorted(LOOKED_UP)) == ("All paid.", ["a", "b", "c"])
            again = await Runner.run(agent, "Sure?", session=memory, run_config=QUIET)
            assert again.final_output == "As I said: all."
            assert roles(at) == ROLES
            items = await memory.get_items()
            assert [item.get("type") for item in items] == [
                "message",
                "message",
                "function_call",
                "function_call",
                "function_call_output",
                "function_call_output",
                "function_call",
                "function_call_output",
                "message",
                "message",
                "message",
            ]
            kept = [session["id"].replace("-", "") for session in sessions(at)]
            assert f"{memory.session_id}" in {f"conv_{session_id}" for session_id in kept}
            assert (len(kept) == 1) is (store is False)
            popped = await memory.pop_item()
            assert popped is not None
            assert len(await memory.get_items()) == 10
            await memory.clear_session()


async def test_handoffs_between_agents_share_the_conversation(database_url: str, tmp_path: Path) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "transfer_to_clerk", "arguments": "{}"}}
    choice = {"index": 0, "message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}
    hand_over = Answer({"choices": [choice]})
    with chat_service(database_url, tmp_path, hand_over, say(None, "a"), say("It is paid.")) as at:
        async with agent_at(at) as (clerk, client):
            desk = Agent(
                name="Desk",
                instructions="Hand over.",
                handoffs=[clerk],
                model=OpenAIResponsesModel("main", client),
            )
            conversation = await client.conversations.create()
            ran = await Runner.run(desk, "Is a paid?", conversation_id=conversation.id, run_config=QUIET)
        assert (ran.final_output, ran.last_agent.name, LOOKED_UP) == ("It is paid.", "Clerk", ["a"])
        assert at.sent()[1] == user("Is a paid?")
        assert roles(at) == ["user", "assistant", "tool", "assistant", "tool"]


@pytest.mark.parametrize("how", ["resent", "previous_response_id", "conversation"])
def test_a_user_may_speak_while_tools_run(database_url: str, tmp_path: Path, how: str) -> None:
    """Codex puts such a message where it was said, between the outputs: OpenAI finds these by the ids of calls."""
    with chat_service(database_url, tmp_path, say("Looking.", "a", "b"), say("Both are."), say("Yes.")) as at:
        ask: Any = at.client.responses.create
        of_session: dict[str, Any] = {}
        if how == "conversation":
            of_session = {"conversation": at.client.conversations.create().id}
        asked: list[Any] = [user("Are a and b paid?")]
        first = ask(model="main", input=asked, tools=TOOLS, **of_session)
        spoken: list[Any] = [output("a"), user("Be quick."), output("b", "open")]
        if how == "previous_response_id":
            of_session = {"previous_response_id": first.id}
        elif how == "resent":
            spoken = [*asked, *(item.to_dict() for item in first.output), *spoken]
        second = ask(model="main", input=spoken, tools=TOOLS, **of_session)
        assert [(sent["role"], sent.get("tool_call_id"), sent["content"]) for sent in at.sent()[2:]] == [
            ("tool", "a", "paid"),
            ("tool", "b", "open"),
            ("user", None, "Be quick."),
        ]
        if how == "resent":  # it is recognized as it was sent
            more = [*spoken, *(item.to_dict() for item in second.output), user("Sure?")]
            ask(model="main", input=more, tools=TOOLS)
            assert len(at.sent()) == 7
            assert len(sessions(at)) == 1
