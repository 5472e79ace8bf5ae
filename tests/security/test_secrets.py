"""Secrets are planted everywhere a secret can be, everything breaks, and then they are looked for at DEBUG."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
from uuid_utils.compat import uuid7

from app.db.sql import sql
from app.domain.types import TenantId
from app.services.keys import create_key
from tests.api.conftest import PATIENCE_S
from tests.commands import test_cli
from tests.pooling import own_database
from tests.providers.server import Answer, Play, Raw, Reset, Seen, Stream, serving
from tests.services.faulty_database import DatabaseFaults, faulty_database
from tests.services.service import chat, client_tools, is_summary, sound_summary

PLANTED = {
    "openai key": "sk-canary-openai-1a2b3c4d",
    "anthropic key": "canary-anthropic-5e6f7a8b",
    "database password": "canary-password-9c0d1e2f",
    "words of users": "canary-words-11111111",
    "tool output": "canary-output-22222222",
    "tool arguments": "canary-arguments-33333333",
    "instructions": "canary-instructions-44444444",
    "goal": "canary-goal-55555555",
    "pin": "canary-pin-66666666",
    "summary": "canary-summary-77777777",
    "reply": "canary-reply-88888888",
    "metadata": "canary-metadata-99999999",
}
_ALL = " ".join(PLANTED.values())
_FAULTS: tuple[Play, ...] = (
    Answer({"error": {"message": f"Incorrect API key provided: {_ALL}", "code": _ALL, "type": _ALL}}, status=401),
    Answer({"error": {"message": _ALL, "type": "invalid_request_error", "param": _ALL}}, status=400),
    Answer({"error": _ALL}, status=500),
    Answer({"detail": [{"msg": _ALL, "loc": [_ALL], "input": _ALL}]}, status=422),
    Answer(f"<html>{_ALL}</html>".encode(), status=403, content_type="text/html"),
    Answer(_ALL.encode(), content_type=f"text/{PLANTED['reply']}"),
    Answer({"choices": [{"message": {"content": {"x": _ALL}}}]}),
    Answer({"choices": [], "error": {"message": _ALL, "code": _ALL}}),
    Answer(_ALL.encode(), status=200),
    Answer(_ALL.encode(), status=500, headers={"retry-after": PLANTED["reply"]}),
    Answer(_ALL.encode(), status=200, cut_bytes=5),
    Answer(b"", status=307, headers={"location": f"http://127.0.0.1:1/{PLANTED['openai key']}"}),
    Raw(f"{_ALL}\r\n\r\n".encode()),
    Raw(f"HTTP/1.1 200 {_ALL}\r\n{_ALL}\r\n\r\n".encode()),
    Stream([f"data: {_ALL}\n\n".encode()]),
    Reset(),
)
_TOOLS = [{"type": "function", "function": {"name": "look_up"}}]


class _Model:
    """Answers soundly, with secrets in every field, until a fault is set."""

    def __init__(self) -> None:
        self.fault: Play | None = None
        self.fired = 0
        self.keys: set[str] = set()

    def __call__(self, request: Seen) -> Any:
        self.keys.add(request.headers.get("authorization", "") or request.headers.get("x-api-key", ""))
        if self.fault is not None:
            self.fired += 1
            return self.fault(request) if callable(self.fault) else self.fault
        if is_summary(request):
            summary = json.loads(sound_summary(request).body["choices"][0]["message"]["content"])
            return chat(json.dumps(summary | {"summary_text": PLANTED["summary"]}))
        if client_tools(request) and request.json["messages"][-1]["role"] == "user":
            call = {"name": "look_up", "arguments": json.dumps({"id": PLANTED["tool arguments"]})}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": call}],
            }
            return Answer({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
        return chat(PLANTED["reply"])


async def _keys(database_url: str) -> tuple[str, str]:
    database = own_database(database_url)
    try:
        made = [(await create_key(database, uuid7, TenantId(tenant), "k"))[1] for tenant in ("anna", "bert")]
    finally:
        await database.aclose()
    return made[0], made[1]


async def _refuse_words(database_url: str) -> None:
    """A row that the database refuses is quoted whole in its complaint."""
    database = own_database(database_url)
    try:
        async with database.autocommit() as tx:
            await tx.fetch(sql("ALTER TABLE sessions ADD CONSTRAINT no_words CHECK (room_goal IS NULL) NOT VALID"))
    finally:
        await database.aclose()


def _with_password(url: str) -> str:
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0].partition(":")[0] or "postgres"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"{user}:{PLANTED['database password']}@{host}", parts.path, "", ""))


@asynccontextmanager
async def _own_process(folder: Path, **settings: str) -> AsyncGenerator[str]:
    """`plimsoll serve`, and what it printed; the proxies that it talks to run in this loop meanwhile."""
    running = test_cli.serving(folder, **settings)
    _, printed = await asyncio.to_thread(running.__enter__)
    try:
        yield printed
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


async def test_no_secret_is_in_any_log_error_metric_or_trim_log_whatever_breaks(
    database_url: str, tmp_path: Path
) -> None:
    model = _Model()
    anna, bert = await _keys(database_url)
    answers: list[str] = []
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(model))
        proxied, faults = await stack.enter_async_context(faulty_database(database_url))
        models = tmp_path / "models.toml"
        models.write_text(
            'default = "main"\n'
            + "".join(
                f'[models.{alias}]\nprovider = "{provider}"\nmodel = "m"\nbase_url = "{server.base_url}"\n'
                f'context_window = 8192\ntimeout_s = {timeout_s}\napi_key_env = "{name}"\n'
                for alias, provider, name, timeout_s in (
                    ("main", "openai", "KEY_ONE", 60),
                    ("hasty", "openai", "KEY_ONE", 8),  # for faults, which may also end as late
                    ("other", "anthropic", "KEY_TWO", 8),
                )
            )
        )
        printed = await stack.enter_async_context(
            _own_process(
                tmp_path,
                DATABASE_URL=_with_password(proxied),
                MODELS_FILE=str(models),
                PLIMSOLL_LOG_LEVEL="DEBUG",
                KEY_ONE=PLANTED["openai key"],
                KEY_TWO=PLANTED["anthropic key"],
            )
        )
        answers.append(printed)
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=test_cli.address(printed),
                    headers={"authorization": f"Bearer {key}"},
                    timeout=PATIENCE_S,
                    trust_env=False,
                )
            )
            for key in (anna, bert)
        ]
        answers += await _everything_breaks(clients[0], model, faults, database_url)
        answers += await _what_others_see(clients[1], clients[0])
    log = (tmp_path / "log").read_text()
    lines = log.splitlines()
    assert any(json.loads(line).get("event") == "request_failed" for line in lines), "the broken row was not seen"
    assert sum(json.loads(line).get("status") == 503 for line in lines) >= 3
    assert {f"Bearer {PLANTED['openai key']}", PLANTED["anthropic key"]} <= model.keys, "the keys were never used"
    assert faults.fired > 0
    for name, secret in {**PLANTED, "anna's key": anna[4:], "bert's key": bert[4:]}.items():
        for place, where in {"the log": log, "an answer": "\n".join(answers)}.items():
            assert secret.lower() not in where.lower(), f"{name} is in {place}"


async def _first_summary(anna: httpx.AsyncClient, path: str) -> Any:
    """The session's summary, which may still be made behind an answer."""
    async with asyncio.timeout(PATIENCE_S):
        while not (items := (await anna.get(f"{path}/summaries")).json()["items"]):  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.05)
    return items[0]


