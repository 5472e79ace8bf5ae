"""Fork, regenerate and undo over a real socket, against the built-in offline model."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.api.chatting import TOOLS, chat_service, say
from tests.api.conftest import PATIENCE_S, as_sent, assert_problem, new_session, serving, settings_for

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
}
LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 20


def post_turn(client: httpx.Client, session_id: str, content: Any, **fields: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/sessions/{session_id}/turns", json={"content": content, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()["turn"]


def turns_of(client: httpx.Client, session_id: str) -> list[dict[str, Any]]:
    return client.get(f"/v1/sessions/{session_id}/turns?limit=200").json()["items"]


def test_a_fork_goes_its_own_way_and_both_can_be_read(client: httpx.Client) -> None:
    source = new_session(client, room_goal="Ship", metadata={"a": 1})
    first, second = (post_turn(client, source, content) for content in ("One", "Two"))
    answer = client.post(f"/v1/sessions/{source}/fork", json={"through_turn_id": first["id"]})
    assert answer.status_code == 201
    fork = answer.json()
    assert fork["forked_from"] == {"session_id": source, "turn_id": first["id"]}
    assert (fork["room_goal"], fork["metadata"]) == ("Ship", {"a": 1})
    assert client.get(f"/v1/sessions/{source}").json()["forked_from"] is None
    assert [turn["user_input"] for turn in turns_of(client, fork["id"])] == ["One"]
    post_turn(client, fork["id"], "Another two")
    assert [turn["user_input"] for turn in turns_of(client, source)] == ["One", "Two"]
    whole = client.post(f"/v1/sessions/{source}/fork").json()
    assert whole["forked_from"]["turn_id"] == second["id"]
    copied = turns_of(client, whole["id"])[1]
    assert copied["id"] == second["id"]
    paths = (f"/v1/sessions/{source}/turns/{second['id']}", f"/v1/sessions/{whole['id']}/turns/{second['id']}")
    ours, theirs = (as_sent(client.get(f"{path}/prompt").json()) for path in paths)
    assert ours == theirs
    assert client.get(f"/v1/sessions/{whole['id']}").json()["usage"] == []


def test_what_can_not_be_forked_says_why_and_makes_nothing(client: httpx.Client) -> None:
    source = new_session(client)
    fork = f"/v1/sessions/{source}/fork"
    assert_problem(client.post(fork, json={"through_turn_id": str(uuid4())}), 404, "turn_not_found")
    bodies: list[dict[str, Any]] = [{"through_turn_id": wrong} for wrong in ("x", 5, {"a": 1}, True)]
    for wrong in (*bodies, {"through": None}):
        assert_problem(client.post(fork, json=wrong), 422, "invalid_request")
    assert_problem(client.post(f"/v1/sessions/{uuid4()}/fork"), 404, "session_not_found")
    waiting = post_turn(client, source, "Go", tools=[TOOL], recorded_reply=_CALL)
    assert_problem(client.post(fork, json={"through_turn_id": waiting["id"]}), 409, "turn_in_progress")
    problem = assert_problem(
        client.post(f"/v1/sessions/{source}/turns", json={"content": "And?"}), 409, "turn_in_progress"
    )
    assert "post the outputs" in problem["detail"]
    assert len(client.get("/v1/sessions").json()["items"]) == 1


_CALL = {"tool_calls": [{"id": "a", "function": {"name": "look_up", "arguments": "{}"}}]}


def test_the_last_turn_is_run_again_in_a_fork_with_the_same_or_other_words(client: httpx.Client) -> None:
    source = new_session(client, instructions="Be brief.")
    post_turn(client, source, "One")
    last = post_turn(client, source, "Two", recorded_reply={"content": "A poor answer."})
    path = f"/v1/sessions/{source}/turns/{last['id']}"
    answer = client.post(f"{path}/regenerate", json={"recorded_reply": {"content": "A better one."}})
    assert answer.status_code == 201
    body = answer.json()
    assert set(body) == {"session", "turn", "context"}
    made = body["session"]["id"]
    assert answer.headers["location"] == f"/v1/sessions/{made}"
    assert made != source
    assert (body["turn"]["seq"], body["turn"]["user_input"], body["turn"]["assistant_output"]) == (
        2,
        "Two",
        "A better one.",
    )
    assert body["context"]["prompt_sha256"] == client.get(f"{path}/audit").json()["prompt_sha256"]
    edited = client.post(f"{path}/regenerate", json={"content": "Two and a half"}).json()
    assert edited["turn"]["user_input"] == "Two and a half"
    sent = client.get(f"/v1/sessions/{edited['session']['id']}/turns/{edited['turn']['id']}/prompt").json()["messages"]
    assert [message["content"] for message in sent if message["role"] == "user"] == ["One", "Two and a half"]
    assert [turn["assistant_output"] for turn in turns_of(client, source)][1] == "A poor answer."
    again = client.post(f"/v1/sessions/{made}/turns/{body['turn']['id']}/regenerate")
    assert again.json()["session"]["forked_from"]["session_id"] == made


@pytest.mark.parametrize(
    ("tools", "has_tools"), [({}, True), ({"tools": None}, True), ({"tools": []}, False), ({"tools": [TOOL]}, True)]
)
def test_a_turn_that_is_run_again_keeps_its_tools_unless_the_body_has_others_or_none(
    client: httpx.Client, tools: dict[str, Any], has_tools: bool
) -> None:
    source = new_session(client)
    last = post_turn(client, source, "Two", tools=[TOOL], tool_choice="auto")
    answer = client.post(f"/v1/sessions/{source}/turns/{last['id']}/regenerate", json=tools)
    assert answer.status_code == 201
    assert (answer.json()["context"]["regions"]["tools"] > 0) is has_tools


def test_a_turn_that_is_run_again_without_tools_cannot_require_a_call(client: httpx.Client) -> None:
    source = new_session(client)
    last = post_turn(client, source, "Two", tools=[TOOL], tool_choice="auto")
    body: dict[str, Any] = {"tools": [], "tool_choice": "required"}
    answer = client.post(f"/v1/sessions/{source}/turns/{last['id']}/regenerate", json=body)
    assert assert_problem(answer, 422, "invalid_request")["errors"][0]["where"] == "body.tool_choice"
    assert [session["id"] for session in client.get("/v1/sessions").json()["items"]] == [source]


def test_only_a_last_turn_that_has_ended_is_run_again(client: httpx.Client) -> None:
    source = new_session(client)
    first = post_turn(client, source, "One")
    path = f"/v1/sessions/{source}/turns"
    waiting = post_turn(client, source, "Go", tools=[TOOL], recorded_reply=_CALL)
    assert_problem(client.post(f"{path}/{first['id']}/regenerate"), 409, "turn_not_last")
    assert_problem(client.post(f"{path}/{waiting['id']}/regenerate"), 409, "turn_in_progress")
    assert_problem(client.post(f"{path}/{uuid4()}/regenerate"), 404, "turn_not_found")
    for wrong in ({"content": " "}, {"content": 5}, {"words": "x"}, {"model_alias": "nobody"}, {"stream": "yes"}):
        assert_problem(client.post(f"{path}/{waiting['id']}/regenerate", json=wrong), 422, "invalid_request")
    assert len(client.get("/v1/sessions").json()["items"]) == 1
    client.post(f"{path}/{waiting['id']}/cancel")
    answer = client.post(f"{path}/{waiting['id']}/regenerate", json={"recorded_reply": _CALL})
    assert answer.json()["turn"]["status"] == "awaiting_tools"
    made = f"/v1/sessions/{answer.json()['session']['id']}/turns/{answer.json()['turn']['id']}"
    done = client.post(f"{made}/tool-outputs", json={"outputs": [{"tool_call_id": "a", "content": "yes"}]})
    assert done.json()["turn"]["status"] == "completed"


def test_a_turn_that_a_limit_does_not_allow_again_leaves_no_session_behind(client: httpx.Client) -> None:
    source = new_session(client)
    last = post_turn(client, source, "One")
    path = f"/v1/sessions/{source}/turns/{last['id']}/regenerate"
    client.patch(f"/v1/sessions/{source}", json={"limits": {"tokens_total": 1}})
    for stream in (False, True):
        problem = assert_problem(client.post(path, json={"stream": stream}), 429, "limit_exceeded")
        assert "session_id" not in problem
    assert [session["id"] for session in client.get("/v1/sessions").json()["items"]] == [source]


def test_a_turn_that_fails_again_is_answered_with_the_session_it_is_in(client: httpx.Client) -> None:
    source = new_session(client)
    last = post_turn(client, source, "One")
    path = f"/v1/sessions/{source}/turns/{last['id']}/regenerate"
    problem = assert_problem(client.post(path, json={"content": "word " * 20_000}), 422, "context_budget_exceeded")
    assert [turn["status"] for turn in turns_of(client, problem["session_id"])] == ["rejected"]


def test_a_request_that_can_never_work_leaves_no_fork(database_url: str, tmp_path: Path) -> None:
    catalogue = tmp_path / "models.toml"
    catalogue.write_text(
        'default = "off"\n[models.off]\nprovider = "offline"\n'
        '[models.real]\nprovider = "openai"\nmodel = "gpt-5-mini"\nbase_url = "http://127.0.0.1:1/v1"\n'
    )
    settings = settings_for(database_url, models_file=catalogue)
    with serving(settings) as url, httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
        source = new_session(client)
        last = post_turn(client, source, "One")
        body = {"model_alias": "real", "recorded_reply": {"content": "b"}}
        answer = client.post(f"/v1/sessions/{source}/turns/{last['id']}/regenerate", json=body)
        assert_problem(answer, 422, "invalid_request")
        assert len(client.get("/v1/sessions").json()["items"]) == 1


def test_running_again_can_be_streamed(client: httpx.Client) -> None:
    source = new_session(client)
    last = post_turn(client, source, "One")
    path = f"/v1/sessions/{source}/turns/{last['id']}/regenerate"
    with client.stream("POST", path, json={"stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = answer.read().decode()
    made = answer.headers["location"].rpartition("/")[2]
    events = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert (events[:2], events[-1]) == (["turn.created", "context.assembled"], "turn.completed")
    assert made in text
    assert [turn["status"] for turn in turns_of(client, made)] == ["completed"]


def test_a_summary_is_taken_back_once(client: httpx.Client) -> None:
    session_id = new_session(client)
    for number in range(1, 7):
        post_turn(client, session_id, f"Point {number}. {LONG}")
    path = f"/v1/sessions/{session_id}/summaries"
    made = client.post(path).json()
    undone = client.post(f"{path}/{made['id']}/undo")
    assert (undone.status_code, undone.json()) == (200, made | {"status": "undone"})
    assert client.get(f"/v1/sessions/{session_id}/context").json()["raw_turns"] == 6
    assert_problem(client.post(f"{path}/{made['id']}/undo"), 409, "summary_not_active")
    assert_problem(client.post(f"{path}/{uuid4()}/undo"), 404, "summary_not_found")
    assert_problem(client.post(f"{path}/x/undo"), 404, "summary_not_found")


def test_a_turn_that_waits_again_behind_a_rejected_one_is_left_out_of_exports_and_forks_until_it_ends(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say("One."), say(None, "a"), say(None, "b"), say("Done.")) as at:
        sid = new_session(at.http)
        session = f"/v1/sessions/{sid}"

        def ask(*messages: dict[str, Any]) -> dict[str, Any]:
            body = {"model": "main", "messages": messages, "tools": TOOLS}
            answer = at.http.post("/v1/chat/completions", json=body, headers={"X-Session-Id": sid}).json()
            return answer["choices"][0]["message"] if "choices" in answer else answer

        user = {"role": "user", "content": "Look it up."}
        first: list[dict[str, Any]] = [{"role": "user", "content": "Hello."}]
        first.append(ask(*first))
        called = ask(*first, user)
        output = {"role": "tool", "tool_call_id": "a", "content": "Found."}
        assert "error" in ask(*first, user, called, output, {"role": "user", "content": LONG * 20})
        again = ask(*first, user, called, output)
        assert [turn["status"] for turn in at.turns(sid)] == ["completed", "awaiting_tools", "rejected"]
        document = at.http.get(f"{session}/export").json()
        assert [turn["seq"] for turn in document["turns"]] == [1]
        assert at.http.post("/v1/sessions/import", json=document).status_code == 201
        assert len(at.turns(at.http.post(f"{session}/fork").json()["id"])) == 1
        last = at.turns(sid)[-1]["id"]
        assert_problem(at.http.post(f"{session}/fork", json={"through_turn_id": last}), 409, "turn_in_progress")
        assert_problem(at.http.post(f"{session}/turns/{last}/regenerate"), 409, "turn_in_progress")
        found = {"role": "tool", "tool_call_id": "b", "content": "Found too."}
        assert ask(*first, user, called, output, again, found)["content"] == "Done."
        assert [turn["status"] for turn in at.turns(sid)] == ["completed", "completed", "rejected"]
        forked = at.http.post(f"{session}/fork").json()["id"]
        turn = at.turns(sid)[1]["id"]
        prompts = (at.http.get(f"/v1/sessions/{each}/turns/{turn}/prompt").json() for each in (sid, forked))
        assert as_sent(next(prompts)) == as_sent(next(prompts))
        post_turn(at.http, forked, "And now?")
        document = at.http.get(f"{session}/export").json()
        seqs = [message["seq"] for message in document["messages"]]
        assert seqs != sorted(seqs)  # the rejected turn's message is between those of the turn before it
        imported = at.http.post("/v1/sessions/import", json=document)
        assert imported.status_code == 201, imported.text
        copied = imported.json()["id"]
        prompts = (
            at.http.get(f"/v1/sessions/{each}/turns/{at.turns(each)[1]['id']}/prompt").json() for each in (sid, copied)
        )
        assert as_sent(next(prompts)) == as_sent(next(prompts))
        post_turn(at.http, copied, "And now?")
        rejected = document["messages"].pop()
        called = next(message for message in document["messages"] if message["tool_calls"])
        for wrong in (rejected | {"seq": called["seq"]}, rejected | {"seq": 1}):
            broken = document | {"messages": [*document["messages"], wrong]}
            where = assert_problem(at.http.post("/v1/sessions/import", json=broken), 422, "invalid_request")["errors"]
            assert {each["where"] for each in where} == {f"body.messages.{len(seqs) - 1}.seq"}
        called["withdrawn"] = True
        broken = document | {"messages": [*document["messages"], rejected]}
        where = assert_problem(at.http.post("/v1/sessions/import", json=broken), 422, "invalid_request")["errors"]
        assert [each["where"] for each in where] == [f"body.messages.{document['messages'].index(called) + 2}"]


def test_a_message_that_was_taken_back_is_not_sent_when_its_turn_is_run_again(client: httpx.Client) -> None:
    session = new_session(client)
    turn = client.post(f"/v1/sessions/{session}/turns", json={"content": "My passport is P123."}).json()["turn"]
    items = f"/v1/conversations/conv_{session.replace('-', '')}/items"
    item = client.get(items, params={"order": "asc"}).json()["data"][0]["id"]
    client.delete(f"{items}/{item}").raise_for_status()
    again = client.post(f"/v1/sessions/{session}/turns/{turn['id']}/regenerate", json={})
    assert assert_problem(again, 422, "invalid_request")["errors"][0]["where"] == "body.content"
