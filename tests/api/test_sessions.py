"""`/v1/sessions` over a real socket."""

from __future__ import annotations

from uuid import uuid4

import httpx

from tests.api.conftest import assert_problem, new_session


def test_a_session_without_a_body_runs_the_default_model(client: httpx.Client) -> None:
    answer = client.post("/v1/sessions")
    assert answer.status_code == 201
    session = answer.json()
    assert session["model_alias"] == "offline"
    assert session["policy"] == {}
    assert session["metadata"] == {}
    assert "tenant_id" not in session


def test_what_was_given_is_what_is_read(client: httpx.Client) -> None:
    fields = {
        "model_alias": "offline",
        "mode": "a mode",
        "agent_role": "a role",
        "room_goal": "Ship it — \U0001f6a2",
        "instructions": "Be short.",
        "policy": {"preset": "guarded", "protected_turns": 2},
        "metadata": {"a": [1, 2.5, None, "é"]},
    }
    session_id = new_session(client, **fields)
    session = client.get(f"/v1/sessions/{session_id}").json()
    assert {name: session[name] for name in fields} == fields
    assert session["created_at"].endswith("Z")


def test_the_list_runs_newest_first_and_pages_without_gap_or_repeat(client: httpx.Client) -> None:
    made = [new_session(client, metadata={"n": n}) for n in range(7)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = client.get("/v1/sessions", params={"limit": 3, **({"cursor": cursor} if cursor else {})}).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == made[::-1]


def test_a_patch_sets_what_it_names_and_nothing_else(client: httpx.Client) -> None:
    session_id = new_session(client, room_goal="old", instructions="keep", metadata={"a": 1})
    changed = client.patch(f"/v1/sessions/{session_id}", json={"room_goal": None, "metadata": {"b": 2}}).json()
    assert (changed["room_goal"], changed["instructions"], changed["metadata"]) == (None, "keep", {"b": 2})
    assert changed["updated_at"] > changed["created_at"]


def test_an_erased_session_is_gone_with_its_pins(client: httpx.Client) -> None:
    session_id = new_session(client)
    assert client.put(f"/v1/sessions/{session_id}/pins/a", json={"content": "x"}).status_code == 200
    assert client.delete(f"/v1/sessions/{session_id}").status_code == 204
    for path in ("", "/pins", "/pins/a", "/turns", "/context", "/summaries"):
        assert_problem(client.get(f"/v1/sessions/{session_id}{path}"), 404, "session_not_found")
    assert_problem(client.delete(f"/v1/sessions/{session_id}"), 404, "session_not_found")


WRONG_FIELDS: list[tuple[dict[str, object], str]] = [
    ({"model_alias": "nobody"}, "body.model_alias"),
    ({"model_alias": ""}, "body.model_alias"),
    ({"mode": 5}, "body.mode"),
    ({"mode": ""}, "body.mode"),
    ({"policy": {"preset": "nonsense"}}, "body.policy.preset"),
    ({"policy": {"nonsense": 1}}, "body.policy.nonsense"),
    ({"policy": {"summary_trigger_ratio": 7}}, "body.policy.summary_trigger_ratio"),
    ({"policy": {"summary_model": "nobody"}}, "body.policy.summary_model"),
    ({"policy": []}, "body.policy"),
    ({"metadata": "text"}, "body.metadata"),
    ({"metadata": {"a": "x" * 70_000}}, "body.metadata"),
    ({"modle_alias": "offline"}, "body.modle_alias"),
]


def test_a_field_that_cannot_work_is_named_and_nothing_is_stored(client: httpx.Client) -> None:
    kept = new_session(client)
    before = client.get("/v1/sessions").json()["items"]
    for body, where in WRONG_FIELDS:
        for answer in (client.post("/v1/sessions", json=body), client.patch(f"/v1/sessions/{kept}", json=body)):
            problem = assert_problem(answer, 422, "invalid_request")
            assert where in [error["where"] for error in problem["errors"]]
    assert client.get("/v1/sessions").json()["items"] == before
    assert [session["id"] for session in before] == [kept]


def test_a_cursor_that_this_list_never_gave_is_a_422(client: httpx.Client) -> None:
    for cursor in ("", "x", "AAAA", "é", "\x00", "A" * 5000, "=", "....", str(uuid4())):
        assert_problem(client.get("/v1/sessions", params={"cursor": cursor}), 422, "invalid_request")


def test_a_cursor_of_another_list_is_a_422(client: httpx.Client) -> None:
    session_id = new_session(client)
    new_session(client)
    cursor = client.get("/v1/sessions", params={"limit": 1}).json()["next_cursor"]
    assert cursor
    for path in ("pins", "turns", "summaries"):
        answer = client.get(f"/v1/sessions/{session_id}/{path}", params={"cursor": cursor})
        assert_problem(answer, 422, "invalid_request")


def test_a_limit_outside_its_range_is_a_422(client: httpx.Client) -> None:
    for limit in ("0", "-1", "201", "x", "", "1e3", "9" * 400, "\x00", "½"):
        assert_problem(client.get("/v1/sessions", params={"limit": limit}), 422, "invalid_request")
