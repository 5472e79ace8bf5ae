"""The replay on the real service, over a real database."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from typer.testing import CliRunner

from plimsoll_demo.cli import replay, replay_all
from plimsoll_demo.client import Service
from plimsoll_demo.demo import GOAL, WINDOW_TOKENS, message_that_cannot_fit, shipped_conversation, turn_of_interest
from plimsoll_demo.driver import ReplayOptions
from plimsoll_demo.figures import ReplayedSession, totals
from plimsoll_demo.message_sorter import conversation
from plimsoll_demo.recording import MISSING_RESULT
from tests.api.conftest import serving, settings_for


def test_the_shipped_conversation_is_summarized_and_what_cannot_fit_is_refused(database_url: str) -> None:
    conversation = shipped_conversation()
    options = ReplayOptions(window_tokens=WINDOW_TOKENS, room_goal=GOAL)
    with serving(settings_for(database_url)) as url, Service(url) as service:
        (session,) = replay_all(service, [conversation], options, Console(quiet=True), bars=False)
        refused = service.post_turn(session.session_id, {"content": message_that_cannot_fit()})
    summed = totals("all", [session])
    assert (summed.turns, summed.refusals, summed.rejected_requests) == (len(conversation.turns), 0, 0)
    assert not summed.failed
    assert summed.summaries >= 5
    assert summed.summarizer_tokens > 0
    assert summed.largest_prompt_budget_tokens == 13_312
    assert session.turns[-1].full_history_tokens > 2 * WINDOW_TOKENS
    assert (refused.status_code, refused.code) == (422, "context_budget_exceeded")
    assert refused.body["recovery"]["shorten"][0]["by_tokens"] == refused.body["budget"]["over_by"]


def test_the_shipped_conversation_is_pruned_where_the_last_turns_are_protected_whole(database_url: str) -> None:
    options = ReplayOptions(window_tokens=WINDOW_TOKENS, room_goal=GOAL, policy={"protected_share": None})
    with serving(settings_for(database_url)) as url, Service(url) as service:
        (session,) = replay_all(service, [shipped_conversation()], options, Console(quiet=True), bars=False)
        turn = turn_of_interest(session)
        assert turn is not None
        assert turn.turn_id is not None
        audit = service.audit(session.session_id, turn.turn_id)
    assert totals("all", [session]).prunes >= 1
    assert audit["prune_triggered"]
    assert audit["context_trim_log"]["actions"]


def test_until_something_is_compressed_the_full_history_is_exactly_what_was_sent(database_url: str) -> None:
    options = ReplayOptions(room_goal=GOAL, max_turns=8)
    with serving(settings_for(database_url)) as url, Service(url) as service:
        (session,) = replay_all(service, [shipped_conversation()], options, Console(quiet=True), bars=False)
    assert not any(turn.summary or turn.prune for turn in session.turns)
    assert [turn.full_history_tokens for turn, _ in session.sent] == [window.wire_tokens for _, window in session.sent]


def call(call_id: str, name: str = "look", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*made: dict[str, Any], text: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "tool_calls": list(made)}


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def replayed(
    database_url: str, talk: list[dict[str, Any]], *, window_tokens: int | None = None, recorded: bool = True
) -> tuple[ReplayedSession, list[list[dict[str, Any]]]]:
    """A conversation on the service: its figures, and the messages of the last prompt of each turn that sent one."""
    options = ReplayOptions(window_tokens=window_tokens, recorded=recorded)
    with serving(settings_for(database_url)) as url, Service(url) as service:
        (session,) = replay_all(service, [conversation("x", talk)], options, Console(quiet=True), bars=False)
        prompts = [service.prompt(session.session_id, str(turn.turn_id)) for turn in session.turns if turn.turn_id]
    summed = totals("all", [session])
    assert (summed.rejected_requests, summed.server_errors, summed.broken) == (0, 0, 0)
    assert summed.checked == summed.prompts
    return session, [list(prompt.body["messages"]) for prompt in prompts if prompt.status_code == 200]


def test_tool_rounds_are_sent_as_they_were_recorded(database_url: str) -> None:
    talk = [
        {"role": "system", "content": "Look things up."},
        user("where is it, and whose?"),
        calls(call("a"), call("b", "owner", '{"of": "it"}'), text="One moment."),
        result("b", "Ada's"),
        result("a", "in the drawer"),
        calls(call("a", "open")),
        result("a", ""),
        assistant("In the drawer; it is Ada's."),
        user("thank you"),
        assistant("You are welcome."),
    ]
    session, prompts = replayed(database_url, talk)
    in_order = [*talk[1:3], talk[4], talk[3], *talk[5:9]]
    assert prompts[1][1:] == in_order
    assert [len(turn.rounds) for turn in session.turns] == [3, 1]
    assert (session.left_out, session.mended) == ({}, {"ids_sent_again": 1})
    assert [turn.full_history_tokens for turn, _ in session.sent] == [window.wire_tokens for _, window in session.sent]


def test_live_sends_the_users_words_and_no_tools(database_url: str) -> None:
    talk = [user("where is it?"), calls(call("a")), result("a", "in the drawer"), assistant("There."), user("thanks")]
    session, prompts = replayed(database_url, talk, recorded=False)
    assert [message["role"] for message in prompts[1]] == ["user", "assistant", "user"]
    assert (session.left_out, session.mended) == ({"tool_calls": 1, "tool_results": 1}, {})


def test_what_a_recording_lacks_is_mended_reported_and_counted(database_url: str) -> None:
    talk = [
        user("two lookups, one never answered, and the assistant went on"),
        calls(call("a"), call("b")),
        result("a", "found"),
        assistant("Only one was found."),
        user("nobody wrote down the reply"),
        calls(call("c")),
        result("c", "found too"),
        user("and these tools never answered at all"),
        calls(call("d")),
        user("go on"),
        assistant("On."),
    ]
    session, prompts = replayed(database_url, talk)
    assert [turn.outcome for turn in session.turns] == ["completed", "completed", "cancelled", "completed"]
    assert session.mended == {"results_noted_as_missing": 1, "replies_by_the_model": 1, "turns_cancelled": 1}
    last = prompts[-1]
    assert [message["content"] for message in last if message["role"] == "tool"] == [
        "found",
        MISSING_RESULT,
        "found too",
    ]
    assert [message["content"] for message in last[-2:]] == [talk[7]["content"], "go on"]


def test_a_refused_round_rejects_its_turn_and_the_replay_goes_on_with_the_next(database_url: str) -> None:
    talk = [
        user("first"),
        assistant("1"),
        user("word " * 1_200),
        calls(call("a", arguments=json.dumps({"text": "word " * 1_500}))),
        result("a", "seen"),
        calls(call("b")),
        result("b", "seen"),
        assistant("done"),
        user("next"),
        assistant("2"),
        user("word " * 3_000),
    ]
    session, prompts = replayed(database_url, talk, window_tokens=4096)
    assert [turn.outcome for turn in session.turns] == ["completed", "refused", "completed", "refused"]
    assert [call.outcome for call in session.turns[1].rounds] == ["answered", "refused"]
    assert (session.left_out, session.mended) == ({"rounds_not_reached": 2}, {})
    assert [message["content"] for message in prompts[-1]] == ["first", "1", "next"]
    assert session.turns[2].full_history_tokens == session.sent[-1][1].wire_tokens


def test_a_long_tool_loop_in_a_small_window_sends_no_broken_prompt(database_url: str) -> None:
    talk: list[dict[str, Any]] = []
    for number in range(6):
        talk.append(user(f"walk through table {number}"))
        for row in range(5):
            talk += [calls(call(f"row_{row}", arguments=f'{{"row": {row}}}')), result(f"row_{row}", "value 17 " * 300)]
        talk.append(assistant(f"table {number} is read"))
    session, _ = replayed(database_url, talk, window_tokens=4096)
    summed = totals("all", [session])
    assert (summed.turns, summed.prompts, summed.refusals) == (6, 36, 0)
    assert summed.prunes > 10


def test_messages_without_replies_openings_and_tool_rounds_all_go_through(database_url: str, tmp_path: Path) -> None:
    talks: list[list[dict[str, Any]]] = [
        [assistant("Good morning."), user("Morning.")],
        [user("first"), user("second")],
        [user("where is it?"), calls(call("a")), result("a", "in the drawer"), assistant("In the drawer.")],
    ]
    path = tmp_path / "talks.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps({"messages": talk}) for talk in talks).encode()))
    command = typer.Typer()
    command.command()(replay)
    with serving(settings_for(database_url)) as url:
        ended = CliRunner().invoke(
            command, [str(path), "--url", url, "--window", "4096", "--session-per-line", "--json"]
        )
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    assert [session["totals"]["turns"] for session in found["sessions"]] == [2, 2, 1]
    assert all(turn["outcome"] == "completed" for session in found["sessions"] for turn in session["turns"])
    assert [session["totals"]["checked"] for session in found["sessions"]] == [2, 2, 2]
    assert found["total"]["faults"] == {}
