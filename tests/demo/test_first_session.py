"""The session that a service begins with shows what it is meant to show."""

from __future__ import annotations

import re
from typing import Any

import orjson

from plimsoll_demo.conversations import first_session
from plimsoll_demo.first_session import METADATA, first_conversation
from tests.docs.pages import ROOT

GUIDE = (ROOT / "apps" / "web" / "src" / "pages" / "guide.tsx").read_text()
DOCUMENT: dict[str, Any] = orjson.loads(first_session())
TURNS = {turn["id"]: turn for turn in DOCUMENT["turns"]}


def of_user(words: str) -> Any:
    (found,) = (message for message in DOCUMENT["messages"] if message["role"] == "user" and words in str(message))
    return found


def test_it_is_the_recorded_conversation_with_its_tools() -> None:
    assert [turn["user_input"] for turn in DOCUMENT["turns"]] == [turn.prompt for turn in first_conversation().turns]
    assert {turn["status"] for turn in DOCUMENT["turns"]} == {"completed"}
    assert len(TURNS) > 100
    assert sum(message["role"] == "tool" for message in DOCUMENT["messages"]) == 10


def test_its_window_fills_and_is_summarized_again_and_again() -> None:
    assert sum(audit["summary_triggered"] for audit in DOCUMENT["audits"]) > 10
    assert len(DOCUMENT["summaries"]) > 10


def test_the_guide_leads_to_the_turns_where_that_happens() -> None:
    assert DOCUMENT["session"]["metadata"] == METADATA
    steps = [int(turn) for turn in re.findall(r"^    turn: (\d+),$", GUIDE, re.MULTILINE)]
    first_summary = next(audit["turn_id"] for audit in DOCUMENT["audits"] if audit["summary_triggered"])
    summarized = TURNS[first_summary]["seq"]
    assert steps == [summarized - 1, summarized, TURNS[of_user("Who had a spare?")["turn_id"]]["seq"]]


def test_a_fact_of_the_third_turn_comes_back_when_it_is_needed() -> None:
    asked = of_user("Who had a spare?")["turn_id"]
    (audit,) = (audit for audit in DOCUMENT["audits"] if audit["turn_id"] == asked)
    recalled = {item["message_id"] for item in audit["context_trim_log"]["recalled"]}
    assert of_user("A spare key of the shop is with Mr. Okafor")["id"] in recalled
    assert TURNS[asked]["seq"] > 100
    assert "2B" in TURNS[asked]["assistant_output"]
