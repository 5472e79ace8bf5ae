"""Postgres stores neither NUL nor halves of surrogate pairs. An agent whose tool has read a binary file, or has cut a
text within an emoji, goes on all the same, also when it resends its history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from tests.api.chatting import TOOLS, chat_service, say, tool_call
from tests.api.messaging import TOOLS as MESSAGES_TOOLS
from tests.api.messaging import result, user

BROKEN, MENDED = "\x7fELF\x00\x01 and \ud83d cut", "\x7fELF\ufffd\x01 and \ufffd cut"
FUNCTION: dict[str, Any] = {"name": "look_up", "arguments": "{}"}
CALLS: list[Any] = [{"id": "c1", "type": "function", "function": FUNCTION}]


def post(http: httpx.Client, path: str, body: object, **headers: str) -> httpx.Response:
    """The answer to a body as clients write it that escape what is not ASCII."""
    return http.post(path, content=json.dumps(body).encode(), headers={"content-type": "application/json", **headers})


def stored(http: httpx.Client, session_id: str) -> list[Any]:
    return [message["content"] for message in http.get(f"/v1/sessions/{session_id}/messages").json()["items"]]


def test_a_turn_and_its_tools_outputs_are_stored_and_repeated(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say(None, "c1"), say(BROKEN)) as at:
        session_id = at.http.post("/v1/sessions", json={}).json()["id"]
        parts = [{"type": "text", "text": BROKEN}, {"type": "file", "file": {"file_id": "f"}}]
        body = {"content": parts, "tools": TOOLS}
        first, again = (
            post(at.http, f"/v1/sessions/{session_id}/turns", body, **{"idempotency-key": "k"}) for _ in range(2)
        )
        assert (first.status_code, again.json()["turn"]["id"]) == (201, first.json()["turn"]["id"]), first.text
        outputs = {"outputs": [{"tool_call_id": "c1", "content": BROKEN}]}
        turn_id = first.json()["turn"]["id"]
        answer = post(at.http, f"/v1/sessions/{session_id}/turns/{turn_id}/tool-outputs", outputs)
        assert answer.json()["turn"]["assistant_output"] == MENDED, answer.text
        assert stored(at.http, session_id) == [[{"type": "text", "text": MENDED}, parts[1]], None, MENDED, MENDED]
        assert at.sent()[-1]["content"] == MENDED


def test_a_resent_list_of_chat_completions_stays_in_its_session(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say(None, "c1"), say("A program."), say("Bye.")) as at:
        history: list[Any] = [{"role": "system", "content": BROKEN}, {"role": "user", "content": BROKEN}]
        sessions: list[str] = []
        for following in (
            {"role": "tool", "tool_call_id": "c1", "content": BROKEN},
            {"role": "user", "content": "?"},
            None,
        ):
            answer = post(at.http, "/v1/chat/completions", {"model": "main", "messages": history, "tools": TOOLS})
            assert answer.status_code == 200, answer.text
            sessions.append(answer.headers["x-session-id"])
            history += [answer.json()["choices"][0]["message"], following]
        assert len(set(sessions)) == 1
        assert stored(at.http, sessions[0]) == [MENDED, None, MENDED, "A program.", "?", "Bye."]
        assert at.sent()[0]["content"] == MENDED


def test_a_resent_list_of_messages_stays_in_its_session_also_if_the_model_wrote_a_nul(
    database_url: str, tmp_path: Path
) -> None:
    call = tool_call("c1", "look_up", {"id": "a\x00b \\u0000"})
    with chat_service(database_url, tmp_path, say(None, call), say("A program."), say("Bye.")) as at:
        history: list[Any] = [user(BROKEN)]
        sessions: list[str] = []
        for following in (user(result("c1", [{"type": "text", "text": BROKEN}])), user("?"), None):
            body = {"model": "main", "max_tokens": 100, "messages": history, "tools": MESSAGES_TOOLS}
            answer = post(at.http, "/v1/messages", body)
            assert answer.status_code == 200, answer.text
            sessions.append(answer.headers["x-session-id"])
            history += [{"role": "assistant", "content": answer.json()["content"]}, following]
        assert history[1]["content"][0]["input"] == {"id": "a\ufffdb \\u0000"}
        assert len(set(sessions)) == 1
        assert stored(at.http, sessions[0]) == [MENDED, None, MENDED, "A program.", "?", "Bye."]


def test_items_of_responses_and_conversations_are_stored(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say(None, "c1"), say("A program.")) as at:
        first = post(
            at.http,
            "/v1/responses",
            {"model": "main", "input": BROKEN, "tools": [{"type": "function", **TOOLS[0]["function"]}]},
        )
        output = {"type": "function_call_output", "call_id": "c1", "output": BROKEN}
        body = {"model": "main", "input": [output], "previous_response_id": first.json()["id"], "instructions": BROKEN}
        second = post(at.http, "/v1/responses", body)
        assert second.json()["instructions"] == MENDED, second.text
        assert stored(at.http, second.headers["x-session-id"]) == [MENDED, None, MENDED, "A program."]
        items = [{"role": "user", "content": [{"type": "input_text", "text": BROKEN}]}]
        made = post(at.http, "/v1/conversations", {"items": items}).json()["id"]
        listed = at.http.get(f"/v1/conversations/{made}/items").json()["data"]
        assert listed[0]["content"][0]["text"] == MENDED


def test_an_imported_conversation_is_stored(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": BROKEN}, {"role": "assistant", "content": BROKEN, "tool_calls": CALLS}]
    messages.append({"role": "tool", "tool_call_id": "c1", "content": BROKEN})
    made = post(client, "/v1/sessions/import", {"messages": messages})
    assert made.status_code == 201, made.text
    assert stored(client, made.json()["id"]) == [MENDED] * 3


@pytest.mark.parametrize("broken", ["a\x00b", "a\ud800b"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sessions", {"metadata": {"BROKEN": 1}}),
        ("/v1/sessions", {"metadata": {"label": "BROKEN"}}),
        ("/v1/sessions", {"mode": "BROKEN"}),
        (
            "/v1/chat/completions",
            {"model": "offline", "messages": [{"role": "user", "content": "a", "name": "BROKEN"}]},
        ),
        (
            "/v1/chat/completions",
            {"model": "offline", "messages": [{"role": "tool", "content": "a", "tool_call_id": "BROKEN"}]},
        ),
        (
            "/v1/messages",
            {"model": "offline", "max_tokens": 9, "messages": [user({"type": "tool_result", "tool_use_id": "BROKEN"})]},
        ),
        ("/v1/responses", {"model": "offline", "input": [{"type": "item_reference", "id": "BROKEN"}]}),
        ("/v1/responses", {"model": "BROKEN", "input": "a"}),
    ],
)
def test_a_key_a_name_and_an_id_are_refused(client: httpx.Client, path: str, body: object, broken: str) -> None:
    content = json.dumps(body).replace("BROKEN", json.dumps(broken)[1:-1]).encode()
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert "has a NUL character or half a surrogate pair outside of text" in answer.text


def test_halves_are_looked_for_in_a_body_with_so_many_surrogates_and_no_more(client: httpx.Client) -> None:
    """Looking for them blocks all threads, and 4 MB can have 700,000."""
    path, headers = "/v1/sessions", {"content-type": "application/json"}
    for pairs, status in ((8_191, 201), (8_192, 422)):
        title = rb"\ud83d\ude00" * pairs + rb"\ud83d"
        answer = client.post(path, content=b'{"instructions": "%b"}' % title, headers=headers)
        assert answer.status_code == status, answer.text[:500]


SPOILED: list[tuple[str, Any]] = [
    ("/v1/sessions", {"metadata": {"input": {"a": "b"}, "content": ["c", {"k": "y"}]}, "instructions": "i"}),
    (
        "/v1/chat/completions",
        {
            "model": "offline",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "t", "more": "m"}], "name": "Anna"},
                {"role": "assistant", "content": "b", "reasoning_content": "r", "tool_calls": CALLS},
                {
                    "role": "tool",
                    "content": [{"type": "file", "file": {"filename": "f", "content": "c"}}],
                    "tool_call_id": "c1",
                },
            ],
            "tools": [*TOOLS, {"type": "custom", "custom": {"name": "g", "description": "d"}}],
            "metadata": {"text": "o"},
            "chat_template_kwargs": {"text": "a", "b": "c"},
        },
    ),
    (
        "/v1/messages",
        {
            "model": "offline",
            "max_tokens": 50,
            "system": [{"type": "text", "text": "s"}],
            "messages": [
                user(
                    {
                        "type": "document",
                        "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                        "title": "t",
                    }
                ),
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "t", "signature": "s"},
                        {"type": "tool_use", "id": "c", "name": "look_up", "input": {"k": {"l": ["v"]}}},
                    ],
                },
                user(result("c")),
            ],
            "tools": MESSAGES_TOOLS,
        },
    ),
    (
        "/v1/responses",
        {
            "model": "offline",
            "input": [
                {"role": "developer", "content": "d"},
                {"type": "reasoning", "content": [{"text": "r"}], "encrypted_content": "e"},
                {"type": "local_shell_call", "call_id": "e", "action": {"command": ["ls"], "env": {"A": "b"}}},
                {"type": "local_shell_call_output", "id": "e", "output": "o"},
            ],
            "tools": [{"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "s", "definition": "d"}}],
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"text": "x"}}},
            "metadata": {"text": "w"},
            "user": "u",
        },
    ),
]


def spoiled(body: Any) -> Iterator[object]:
    """Copies of the body with a NUL in one key or text each."""
    if isinstance(body, str):
        yield f"{body}\0"
    elif isinstance(body, list):
        items = cast("list[Any]", body)
        for at, item in enumerate(items):
            yield from ([*items[:at], each, *items[at + 1 :]] for each in spoiled(item))
    elif isinstance(body, dict):
        members = cast("dict[str, Any]", body)
        for name, member in members.items():
            yield {**members, f"{name}\0": member}
            yield from ({**members, name: each} for each in spoiled(member))


@pytest.mark.parametrize(("path", "body"), SPOILED, ids=[path for path, _ in SPOILED])
def test_a_nul_at_any_place_of_a_body_is_replaced_or_refused(client: httpx.Client, path: str, body: Any) -> None:
    assert post(client, path, body).is_success
    statuses: list[int] = []
    for each in spoiled(body):
        answer = post(client, path, each)
        assert answer.status_code < 500, (each, answer.text)
        statuses.append(answer.status_code)
    assert {200, 400} <= set(statuses) or {201, 422} <= set(statuses)
    for session in client.get("/v1/sessions", params={"limit": 200}).json()["items"]:
        for tail in ("", "/messages", "/turns", "/export"):
            assert client.get(f"/v1/sessions/{session['id']}{tail}").is_success
