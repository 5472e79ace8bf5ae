"""The bench's own programs: the mock provider over real HTTP, the CPU clock of another process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from bench import programs
from bench.conversation import TOOL
from bench.cpu import cpu_seconds, of_tree, postmaster_pid
from bench.mock_provider import PIECE_GAP_S, PIECES
from tests.api.conftest import PATIENCE_S


async def until_listening(port: int) -> None:
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise AssertionError("the mock provider does not listen")


@pytest.mark.parametrize("padding", [0, 200_000], ids=["one read", "many reads"])
async def test_the_mock_provider_answers_on_one_connection_with_usage_and_a_text_of_its_own(
    tmp_path: Path, padding: int
) -> None:
    port = programs.free_port()
    async with programs.mock_provider(port, 0.0, tmp_path):
        await until_listening(port)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/v1/", timeout=PATIENCE_S) as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "hello" + "x" * padding}]}
            answers = [(await client.post("chat/completions", json=body)).json() for _ in range(2)]
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts[0] != texts[1]
    assert all(answer["usage"]["prompt_tokens"] > padding / 6 for answer in answers)


async def test_the_mock_provider_streams_words_apart_and_calls_the_tool_where_it_is_offered(tmp_path: Path) -> None:
    port = programs.free_port()
    asked = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    async with programs.mock_provider(port, 0.0, tmp_path):
        await until_listening(port)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/v1/", timeout=PATIENCE_S) as client:
            streamed = await client.post("chat/completions", json={**asked, "stream": True})
            called = (await client.post("chat/completions", json={**asked, "tools": [TOOL]})).json()
    events = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
    chunks = [json.loads(event) for event in events[:-1]]
    texts = [choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]]
    assert (len(texts), texts[-1], events[-1]) == (PIECES + 1, None, "[DONE]")
    assert streamed.elapsed.total_seconds() > PIECES * PIECE_GAP_S / 2
    assert chunks[-1]["usage"]["completion_tokens"] == PIECES
    (choice,) = called["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == [TOOL["function"]["name"]]


def test_cpu_time_rises_with_work_and_not_with_waiting() -> None:
    before = cpu_seconds(os.getpid())
    deadline = time.process_time() + 0.05
    while time.process_time() < deadline:
        pass
    assert cpu_seconds(os.getpid()) - before >= 0.04


def test_a_child_that_ends_between_its_listing_and_its_reading_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a backend of Postgres does."""
    children: Any = psutil.Process.children
    ended: list[int] = []

    def listed(process: psutil.Process, recursive: bool = False) -> Any:
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        found = children(process, recursive=recursive)
        child.communicate()
        ended.extend(each.pid for each in found if each.pid == child.pid)
        return found

    monkeypatch.setattr(psutil.Process, "children", listed)
    assert cpu_seconds(os.getpid()) > 0
    assert cpu_seconds(os.getpid(), without_postgres=True) > 0
    assert of_tree(os.getpid(), lambda process: process.memory_info().rss) > 0
    assert len(ended) == 3


def test_a_backend_that_is_no_child_of_a_postmaster_belongs_to_no_server_here() -> None:
    assert postmaster_pid(os.getpid()) is None
