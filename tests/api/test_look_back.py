"""Looking back through every door: clients see one answer, and a route and the steps say what was read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from app.domain.types import ToolCall
from tests.api.chatting import Chat, chat_service
from tests.api.conftest import assert_problem, new_session
from tests.api.messaging import anthropic_at
from tests.providers.server import Answer, Seen, Stream
from tests.providers.wires import OPENAI, ModelReply

_FACT = "The vault code is 7319-KILO. "
_ANSWER = "Let me see.\n\nIt is 7319-KILO."


def _model(seen: Seen) -> Answer | Stream:
    """Looks back first, and says what it read then."""
    newest = seen.json["messages"][-1]
    if newest["role"] == "tool":
        reply = ModelReply("It is 7319-KILO." if _FACT.strip() in newest["content"] else "It is not there.")
    else:
        reply = ModelReply("Let me see.", calls=(ToolCall("b", "look_back", '{"handle": "m1"}'),))
    return OPENAI.stream(reply) if seen.json.get("stream") else OPENAI.whole(reply)


def _past(http: httpx.Client) -> str:
    messages = [{"role": "user", "content": _FACT * 3}, {"role": "assistant", "content": "Noted."}]
    answer = http.post("/v1/sessions/import", json={"messages": messages, "policy": {"look_back": "on"}})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def _by_chat(at: Chat, session: str, *, stream: bool) -> tuple[str, Any]:
    asked: dict[str, Any] = {"model": "main", "messages": [{"role": "user", "content": "What is the vault code?"}]}
    asked["extra_headers"] = {"X-Session-Id": session}
    if not stream:
        completion = cast(Any, at.client.chat.completions.create)(**asked)
        message = completion.choices[0].message
        assert (message.tool_calls, completion.choices[0].finish_reason) == (None, "stop")
        return message.content, completion.usage.prompt_tokens
    chunks = list(
        cast(Any, at.client.chat.completions.create)(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert not any(choice.delta.tool_calls for chunk in chunks for choice in chunk.choices)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    return text, chunks[-1].usage.prompt_tokens


def _by_responses(at: Chat, session: str, *, stream: bool) -> tuple[str, Any]:
    asked: dict[str, Any] = {"model": "main", "input": "What is the vault code?"}
    asked["extra_headers"] = {"X-Session-Id": session}
    create = cast(Any, at.client.responses.create)
    response = list(create(**asked, stream=True))[-1].response if stream else create(**asked)
    stored = at.client.responses.retrieve(response.id)
    assert [item.type for item in response.output] == ["message"]
    assert stored.output_text == response.output_text
    assert stored.usage == response.usage
    after = cast(Any, at.client.responses.create)(model="main", input="And again?", previous_response_id=response.id)
    assert [item.type for item in after.output] == ["message"]
    return response.output_text, response.usage.input_tokens


def _by_messages(at: Chat, session: str, *, stream: bool) -> tuple[str, Any]:
    messages: list[Any] = [{"role": "user", "content": "What is the vault code?"}]
    asked: dict[str, Any] = {"model": "main", "max_tokens": 100, "messages": messages}
    asked["extra_headers"] = {"X-Session-Id": session}
    with anthropic_at(at) as client:
        if stream:
            with cast(Any, client.messages.stream)(**asked) as events:
                message = events.get_final_message()
        else:
            message = cast(Any, client.messages.create)(**asked)
    assert [block.type for block in message.content] == ["text"]
    assert message.stop_reason == "end_turn"
    return message.content[0].text, message.usage.input_tokens + message.usage.cache_read_input_tokens


def _by_turns(at: Chat, session: str, *, stream: bool) -> tuple[str, Any]:
    body = {"content": "What is the vault code?", "stream": stream}
    answer = at.http.post(f"/v1/sessions/{session}/turns", json=body)
    if not stream:
        turn = answer.json()["turn"]
    else:
        turn = json.loads(answer.text.strip().rpartition("data: ")[2])["turn"]
        assert "turn.awaiting_tools" not in answer.text
    assert turn["tool_calls"] == []
    return turn["assistant_output"], turn["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("door", [_by_chat, _by_responses, _by_messages, _by_turns])
def test_a_client_gets_one_answer_and_what_both_calls_used(
    database_url: str, tmp_path: Path, door: Any, stream: bool
) -> None:
    with chat_service(database_url, tmp_path, _model) as at:
        session = _past(at.http)
        assert door(at, session, stream=stream) == (_ANSWER, 22)
        turn = at.turns(session)[1]
        messages = at.http.get(f"/v1/sessions/{session}/messages").json()["items"][2:4]
        assert [message["role"] for message in messages] == ["user", "assistant"]
        audit = at.http.get(f"/v1/sessions/{session}/turns/{turn['id']}/audit").json()
        assert (audit["round"], audit["context_trim_log"]["looked_back"]["messages"]) == (2, 2)
        prompt = at.http.get(f"/v1/sessions/{session}/turns/{turn['id']}/prompt").json()
        assert [message["role"] for message in prompt["messages"]][-3:] == ["user", "assistant", "tool"]
        assert (
            sum(row["tokens"] for row in prompt["layout"][-2:])
            == audit["context_trim_log"]["looked_back"]["tokens"] - 8
        )


def test_a_chat_that_resends_its_history_goes_on_behind_a_turn_that_looked_back(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, _model) as at:
        session = _past(at.http)
        text, _ = _by_chat(at, session, stream=False)
        resent = [
            {"role": "user", "content": "What is the vault code?"},
            {"role": "assistant", "content": text},
            {"role": "user", "content": "Thanks. Once more?"},
        ]
        headers: Any = {"X-Session-Id": session}
        cast(Any, at.client.chat.completions.create)(model="main", messages=resent, extra_headers=headers)
        assert [turn["user_input"] for turn in at.turns(session)][1:] == [
            "What is the vault code?",
            "Thanks. Once more?",
        ]


def test_the_route_reads_a_message_page_by_page_and_finds_messages_by_words(client: httpx.Client) -> None:
    long = "\n".join(f"row {number} is {'paid' if number % 7 else 'open'}" for number in range(4000))
    messages = [{"role": "user", "content": long}, {"role": "assistant", "content": "The crane is red."}]
    session = client.post("/v1/sessions/import", json={"messages": messages}).json()["id"]
    path = f"/v1/sessions/{session}/look-back"
    first = client.get(path, params={"handle": "m1"}).json()
    assert (first["page"], first["has_more"], first["handles"]) == (1, True, ["m1"])
    assert 0 < first["estimated_tokens"] <= 2_400
    pages = [client.get(path, params={"handle": "m1", "page": at}).json() for at in range(1, first["pages"] + 1)]
    texts = [page["content"].split("\n", 2)[2].rpartition("\n")[0] for page in pages]
    assert "".join(texts) == long
    assert [page["has_more"] for page in pages] == [True] * (len(pages) - 1) + [False]
    found = client.get(path, params={"handle": "m1", "q": "row 3993"}).json()
    assert "row 3993 is paid" in found["content"]
    assert "The crane is red." in client.get(path, params={"q": "crane"}).json()["content"]
    nothing = client.get(path, params={"q": "zeppelin"}).json()
    assert (nothing["content"], nothing["handles"], nothing["has_more"]) == ("", [], False)


def test_what_the_route_cannot_read_is_a_problem(client: httpx.Client) -> None:
    path = f"/v1/sessions/{new_session(client)}/look-back"
    assert_problem(client.get(path), 422, "invalid_request")
    assert_problem(client.get(path, params={"q": " "}), 422, "invalid_request")
    assert_problem(client.get(path, params={"handle": "12"}), 422, "invalid_request")
    assert_problem(client.get(path, params={"handle": "m1", "page": 0}), 422, "invalid_request")
    assert_problem(client.get(path, params={"handle": "m1"}), 404, "message_not_found")
    nobody = f"/v1/sessions/{'0' * 8}-0000-7000-8000-{'0' * 12}/look-back"
    assert_problem(client.get(nobody, params={"q": "crane"}), 404, "session_not_found")
    assert client.get(path, params={"q": "\0"}).json()["content"] == ""
