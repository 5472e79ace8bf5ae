"""A provider that refuses a request itself: the client's own exception says what to change, and is not tried again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.api.chatting import chat_service
from tests.api.conftest import assert_problem, new_session
from tests.api.messaging import anthropic_at
from tests.providers.server import Answer

WHY = "Invalid schema for function 'look_up': 'strin' is not valid under any of the given schemas."
QUESTION: list[Any] = [{"role": "user", "content": "How?"}]


def refusal(status: int) -> Answer:
    return Answer({"error": {"message": f"{WHY}\r\n\x1b[31m", "type": "invalid_request_error"}}, status=status)


@pytest.mark.parametrize(
    ("stated", "status", "of_openai", "of_anthropic", "kind"),
    [
        (400, 400, openai.BadRequestError, anthropic.BadRequestError, "invalid_request_error"),
        (413, 413, openai.APIStatusError, anthropic.RequestTooLargeError, "request_too_large"),
        (422, 400, openai.BadRequestError, anthropic.BadRequestError, "invalid_request_error"),
    ],
)
def test_the_clients_of_both_vendors_raise_an_error_of_the_request_with_its_message(
    database_url: str,
    tmp_path: Path,
    stated: int,
    status: int,
    of_openai: type[openai.APIStatusError],
    of_anthropic: type[anthropic.APIStatusError],
    kind: str,
) -> None:
    with chat_service(database_url, tmp_path, refusal(stated)) as at:
        with pytest.raises(of_openai) as chat:
            at.client.chat.completions.create(model="main", messages=QUESTION)
        with pytest.raises(of_openai) as response:
            at.client.responses.create(model="main", input="How?")
        for failed in (chat.value, response.value):
            assert (failed.status_code, failed.code, failed.type) == (status, "provider_error", "invalid_request_error")
            assert failed.message.isprintable()
            assert WHY in failed.message
        with anthropic_at(at) as client, pytest.raises(of_anthropic) as message:
            client.messages.create(model="main", max_tokens=100, messages=QUESTION)
        assert message.value.status_code == status
        body: Any = message.value.body
        assert body["error"]["type"] == kind
        assert body["error"]["message"].endswith(f"The provider says: {WHY} [31m")
        assert at.model.hits == 3, "a client or the service tried it again"


def test_a_stream_and_a_stored_turn_have_it_too_and_a_log_does_not(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with chat_service(database_url, tmp_path, refusal(400), log_level="DEBUG") as at:
        with pytest.raises(openai.BadRequestError, match="Invalid schema for function"):
            list(at.client.chat.completions.create(model="main", messages=QUESTION, stream=True))
        with pytest.raises(openai.BadRequestError, match="Invalid schema for function") as refused:
            list(at.client.responses.create(model="main", input="How?", stream=True))
        session_id = refused.value.response.headers["x-session-id"].replace("-", "")
        failed: Any = at.client.responses.retrieve(f"resp_{session_id}{2:012x}")
        assert (failed.status, failed.error.code) == ("failed", "invalid_prompt")
        assert WHY in failed.error.message
        path, key = f"/v1/sessions/{new_session(at.http)}", {"Idempotency-Key": "k"}
        first, again = (at.http.post(f"{path}/turns", json={"content": "How?"}, headers=key) for _ in range(2))
        assert WHY in assert_problem(first, 502, "provider_error")["detail"]
        assert again.json() == first.json()
        assert [answer.headers.get("x-should-retry") for answer in (first, again)] == [None, "false"]
        (turn,) = at.http.get(f"{path}/turns").json()["items"]
        assert turn["error"]["detail"] == first.json()["detail"]
        assert at.model.hits == 3
    assert WHY not in caplog.text
