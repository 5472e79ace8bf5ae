"""Export and import over a real socket."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import time
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from app.api.routes.sessions import file_chunks, spooled
from app.domain.types import TenantId
from app.services.process_state import Allowance, HeldBytes
from tests.api.conftest import PATIENCE_S, as_sent, assert_problem, new_session, serving, settings_for
from tests.api.test_forks import post_turn, turns_of
from torture.databases import execute

JSON = {"content-type": "application/json"}
IMPORT = "/v1/sessions/import"


def export(client: httpx.Client, session_id: str) -> dict[str, Any]:
    answer = client.get(f"/v1/sessions/{session_id}/export")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-disposition"] == f'attachment; filename="session-{session_id}.json"'
    assert int(answer.headers["content-length"]) == len(answer.content)
    return answer.json()


def test_an_export_is_a_session_again_and_goes_on(client: httpx.Client) -> None:
    source = new_session(client, room_goal="Ship", metadata={"a": 1})
    client.put(f"/v1/sessions/{source}/pins/p", json={"content": "Pinned.", "relevance": 0.5})
    last = [post_turn(client, source, content) for content in ("One", "Two \U0001f6a2")][-1]
    document = export(client, source)
    assert (document["format"], document["version"], document["session"]["id"]) == ("plimsoll.session", 1, source)
    answer = client.post(IMPORT, json=document)
    assert answer.status_code == 201
    made = answer.json()
    assert made["id"] != source
    assert (made["room_goal"], made["metadata"], made["forked_from"]) == ("Ship", {"a": 1}, None)
    copies = turns_of(client, made["id"])
    assert [turn["user_input"] for turn in copies] == ["One", "Two \U0001f6a2"]
    paths = (f"/v1/sessions/{source}/turns/{last['id']}", f"/v1/sessions/{made['id']}/turns/{copies[-1]['id']}")
    sent, sent_again = (as_sent(client.get(f"{path}/prompt").json()) for path in paths)
    assert sent == sent_again
    assert client.get(f"{paths[1]}/audit").status_code == 200
    assert client.get(f"/v1/sessions/{made['id']}/pins/p").json()["content"] == "Pinned."
    assert post_turn(client, made["id"], "Three")["seq"] == 3


def test_a_summary_up_to_a_turn_whose_reply_was_removed_is_imported_again(client: httpx.Client) -> None:
    source = new_session(client)
    for number in range(7):
        post_turn(client, source, f"{number}. The port of service {number} is {8000 + number}, as agreed. " * 20)
    items = f"/v1/conversations/conv_{source.replace('-', '')}/items"
    for item in client.get(f"{items}?order=asc").json()["data"][1::2]:
        assert client.delete(f"{items}/{item['id']}").status_code == 200
    assert client.post(f"/v1/sessions/{source}/summaries").status_code == 201
    made = client.post(IMPORT, json=export(client, source))
    assert made.status_code == 201, made.text
    assert post_turn(client, made.json()["id"], "And now?")["status"] == "completed"


def test_a_turn_that_ended_with_results_of_tools_is_imported_again(client: httpx.Client) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "final_answer", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Is order 1 paid?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Shown."},
        {"role": "user", "content": "And order 2?"},
        {"role": "assistant", "content": "It is."},
    ]
    source = client.post(IMPORT, json={"messages": messages}).json()["id"]
    document = export(client, source)
    assert [(turn["status"], turn["assistant_output"]) for turn in document["turns"]] == [
        ("completed", None),
        ("completed", "It is."),
    ]
    made = client.post(IMPORT, json=document)
    assert made.status_code == 201, made.text
    copies = turns_of(client, made.json()["id"])
    assert [(turn["status"], turn["assistant_output"]) for turn in copies] == [
        ("completed", None),
        ("completed", "It is."),
    ]
    document["turns"][1]["assistant_output"] = None
    problem = assert_problem(client.post(IMPORT, json=document), 422, "invalid_request")
    assert problem["errors"][0]["where"] == "body.turns.1.assistant_output"


async def test_others_are_served_while_a_large_document_is_written_and_while_it_is_sent() -> None:
    served = 0

    async def serve_others() -> None:
        nonlocal served
        while True:
            served += 1
            await asyncio.sleep(0)

    async def parts() -> AsyncGenerator[tuple[str, Any]]:
        yield "session", {}
        yield "messages", [{"content": "x" * 1000}] * 8000

    others = asyncio.create_task(serve_others())
    file = await spooled(parts())
    assert served >= 8
    # A client that reads as fast as it is sent to: nothing is waited for here.
    held = HeldBytes(Allowance("bytes of exports", 1, 1.0), TenantId("default"))
    sent = [(served, chunk) async for chunk in file_chunks(file, held)]
    others.cancel()
    assert len({at for at, _ in sent}) == len(sent) >= 8
    assert len(json.loads(b"".join(chunk for _, chunk in sent))["messages"]) == 8000


def test_a_tenant_whose_exports_are_not_read_gets_no_more_of_them_until_they_are(database_url: str) -> None:
    messages = [{"role": role, "content": "x" * 100_000} for _ in range(70) for role in ("user", "assistant")]
    settings = settings_for(database_url, max_exports_bytes=64 * 1024 * 1024)
    with serving(settings) as address, httpx.Client(base_url=address, timeout=PATIENCE_S) as client:
        path = f"/v1/sessions/{client.post(IMPORT, json={'messages': messages}).json()['id']}/export"
        with client.stream("GET", path) as unread:
            assert unread.status_code == 200
            refused = client.get(path)
            assert_problem(refused, 429, "tenant_busy")
            assert refused.headers["Retry-After"]
        deadline = time.monotonic() + 30
        gc.disable()  # a quiet process collects so seldom
        try:
            while (
                again := client.get(path)
            ).status_code == 429:  # the service sees the connection's end a moment later
                assert time.monotonic() < deadline
        finally:
            gc.enable()
        assert again.status_code == 200
        assert len(again.json()["messages"]) == 140


def test_an_export_that_the_temporary_folder_cannot_hold_is_refused_until_it_can(client: httpx.Client) -> None:
    """A limit on the size of files is to a writer what a full disk is."""
    messages = [{"role": role, "content": "x" * 100_000} for _ in range(20) for role in ("user", "assistant")]
    path = f"/v1/sessions/{client.post(IMPORT, json={'messages': messages}).json()['id']}/export"
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * 1024 * 1024, unlimited[1]))
    try:
        refused = client.get(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert_problem(refused, 503, "process_busy")
    assert refused.headers["Retry-After"]
    assert len(client.get(path).json()["messages"]) == 40


def test_messages_in_the_openai_form_become_a_session(client: httpx.Client) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is order 1 paid?"},
        {"role": "assistant", "content": "It is."},
    ]
    made = client.post(IMPORT, json={"messages": messages, "room_goal": "Books"}).json()
    assert (made["instructions"], made["room_goal"]) == ("Be brief.", "Books")
    turn = post_turn(client, made["id"], "And order 2?")
    assert turn["seq"] == 2
    sent = client.get(f"/v1/sessions/{made['id']}/turns/{turn['id']}/prompt").json()["messages"]
    assert [message["content"] for message in sent] == [
        "Be brief.",
        "Goal of this conversation: Books",
        "Is order 1 paid?",
        "It is.",
        "And order 2?",
    ]


WRONG: dict[str, tuple[object, str]] = {
    "nothing": ({}, "body.messages"),
    "no messages": ({"messages": []}, "body.messages"),
    "messages of text": ({"messages": "all"}, "body.messages"),
    "a message of text": ({"messages": ["x"]}, "body.messages.0"),
    "no role": ({"messages": [{"content": "x"}]}, "body.messages.0"),
    "a role nobody has": ({"messages": [{"role": "x", "content": "x"}]}, "body.messages.0"),
    "no content": ({"messages": [{"role": "user"}]}, "body.messages.0.content"),
    "an orphan": ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]}, "body.messages.0"),
    "instructions alone": ({"messages": [{"role": "system", "content": "x"}]}, "body.messages"),
    "an unknown field": ({"messages": [{"role": "user", "content": "x"}], "sessoin": {}}, "body.sessoin"),
    "an unknown alias": ({"messages": [{"role": "user", "content": "x"}], "model_alias": "nobody"}, "body.model_alias"),
    "a format nobody reads": ({"messages": [], "format": "csv"}, "body.format"),
    "half an export": ({"messages": [], "format": "plimsoll.session", "version": 1}, "body.session"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_import_is_refused_with_the_place_of_the_error(client: httpx.Client, name: str) -> None:
    body, where = WRONG[name]
    problem = assert_problem(client.post(IMPORT, json=body), 422, "invalid_request")
    assert any(error["where"].startswith(where) for error in problem["errors"]), problem
    assert client.get("/v1/sessions").json()["items"] == []


class _Missing:
    """The member is not there at all."""


WRONG_MEMBERS: tuple[Any, ...] = (_Missing, [[]], {"a": {"b": 1}}, -(2**63), "\u0394" * 300, True)


def test_every_member_of_an_export_put_wrong_is_a_422_and_nothing_is_stored(client: httpx.Client) -> None:
    source = new_session(client)
    client.put(f"/v1/sessions/{source}/pins/p", json={"content": "Pinned."})
    post_turn(client, source, "One")
    document = export(client, source)
    tried = 0
    for section in ("session", "pins", "blocks", "turns", "messages", "steps", "audits"):
        row = document[section] if section == "session" else document[section][0]
        for member in row:
            for wrong in WRONG_MEMBERS:
                changed = json.loads(json.dumps(document))
                target = changed[section] if section == "session" else changed[section][0]
                if wrong is _Missing:
                    del target[member]
                else:
                    target[member] = wrong
                answer = client.post(IMPORT, json=changed)
                assert answer.status_code in (201, 422), (section, member, wrong, answer.text)
                tried += 1
                if answer.status_code == 422:
                    assert_problem(answer, 422, "invalid_request")
                else:
                    assert client.get(f"/v1/sessions/{answer.json()['id']}/export").status_code == 200
                    client.delete(f"/v1/sessions/{answer.json()['id']}")
    assert tried > 400
    assert [item["id"] for item in client.get("/v1/sessions").json()["items"]] == [source]


def test_an_import_has_a_cap_of_its_own_and_other_bodies_keep_theirs(database_url: str) -> None:
    settings = settings_for(database_url, max_body_bytes=64 * 1024, max_import_bytes=512 * 1024)
    with serving(settings) as url, httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client:
        words = {"messages": [{"role": "user", "content": "word " * 50_000}]}
        assert client.post(IMPORT, json=words).status_code == 201
        problem = assert_problem(client.post("/v1/sessions", json={"room_goal": "x" * 100_000}), 413, "body_too_large")
        assert problem["max_body_bytes"] == 64 * 1024
        too_many = {"messages": [{"role": "user", "content": "word " * 150_000}]}
        problem = assert_problem(client.post(IMPORT, json=too_many), 413, "body_too_large")
        assert problem["max_body_bytes"] == 512 * 1024
        assert len(client.get("/v1/sessions").json()["items"]) == 1


def _bad_rows(database_url: str, session_id: str, **columns: str) -> None:
    """Puts into the audits of a session what an import took before it was bounded."""
    set_to = ", ".join(f"{name} = {value}" for name, value in columns.items())
    statement = f"UPDATE turn_context_audit SET {set_to} WHERE session_id = '{session_id}'"  # noqa: S608 - our own words
    asyncio.run(execute(database_url, statement))


def test_a_prompt_that_was_stored_too_large_is_a_problem_that_says_so(client: httpx.Client, database_url: str) -> None:
    source = new_session(client)
    turn = post_turn(client, source, "word " * 10_000)
    refs = json.dumps({"items": [["m", 1, 1]] * 2000, "tools": None})
    _bad_rows(database_url, source, prompt_refs=f"'{refs}'::jsonb")
    answer = client.get(f"/v1/sessions/{source}/turns/{turn['id']}/prompt")
    assert assert_problem(answer, 422, "prompt_too_large")["max_prompt_bytes"] == 64 * 1024 * 1024


@pytest.mark.parametrize(
    "recalled", ['["completed"]', '[{"tokens": "x"}, {"tokens": 3}, 7]', '{"a": 1}', '"a"', "null"]
)
def test_a_timeline_shows_what_is_sound_of_a_badly_stored_trim_log(
    client: httpx.Client, database_url: str, recalled: str
) -> None:
    source = new_session(client)
    post_turn(client, source, "One")
    log = f"jsonb_set(context_trim_log, '{{recalled}}', '{recalled}')"
    _bad_rows(database_url, source, context_trim_log=log)
    timeline = client.get(f"/v1/sessions/{source}/timeline")
    assert timeline.status_code == 200
    found = [event for event in timeline.json()["items"][0]["events"] if event["kind"] == "recall"]
    assert [(event["count"], event["tokens"]) for event in found] == ([(1, 3)] if "3" in recalled else [])
