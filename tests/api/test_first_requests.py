"""A retry of a client's first request, which names no session, is answered in the session that the request made."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.chatting import chat_service, say
from tests.api.test_known_conversations import post, talk, user
from tests.providers.server import Answer

RETRY = {"x-stainless-retry-count": "1"}


@pytest.mark.parametrize(
    ("words", "headers"),
    [("Another thing", {}), ("Hi", {"x-session-id": "my-own"}), ("Hi", {"idempotency-key": "my-own"})],
    ids=["another request's", "one with a name", "one with a key"],
)
def test_a_retry_is_not_refused_for_a_turn_that_runs_in_another_session(
    database_url: str, tmp_path: Path, words: str, headers: dict[str, str]
) -> None:
    """The session that is another request's, or is found otherwise, may be busy for minutes."""
    opened = threading.Event()
    slow = say("Slow.", after=opened.is_set)
    with chat_service(database_url, tmp_path, slow, say("Quick.")) as at, ThreadPoolExecutor() as threads:
        body = {"model": "main", "messages": [user(words)]}
        running = threads.submit(at.http.post, "/v1/chat/completions", json=body, headers=headers)
        try:
            while not at.model.seen:
                time.sleep(0.01)
            answer = at.http.post("/v1/chat/completions", json=body | {"messages": [user("Hi")]}, headers=RETRY)
            assert answer.status_code == 200
            assert answer.json()["choices"][0]["message"]["content"] == "Quick."
        finally:
            opened.set()
        assert running.result().headers["x-session-id"] != answer.headers["x-session-id"]


def test_a_retry_is_not_answered_in_a_session_that_went_on(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, *(say("Reply") for _ in range(3))) as at:
        (session_id, _) = talk(at, [], "Hi", "More")
        late, _ = post(at, [user("Hi")], extra_headers=RETRY)
        assert late != session_id
        assert [turn["user_input"] for turn in at.turns(session_id)] == ["Hi", "More"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [user("Hi")]}),
        ("messages", {"messages": [user("Hi")], "max_tokens": 99}),
    ],
)
def test_a_retry_of_a_request_that_failed_is_answered_in_its_session(
    database_url: str, tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    limited = Answer({"error": {"message": "Slow down."}}, status=429, headers={"retry-after": "60"})
    with chat_service(database_url, tmp_path, *[limited] * 3, say("Reply"), say("Others'")) as at:

        def ask(headers: dict[str, str]) -> httpx.Response:
            return at.http.post(f"/v1/{path}", json=body | {"model": "main"}, headers=headers)

        failed = [ask({}), *(ask({"x-stainless-retry-count": str(count)}) for count in (1, 2))]
        assert [answer.status_code for answer in failed] == [429, 429, 429]
        (session_id,) = {answer.headers["x-session-id"] for answer in failed}
        others = {"x-session-affinity": "of-another-client"}
        assert ask(RETRY).headers["x-session-id"] == session_id
        assert ask(others | RETRY).headers["x-session-id"] != session_id
        turns = at.turns(session_id)
        assert [(turn["status"], turn["assistant_output"]) for turn in turns] == [("completed", "Reply")]
