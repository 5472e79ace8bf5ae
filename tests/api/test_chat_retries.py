"""What chat clients do when an answer does not come: nothing is doubled, and what was remembered stays."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.api.chatting import TOOLS, Hasty, chat_service, say
from tests.api.conftest import PATIENCE_S, new_session, until_heard
from tests.api.test_chat import assistant, user
from tests.providers.server import Answer, Seen, Stream

BROKEN = Answer({"error": {"message": "no such thing", "type": "invalid_request_error"}}, status=404)


def test_a_failed_turn_is_tried_again_and_its_message_is_there_once(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("One."), BROKEN, say("Two.")) as at:
        headers = {"X-Session-Id": new_session(at.http)}
        history = [user("First")]
        ask = at.client.chat.completions.create
        ask(model="main", messages=history, extra_headers=headers)
        history += [assistant("One."), user("Second")]
        with pytest.raises(openai.InternalServerError) as failed:
            ask(model="main", messages=history, extra_headers=headers)
        assert (failed.value.status_code, failed.value.code) == (502, "provider_error")
        assert failed.value.response.headers["x-session-id"] == headers["X-Session-Id"]
        assert at.model.hits == 2, "the client tried by itself what the service had tried"
        assert [turn["status"] for turn in at.turns(headers["X-Session-Id"])] == ["completed", "failed"]
        ask(model="main", messages=history, extra_headers=headers)
        assert at.sent() == history
        turns = at.turns(headers["X-Session-Id"])
        assert [(turn["status"], turn["assistant_output"], turn["error"]) for turn in turns] == [
            ("completed", "One.", None),
            ("completed", "Two.", None),
        ]
        prompt = at.http.get(f"/v1/sessions/{headers['X-Session-Id']}/turns/{turns[1]['id']}/prompt").json()
        assert prompt["messages"] == history


def test_after_a_failure_another_message_goes_on_and_the_unanswered_one_is_kept_once(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, BROKEN, say("Both.")) as at:
        headers = {"X-Session-Id": new_session(at.http)}
        ask = at.client.chat.completions.create
        with pytest.raises(openai.InternalServerError):
            ask(model="main", messages=[user("First")], extra_headers=headers)
        ask(model="main", messages=[user("First"), user("Second")], extra_headers=headers)
        assert at.sent() == [user("First"), user("Second")]
        assert [turn["status"] for turn in at.turns(headers["X-Session-Id"])] == ["failed", "completed"]


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
def test_a_message_that_a_provider_refused_leaves_a_named_session_with_the_list_that_lacks_it(
    database_url: str, tmp_path: Path, path: str
) -> None:
    def play(request: Seen) -> Answer:
        if any(message["content"] == "Bad" for message in request.json["messages"]):
            return Answer({"error": {"message": "no"}}, status=400)
        return Answer({"choices": [{"message": assistant("Ok."), "finish_reason": "stop"}]})

    with chat_service(database_url, tmp_path, play) as at:
        headers, field = {"X-Session-Id": new_session(at.http)}, "input" if path == "responses" else "messages"

        def ask(*messages: Any) -> int:
            body = {"model": "main", field: messages} | ({"max_tokens": 9} if path == "messages" else {})
            return at.http.post(f"/v1/{path}", json=body, headers=headers).status_code

        begun = (user("First"), assistant("Ok."))
        assert [ask(user("First")), ask(*begun, user("Bad")), ask(*begun, user("Good"))] == [200, 400, 200]
        assert at.sent() == [*begun, user("Good")]
        assert ask(*begun, user("Good"), assistant("Ok."), user("Last")) == 200
        assert at.sent() == [*begun, user("Good"), assistant("Ok."), user("Last")]
        ends = [(turn["status"], turn["user_input"]) for turn in at.turns(headers["X-Session-Id"])]
        assert ends == [("completed", "First"), ("failed", ""), ("completed", "Good"), ("completed", "Last")]


@pytest.mark.parametrize(
    ("door", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("responses", {"input": "Hi"}),
        ("messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}),
    ],
)
@pytest.mark.parametrize(
    ("stated", "passed_on", "stream"),
    [("45.2", "46", False), ("45.2", "46", True), ("9e99", "86400", False), (None, None, False), (None, None, True)],
)
def test_a_providers_rate_limit_says_how_long_it_lasts(
    database_url: str,
    tmp_path: Path,
    door: str,
    body: dict[str, Any],
    stated: str | None,
    passed_on: str | None,
    stream: bool,
) -> None:
    limited = Answer({}, 429, {"retry-after": stated} if stated else {})
    with chat_service(database_url, tmp_path, limited) as at:
        answer = at.http.post(f"/v1/{door}", json={"model": "main", "stream": stream, **body})
        assert (answer.status_code, answer.headers.get("retry-after")) == (429, passed_on)
        assert "x-should-retry" not in answer.headers
        assert at.model.hits == (1 if stated else 3)


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "unnamed"])
def test_a_client_that_gave_up_waiting_gets_the_stored_answer(
    database_url: str, tmp_path: Path, is_named: bool
) -> None:
    """Its own retry comes while the turn runs: 409, again after a while, and then the answer, from one model call."""
    hasty = Hasty()
    with chat_service(database_url, tmp_path, say("At last.", after=hasty.tried_again)) as at:
        headers = {"X-Session-Id": new_session(at.http)} if is_named else {}
        with hasty.at(at.address) as client:
            completion = client.chat.completions.create(model="main", messages=[user("Slowly")], extra_headers=headers)
        assert completion.choices[0].message.content == "At last."
        assert at.model.hits == 1
        (session,) = at.http.get("/v1/sessions").json()["items"]
        assert len(at.turns(session["id"])) == 1


def test_a_resent_list_whose_answer_is_stored_gets_it_again(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("One."), say(None, "a"), say("Two.")) as at:
        headers = {"X-Session-Id": new_session(at.http)}
        ask = at.client.chat.completions.create
        ask(model="main", messages=[user("First")], extra_headers=headers)
        history: list[Any] = [user("First"), assistant("One."), user("Second")]
        calls = [
            ask(model="main", messages=history, tools=TOOLS, extra_headers=headers).choices[0].message for _ in range(2)
        ]
        assert calls[0] == calls[1]
        assert at.model.hits == 2
        history += [calls[0], {"role": "tool", "tool_call_id": "a", "content": "1"}]
        for stream in (False, True):
            for messages in (history, history[-1:]):
                if stream:
                    chunks = ask(model="main", messages=messages, tools=TOOLS, extra_headers=headers, stream=True)
                    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
                else:
                    again = ask(model="main", messages=messages, tools=TOOLS, extra_headers=headers)
                    text = again.choices[0].message.content
                assert text == "Two."
        assert at.model.hits == 3
        assert len(at.turns(headers["X-Session-Id"])) == 2


def test_an_idempotency_key_makes_one_turn_and_one_session(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("One."), say("Two.")) as at:
        session_id = new_session(at.http)
        body = {"model": "main", "messages": [user("Go on")]}
        for headers in ({"X-Session-Id": session_id, "Idempotency-Key": "k"}, {"Idempotency-Key": "k"}):
            answers = [at.http.post("/v1/chat/completions", json=body, headers=headers) for _ in range(2)]
            assert len({answer.headers["x-session-id"] for answer in answers}) == 1
            assert len({answer.json()["choices"][0]["message"]["content"] for answer in answers}) == 1
            assert len(at.turns(answers[0].headers["x-session-id"])) == 1
        other = {"model": "main", "messages": [user("Something else")]}
        reused = at.http.post("/v1/chat/completions", json=other, headers={"Idempotency-Key": "k"})
        assert (reused.status_code, reused.json()["error"]["code"]) == (422, "idempotency_key_reused")
        assert at.model.hits == 2
        assert len(at.http.get("/v1/sessions").json()["items"]) == 2


def test_of_many_requests_at_once_one_runs_and_the_past_is_stored_once(database_url: str, tmp_path: Path) -> None:
    answers: list[httpx.Response] = []
    slow = say("Once.", after=lambda: len(answers) == 5)
    with chat_service(database_url, tmp_path, slow) as at:
        headers = {"X-Session-Id": new_session(at.http)}
        messages = [user("Before"), assistant("Yes."), user("Now")]

        def ask() -> None:
            answers.append(
                httpx.post(
                    f"{at.address}/v1/chat/completions",
                    json={"model": "main", "messages": messages},
                    headers=headers,
                    trust_env=False,
                    timeout=PATIENCE_S,
                )
            )

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answer.status_code for answer in answers) == [200, *[409] * 5]
        refused = answers[0]
        assert refused.json()["error"]["code"] == "turn_in_progress"
        assert "x-should-retry" not in refused.headers
        assert int(refused.headers["retry-after"]) >= 1
        assert [turn["user_input"] for turn in at.turns(headers["X-Session-Id"])] == ["Before", "Now"]
        assert at.model.hits == 1


def test_a_stream_that_breaks_raises_in_the_client_and_the_turn_can_be_requested_again(
    database_url: str, tmp_path: Path
) -> None:
    half = b'data: {"choices": [{"index": 0, "delta": {"content": "Half"}}]}\n\n'
    with chat_service(database_url, tmp_path, Stream((half,), ending="cut"), say("Whole.")) as at:
        session_id = new_session(at.http)
        headers = {"X-Session-Id": session_id}
        stream = at.client.chat.completions.create(
            model="main", messages=[user("Go")], stream=True, extra_headers=headers
        )
        texts: list[str] = []
        with pytest.raises(openai.APIError) as broken:
            texts.extend(chunk.choices[0].delta.content or "" for chunk in stream)
        assert broken.value.code == "provider_error"
        assert at.turns(session_id)[0]["status"] == "failed"
        again = at.client.chat.completions.create(model="main", messages=[user("Go")], extra_headers=headers)
        assert again.choices[0].message.content == "Whole."
        assert at.sent() == [user("Go")]
        assert len(at.turns(session_id)) == 1


def test_a_silent_model_is_bridged_by_comments_that_clients_ignore(database_url: str, tmp_path: Path) -> None:
    bridged = threading.Event()
    with chat_service(database_url, tmp_path, say("Hi", after=bridged.is_set), heartbeat_s=0.1) as at:
        request = {"model": "main", "messages": [user("Hello")], "stream": True}
        with at.http.stream("POST", "/v1/chat/completions", json=request) as answer:
            until_heard(answer.iter_text(), ": the model is still silent", times=3)
            bridged.set()
        chunks = list(at.client.chat.completions.create(model="main", messages=[user("Hello")], stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hi"


def test_a_client_that_goes_away_before_the_answer_begins_cancels_its_turn_where_the_deployment_says_so(
    database_url: str, tmp_path: Path
) -> None:
    silent = say("Never.", after=threading.Event().is_set)
    with chat_service(database_url, tmp_path, silent, on_disconnect="cancel") as at:
        body = {"model": "main", "messages": [user("Hi")], "stream": True}
        headers = {"X-Session-Id": new_session(at.http), "Content-Type": "application/json"}
        with closing(HTTPConnection(at.address.removeprefix("http://"))) as leaving:
            leaving.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            while not at.model.hits:
                time.sleep(0.01)
        deadline = time.monotonic() + 30
        while (turn := at.turns(headers["X-Session-Id"])[0])["status"] == "running":
            assert time.monotonic() < deadline, "the turn never ended"
            time.sleep(0.05)
        assert turn["status"] == "cancelled"


def test_a_client_that_goes_away_finds_the_answer_when_it_comes_back(database_url: str, tmp_path: Path) -> None:
    body = b'data: {"choices": [{"index": 0, "delta": {"content": "Kept"}, "finish_reason": "stop"}]}\n\n'
    slow = Answer(body, content_type="text/event-stream", delay_s=0.5)
    with chat_service(database_url, tmp_path, say("One."), slow) as at:
        session_id = new_session(at.http)
        headers = {"X-Session-Id": session_id}
        ask = at.client.chat.completions.create
        ask(model="main", messages=[user("First")], extra_headers=headers)
        history = [user("First"), assistant("One."), user("Second")]
        stream = ask(model="main", messages=history, stream=True, extra_headers=headers)
        next(iter(stream))
        stream.close()
        deadline = time.monotonic() + 60
        while at.turns(session_id)[1]["status"] == "running":
            assert time.monotonic() < deadline, "the turn never ended"
            time.sleep(0.05)
        again = ask(model="main", messages=history, extra_headers=headers)
        assert again.choices[0].message.content == "Kept"
        assert at.model.hits == 2


def test_outputs_whose_next_message_became_no_turn_are_answered_when_they_are_sent_again(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say(None, "a"), say("It is paid.")) as at:
        headers = {"X-Session-Id": new_session(at.http)}
        asked: dict[str, Any] = {"model": "main", "tools": TOOLS, "extra_headers": headers}
        ask: Any = at.client.chat.completions.create
        called = ask(messages=[user("Is it paid?")], **asked).choices[0].message
        output = {"role": "tool", "tool_call_id": "a", "content": "paid"}
        history: list[Any] = [user("Is it paid?"), called.model_dump(exclude_none=True), output]
        with pytest.raises(openai.BadRequestError):
            ask(messages=[*history, user("word " * 20_000)], **asked)
        answered, again = (ask(messages=history, **asked) for _ in range(2))
        assert answered.choices[0].message.content == again.choices[0].message.content == "It is paid."
        assert at.model.hits == 2
        assert [message["role"] for message in at.sent()] == ["user", "assistant", "tool"]
        turns = at.turns(headers["X-Session-Id"])
        assert [(turn["status"], turn["assistant_output"]) for turn in turns] == [
            ("completed", "It is paid."),
            ("rejected", None),
        ]


@pytest.mark.parametrize("whole", [True, False], ids=["whole history", "outputs alone"])
def test_outputs_that_a_client_has_changed_get_an_answer_of_their_own(
    database_url: str, tmp_path: Path, whole: bool
) -> None:
    replies = say(None, "a", "b"), say("Both are paid."), say("b is open."), say("Bye.")
    with chat_service(database_url, tmp_path, *replies) as at:
        headers = {"X-Session-Id": "my-agent"}
        ask: Any = at.client.chat.completions.create
        asked: dict[str, Any] = {"model": "main", "tools": TOOLS, "extra_headers": headers}
        called = ask(messages=[user("Are they paid?")], **asked).choices[0].message
        history: list[Any] = [user("Are they paid?"), called.model_dump(exclude_none=True)]

        def answer(*outputs: tuple[str, str]) -> str | None:
            results = [{"role": "tool", "tool_call_id": call, "content": content} for call, content in outputs]
            return ask(messages=[*history, *results] if whole else results, **asked).choices[0].message.content

        assert answer(("a", "paid"), ("b", "paid")) == "Both are paid."
        assert answer(("b", "paid"), ("a", "paid")) == "Both are paid."
        assert answer(("a", "paid"), ("b", "open")) == "b is open."
        assert answer(("a", "paid"), ("b", "open")) == "b is open."
        assert at.model.hits == 3
        assert [message["content"] for message in at.sent()][-4:] == ["Are they paid?", None, "paid", "open"]
        ask(messages=[user("Thanks")], **asked)
        (session,) = at.http.get("/v1/sessions").json()["items"]
        turns = [(turn["user_input"], turn["assistant_output"]) for turn in at.turns(session["id"])]
        question = "Are they paid?"
        assert turns == [(question, "Both are paid."), (question, "b is open."), ("Thanks", "Bye.")]


def test_a_reply_that_calls_tools_is_repeated_with_its_text(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Let me look.", "a")) as at:
        asked: dict[str, Any] = {"model": "main", "messages": [user("Is a paid?")], "tools": TOOLS}
        create: Any = at.client.chat.completions.create
        first, again = (create(**asked, extra_headers={"Idempotency-Key": "k"}).choices[0] for _ in range(2))
        assert at.model.hits == 1
        assert again == first
        assert again.message.content == "Let me look."
