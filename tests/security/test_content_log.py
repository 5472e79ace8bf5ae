"""Content in the log: only where the deployment asks for it, one line each, bounded, and without a secret even then."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from app.services.turn.provider_call import MOST_CHARACTERS, MOST_CHARACTERS_OF_A_TEXT
from tests.api.conftest import PATIENCE_S
from tests.commands import test_cli
from tests.core.test_logging import FORGERIES
from tests.providers.server import Answer, Seen, Stream, serving
from tests.services.service import chat, client_tools, is_summary, sound_summary

WORDS = {
    "instructions": "canary-instructions",
    "a pin": "canary-pin",
    "the user": "canary-words",
    "a reply": "canary-reply",
    "a summary": "canary-summary",
    "tool arguments": "canary-arguments",
    "a tool": "canary-output",
    "a stream that broke": "canary-partial",
}
SECRETS = ("sk-hidden-1a2b3c", "plk_hidden4d5e6f", "tok-hidden-7a8b", "pässword-hidden")
SPOILED = f"{SECRETS[0]} {SECRETS[1]} Authorization: Bearer {SECRETS[2]} postgresql://user:{SECRETS[3]}@db/x"
TOOL = {"type": "function", "function": {"name": "look_up"}}


def _play(request: Seen) -> Answer | Stream:
    logged = str(request.json["messages"][-1]["content"])
    if is_summary(request):
        summary = json.loads(sound_summary(request).body["choices"][0]["message"]["content"])
        return chat(json.dumps(summary | {"summary_text": WORDS["a summary"]}))
    if "break off" in logged:
        chunk = {"choices": [{"index": 0, "delta": {"content": WORDS["a stream that broke"]}}]}
        return Stream([b"data: %b\n\n" % json.dumps(chunk).encode()], ending="cut")
    if client_tools(request) and request.json["messages"][-1]["role"] == "user":
        call = {"name": "look_up", "arguments": json.dumps({"id": WORDS["tool arguments"]})}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": call}],
        }
        return Answer({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    return chat(f"{WORDS['a reply']} {SPOILED} {FORGERIES[0]}")


def _talk(folder: Path, **settings: str) -> str:
    """A session in which everything is said; its id."""
    with (
        test_cli.serving(folder, **settings) as (_, printed),
        httpx.Client(base_url=test_cli.address(printed), timeout=PATIENCE_S) as client,
    ):
        session = client.post("/v1/sessions", json={"instructions": f"{WORDS['instructions']} {SPOILED}"}).json()["id"]
        path = f"/v1/sessions/{session}"
        client.put(f"{path}/pins/p", json={"content": WORDS["a pin"]})
        cut_in_two = ["x" * (MOST_CHARACTERS_OF_A_TEXT - 20 - at) + f" {SPOILED}" for at in (0, 10, 40, 60, 80)]
        for forged in (*FORGERIES, SPOILED, f"{SPOILED} " * 300, *cut_in_two):
            if not any("\ud800" <= letter <= "\udfff" or letter == "\x00" for letter in forged):
                answer = client.post(f"{path}/turns", json={"content": f"{WORDS['the user']} {forged}"})
                assert answer.status_code == 201, answer.text
        turn = client.post(f"{path}/turns", json={"content": "Look", "tools": [TOOL]}).json()["turn"]
        outputs = {"outputs": [{"tool_call_id": "c", "content": WORDS["a tool"]}]}
        assert client.post(f"{path}/turns/{turn['id']}/tool-outputs", json=outputs).status_code == 201
        broken = client.post(f"{path}/turns", json={"content": "break off", "stream": True})
        assert "turn.failed" in broken.text
    return session


async def _log_of(folder: Path, database_url: str, **settings: str) -> tuple[str, list[str]]:
    async with serving(_play) as server:
        models = folder / "models.toml"
        models.write_text(
            f'default = "main"\n[models.main]\nprovider = "openai"\nmodel = "m"\nbase_url = "{server.base_url}"\n'
            "context_window = 32768\n"
        )
        session = await asyncio.to_thread(_talk, folder, DATABASE_URL=database_url, MODELS_FILE=str(models), **settings)
    return session, (folder / "log").read_text().split("\n")


async def test_content_is_in_the_log_where_the_deployment_enables_it(database_url: str, tmp_path: Path) -> None:
    session, lines = await _log_of(tmp_path, database_url, PLIMSOLL_LOG_CONTENT="true")
    assert lines.pop() == ""
    assert all(line.isascii() and line.isprintable() for line in lines)
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert any(event["level"] == "warning" and "PLIMSOLL_LOG_CONTENT" in event["event"] for event in events)
    logged = [event for event in events if event["event"] in ("model_prompt", "model_reply")]
    text = "\n".join(json.dumps(event) for event in logged)
    for who, words in WORDS.items():
        assert words in text, who
    for secret in SECRETS:
        assert secret not in "\n".join(json.dumps(event, ensure_ascii=False) for event in events), secret
    for event in logged:
        assert event["session_id"] == session
        assert event["turn_id"]
        texts = [str(value) for message in event.get("messages", [event]) for value in message.values()]
        assert sum(map(len, texts)) < MOST_CHARACTERS + 1000
        assert max(map(len, texts)) < MOST_CHARACTERS_OF_A_TEXT + 100
    assert any(event.get("left_out") for event in logged), "no prompt was longer than a line may be"
    assert [event["event"] for event in logged[:2]] == ["model_prompt", "model_reply"]


async def test_no_content_is_in_the_log_otherwise(database_url: str, tmp_path: Path) -> None:
    _, lines = await _log_of(tmp_path, database_url, PLIMSOLL_LOG_LEVEL="DEBUG")
    log = "\n".join(lines)
    assert '"status":201' in log
    assert "model_prompt" not in log
    assert [who for who, words in WORDS.items() if words in log] == []
