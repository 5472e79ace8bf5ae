"""The shipped conversation keeps what the demo needs of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from app.tokenizers.vocabularies import load_vocabulary
from plimsoll_demo.demo import WINDOW_TOKENS, message_that_cannot_fit, shipped_conversation


def test_the_shipped_conversation_is_long_enough_to_leave_the_window_more_than_twice() -> None:
    conversation = shipped_conversation()
    count = load_vocabulary("o200k_base").count
    tokens = sum(count(turn.prompt) + count(turn.reply or "") for turn in conversation.turns)
    assert len(conversation.turns) >= 60
    assert all(turn.reply for turn in conversation.turns)
    assert conversation.instructions
    assert 2 * WINDOW_TOKENS < tokens < 60_000


def test_the_message_that_cannot_fit_is_larger_than_the_window() -> None:
    assert load_vocabulary("o200k_base").count(message_that_cannot_fit()) > WINDOW_TOKENS


def test_the_demo_runs_on_a_service_of_its_own_and_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "COLUMNS": "80", "PYTHONPATH": os.pathsep.join(sys.path)}
    # A setting that would break the demo must not reach its service.
    environment |= {"DATABASE_URL": "postgresql://127.0.0.1:1/nowhere", "CONTEXT_PRUNE_TRIGGER_RATIO": "0.01"}
    command = [sys.executable, "-m", "plimsoll_demo.demo", "--picture", str(tmp_path / "window.svg")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "422 context_budget_exceeded" in ended.stdout
    assert "context_trim_log" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 80
    assert ended.stdout.count(" / 13,312") >= 68  # nothing of a turn's line is cut off
    assert [path.name for path in tmp_path.iterdir()] == ["window.svg"]
