"""`POST …/simulate` and `GET /v1/policies` over HTTP."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from uuid import uuid4

import httpx
import pytest

from app.engine.policy.policy import ContextPolicy
from app.services.views.simulation import MOST_WORK
from tests.api.conftest import assert_problem, new_session


@pytest.fixture
def sid(client: httpx.Client) -> str:
    """A session of three turns."""
    made = new_session(client)
    for number in range(3):
        assert client.post(f"/v1/sessions/{made}/turns", json={"content": f"Turn {number}"}).status_code == 201
    return made


def test_without_a_body_four_thresholds_stand_side_by_side(client: httpx.Client, sid: str) -> None:
    answer = client.post(f"/v1/sessions/{sid}/simulate")
    assert answer.status_code == 200, answer.text
    simulated = answer.json()
    assert [policy["name"] for policy in simulated["policies"]] == ["at 70 %", "at 80 %", "at 90 %", "at 95 %"]
    assert (simulated["turns"], simulated["stored_turns"], simulated["truncated"]) == (3, 3, False)
    for policy in simulated["policies"]:
        assert policy["per_turn"] == simulated["happened"]["per_turn"]
    assert "fallback" in simulated["summaries_from"]


def test_presets_overrides_and_models_are_taken_and_the_policy_is_answered_whole(
    client: httpx.Client, sid: str
) -> None:
    body = {
        "policies": ["rolling", {"name": "mine", "protected_turns": 2}, {}],
        "model_aliases": ["offline"],
        "max_turns": 2,
    }
    simulated = client.post(f"/v1/sessions/{sid}/simulate", json=body).json()
    assert [(p["name"], p["model_alias"]) for p in simulated["policies"]] == [
        ("rolling", "offline"),
        ("mine", "offline"),
        ("as the session has it", "offline"),
    ]
    assert simulated["policies"][0]["policy"]["incremental"] is True
    assert simulated["policies"][1]["policy"]["protected_turns"] == 2
    assert (simulated["turns"], simulated["truncated"]) == (2, True)
    assert [len(policy["per_turn"]) for policy in simulated["policies"]] == [2, 2, 2]


def test_many_policies_and_models_share_the_most_turns_of_a_request(client: httpx.Client, sid: str) -> None:
    body: dict[str, Any] = {"policies": [{}] * 8, "model_aliases": ["offline"] * 4, "max_turns": 3000}
    simulated = client.post(f"/v1/sessions/{sid}/simulate", json=body).json()
    assert len(simulated["policies"]) == 32
    assert MOST_WORK // 32 >= 3, "or these three turns would be cut"


WRONG: dict[str, object] = {
    "no policies": {"policies": []},
    "too many": {"policies": ["guarded"] * 9},
    "a number": {"policies": [5]},
    "null": {"policies": [None]},
    "a list": {"policies": [["guarded"]]},
    "text": {"policies": "guarded"},
    "unknown preset": {"policies": ["nobody"]},
    "unknown field": {"policies": [{"nonsense": 1}]},
    "impossible value": {"policies": [{"protected_turns": -1}]},
    "impossible pair": {"policies": [{"summary_trigger_ratio": 0.95}]},
    "unknown summarizer": {"policies": [{"summary_model": "nobody"}]},
    "a name of number": {"policies": [{"name": 5}]},
    "a long name": {"policies": [{"name": "x" * 81}]},
    "unknown alias": {"model_aliases": ["nobody"]},
    "no aliases": {"model_aliases": []},
    "too many aliases": {"model_aliases": ["offline"] * 5},
    "no turns": {"max_turns": 0},
    "too many turns": {"max_turns": 3001},
    "text for a number": {"max_turns": "5"},
    "unknown member": {"model_alias": "offline"},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_body_that_does_not_validate_is_refused_by_its_field(client: httpx.Client, sid: str, name: str) -> None:
    problem = assert_problem(client.post(f"/v1/sessions/{sid}/simulate", json=WRONG[name]), 422, "invalid_request")
    assert all(error["where"].startswith("body.") for error in problem["errors"])


def test_a_session_that_is_not_there_is_not_simulated(client: httpx.Client) -> None:
    assert_problem(client.post(f"/v1/sessions/{uuid4()}/simulate"), 404, "session_not_found")


@pytest.mark.parametrize("withdrawn", [slice(0, 2), slice(2, 4), slice(4, 6), slice(0, 6), slice(0, 6, 2)])
def test_turns_of_which_messages_were_removed_are_simulated(client: httpx.Client, sid: str, withdrawn: slice) -> None:
    items = f"/v1/conversations/conv_{sid.replace('-', '')}/items"
    for item in client.get(f"{items}?order=asc").json()["data"][withdrawn]:
        assert client.delete(f"{items}/{item['id']}").status_code == 200
    policies = ["guarded", "rolling", "turn_atomic", {"summarize_when": "both"}]
    simulated = client.post(f"/v1/sessions/{sid}/simulate", json={"policies": policies})
    assert simulated.status_code == 200, simulated.text
    for policy in simulated.json()["policies"]:
        assert [turn["seq"] for turn in policy["per_turn"]] == [1, 2, 3]


def test_every_preset_is_listed_with_every_field_and_can_be_posted_as_it_stands(client: httpx.Client) -> None:
    listed: dict[str, Any] = client.get("/v1/policies").json()
    names = [preset["name"] for preset in listed["presets"]]
    assert names == ["guarded", "post_turn", "rolling", "allocated", "turn_atomic"]
    of_the_engine = {field.name for field in fields(ContextPolicy)} - {"whole_past", "is_single"}
    assert {field["name"] for field in listed["fields"]} == of_the_engine
    for field in listed["fields"]:
        assert field["takes"]
        assert field["meaning"]
        assert field["value_schema"]["type"]
        assert field["defaults"] == {preset["name"]: preset["policy"][field["name"]] for preset in listed["presets"]}
    for preset in listed["presets"]:
        assert preset["description"]
        made = client.post("/v1/sessions", json={"policy": preset["policy"]})
        assert made.status_code == 201, made.text
