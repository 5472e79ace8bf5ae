"""`/v1/sessions/{sid}/turns` over a real socket, against the built-in offline model."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.chatting import TOOLS, chat_service, say
from tests.api.conftest import PATIENCE_S, assert_problem, new_session, serving, settings_for
from tests.api.messaging import said
from tests.providers.wires import ANTHROPIC, ModelReply

REGIONS = {"system", "goal", "pins", "summary", "history", "recall", "user", "tools", "framing"}


def test_a_turn_answers_with_itself_and_how_its_context_came_about(client: httpx.Client) -> None:
    session_id = new_session(client, room_goal="Ship it.")
    answer = client.post(f"/v1/sessions/{session_id}/turns", json={"content": "Hello"})
    assert answer.status_code == 201
    turn, context = answer.json()["turn"], answer.json()["context"]
    assert (turn["seq"], turn["status"], turn["user_input"]) == (1, "completed", "Hello")
    assert turn["assistant_output"]
    assert set(context["regions"]) == REGIONS
    assert sum(context["regions"].values()) == context["estimated_wire_tokens"]
    assert client.get(f"/v1/sessions/{session_id}/turns/{turn['id']}").json() == turn
    listed = turn | {"name": None, "said_at": turn["created_at"]}
    assert client.get(f"/v1/sessions/{session_id}/turns").json() == {"items": [listed], "next_cursor": None}


def test_the_prompt_of_a_turn_hashes_to_what_its_audit_says(client: httpx.Client) -> None:
    session_id = new_session(client, instructions="Be brief.")
    turn_id = client.post(f"/v1/sessions/{session_id}/turns", json={"content": "Hello"}).json()["turn"]["id"]
    path = f"/v1/sessions/{session_id}/turns/{turn_id}"
    prompt, audit = client.get(f"{path}/prompt").json(), client.get(f"{path}/audit").json()
    sent = {"messages": prompt["messages"], "tools": prompt["tools"]}
    text = json.dumps(sent, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == prompt["prompt_sha256"] == audit["prompt_sha256"]
    assert_problem(client.get(f"{path}/audit?round=9"), 404, "audit_not_found")
    assert_problem(client.get(f"{path}/prompt?round=9"), 404, "prompt_not_found")


def test_the_list_of_turns_pages_in_time_order(client: httpx.Client) -> None:
    session_id = new_session(client)
    for number in range(5):
        client.post(f"/v1/sessions/{session_id}/turns", json={"content": f"number {number}"})
    seen: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        query = f"?limit=2&cursor={cursor}" if cursor else "?limit=2"
        page = client.get(f"/v1/sessions/{session_id}/turns{query}").json()
        seen += [turn["seq"] for turn in page["items"]]
        cursor = page["next_cursor"]
    assert seen == [1, 2, 3, 4, 5]


def test_instructions_of_a_turn_are_the_last_system_layer_of_its_prompts_alone(
    database_url: str, tmp_path: Path
) -> None:
    script = say(None, "c1"), say("Found."), say("Bye."), say("Found again.")
    with chat_service(database_url, tmp_path, *script) as at:
        path = f"/v1/sessions/{new_session(at.http, instructions='Be brief.')}"
        asked = {"content": "Where is it?", "instructions": "Answer from this: it is in Oslo.", "tools": TOOLS}
        preview = at.http.post(f"{path}/context/preview", json=asked).json()
        turn = at.http.post(f"{path}/turns", json=asked).json()
        outputs = {"outputs": [{"tool_call_id": "c1", "content": "here"}]}
        at.http.post(f"{path}/turns/{turn['turn']['id']}/tool-outputs", json=outputs).raise_for_status()
        for number in (0, 1):
            assert system_of(at.sent(number)) == "Be brief.\n\nAnswer from this: it is in Oslo."
        assert preview["context"]["estimated_wire_tokens"] == turn["context"]["estimated_wire_tokens"]
        later = at.http.post(f"{path}/turns", json={"content": "Bye"}).json()["turn"]
        assert system_of(at.sent(2)) == "Be brief."
        again = {"instructions": "Answer from that."}
        at.http.post(f"{path}/turns/{later['id']}/regenerate", json=again).raise_for_status()
        assert system_of(at.sent(3)) == "Be brief.\n\nAnswer from that."


def test_options_of_the_model_are_sent_with_each_call_of_the_turn_and_kept_when_it_is_run_again(
    database_url: str, tmp_path: Path
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": {"type": "object"}}}
    options = {"temperature": 0.2, "response_format": form, "seed": 7, "presence_penalty": 0}
    with chat_service(database_url, tmp_path, say(None, "c1"), say("{}"), say("{}"), say("Bye.")) as at:
        path = f"/v1/sessions/{new_session(at.http)}/turns"
        body = {"content": "Where is it?", "options": options, "tools": TOOLS}
        turn_id = at.http.post(path, json=body).json()["turn"]["id"]
        outputs = {"outputs": [{"tool_call_id": "c1", "content": "here"}]}
        at.http.post(f"{path}/{turn_id}/tool-outputs", json=outputs).raise_for_status()
        at.http.post(f"{path}/{turn_id}/regenerate").raise_for_status()
        at.http.post(path, json={"content": "Bye"}).raise_for_status()
        sent = [{name: seen.json[name] for name in options if name in seen.json} for seen in at.model.seen]
        assert sent == [{name: value for name, value in options.items() if value}] * 3 + [{}]


def test_an_option_that_the_model_can_not_take_is_refused_by_its_place(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, provider="anthropic") as at:
        path = f"/v1/sessions/{new_session(at.http)}"
        for options, where in (
            ({"temperature": 3}, "body.options.temperature"),
            ({"temprature": 1}, "body.options.temprature"),
            ({"seed": 7}, "body.options.seed"),
            ({"response_format": {"type": "json_object"}}, "body.options.response_format"),
        ):
            for route in ("turns", "context/preview"):
                refused = at.http.post(f"{path}/{route}", json={"content": "Hello", "options": options})
                assert_problem(refused, 422, "invalid_request")
                assert refused.json()["errors"][0]["where"] == where
        assert at.http.get(f"{path}/turns").json()["items"] == []
        assert at.model.seen == []


def test_a_turn_is_run_again_by_a_model_that_can_not_take_all_of_its_options(database_url: str, tmp_path: Path) -> None:
    form, answer = {"type": "json_object"}, said(ANTHROPIC, ModelReply(text="Hello."))
    with chat_service(database_url, tmp_path, answer, provider="anthropic") as at:
        path = f"/v1/sessions/{new_session(at.http, model_alias='offline')}/turns"
        options = {"seed": 7, "temperature": 0.2, "response_format": form}
        turn_id = at.http.post(path, json={"content": "Hello", "options": options}).json()["turn"]["id"]
        again = at.http.post(f"{path}/{turn_id}/regenerate", json={"model_alias": "main"})
        assert again.status_code == 201
        sent = at.model.seen[-1].json
        assert (sent["temperature"], sent.keys() & {"seed", "output_config"}) == (0.2, set())
        given = at.http.post(f"{path}/{turn_id}/regenerate", json={"model_alias": "main", "options": {"seed": 8}})
        assert_problem(given, 422, "invalid_request")


def system_of(messages: list[Any]) -> str:
    return "\n\n".join(message["content"] for message in messages if message["role"] == "system")


def test_a_repeated_idempotency_key_is_one_turn_and_another_body_is_refused(client: httpx.Client) -> None:
    path = f"/v1/sessions/{new_session(client)}/turns"
    headers = {"idempotency-key": "key-1"}
    first = client.post(path, json={"content": "a", "stream": False}, headers=headers)
    again = client.post(path, content=b'{  "content":"a"}', headers=headers | {"content-type": "application/json"})
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    other = client.post(path, json={"content": "b"}, headers=headers)
    assert_problem(other, 422, "idempotency_key_reused")
    assert len(client.get(path).json()["items"]) == 1


def test_a_recorded_reply_is_the_offline_models_answer(client: httpx.Client) -> None:
    path = f"/v1/sessions/{new_session(client)}/turns"
    body = {"content": "What was it?", "recorded_reply": {"content": "It was blue."}}
    assert client.post(path, json=body).json()["turn"]["assistant_output"] == "It was blue."


def test_parts_are_taken_as_they_came(client: httpx.Client) -> None:
    session_id = new_session(client)
    parts = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
    ]
    turn = client.post(f"/v1/sessions/{session_id}/turns", json={"content": parts}).json()["turn"]
    prompt = client.get(f"/v1/sessions/{session_id}/turns/{turn['id']}/prompt").json()
    assert prompt["messages"][-1]["content"] == parts


def test_a_turn_that_cannot_fit_is_a_422_with_figures_and_is_stored_as_rejected(client: httpx.Client) -> None:
    path = f"/v1/sessions/{new_session(client)}/turns"
    problem = assert_problem(client.post(path, json={"content": "word " * 20_000}), 422, "context_budget_exceeded")
    assert problem["budget"]["over_by"] == problem["budget"]["estimated"] - problem["budget"]["input_budget"]
    assert set(problem["regions"]) == REGIONS
    assert problem["largest_items"]
    assert problem["recovery"]
    turn = client.get(path).json()["items"][0]
    assert turn["status"] == "rejected"
    assert turn["error"] == problem
    assert client.get(f"{path}/{turn['id']}/audit").json()["overflow_rejected"] is True
    assert_problem(client.get(f"{path}/{turn['id']}/prompt"), 404, "prompt_not_found")
    metrics = client.get("/metrics").text
    assert re.search(r"^context_overflow_reject_count_total 1\.0$", metrics, re.MULTILINE)


def test_only_an_offline_model_takes_a_recorded_reply(database_url: str, tmp_path: Path) -> None:
    catalogue = tmp_path / "models.toml"
    catalogue.write_text(
        'default = "off"\n[models.off]\nprovider = "offline"\n'
        '[models.real]\nprovider = "openai"\nmodel = "gpt-5-mini"\nbase_url = "http://127.0.0.1:1/v1"\n'
        '[instructions.modes]\nresearch = "Dig."\n'
    )
    settings = settings_for(database_url, models_file=catalogue)
    with serving(settings) as url, httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
        body = {"content": "a", "recorded_reply": {"content": "b"}}
        path = f"/v1/sessions/{new_session(client, model_alias='real')}/turns"
        problem = assert_problem(client.post(path, json=body), 422, "invalid_request")
        assert problem["errors"][0]["where"] == "body.recorded_reply"
        assert client.post(path, json=body | {"model_alias": "off"}).status_code == 201
        assert_problem(client.post("/v1/sessions", json={"mode": "nonsense"}), 422, "invalid_request")
        assert client.post("/v1/sessions", json={"mode": "research", "agent_role": "any"}).status_code == 201
        aliases = [model["alias"] for model in client.get("/v1/models").json()["items"]]
        assert aliases == ["off", "real"]


def test_operators_addresses_answer(client: httpx.Client) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"):
        assert client.get(path).status_code == 200
    assert client.get("/readyz").json() == {"status": "ready", "database": "ok", "migrations": "current"}


@pytest.mark.parametrize(
    "policy", [5, "guarded", {"nonsense": 1}, {"protected_turns": -1}, {"summary_model": "nobody"}]
)
def test_a_turns_policy_that_can_not_be_is_named_by_its_place(client: httpx.Client, policy: object) -> None:
    sid = new_session(client)
    turns = f"/v1/sessions/{sid}/turns"
    tid = client.post(turns, json={"content": "a"}).json()["turn"]["id"]
    for path, body in ((turns, {"content": "a"}), (f"{turns}/{tid}/regenerate", {})):
        problem = assert_problem(client.post(path, json=body | {"policy": policy}), 422, "invalid_request")
        assert problem["errors"][0]["where"].startswith("body.policy")
    assert len(client.get(turns).json()["items"]) == 1


def test_a_key_with_another_policy_is_a_key_with_another_body(client: httpx.Client) -> None:
    turns = f"/v1/sessions/{new_session(client)}/turns"
    key = {"Idempotency-Key": "once"}
    capped = {"content": "a", "policy": {"max_context_tokens": 3000}}
    first = client.post(turns, json=capped, headers=key).json()
    assert first["context"]["model_context_limit"] == 3000
    assert client.post(turns, json=capped, headers=key).json()["turn"]["id"] == first["turn"]["id"]
    assert_problem(client.post(turns, json={"content": "a"}, headers=key), 422, "idempotency_key_reused")


def test_a_turns_policy_travels_with_an_export_and_holds_when_the_turn_is_run_again(client: httpx.Client) -> None:
    sid = new_session(client)
    client.post(f"/v1/sessions/{sid}/turns", json={"content": "a", "policy": {"max_context_tokens": 3000}})
    exported = client.get(f"/v1/sessions/{sid}/export").json()
    assert exported["turns"][0]["request"]["policy"] == {"max_context_tokens": 3000}
    copy = client.post("/v1/sessions/import", json=exported).json()["id"]
    (turn,) = client.get(f"/v1/sessions/{copy}/turns").json()["items"]
    again = client.post(f"/v1/sessions/{copy}/turns/{turn['id']}/regenerate", json={})
    assert again.json()["context"]["model_context_limit"] == 3000
    exported["turns"][0]["request"]["policy"] = {"nonsense": 1}
    assert_problem(client.post("/v1/sessions/import", json=exported), 422, "invalid_request")
