"""`plimsoll simulate` as people meet it: a process, a database, tables or JSON."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from app.commands.simulate import read_policy, table
from app.domain.errors import OperatorError
from app.domain.types import JsonObject
from app.services.views.simulation import Variant
from tests.api.conftest import new_session
from tests.commands.test_cli import UNKNOWN_ID, plimsoll, refusal


def test_it_reads_the_database_of_the_settings_and_prints_a_column_for_each_policy(
    tmp_path: Path, database_url: str, client: httpx.Client
) -> None:
    ids = [new_session(client) for _ in range(2)]
    for session in ids:
        for number in range(10):
            client.post(f"/v1/sessions/{session}/turns", json={"content": f"Point {number} " + "word " * 60})
    done = plimsoll(tmp_path, "simulate", *ids, DATABASE_URL=database_url)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "a progress bar where nobody looks"
    for heading in ("what happened", "full history", "at 70 %", "at 95 %", "all 2 sessions", "user's words verbatim"):
        assert heading in done.stdout
    assert "1 (9)" in done.stdout
    done = plimsoll(tmp_path, "simulate", ids[0], "--policy", "[/b][red]:rocket:=rolling", DATABASE_URL=database_url)
    assert "[/b][red]:rocket:" in done.stdout, done.stderr

    asked = ("--policy", "rolling", "--policy", 'mine={"mandatory_summary_turn": 3}', "--model", "offline", "--json")
    done = plimsoll(tmp_path, "simulate", ids[0], *asked, DATABASE_URL=database_url)
    assert done.returncode == 0, done.stderr
    (simulated,) = json.loads(done.stdout)["sessions"]
    assert [(policy["name"], policy["model_alias"]) for policy in simulated["policies"]] == [
        ("rolling", "offline"),
        ("mine", "offline"),
    ]
    assert simulated["session_id"] == ids[0]
    assert simulated["policies"][1]["summaries"][0] < 9

    for wrong, output in (
        ((UNKNOWN_ID,), "the tenant default (--tenant) has no such session"),
        ((ids[0], "--tenant", "other"), f"the tenant other (--tenant) has no such session: {ids[0]}"),
        ((ids[0], "--policy", "nobody"), "preset"),
        ((ids[0], "--policy", "{bad"), "not JSON"),
        ((ids[0], "--model", "nobody"), "no model"),
    ):
        line = refusal(plimsoll(tmp_path, "simulate", *wrong, DATABASE_URL=database_url))
        assert output.lower() in line.lower()


def test_a_policy_is_read_as_a_preset_as_json_or_under_a_name() -> None:
    for text, variant in {
        "rolling": Variant("rolling", {"preset": "rolling"}),
        "mine=rolling": Variant("mine", {"preset": "rolling"}),
        '{"summary_model": "a=b"}': Variant('{"summary_model":"a=b"}', {"summary_model": "a=b"}),
        'mine={"protected_turns": 2}': Variant("mine", {"protected_turns": 2}),
    }.items():
        assert read_policy(text) == variant
    for wrong in ("mine={", '{"focus": "\\ud800"}', '{"focus":' * 10_000):
        with pytest.raises(OperatorError, match="this is not JSON"):
            read_policy(wrong)


def test_the_table_counts_cleared_inputs_of_tool_calls_as_shortened_messages(client: httpx.Client) -> None:
    session = client.post("/v1/sessions/import", json={"messages": _with_tools(12)}).json()["id"]
    rule = {"trigger_uses": 1, "keep": 1, "clear_inputs": True}
    body = {"policies": [{"mandatory_summary_turn": None, "clear_tool_results": rule}]}
    simulated = client.post(f"/v1/sessions/{session}/simulate", json=body).json()
    actions = simulated["policies"][0]["lost"]["actions"]
    shortened = [actions[kind]["targets"] for kind in ("tool_input_shortened", "tool_result_shortened")]
    assert min(shortened) > 0
    console = Console(width=200)
    with console.capture() as shown:
        console.print(table("one", [simulated]))
    (row,) = (line for line in shown.get().splitlines() if "messages shortened" in line)
    assert int(row.split()[-1]) == sum(shortened)


def _with_tools(turns: int) -> list[JsonObject]:
    messages: list[JsonObject] = []
    for number in range(turns):
        call = {"name": "look_up", "arguments": json.dumps({"text": f"order {number} " * 40})}
        messages += (
            {"role": "user", "content": f"What of order {number}?"},
            {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"paid {number} " * 40},
            {"role": "assistant", "content": "It is paid."},
        )
    return messages