async def _everything_breaks(
    anna: httpx.AsyncClient, model: _Model, faults: DatabaseFaults, database_url: str
) -> list[str]:
    """Plants, breaks, and gives every error's body and every trim log."""
    answers: list[str] = []
    words = PLANTED["words of users"]
    made = await anna.post(
        "/v1/sessions",
        json={
            "instructions": PLANTED["instructions"],
            "room_goal": PLANTED["goal"],
            "metadata": {PLANTED["metadata"]: PLANTED["metadata"]},
        },
    )
    path = f"/v1/sessions/{made.json()['id']}"
    await anna.put(f"{path}/pins/p", json={"content": PLANTED["pin"], "source": PLANTED["pin"]})
    for number in range(10):
        turn_in: dict[str, Any] = {"content": f"{number} {words} " + "ledger bank " * 60}
        if number == 2:
            turn_in["tools"] = _TOOLS
        answer = await anna.post(f"{path}/turns", json=turn_in)
        turn = answer.json()["turn"]
        if turn["status"] == "awaiting_tools":
            outputs = {"outputs": [{"tool_call_id": "c", "content": PLANTED["tool output"]}]}
            answer = await anna.post(f"{path}/turns/{turn['id']}/tool-outputs", json=outputs)
        assert answer.status_code == 201, answer.text
        answers.append(json.dumps(answer.json()["context"]))
        audit = await anna.get(f"{path}/turns/{turn['id']}/audit")
        assert audit.json()["context_trim_log"]
        answers.append(audit.text)
    assert (await _first_summary(anna, path))["summary_text"] == PLANTED["summary"]
    assert PLANTED["tool arguments"] in (await anna.get(f"{path}/export")).text
    asked = (("hasty", False), ("other", False), ("hasty", True))
    for number, fault in enumerate(_FAULTS):
        model.fault = fault
        alias, stream = asked[number % len(asked)]
        fired = model.fired
        answer = await anna.post(f"{path}/turns", json={"content": words, "model_alias": alias, "stream": stream})
        assert answer.status_code in {200, 201, 502, 504}
        assert model.fired > fired
        answers += [answer.text] if answer.status_code >= 500 else []
    answers.append((await anna.post(f"{path}/summaries")).headers["x-request-id"])
    faults.go_away()
    for method, address, body in (
        ("POST", f"{path}/turns", {"content": PLANTED["words of users"]}),
        ("GET", path, None),
        ("PUT", f"{path}/pins/q", {"content": PLANTED["pin"]}),
    ):
        answers.append((await anna.request(method, address, json=body)).text)
    answers.append((await anna.get("/readyz")).text)
    faults.come_back()
    await _refuse_words(database_url)
    broken = await anna.post("/v1/sessions", json={"room_goal": PLANTED["goal"]})
    assert (broken.status_code, broken.json()["code"]) == (500, "internal_error")
    return [*answers, broken.text]


async def _what_others_see(bert: httpx.AsyncClient, anna: httpx.AsyncClient) -> list[str]:
    """Metrics, the document, and what another tenant is told."""
    answers = [
        (await bert.get(path)).text for path in ("/metrics", "/openapi.json", "/healthz", "/readyz", "/v1/models")
    ]
    for item in (await anna.get("/v1/sessions")).json()["items"]:
        answers += [(await bert.get(f"/v1/sessions/{item['id']}{tail}")).text for tail in ("", "/turns", "/export")]
    return answers
