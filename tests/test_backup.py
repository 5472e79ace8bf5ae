"""The commands of docs/operations.md, run as they stand there: a dump of a busy database, and a service on its copy."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from uuid_utils.compat import uuid7

import app
from app.domain.types import SessionId, SessionRef, TenantId
from app.services.keys import create_key
from app.services.limits import set_limits
from app.services.turn.claim import claim_drafted, draft_turn
from app.services.turn.types import TurnOptions, TurnRequest
from migrations import drift
from tests.api.conftest import PATIENCE_S, serving, settings_for
from tests.commands.test_cli import OURS
from tests.docs.pages import ROOT, blocks
from tests.services.service import service

_AND_AFTER = (ROOT / "docs" / "operations.md").read_text().partition("\n## Backup and restore\n")[2]
DUMP, RESTORE, PROGRAMS = blocks("sh", _AND_AFTER.partition("\n## ")[0])
TENANT = TenantId("acme")
LEASE_S = 3.0
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = {
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
}
WORDS = "Das Prüfprogramm vergleicht Buchungen mit Kontoauszügen: \u4f1a\u8ba1 🧾. "


def run(folder: Path, commands: str, **settings: str) -> None:
    """A block of the page, where the set-up is done and with the embedded Postgres's programs."""
    programs = {
        "python": f"exec '{sys.executable}' \"$@\"",
        "plimsoll": f"exec '{sys.executable}' -c 'from app.cli import main; main()' \"$@\"",
    }
    (folder / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
    for name, command in programs.items():
        script = folder / ".venv" / "bin" / name
        script.write_text(f"#!/bin/sh\n{command}\n")
        script.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith((*OURS, "PG"))}
    paths = {
        "PYTHONPATH": str(Path(app.__file__).parents[1]),
        "PATH": f"{folder / '.venv' / 'bin'}:{kept['PATH']}",
    }
    done = subprocess.run(
        ["sh", "-ec", f"{PROGRAMS}\n{commands}"],
        cwd=folder,
        env=kept | paths | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def client_of(database_url: str, key: str) -> Generator[httpx.Client]:
    with (
        serving(settings_for(database_url, turn_lease_s=LEASE_S)) as address,
        httpx.Client(
            base_url=address, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S, trust_env=False
        ) as client,
    ):
        yield client


def fill(client: httpx.Client) -> list[str]:
    """Sessions with all that a session can have; their ids."""

    def session(**fields: Any) -> str:
        return client.post("/v1/sessions", json=fields).json()["id"]

    def post(path: str, expected: int = 201, **body: Any) -> dict[str, Any]:
        answer = client.post(path, json=body)
        assert answer.status_code == expected, answer.text
        return answer.json()

    long = session(room_goal="Abgleich", instructions="Kurz.", limits={"turns_total": 100}, metadata={"größe": 1})
    client.put(f"/v1/sessions/{long}/pins/port", json={"content": "Der Port ist 8443.", "relevance": 0.5})
    turns = [post(f"/v1/sessions/{long}/turns", content=f"{number}. {WORDS * 12}")["turn"] for number in range(12)]
    post(f"/v1/sessions/{long}/turns", 422, content="word " * 20_000)
    waiting = session(policy={"preset": "rolling"})
    post(f"/v1/sessions/{waiting}/turns", content="Look", tools=[TOOL], recorded_reply=CALL)
    fork = post(f"/v1/sessions/{long}/fork", through_turn_id=turns[-1]["id"])["id"]
    summary = client.get(f"/v1/sessions/{long}/summaries").json()["items"][0]
    assert summary["status"] == "active"
    undone = post(f"/v1/sessions/{long}/fork", through_turn_id=turns[-1]["id"])["id"]
    active = client.get(f"/v1/sessions/{undone}/summaries").json()["items"][0]["id"]
    post(f"/v1/sessions/{undone}/summaries/{active}/undo", 200)
    return [long, waiting, fork, undone]


def all_of(client: httpx.Client, session_id: str) -> dict[str, Any]:
    """All that routes say of a session, the prompts that were sent included."""
    base = f"/v1/sessions/{session_id}"
    turns = client.get(f"{base}/turns?limit=200").json()["items"]
    sent = [f"{base}/turns/{turn['id']}/{what}" for turn in turns for what in ("audit", "prompt")]
    paths = [base, f"{base}/export", f"{base}/summaries", f"{base}/pins", f"{base}/context", *sent]
    answers = {path: client.get(path) for path in paths}
    assert {answer.status_code for answer in answers.values()} <= {200, 404}
    return {path: answer.json() for path, answer in answers.items()}


@contextmanager
def busy(client: httpx.Client) -> Generator[str]:
    """A session that is posted to all the while."""
    session_id = client.post("/v1/sessions", json={}).json()["id"]
    stop, posted = threading.Event(), threading.Event()

    def talk() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            answer = client.post(f"/v1/sessions/{session_id}/turns", json={"content": f"Point {number}"})
            assert answer.status_code == 201
            posted.set()

    thread = threading.Thread(target=talk)
    thread.start()
    assert posted.wait(PATIENCE_S)
    try:
        yield session_id
    finally:
        stop.set()
        thread.join()


async def _key_and_limit(database_url: str) -> str:
    async with service(database_url) as at:
        await set_limits(at.rt.database, TENANT, {"turns_total": Decimal(1000)})
        return (await create_key(at.rt.database, uuid7, TENANT, "first"))[1]


async def _left_running(database_url: str, session_id: str) -> None:
    """A turn whose worker is at it when the dump is taken."""
    async with service(database_url, lease_s=LEASE_S) as at:
        draft = await draft_turn(at.rt, TurnRequest(content="Half way", request_sha256="x"), None)
        await claim_drafted(at.rt, SessionRef(TENANT, SessionId(UUID(session_id))), draft, TurnOptions())


def test_a_service_on_a_restored_dump_of_a_busy_database_answers_the_same(
    tmp_path: Path, database_url: str, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = asyncio.run(_key_and_limit(database_url))
    with client_of(database_url, key) as client:
        sessions = fill(client)
        half_way = client.post("/v1/sessions", json={}).json()["id"]
        with busy(client) as talking:
            asyncio.run(_left_running(database_url, half_way))
            run(tmp_path, DUMP, DATABASE_URL=database_url)
        before = {session: all_of(client, session) for session in sessions}
        talked = all_of(client, talking)[f"/v1/sessions/{talking}/export"]["turns"]
        run(tmp_path, RESTORE, DATABASE_URL=database_url, RESTORED_URL=empty_database_url)

        with client_of(empty_database_url, key) as restored:
            assert {session: all_of(restored, session) for session in sessions} == before
            found = restored.get(f"/v1/sessions/{talking}/turns?limit=200").json()["items"]
            assert 0 < len(found) < len(talked), "nothing was posted around the dump"
            for session in sessions[2:]:
                body = {"content": "And now?"}
                preview = restored.post(f"/v1/sessions/{session}/context/preview", json=body).json()
                answers = [at.post(f"/v1/sessions/{session}/turns", json=body).json() for at in (client, restored)]
                hashes = {answer["context"]["prompt_sha256"] for answer in answers}
                assert hashes == {preview["context"]["prompt_sha256"]}
                assert {answer["turn"]["status"] for answer in answers} == {"completed"}
            assert restored.get(f"/v1/sessions/{sessions[0]}", headers={"authorization": "Bearer plk_no"}).is_error
            _ends_as_lost(restored, half_way)
    monkeypatch.setattr(sys, "argv", ["drift", empty_database_url])
    assert drift.main() == 0


def _ends_as_lost(client: httpx.Client, session_id: str) -> None:
    """The turn that ran when the dump was taken gives way to the next one once its lease is over."""
    deadline = time.monotonic() + 60 + LEASE_S
    while (answer := client.post(f"/v1/sessions/{session_id}/turns", json={"content": "Next"})).status_code == 409:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert answer.status_code == 201, answer.text
    first, second = client.get(f"/v1/sessions/{session_id}/turns").json()["items"]
    assert (first["status"], first["error"]["code"], second["status"]) == ("failed", "worker_lost", "completed")
