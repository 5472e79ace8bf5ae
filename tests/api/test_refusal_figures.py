"""The figures of a turn that does not fit agree with each other in the error body of every wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.api.chatting import TOOLS, chat_service, say

LONG = "word " * 9_000


def test_the_figures_of_a_refusal_are_one_sum_on_every_wire(database_url: str, tmp_path: Path) -> None:
    many = [{**TOOLS[0]["function"], "name": f"tool_{at}", "description": "Looks it up. " * 40} for at in range(20)]
    tools = [{"type": "function", "function": tool} for tool in many]
    # What the provider reports has the estimates calibrated by the second request.
    with chat_service(database_url, tmp_path, say("Noted.", prompt_tokens=6_000)) as at:
        name = {"X-Session-Id": "refused"}
        said = [{"role": "user", "content": "word " * 2_000}]
        at.http.post("/v1/chat/completions", json={"model": "main", "messages": said}, headers=name).raise_for_status()
        message = {"role": "user", "content": LONG}
        session_id = at.http.get("/v1/sessions").json()["items"][0]["id"]
        bodies: dict[str, dict[str, Any]] = {
            f"/v1/sessions/{session_id}/turns": {"content": LONG, "tools": tools},
            "/v1/chat/completions": {"messages": [message], "tools": tools},
            "/v1/responses": {"input": LONG, "tools": [{"type": "function", **tool} for tool in many]},
            "/v1/messages": {
                "max_tokens": 100,
                "messages": [message],
                "tools": [
                    {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
                    for tool in many
                ],
            },
        }
        for path, body in bodies.items():
            model = {} if path.endswith("turns") else {"model": "main"}
            answer = at.http.post(path, json={**model, **body}, headers=name)
            assert answer.status_code in (400, 422), path
            refused = answer.json().get("error", answer.json())
            budget, regions = refused["budget"], refused["regions"]
            assert sum(regions.values()) == budget["estimated"], path
            assert budget["estimated"] - budget["input_budget"] == budget["over_by"] > 0, path
            assert regions["tools"] > 0, path
            (largest, *_) = refused["largest_items"]
            assert largest["tokens"] <= regions["user"] + 1, path
