"""The stream of what turns do: whose, whatever process runs them, and for how long."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from queue import Queue
from typing import Any
from uuid import UUID

import httpx

from app.domain.figures import TurnChange
from app.domain.types import SessionId, TenantId, TurnId, TurnStatus
from app.services.keys import revoke_key
from app.services.views import activity
from tests.api.conftest import PATIENCE_S, assert_problem, new_session, serving, settings_for
from tests.api.test_auth import client_of, make_key
from tests.api.test_timeline import say
from tests.pooling import own_database

HEARTBEAT_S = 1.0
"""The end of a stream that a thread still reads is seen by the service when it next writes."""
STREAM = {"Accept": "text/event-stream"}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
CALL = {"tool_calls": [{"id": "c1", "function": {"name": "look_up", "arguments": "{}"}}]}


class Heard:
    """What a stream has said so far; `next` waits for more."""

    def __init__(self) -> None:
        self._said: Queue[tuple[str, Any] | None] = Queue()

    def read(self, answer: httpx.Response) -> None:
        name = ""
        try:
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    self._said.put((name, json.loads(line.removeprefix("data: "))))
        except httpx.HTTPError:
            pass
        self._said.put(None)

    def next(self) -> tuple[str, Any] | None:
        return self._said.get(timeout=PATIENCE_S)

    def ended(self) -> tuple[int, str]:
        """Number and status of a turn that a change was reported of and that does not run; the poll may see it run."""
        while event := self.next():
            assert event[0] == "turn.changed"
            if event[1]["status"] != "running":
                return event[1]["seq"], event[1]["status"]
        raise AssertionError("the stream ended")


@contextmanager
def hearing(address: str, key: str | None = None) -> Generator[Heard]:
    """A stream that is read in a thread of its own until the block ends."""
    headers = STREAM | ({"Authorization": f"Bearer {key}"} if key else {})
    heard = Heard()
    with (
        httpx.Client(base_url=address, headers=headers, timeout=PATIENCE_S, trust_env=False) as client,
        client.stream("GET", "/v1/events") as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        reader = threading.Thread(target=heard.read, args=(answer,), daemon=True)
        reader.start()
        yield heard


def test_turns_of_any_process_are_reported_as_they_change_tool_rounds_included(database_url: str) -> None:
    settings = settings_for(database_url, heartbeat_s=HEARTBEAT_S)
    with (
        serving(settings) as here,
        serving(settings) as there,
        httpx.Client(base_url=there, timeout=PATIENCE_S) as client,
    ):
        sid = new_session(client)
        waiting = say(client, sid, "Look it up", tools=TOOLS, recorded_reply=CALL)["turn"]
        with hearing(here) as heard:
            ready = heard.next()
            assert ready is not None
            assert ready[0] == "stream.ready"
            assert [(turn["turn_id"], turn["status"]) for turn in ready[1]["open"]] == [
                (waiting["id"], "awaiting_tools")
            ]
            outputs = {"outputs": [{"tool_call_id": "c1", "content": "42"}]}
            client.post(f"/v1/sessions/{sid}/turns/{waiting['id']}/tool-outputs", json=outputs).raise_for_status()
            assert heard.ended() == (1, "completed")
            say(client, sid, "Thanks")
            assert heard.ended() == (2, "completed")


def test_a_tenant_gets_events_of_its_own_turns_only_and_a_revoked_key_of_none(database_url: str) -> None:
    (made, anna), (_, bert) = make_key(database_url, "anna"), make_key(database_url, "bert")
    with (
        serving(settings_for(database_url, heartbeat_s=HEARTBEAT_S)) as address,
        client_of(address, anna) as hers,
        client_of(address, bert) as his,
        hearing(address, anna) as heard,
    ):
        assert heard.next() == ("stream.ready", {"open": []})
        say(his, new_session(his), "Not for Anna")
        say(hers, new_session(hers), "For Anna")
        assert heard.ended() == (1, "completed")
        asyncio.run(_revoke(database_url, made.id))
        assert heard.next() is None


def test_without_the_accept_header_the_open_turns_are_a_plain_answer(client: httpx.Client) -> None:
    assert client.get("/v1/events").json() == {"items": [], "next_cursor": None}
    turn = say(client, new_session(client), "Look it up", tools=TOOLS, recorded_reply=CALL)["turn"]
    (item,) = client.get("/v1/events").json()["items"]
    assert (item["turn_id"], item["status"]) == (turn["id"], "awaiting_tools")


def test_a_process_serves_so_many_streams_and_refuses_one_more(database_url: str) -> None:
    with (
        serving(settings_for(database_url, max_event_streams=1, heartbeat_s=HEARTBEAT_S)) as address,
        hearing(address),
        httpx.Client(base_url=address, headers=STREAM, timeout=PATIENCE_S) as client,
    ):
        problem = client.get("/v1/events")
        assert_problem(problem, 503, "too_many_streams")
        assert problem.headers["retry-after"] == "30"


async def test_an_event_stream_client_that_does_not_read_gets_a_gap_and_delays_no_other() -> None:
    follower = activity.Follower(TenantId("t"))
    ids, began = (SessionId(UUID(int=1)), TurnId(UUID(int=2))), datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(1000):
        follower.deliver(TurnChange(*ids, number, TurnStatus.RUNNING, "offline", began, None))
    assert follower.missed
    assert follower.events.qsize() < 1000
    first = await activity.next_event(follower, 0.01)
    assert first is not None
    assert first.seq == 0


async def _revoke(database_url: str, key_id: UUID) -> None:
    database = own_database(database_url)
    try:
        await revoke_key(database, key_id)
    finally:
        await database.aclose()
