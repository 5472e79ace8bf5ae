"""The unmodified `openai` package for Node, at the same service as the Python one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

from tests.api.chatting import chat_service, say

HERE = Path(__file__).parent
_NO_NETWORK = ("ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT", "EAI_AGAIN", "ENETUNREACH", "ENOTCACHED")


def _skip(reason: str) -> None:
    warnings.filterwarnings("default", message="NOT TESTED")
    warnings.warn(f"NOT TESTED: the openai client for Node. {reason}", stacklevel=2)
    pytest.skip(reason)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program beside its installed package, of exactly the versions of the lock."""
    if not (shutil.which("node") and shutil.which("npm")):
        _skip("This machine has no Node.js with npm.")
    for name in ("package.json", "package-lock.json", ".npmrc", "client.mjs"):
        shutil.copy(HERE / name, tmp_path)
    made = subprocess.run(
        ["npm", "ci", "--no-progress"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    if made.returncode and any(sign in made.stderr for sign in _NO_NETWORK):
        _skip("npm can reach no registry from here.")
    assert made.returncode == 0, made.stderr
    return tmp_path / "client.mjs"


def test_the_client_for_node_sees_what_the_one_for_python_sees(
    database_url: str, tmp_path: Path, program: Path
) -> None:
    script = [say("Hello Anna."), say("You are Anna."), say("Looking.", "a", "b"), say(None, "c"), say("All paid.")]
    folder = tmp_path / "service"
    folder.mkdir()
    with chat_service(database_url, folder, *script) as at:
        environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        run = subprocess.run(
            ["node", str(program), at.address],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        saw = json.loads(run.stdout)
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
