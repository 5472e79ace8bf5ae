"""`POST …/context/preview` over HTTP."""

from __future__ import annotations

from uuid import uuid4

import httpx
import pytest

from tests.api.conftest import assert_problem, new_session


def test_a_preview_is_answered_with_the_context_that_the_turn_then_has(client: httpx.Client) -> None:
    sid = new_session(client, room_goal="Ship it", instructions="Be brief.")
    body = {"content": "Hello, what do you keep?", "max_output_tokens": 50}
    for at in (1, 2):
        seen = client.post(f"/v1/sessions/{sid}/context/preview", json=body)
        assert seen.status_code == 200, seen.text
        turn = client.post(f"/v1/sessions/{sid}/turns", json=body).json()
        assert seen.json()["context"] == turn["context"]
        assert seen.json()["seq"] == turn["turn"]["seq"] == at
        sent = client.get(f"/v1/sessions/{sid}/turns/{turn['turn']['id']}/prompt").json()
        assert seen.json()["messages"] == sent["messages"]
    assert [turn["seq"] for turn in client.get(f"/v1/sessions/{sid}/turns").json()["items"]] == [1, 2]


def test_what_would_be_refused_is_a_200_with_the_problem_in_it(client: httpx.Client) -> None:
    sid = new_session(client)
    body = {"content": "word " * 5000, "policy": {"max_context_tokens": 2048}}
    answer = client.post(f"/v1/sessions/{sid}/context/preview", json=body)
    assert answer.status_code == 200
    seen = answer.json()
    assert seen["context"]["overflow_rejected"] is True
    assert seen["messages"] == []
    assert seen["refusal"]["code"] == "context_budget_exceeded"
    assert seen["refusal"]["status"] == 422
    assert seen["refusal"]["budget"]["over_by"] > 0
    sent = client.post(f"/v1/sessions/{sid}/turns", json={"content": "fits"})
    assert sent.status_code == 201, "the policy of a preview stayed"


@pytest.mark.parametrize(
    "policy", [5, [], "guarded", {"nonsense": 1}, {"protected_turns": -1}, {"summary_model": "nobody"}]
)
def test_a_policy_that_can_not_be_is_named_by_its_place(client: httpx.Client, policy: object) -> None:
    sid = new_session(client)
    answer = client.post(f"/v1/sessions/{sid}/context/preview", json={"content": "a", "policy": policy})
    problem = assert_problem(answer, 422, "invalid_request")
    assert problem["errors"][0]["where"].startswith("body.policy")


def test_a_session_that_is_not_there_has_no_preview(client: httpx.Client) -> None:
    answer = client.post(f"/v1/sessions/{uuid4()}/context/preview", json={"content": "a"})
    assert_problem(answer, 404, "session_not_found")
