"""docs/simulate.md is true: its table is what its example gives, and its body is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

from plimsoll_demo.client import Service
from plimsoll_demo.demo import GOAL, WINDOW_TOKENS, shipped_conversation
from plimsoll_demo.driver import ReplayOptions, replay_conversation
from tests.docs.pages import ROOT, blocks, table

PAGE = (ROOT / "docs" / "simulate.md").read_text()
ROWS: dict[str, Callable[[dict[str, Any]], str]] = {
    "prompt tokens sent": lambda figures: f"{figures['wire_tokens']:,}",
    "summaries": lambda figures: _count(figures, "summaries"),
    "tokens read for them": lambda figures: _of(figures, "summarizer_prompt_tokens"),
    "prunes": lambda figures: _count(figures, "prunes"),
    "turns summarized": lambda figures: _of(figures.get("lost", {}), "turns_folded"),
    "user's words verbatim": lambda figures: _percent(figures, "users_words_verbatim_mean"),
    "in the last prompt": lambda figures: _percent(figures, "users_words_verbatim_at_end"),
}


def test_the_pages_table_is_what_the_shipped_conversation_gives(address: str) -> None:
    with Service(address, key=None) as service:
        options = ReplayOptions(window_tokens=WINDOW_TOKENS, room_goal=GOAL, check_prompts=False)
        session = replay_conversation(service, shipped_conversation(), options, lambda _turn: None)
    simulated = httpx.post(f"{address}/v1/sessions/{session.session_id}/simulate", timeout=120).json()
    columns = [simulated["happened"], simulated["full_history"][0], *simulated["policies"]]
    rows = [(name, *(cell(figures) for figures in columns)) for name, cell in ROWS.items()]
    drawn = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    assert table("figure", PAGE) == rows, f"the table should be\n{drawn}"
    # A simulated summary uses its full cap, and so a threshold may be reached a turn earlier.
    assert abs(len(simulated["policies"][0]["summaries"]) - len(simulated["happened"]["summaries"])) <= 1


def test_the_pages_body_is_taken(client: httpx.Client) -> None:
    (body,) = blocks("json", PAGE)
    session = client.post("/v1/sessions", json={}).json()["id"]
    asked = json.loads(body) | {"model_aliases": ["offline"]}
    assert client.post(f"/v1/sessions/{session}/simulate", json=asked).status_code == 200


def _count(figures: dict[str, Any], name: str) -> str:
    return f"{len(figures[name])}" if name in figures else "-"


def _of(figures: dict[str, Any], name: str) -> str:
    return f"{figures[name]:,}" if name in figures else "-"


def _percent(figures: dict[str, Any], name: str) -> str:
    share = figures.get("lost", {}).get(name)
    return "-" if share is None else f"{share:.0%}"
