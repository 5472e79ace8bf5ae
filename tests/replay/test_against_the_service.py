"""The replay on the real service, over a real database."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from typer.testing import CliRunner

from app.replay.cli import replay, replay_all
from app.replay.client import Service
from app.replay.demo import GOAL, WINDOW_TOKENS, message_that_cannot_fit, shipped_conversation, turn_of_interest
from app.replay.driver import ReplayOptions
from app.replay.figures import totals
from tests.api.conftest import serving, settings_for


def test_the_shipped_conversation_is_summarized_pruned_and_at_the_end_refused(database_url: str) -> None:
    conversation = shipped_conversation()
    options = ReplayOptions(window_tokens=WINDOW_TOKENS, room_goal=GOAL)
    with serving(settings_for(database_url)) as url, Service(url) as service:
        (session,) = replay_all(service, [conversation], options, Console(quiet=True), bars=False)
        turn = turn_of_interest(session)
        assert turn is not None
        assert turn.turn_id is not None
        audit = service.audit(session.session_id, turn.turn_id)
        refused = service.post_turn(session.session_id, {"content": message_that_cannot_fit()})
    summed = totals("all", [session])
    assert (summed.turns, summed.refusals, summed.rejected_requests) == (len(conversation.turns), 0, 0)
    assert not summed.failed
    assert summed.summaries >= 5
    assert summed.prunes >= 1
    assert summed.summarizer_tokens > 0
    assert summed.largest_prompt_budget_tokens == 13_312
    assert session.turns[-1].full_history_tokens > 2 * WINDOW_TOKENS
    assert audit["prune_triggered"]
    assert audit["context_trim_log"]["actions"]
    assert (refused.status_code, refused.code) == (422, "context_budget_exceeded")
    assert refused.body["recovery"]["shorten"][0]["by_tokens"] == refused.body["budget"]["over_by"]


def test_until_something_is_compressed_the_full_history_is_exactly_what_was_sent(database_url: str) -> None:
    options = ReplayOptions(room_goal=GOAL, max_turns=8)
    with serving(settings_for(database_url)) as url, Service(url) as service:
        (session,) = replay_all(service, [shipped_conversation()], options, Console(quiet=True), bars=False)
    assert not any(turn.summary or turn.prune for turn in session.turns)
    assert [turn.full_history_tokens for turn, _ in session.sent] == [window.wire_tokens for _, window in session.sent]


def test_messages_without_replies_openings_and_tool_rounds_all_go_through(database_url: str, tmp_path: Path) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    talks: list[list[dict[str, Any]]] = [
        [{"role": "assistant", "content": "Good morning."}, {"role": "user", "content": "Morning."}],
        [{"role": "user", "content": "first"}, {"role": "user", "content": "second"}],
        [
            {"role": "system", "content": "Look things up."},
            {"role": "user", "content": "where is it?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "in the drawer"},
            {"role": "assistant", "content": "In the drawer."},
        ],
    ]
    path = tmp_path / "talks.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps({"messages": talk}) for talk in talks).encode()))
    command = typer.Typer()
    command.command()(replay)
    with serving(settings_for(database_url)) as url:
        result = CliRunner().invoke(
            command, [str(path), "--url", url, "--window", "4096", "--session-per-line", "--json"]
        )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [session["totals"]["turns"] for session in found["sessions"]] == [2, 2, 1]
    assert all(turn["outcome"] == "completed" for session in found["sessions"] for turn in session["turns"])
    assert found["sessions"][2]["skipped"] == {"tool_calls": 1, "tool_results": 1}
