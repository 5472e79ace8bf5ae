"""Every list by time goes in both orders, by the same pages and cursors."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.conftest import assert_problem, new_session


def pages(client: httpx.Client, path: str, **query: Any) -> list[str]:
    """What tells the items of all pages apart, two a page."""
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        answer = client.get(path, params={"limit": 2, **query, **cursor})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += [str(item.get("seq", item.get("id"))) for item in page["items"]]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


@pytest.mark.parametrize(
    ("place", "default"),
    [("turns", "asc"), ("messages", "asc"), ("timeline", "desc"), ("summaries", "desc"), ("", "desc")],
    ids=["turns", "messages", "timeline", "summaries", "sessions"],
)
def test_a_list_runs_both_ways(client: httpx.Client, place: str, default: str) -> None:
    session_id = [new_session(client) for _ in range(5)][-1]
    for number in range(5):
        client.post(f"/v1/sessions/{session_id}/turns", json={"content": f"Message {number}"})
    path = f"/v1/sessions/{session_id}/{place}" if place else "/v1/sessions"
    if place == "summaries":
        assert pages(client, path, order="asc") == pages(client, path, order="desc") == []
        return
    oldest_first = pages(client, path, order="asc")
    assert len(set(oldest_first)) == (10 if place == "messages" else 5)
    assert pages(client, path, order="desc") == oldest_first[::-1]
    assert pages(client, path) == (oldest_first if default == "asc" else oldest_first[::-1])
    if place == "turns":
        assert pages(client, path, order="desc", from_seq=3) == oldest_first[:1:-1]


def test_a_cursor_goes_on_in_its_own_order_only(client: httpx.Client) -> None:
    session_id = new_session(client)
    for number in range(2):
        client.post(f"/v1/sessions/{session_id}/turns", json={"content": f"Message {number}"})
    path = f"/v1/sessions/{session_id}/turns"
    cursor = client.get(path, params={"limit": 1, "order": "desc"}).json()["next_cursor"]
    assert_problem(client.get(path, params={"cursor": cursor}), 422, "invalid_request")
    assert_problem(client.get("/v1/sessions", params={"order": "asc", "q": "x"}), 422, "invalid_request")
