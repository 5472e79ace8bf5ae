"""Several people in one session: by `name` from chat clients and on the service's own routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.api.chatting import TOOLS, chat_service, say
from tests.api.conftest import assert_problem, new_session


def _user(name: str, content: str) -> Any:
    return {"role": "user", "name": name, "content": content}


def test_speakers_of_separate_messages_keep_their_names_and_those_of_one_turn_are_distinguished(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say("One."), say("Two."), say("Three.")) as at:
        session_id = new_session(at.http)
        history: list[Any] = []
        for new in (
            [_user("Anna", "The pump leaks.")],
            [_user("Anna", "Still."), _user("Ben", "I will look.")],
            [_user("Ben", "It is dry.")],
        ):
            history += new
            completion = at.client.chat.completions.create(
                model="main", messages=history, metadata={"session_id": session_id}
            )
            history.append(completion.choices[0].message)
        sent = [(message.get("name"), message["content"]) for message in at.sent() if message["role"] == "user"]
        assert sent == [
            ("Anna", "The pump leaks."),
            (None, "Anna: Still.\n\nBen: I will look."),
            ("Ben", "It is dry."),
        ]
        stored = at.http.get(f"/v1/sessions/{session_id}/messages").json()["items"]
        assert [message["name"] for message in stored] == ["Anna", None, None, None, "Ben", None]


def test_the_output_of_a_tool_keeps_the_time_that_the_client_gave_it(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say(None, "a"), say("It is dry.")) as at:
        history: list[Any] = [_user("Anna", "Does it leak?")]
        session_id = new_session(at.http)
        for outputs in (
            (),
            ({"role": "tool", "tool_call_id": "a", "content": "dry", "said_at": "2026-05-08T13:56:00Z"},),
        ):
            history += outputs
            completion = at.client.chat.completions.create(
                model="main", messages=history, tools=TOOLS, metadata={"session_id": session_id}
            )
            history.append(completion.choices[0].message)
        stored = at.http.get(f"/v1/sessions/{session_id}/messages").json()["items"]
        assert [message["said_at"] for message in stored if message["role"] == "tool"] == ["2026-05-08T13:56:00Z"]


def test_with_show_names_every_model_reads_the_name_before_the_words(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path) as at:
        session_id = new_session(at.http, policy={"show_names": True})
        body = {"content": "The pump leaks.", "name": "Anna", "said_at": "2026-05-08T13:56:00Z"}
        turn = at.http.post(f"/v1/sessions/{session_id}/turns", json=body).json()["turn"]
        assert at.sent() == [{"role": "user", "content": "Anna: The pump leaks."}]
        prompt = at.http.get(f"/v1/sessions/{session_id}/turns/{turn['id']}/prompt").json()
        assert prompt["messages"] == [_user("Anna", "The pump leaks.")]


INVALID = {
    "name": ("", "two words", "a<b", "x" * 65, "a\nb", 1),
    "said_at": ("yesterday", "2026-05-08", "2026-05-08T13:56:00", "0001-01-01T00:00:00Z", 5),
}


def test_a_name_or_a_time_of_another_form_is_refused_with_the_form_in_words(client: httpx.Client) -> None:
    for field, value, form in (
        ("name", "Anna Smith", r"Must have 1 to 64 characters without blanks and < > | \ /"),
        ("said_at", "2026-05-08T13:56:00+02:00", "Must be a time in UTC such as 2026-05-08T13:56:00Z"),
    ):
        body = {"content": "Hi", field: value}
        problem = assert_problem(
            client.post(f"/v1/sessions/{new_session(client)}/turns", json=body), 422, "invalid_request"
        )
        assert problem["detail"] == f"body.{field}: {form}"


def test_a_name_or_a_time_that_cannot_be_is_refused_at_its_place(client: httpx.Client) -> None:
    session_id = new_session(client)
    for field, value in ((field, value) for field, values in INVALID.items() for value in values):
        body: dict[str, Any] = {"content": "Hi", field: value}
        for path in ("turns", "context/preview"):
            problem = assert_problem(
                client.post(f"/v1/sessions/{session_id}/{path}", json=body), 422, "invalid_request"
            )
            assert problem["errors"][0]["where"] == f"body.{field}"
        answer = client.post("/v1/sessions/import", json={"messages": [{"role": "user", **body}]})
        problem = assert_problem(answer, 422, "invalid_request")
        assert problem["errors"][0]["where"] == f"body.messages.0.{field}"
