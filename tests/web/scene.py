"""A service with something to look at: the shipped conversation, a refusal, tools, and a few sessions beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
from rich.console import Console

from plimsoll_demo.cli import replay_all
from plimsoll_demo.client import Service
from plimsoll_demo.demo import GOAL, WINDOW_TOKENS, message_that_cannot_fit, shipped_conversation
from plimsoll_demo.driver import ReplayOptions
from tests.api.conftest import PATIENCE_S

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "read_ledger",
            "description": "Bookings of one night.",
            "parameters": {"type": "object", "properties": {"night": {"type": "string"}}},
        },
    }
]


def fill(origin: str, *, turns: int | None = None) -> str:
    """Plays the conversation, or its first turns, and one more that is refused; gives its session."""
    conversation = shipped_conversation()
    shown = replace(conversation, turns=conversation.turns[:turns])
    with Service(origin) as service:
        options = ReplayOptions(window_tokens=WINDOW_TOKENS, room_goal=GOAL)
        (played,) = replay_all(service, [shown], options, Console(quiet=True), bars=False)
        service.post_turn(played.session_id, {"content": message_that_cannot_fit()})
    return played.session_id


def neighbours(origin: str) -> None:
    """Sessions of other kinds, so that a list is one."""
    with httpx.Client(base_url=origin, timeout=PATIENCE_S, trust_env=False) as client:
        for fields, contents in (
            ({"room_goal": "Answer customers of the bakery", "policy": {"preset": "rolling"}}, ["When do you open?"]),
            ({"metadata": {"ticket": 4711}}, ["My parcel shows delivered, but it is not here.", "Since Tuesday."]),
            ({"policy": {"preset": "turn_atomic"}}, ["Draft the release notes."]),
        ):
            sid = client.post("/v1/sessions", json=fields).json()["id"]
            for content in contents:
                client.post(f"/v1/sessions/{sid}/turns", json={"content": content}).raise_for_status()
        sid = client.post("/v1/sessions", json={"room_goal": "Night shift of the ledger"}).json()["id"]
        calls = {
            "tool_calls": [{"id": "c1", "function": {"name": "read_ledger", "arguments": '{"night": "2024-03-18"}'}}]
        }
        body = {"content": "What was booked on the 18th?", "tools": TOOLS, "recorded_reply": calls}
        client.post(f"/v1/sessions/{sid}/turns", json=body).raise_for_status()
