"""A tenant who has everything a tenant can have, and another who would like to see it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.api.conftest import new_session, serving, settings_for
from tests.api.test_auth import client_of, make_key
from tests.security.routes import openai_places

SECRET = "canary-of-anna"
LONG = f"{SECRET} The reconciliation job compares ledger rows with bank lines. " * 12
CALL: dict[str, Any] = {"tool_calls": [{"id": "call-1", "function": {"name": "f", "arguments": "{}"}}]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f"}}]


@dataclass(frozen=True, slots=True)
class Owned:
    """A session, the ids of what is in it, and the cursors its lists gave out."""

    session_id: str
    turn_id: str
    summary_id: str | None
    cursors: dict[str, str]

    @property
    def places(self) -> dict[str, str]:
        return {
            "session_id": self.session_id,
            "turn_id": self.turn_id,
            "summary_id": self.summary_id or self.turn_id,
            "name": "p0",
            **openai_places(self.session_id),
        }


@dataclass(frozen=True, slots=True)
class Tenants:
    anna: httpx.Client
    bert: httpx.Client
    annas: tuple[Owned, ...]
    berts: Owned
    sessions_cursor: str


@contextmanager
def two_tenants(database_url: str) -> Generator[Tenants]:
    """A service with two keys. Anna has a session with a summary, one that waits for tools, one of a chat, and one of a
    response."""
    keys = [make_key(database_url, tenant)[1] for tenant in ("anna", "bert")]
    with ExitStack() as open_:
        address = open_.enter_context(serving(settings_for(database_url)))
        anna, bert = (open_.enter_context(client_of(address, key)) for key in keys)
        annas = (_talked(anna, SECRET), _waiting(anna, SECRET), _chatted(anna), _responded(anna))
        berts = _talked(bert, "bert", turns=2)
        cursor = anna.get("/v1/sessions?limit=1").json()["next_cursor"]
        yield Tenants(anna, bert, annas, berts, cursor)


def _talked(client: httpx.Client, words: str, turns: int = 10) -> Owned:
    session_id = new_session(client, room_goal=words, instructions=words, metadata={"of": words})
    path = f"/v1/sessions/{session_id}"
    for number in range(2):
        put = client.put(f"{path}/pins/p{number}", json={"content": words, "source": words})
        assert put.is_success
    turn_id = ""
    for number in range(turns):
        answer = client.post(
            f"{path}/turns", json={"content": f"{number} {LONG if turns > 2 else words}"}, headers=_key(number)
        )
        assert answer.status_code == 201, answer.text
        turn_id = answer.json()["turn"]["id"]
    if turns <= 2:
        return Owned(session_id, turn_id, None, {})
    assert client.post(f"{path}/summaries").status_code in {201, 409}
    summaries = client.get(f"{path}/summaries").json()["items"]
    cursors = {name: client.get(f"{path}/{name}?limit=1").json()["next_cursor"] for name in ("turns", "pins")}
    return Owned(session_id, turn_id, summaries[0]["id"], cursors)


def _waiting(client: httpx.Client, words: str) -> Owned:
    session_id = new_session(client, room_goal=words)
    body = {"content": words, "tools": TOOLS, "recorded_reply": CALL}
    answer = client.post(f"/v1/sessions/{session_id}/turns", json=body, headers=_key("waiting"))
    assert answer.json()["turn"]["status"] == "awaiting_tools", answer.text
    return Owned(session_id, answer.json()["turn"]["id"], None, {})


def _chatted(client: httpx.Client) -> Owned:
    answer = client.post("/v1/chat/completions", json=chat_body(SECRET), headers=_key("chat"))
    session_id = answer.headers["x-session-id"]
    turns = client.get(f"/v1/sessions/{session_id}/turns").json()["items"]
    return Owned(session_id, turns[0]["id"], None, {})


def _responded(client: httpx.Client) -> Owned:
    body = {"model": "offline", "input": SECRET, "metadata": {"of": SECRET}, "instructions": SECRET}
    answer = client.post("/v1/responses", json=body, headers=_key("response"))
    session_id = answer.headers["x-session-id"]
    assert answer.json()["id"] == openai_places(session_id)["response_id"]
    turns = client.get(f"/v1/sessions/{session_id}/turns").json()["items"]
    return Owned(session_id, turns[0]["id"], None, {})


def chat_body(words: str) -> dict[str, Any]:
    return {"model": "offline", "messages": [{"role": "user", "content": words}]}


def _key(name: object) -> dict[str, str]:
    return {"idempotency-key": f"annas-key-{name}"}
