"""What the pages about the client and `plimsoll mcp` show is true: programs run, tables are what the code has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

import plimsoll_sdk
from tests.api.conftest import PATIENCE_S, serving, settings_for
from tests.client.typescript import CLIENT as CLIENT_OF_NODE
from tests.client.typescript import NODE
from tests.commands.test_cli import PLIMSOLL, environment
from tests.docs.pages import ROOT, blocks, table

CLIENT = (ROOT / "clients" / "python" / "README.md").read_text()
MCP = (ROOT / "docs" / "mcp.md").read_text()
SAYS = ("tokens", "completed", "shorten user by", "offline responder")


def test_the_clients_first_example_has_ten_lines_of_code() -> None:
    assert len([line for line in blocks("python", CLIENT)[0].splitlines() if line]) <= 10


def test_every_program_of_the_clients_page_runs_and_says_what_it_is_for(database_url: str, tmp_path: Path) -> None:
    programs = blocks("python", CLIENT)
    assert len(programs) == len(SAYS)
    with serving(settings_for(database_url)) as address:
        for program, says in zip(programs, SAYS, strict=True):
            assert "http://127.0.0.1:8000" in program
            said = subprocess.run(
                [sys.executable, "-c", program.replace("http://127.0.0.1:8000", address)],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(Path(plimsoll_sdk.__file__).parents[1])},
                stdout=subprocess.PIPE,
                text=True,
                timeout=300,
                check=True,
            ).stdout
            assert says in said


def test_every_program_of_the_typescript_clients_page_runs_and_says_what_it_is_for(
    database_url: str, tmp_path: Path
) -> None:
    programs = blocks("ts", (CLIENT_OF_NODE / "README.md").read_text())
    assert len(programs) == len(SAYS)
    with serving(settings_for(database_url)) as address:
        for program, says in zip(programs, SAYS, strict=True):
            path = tmp_path / "program.ts"
            source = str(CLIENT_OF_NODE / "src" / "index.ts")
            path.write_text(program.replace("http://127.0.0.1:8000", address).replace("@plimsoll/sdk", source))
            done = subprocess.run([NODE, path], stdout=subprocess.PIPE, text=True, timeout=300, check=True)
            assert says in done.stdout


def test_what_is_sent_again_is_what_the_page_says() -> None:
    names = {name for cells in table("what came", CLIENT) for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    rules = (ROOT / "clients" / "python" / "plimsoll_sdk" / "retries.py").read_text()
    of_sessions = {"turn_in_progress", "session_busy", "idempotency_in_flight"}
    assert names == of_sessions | {"shutting_down", "worker_lost", "database_unavailable"}
    assert all(f'"{name}"' in rules for name in names)


@pytest.mark.parametrize("write", [False, True])
async def test_the_configuration_starts_a_server_with_the_tools_of_the_table(database_url: str, write: bool) -> None:
    shown = json.loads(blocks("json", MCP)[0])["mcpServers"]["plimsoll"]
    assert shown["command"] == "plimsoll"
    arguments = shown["args"] + ["--write"] * write
    listed = {name: "--write" in does for names, does in table("tool", MCP) for name in re.findall(r"`(\w+)`", names)}
    with serving(settings_for(database_url)) as address:
        settings = shown["env"] | {"PLIMSOLL_URL": address}
        command, *before = PLIMSOLL
        started = StdioServerParameters(command=command, args=[*before, *arguments], env=environment(**settings))
        async with Client(started, read_timeout_seconds=PATIENCE_S) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert tools == {name for name, wants_write in listed.items() if write or not wants_write}
            assert not (await client.call_tool("list_sessions", {})).is_error
