"""LangChain's `ChatOpenAI`, unmodified: calls, streams, binds tools, and is refused what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.api.chatting import Chat, chat_service, say
from tests.api.conftest import new_session


@tool
def look_up(id: str) -> str:  # noqa: A002 - the argument's public name
    """Looks an order up."""
    return f"{id} is paid"


def chat_openai(at: Chat, session_id: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="main",
        base_url=f"{at.address}/v1",
        api_key=SecretStr("none"),
        default_headers={"X-Session-Id": session_id},
        **options,
    )


def test_it_asks_and_streams_with_its_own_history(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Hello Anna."), say("Your name is Anna.")) as at:
        session_id = new_session(at.http)
        llm = chat_openai(at, session_id, temperature=0)
        history: list[AnyMessage] = [SystemMessage("Be brief."), HumanMessage("I am Anna.")]
        answer = llm.invoke(history)
        assert answer.content == "Hello Anna."
        assert isinstance(answer, AIMessage)
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["total_tokens"] == 27
        chunks = list(llm.stream([*history, answer, HumanMessage("Who am I?")]))
        assert "".join(str(chunk.content) for chunk in chunks) == "Your name is Anna."
        assert [message["role"] for message in at.sent()] == ["system", "user", "assistant", "user"]
        assert at.model.seen[-1].json["temperature"] == 0
        assert [turn["status"] for turn in at.turns(session_id)] == ["completed", "completed"]


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streamed"])
def test_its_bound_tools_run_in_a_loop(database_url: str, tmp_path: Path, streaming: bool) -> None:
    with chat_service(database_url, tmp_path, say(None, "a", "b"), say("Both are paid.")) as at:
        session_id = new_session(at.http)
        llm = cast(Any, chat_openai(at, session_id, streaming=streaming)).bind_tools([look_up])
        history: list[AnyMessage] = [HumanMessage("Are a and b paid?")]
        answer: AIMessage = llm.invoke(history)
        while answer.tool_calls:
            outputs = [
                ToolMessage(str(look_up.invoke(call["args"])), tool_call_id=call["id"]) for call in answer.tool_calls
            ]
            history += [answer, *outputs]
            answer = llm.invoke(history)
        assert answer.content == "Both are paid."
        assert [message["role"] for message in at.sent()] == ["user", "assistant", "tool", "tool"]
        assert at.sent()[-1] == {"role": "tool", "tool_call_id": "b", "content": "b is paid"}
        (turn,) = at.turns(session_id)
        assert turn["status"] == "completed"


def test_it_knows_what_does_not_fit_by_its_own_name(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path) as at:
        with pytest.raises(ContextOverflowError):
            chat_openai(at, new_session(at.http)).invoke("word " * 5000)
        assert at.model.hits == 0


def test_its_structured_output_reaches_the_provider_as_a_schema(database_url: str, tmp_path: Path) -> None:
    schema = {"title": "Paid", "type": "object", "properties": {"paid": {"type": "boolean"}}, "required": ["paid"]}
    with chat_service(database_url, tmp_path, say('{"paid": true}')) as at:
        llm = cast(Any, chat_openai(at, new_session(at.http))).with_structured_output(schema, method="json_schema")
        assert llm.invoke("Is it paid?") == {"paid": True}
        assert at.model.seen[-1].json["response_format"]["type"] == "json_schema"
