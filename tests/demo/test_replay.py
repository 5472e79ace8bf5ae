"""The command's promises, against a real HTTP server that speaks the contract's shapes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from plimsoll_demo.cli import EXIT_BROKEN_PROMISE, EXIT_UNUSABLE, replay
from plimsoll_demo.figures import PromptFigures
from plimsoll_demo.render import legend
from tests.demo.contract_server import Held, contract_server

TURNS = 12
WORDS = 10


def recording(path: Path, *, prompts: dict[int, str] | None = None) -> Path:
    """`TURNS` turns of `WORDS` words each way, with replaced prompts by turn number."""
    lines: list[dict[str, Any]] = [{"role": "system", "content": "five words of system text"}]
    for number in range(1, TURNS + 1):
        lines.append({"role": "user", "content": (prompts or {}).get(number, "word " * WORDS)})
        lines.append({"role": "assistant", "content": "reply " * WORDS})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def run(held: Held, path: Path, *options: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(replay)
    result = CliRunner().invoke(app, [str(path), "--url", held.url, *options], env={"COLUMNS": "80"})
    return result.exit_code, result.output


def reported(held: Held, path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    app = typer.Typer()
    app.command()(replay)
    result = CliRunner().invoke(app, [str(path), "--url", held.url, "--json", *options])
    return result.exit_code, json.loads(result.stdout)


def test_every_turn_is_posted_with_its_recorded_reply_and_the_session_has_window_and_instructions(
    tmp_path: Path,
) -> None:
    with contract_server() as held:
        code, _ = run(held, recording(tmp_path / "talk.jsonl"), "--window", "400", "--key", "k")
    assert code == 0
    (session,) = held.sessions.values()
    assert session["body"]["policy"] == {"max_context_tokens": 400}
    assert session["body"]["instructions"] == "five words of system text"
    assert [body["recorded_reply"]["content"] for body in held.turn_bodies] == ["reply " * WORDS] * TURNS
    assert set(held.authorizations) == {"Bearer k"}


def test_live_sends_no_recorded_reply(tmp_path: Path) -> None:
    with contract_server() as held:
        code, _ = run(held, recording(tmp_path / "talk.jsonl"), "--live")
    assert code == 0
    assert all("recorded_reply" not in body for body in held.turn_bodies)


def test_the_totals_are_the_sums_of_the_services_figures(tmp_path: Path) -> None:
    with contract_server() as held:
        code, found = reported(held, recording(tmp_path / "talk.jsonl"), "--window", "400")
    total = found["total"]
    turns = found["sessions"][0]["turns"]
    assert code == 0
    assert (total["turns"], total["refusals"], total["server_errors"], total["over_budget"]) == (TURNS, 0, 0, 0)
    calls = [call for turn in turns for call in turn["rounds"]]
    assert total["prompts"] == len(calls) == TURNS
    assert total["summaries"] == sum(call["summary"] for call in calls) >= 1
    assert total["sent_tokens"] == sum(call["window"]["wire_tokens"] for call in calls)
    assert total["summarizer_tokens"] == 12
    # By hand: 5 system + 20 for each earlier turn + 10 for the user + 3 for each of the 2k + 1 messages.
    assert [call["full_history_tokens"] for call in calls] == [5 + 20 * k + 10 + 3 * (2 * k + 1) for k in range(TURNS)]
    sent = total["sent_tokens"] + total["summarizer_tokens"]
    assert total["saved_ratio"] == pytest.approx(1 - sent / total["full_history_tokens"])


def test_a_refusal_is_counted_and_the_replay_goes_on(tmp_path: Path) -> None:
    path = recording(tmp_path / "talk.jsonl", prompts={3: "word " * 500})
    with contract_server() as held:
        code, found = reported(held, path, "--window", "400")
    assert code == 0
    assert found["total"]["refusals"] == 1
    assert [turn["outcome"] for turn in found["sessions"][0]["turns"]].count("completed") == TURNS - 1
    (refused,) = found["sessions"][0]["turns"][2]["rounds"]
    assert refused["window"]["input_tokens"] > refused["window"]["input_budget_tokens"]
    assert not refused["over_budget"]


def test_a_server_error_is_counted_and_fails_the_command(tmp_path: Path) -> None:
    with contract_server() as held:
        held.faults = {4: 502}
        code, found = reported(held, recording(tmp_path / "talk.jsonl"))
    assert held.fired == [4]
    assert code == EXIT_BROKEN_PROMISE
    assert (found["total"]["server_errors"], found["total"]["turns"]) == (1, TURNS)


def test_a_prompt_over_its_budget_fails_the_command(tmp_path: Path) -> None:
    with contract_server() as held:
        held.overshoot_tokens = 400
        code, found = reported(held, recording(tmp_path / "talk.jsonl"), "--window", "400")
    assert code == EXIT_BROKEN_PROMISE
    assert found["total"]["over_budget"] == TURNS


def orphan_a_result(prompt: dict[str, Any]) -> None:
    prompt["messages"].insert(0, {"role": "tool", "tool_call_id": "gone", "content": "seen"})


def leave_a_call_open(prompt: dict[str, Any]) -> None:
    prompt["messages"].insert(0, {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}, {"id": "b"}]})


def lose_the_users_words(prompt: dict[str, Any]) -> None:
    prompt["messages"] = [{"role": "user", "content": "something older"}]


def change_a_tool(prompt: dict[str, Any]) -> None:
    prompt["tools"] = [{"type": "function", "function": {"name": "other"}}]


@pytest.mark.parametrize(
    ("fault", "kind", "count"),
    [
        (orphan_a_result, "orphaned_results", 1),
        (leave_a_call_open, "unanswered_calls", 2),
        (lose_the_users_words, "no_user_message", 1),
        (change_a_tool, "not_verbatim", 1),
    ],
)
def test_a_broken_prompt_is_counted_and_fails_the_command(
    tmp_path: Path, fault: Callable[[dict[str, Any]], None], kind: str, count: int
) -> None:
    fired: list[str] = []

    def break_one(prompt: dict[str, Any]) -> None:
        if prompt["messages"][0]["content"] == "break this one":
            fired.append(kind)
            fault(prompt)

    path = recording(tmp_path / "talk.jsonl", prompts={3: "break this one"})
    with contract_server() as held:
        held.break_prompts = break_one
        code, found = reported(held, path)
        unread_code, unread = reported(held, path, "--no-check-prompts")
        table_code, table = run(held, path, "--quiet")
    assert fired == [kind, kind]
    assert (code, table_code, unread_code) == (EXIT_BROKEN_PROMISE, EXIT_BROKEN_PROMISE, 0)
    assert (found["total"]["checked"], found["total"]["broken"], found["total"]["faults"][kind]) == (TURNS, 1, count)
    assert (unread["total"]["checked"], unread["total"]["faults"]) == (0, {})
    assert "orphans" in table
    assert max(map(len, table.splitlines())) <= 80


def test_a_busy_session_is_called_again(tmp_path: Path) -> None:
    with contract_server() as held:
        held.faults = {2: 409, 3: 409}
        code, found = reported(held, recording(tmp_path / "talk.jsonl"))
    assert held.fired == [2, 3]
    assert code == 0
    assert len(held.turn_bodies) == TURNS + 2
    assert found["total"]["rejected_requests"] == 0


def test_why_turns_were_not_taken_is_listed_once_for_each_reason(tmp_path: Path) -> None:
    with contract_server() as held:
        held.faults = {2: 422, 3: 422, 5: 500}
        path = recording(tmp_path / "talk.jsonl")
        _, table = run(held, path, "--quiet")
        held.faults = {len(held.turn_bodies) + 2: 422}
        _, found = reported(held, path)
    lines = " ".join(table.split())
    assert "2 × 422 injected: Injected by the test." in lines
    assert "1 × 500 injected: Injected by the test." in lines
    assert found["sessions"][0]["turns"][1]["rounds"][0]["detail"] == "Injected by the test."


def test_a_service_that_does_not_answer_or_takes_no_key_is_reported_plainly(tmp_path: Path) -> None:
    path = recording(tmp_path / "talk.jsonl")
    with contract_server() as held:
        held.faults = {1: 401}
        code, said = run(held, path)
        assert (code, held.fired) == (EXIT_UNUSABLE, [1])
        assert "401" in said
    code, said = run(held, path)
    assert code == EXIT_UNUSABLE
    assert "does not answer" in said


@pytest.mark.parametrize(
    ("line", "arguments", "says"),
    [
        ("", ["--url", "foo"], "must begin with http"),
        ("", ["--key", "é"], "characters that no key has"),
        ("", ["--picture", "/nowhere/window.svg"], "/nowhere/window.svg"),
        (r'{"role": "user", "content": "\ud800"}', [], "talk.jsonl:1: is not JSON"),
    ],
)
def test_what_can_never_work_is_one_sentence_before_the_first_turn(
    tmp_path: Path, line: str, arguments: list[str], says: str
) -> None:
    path = recording(tmp_path / "talk.jsonl")
    if line:
        path.write_text(line)
    with contract_server() as held:
        code, said = run(held, path, *arguments)
    assert (code, held.turn_bodies) == (EXIT_UNUSABLE, [])
    assert says in said
    assert "Traceback" not in said


def test_the_services_address_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()
    app.command()(replay)
    with contract_server() as held:
        monkeypatch.setenv("PLIMSOLL_URL", held.url)
        ended = CliRunner().invoke(app, [str(recording(tmp_path / "talk.jsonl")), "--quiet"])
    assert ended.exit_code == 0
    assert len(held.turn_bodies) == TURNS


def test_each_line_is_a_row_and_the_last_row_is_their_sum(tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    talk = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]
    path.write_text("".join(json.dumps({"id": name, "messages": talk}) + "\n" for name in ("first", "second")))
    with contract_server() as held:
        code, found = reported(held, path, "--session-per-line")
        quiet_code, table = run(held, path, "--session-per-line", "--quiet")
    assert (code, quiet_code) == (0, 0)
    assert [session["name"] for session in found["sessions"]] == ["first", "second"]
    assert found["total"]["turns"] == 2
    assert all(word in table for word in ("first", "second", "total"))


def test_the_name_of_a_recording_is_shown_as_it_is(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day."}]
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps({"id": each, "messages": messages}) + "\n" for each in ("[/b]", ":+1:")))
    with contract_server() as held:
        code, printed = run(held, path, "--session-per-line")
    assert code == 0, printed
    assert printed.count("[/b]") == printed.count(":+1:") == 2


def test_every_line_fits_100_columns_and_reads_without_colour(tmp_path: Path) -> None:
    path = recording(tmp_path / "talk.jsonl", prompts={3: "word " * 500})
    with contract_server() as held:
        _, output = run(held, path, "--window", "300")
    lines = output.splitlines()
    assert max(map(len, lines)) <= 100
    bars = [line for line in lines if "│" in line]
    assert len(bars) == TURNS
    assert any(line.rstrip().endswith("S") for line in bars)
    assert [line.rstrip().endswith("X") for line in bars].index(True) == 2
    assert all(line.index("s") < line.index("u") for line in bars)


def test_the_picture_is_well_formed_and_marks_what_happened(tmp_path: Path) -> None:
    path = recording(tmp_path / "talk.jsonl", prompts={3: "word " * 500})
    with contract_server() as held:
        code, _ = run(held, path, "--window", "300", "--picture", str(tmp_path / "window.svg"))
    assert code == 0
    picture = ET.fromstring((tmp_path / "window.svg").read_text(encoding="utf-8"))  # noqa: S314 - written by ourselves
    texts = ["".join(element.itertext()) for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "input budget 210" in texts
    assert {"S", "X"} <= set(texts)
    assert not any(element.get("href") for element in picture.iter())


def test_what_the_reserve_pays_for_is_not_drawn_against_the_budget() -> None:
    window = PromptFigures(1000, 700, 200, 100, {"user": 50, "tools": 90, "framing": 40}, 180, 80, 80, 80)
    counted = window.input_regions()
    assert (counted["framing"], counted["tools"], counted["user"]) == (0, 30, 50)
    assert sum(counted.values()) == window.input_tokens


def test_the_legend_fits_100_columns() -> None:
    assert max(map(len, legend().plain.splitlines())) <= 100
