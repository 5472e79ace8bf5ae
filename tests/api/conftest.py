"""The real service on a real socket, over a real database."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import httpx
import pytest
import uvicorn

from app.core.config import Settings
from app.main import create_app
from app.services.views.turns import SentPrompt
from tests.pooling import behind_pooler

PATIENCE_S = 120
"""How long a client waits for an answer that must come: longer than a busy machine takes to start the process of an
import, for which the service itself waits for a minute."""
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For a client of http addresses, which reads all certificates of the machine otherwise: 20 ms of a test's 100."""


@contextmanager
def serving(settings: Settings) -> Generator[str]:
    """Runs the service in a thread and gives its address."""
    with running(
        uvicorn.Config(create_app(settings), port=0, log_config=None, access_log=False, lifespan="on")
    ) as port:
        yield f"http://127.0.0.1:{port}"


class _Server(uvicorn.Server):
    """Ends as soon as its requests have: uvicorn notices an end after 0.1 s, and gives it as long again, which would be
    most of a test's time."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:  # noqa: ASYNC110 - a signal or a thread sets it
            await asyncio.sleep(0.01)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is None, "it has bound its own"
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - uvicorn's sets
            await asyncio.sleep(0.01)
        await self.lifespan.shutdown()


@contextmanager
def running(config: uvicorn.Config) -> Generator[int]:
    """Runs a server in a thread and gives its port."""
    server = _Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server did not start in time"
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"


@pytest.fixture
def address(database_url: str) -> Iterator[str]:
    """A service over a fresh database."""
    with serving(settings_for(database_url)) as url:
        yield url


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    """A client with one connection, so that a broken one is noticed."""
    limits = httpx.Limits(max_connections=1)
    with httpx.Client(base_url=address, timeout=PATIENCE_S, limits=limits, trust_env=False, verify=NO_TLS) as client:
        yield client


def settings_for(database_url: str, **changes: Any) -> Settings:
    """Settings that no environment and no `.env` of this machine touches."""
    values: dict[str, Any] = {
        "database_url": database_url,
        "log_level": "ERROR",
        "db_pooler": "transaction" if behind_pooler() else "none",
        "max_body_bytes": 1024 * 1024,
        # What the next turn finds would go by how fast it comes; `tests/services/test_ahead.py` has them made.
        "summarize_ahead": False,
        **changes,
    }
    return Settings.model_construct(
        **(Settings.model_construct().model_dump() | Settings.model_validate(values).model_dump())
    )


def new_session(client: httpx.Client, **fields: Any) -> str:
    """The id of a new session."""
    answer = client.post("/v1/sessions", json=fields)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def until_heard(pieces: Iterator[str], mark: str, times: int = 1) -> str:
    """What has come of a stream once it holds the mark so often."""
    heard = next(pieces)
    while heard.count(mark) < times:
        heard += next(pieces)
    return heard


def assert_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The answer is this problem, whole and well-formed."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    problem = answer.json()
    assert problem["code"] == code
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert problem["type"].endswith(code)
    return problem


def as_sent(prompt: SentPrompt | dict[str, Any]) -> dict[str, Any]:
    """A prompt, or its answer, without the ids of its messages, which copies of them do not share."""
    answer = asdict(prompt) if isinstance(prompt, SentPrompt) else prompt
    ids = ("message_id", "turn_id")
    rows = [{name: value for name, value in row.items() if name not in ids} for row in answer["layout"]]
    return answer | {"layout": rows}
