"""Every problem that a request gets is counted by its code, whichever part of the service answers."""

from __future__ import annotations

import socket
from collections import Counter
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, cast

import httpx
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from app.api.connections import Connection, Connections
from app.api.problems import KINDS
from app.main import create_app
from tests.api.conftest import PATIENCE_S, new_session, running, settings_for
from tests.api.test_streaming import chunk, sse
from tests.providers.playing import threaded_serving

_OVERLOADED = b'data: {"error": {"message": "overloaded", "type": "server_error"}}\n\n'
_CHAT = {"model": "main", "messages": [{"role": "user", "content": "Hello"}]}
_MESSAGE = {**_CHAT, "max_tokens": 10}


def counted(client: httpx.Client) -> Counter[str]:
    """The problems that were counted so far, by code."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name == "problems_total":
                found[sample.labels["code"]] = int(sample.value)
    return found


def test_every_problem_is_counted_once_and_an_answer_is_none(database_url: str, tmp_path: Path) -> None:
    with threaded_serving(sse(chunk({"content": "Half an answer."}), _OVERLOADED, cut=True)) as model:
        (tmp_path / "models.toml").write_text(
            'default = "main"\n[models.main]\nprovider = "openai"\nmodel = "m"\ncontext_window = 4096\ntimeout_s = 60\n'
            f'base_url = "{model.base_url}"\n'
        )
        app = create_app(settings_for(database_url, models_file=tmp_path / "models.toml"))
        http = cast(Any, partial(Connection, Connections(100, 100)))
        with (
            running(uvicorn.Config(app, port=0, http=http, log_config=None, lifespan="on")) as port,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, trust_env=False) as client,
        ):
            before = counted(client)
            assert before.keys() == KINDS.keys(), "a rate sees a first problem only if its series was there before"
            session = new_session(client)
            assert counted(client) == before
            statuses = [
                client.get("/v1/sessions/none").status_code,
                client.post(f"/v1/sessions/{session}/turns", json={"words": 1}).status_code,
                client.post("/v1/chat/completions", json={"model": "main"}).status_code,
                client.post("/v1/messages", json={**_MESSAGE, "model": "none"}).status_code,
                client.get("/healthz", headers={"Host": "elsewhere.example"}).status_code,
                client.delete("/v1/models").status_code,
                client.post("/v1/sessions", content=bytes(2 * 1024 * 1024)).status_code,
                _status_of(port, b"this is not HTTP\r\n\r\n"),
                client.post(f"/v1/sessions/{session}/turns", json={"content": "Hi", "stream": True}).status_code,
                client.post("/v1/chat/completions", json={**_CHAT, "stream": True}).status_code,
                client.post("/v1/messages", json={**_MESSAGE, "stream": True}).status_code,
                client.post("/v1/responses", json={"model": "main", "input": "Hi", "stream": True}).status_code,
            ]
            assert statuses == [404, 422, 400, 404, 421, 405, 413, 400, 200, 200, 200, 200]
            expected = {
                "session_not_found": 1,
                "invalid_request": 2,
                "model_not_found": 1,
                "host_not_allowed": 1,
                "method_not_allowed": 1,
                "body_too_large": 1,
                "invalid_http": 1,
                "provider_error": 4,
            }
            gives_up_at = monotonic() + 10  # a stream is counted when it has ended, just after the client has its end
            while counted(client) - before != expected and monotonic() < gives_up_at:
                sleep(0.02)
            assert counted(client) - before == expected


def _status_of(port: int, request: bytes) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        return int(connection.recv(65_536).split(b" ", 2)[1])
