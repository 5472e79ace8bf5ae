"""The unmodified packages of OpenAI and Anthropic for Node, at the same service as those for Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.api.chatting import chat_service, say

HERE = Path(__file__).parent
_NO_NETWORK = ("ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT", "EAI_AGAIN", "ENETUNREACH", "ENOTCACHED")


def _skip(reason: str) -> None:
    warnings.filterwarnings("default", message="NOT TESTED")
    warnings.warn(f"NOT TESTED: the clients for Node. {reason}", stacklevel=2)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs beside the packages that they use, of exactly the versions of the lock."""
    if not (shutil.which("node") and shutil.which("npm")):
        _skip("This machine has no Node.js with npm.")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json", ".npmrc", "client.mjs", "messages.mjs"):
        shutil.copy(HERE / name, folder)
    made = subprocess.run(
        ["npm", "ci", "--no-progress"], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    if made.returncode and any(sign in made.stderr for sign in _NO_NETWORK):
        _skip("npm can reach no registry from here.")
    assert made.returncode == 0, made.stderr
    return folder


def _run(program: Path, address: str) -> dict[str, Any]:
    """What the program saw."""
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    run = subprocess.run(
        ["node", str(program), address], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_the_client_for_node_sees_what_the_one_for_python_sees(
    database_url: str, tmp_path: Path, programs: Path
) -> None:
    script = [say("Hello Anna."), say("You are Anna."), say("Looking.", "a", "b"), say(None, "c"), say("All paid.")]
    with chat_service(database_url, tmp_path, *script) as at:
        saw = _run(programs / "client.mjs", at.address)
        assert (saw["first"], saw["retrieved"], saw["answer"], saw["calls"]) == (
            "Hello Anna.",
            "Hello Anna.",
            "All paid.",
            3,
        )
        assert saw["events"][:3] == ["response.created", "response.in_progress", "response.output_item.added"]
        assert saw["events"][-1] == "response.completed"
        assert saw["events"].count("response.output_text.delta") == 3
        assert saw["items"] == [
            "message",
            "message",
            "message",
            "function_call",
            "function_call",
            "function_call_output",
            "function_call_output",
            "function_call",
            "function_call_output",
            "message",
        ]
        assert saw["refused"] == {"status": 400, "code": "context_length_exceeded", "isBadRequest": True}
        assert saw["deleted"] is True
        assert at.model.hits == 5


def test_anthropics_client_for_node_stays_in_one_session_with_tools_and_streams(
    database_url: str, tmp_path: Path, programs: Path
) -> None:
    script = [say("Hello Anna."), say("Looking.", "a", "b"), say(None, "c"), say("All paid.")]
    with chat_service(database_url, tmp_path, *script) as at:
        saw = _run(programs / "messages.mjs", at.address)
        assert (saw["first"], saw["answer"], saw["calls"], saw["hasRequestId"]) == ("Hello Anna.", "All paid.", 3, True)
        assert saw["counted"] > 0
        assert len(set(saw["sessions"])) == 1
        assert len(at.turns(saw["sessions"][0])) == 2
        assert saw["refused"] == {"status": 400, "type": "invalid_request_error", "isBadRequest": True}
        assert at.model.hits == 4
