"""Tool outputs that are posted again because their answer was lost, with an `Idempotency-Key`."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from tests.api.chatting import TOOLS, Chat, chat_service, say
from tests.api.conftest import assert_problem, new_session
from tests.api.test_chat_retries import BROKEN
from tests.api.test_streaming import events_of

KEY = {"Idempotency-Key": "round"}
PARTS = [{"type": "text", "text": "pa\0id"}]


def waiting(at: Chat) -> str:
    """The path of a turn that waits for outputs."""
    turns = f"/v1/sessions/{new_session(at.http)}/turns"
    turn = at.http.post(turns, json={"content": "Is it paid?", "tools": TOOLS}).json()["turn"]
    assert turn["status"] == "awaiting_tools"
    return f"{turns}/{turn['id']}"


def outputs(**by_call: Any) -> dict[str, Any]:
    return {"outputs": [{"tool_call_id": call, "content": content} for call, content in by_call.items()]}


def test_repeated_outputs_get_the_stored_turn_and_the_model_is_not_called_again(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say(None, "a", "b"), say("Wait.", "c"), say("Paid.")) as at:
        path = waiting(at)
        for body in (outputs(a=PARTS, b="no"), outputs(c="yes")):
            first = at.http.post(f"{path}/tool-outputs", json=body, headers=KEY)
            again = at.http.post(f"{path}/tool-outputs", json=body, headers=KEY)
            assert (again.status_code, again.json()) == (201, first.json())
        assert again.json()["turn"]["status"] == "completed"
        with at.http.stream("POST", f"{path}/tool-outputs", json=body | {"stream": True}, headers=KEY) as answer:
            events = events_of(answer)
        assert [name for name, _ in events] == ["turn.created", "context.assembled", "output.delta", "turn.completed"]
        assert events[-1][1] == first.json()
        assert at.model.hits == 3


def test_outputs_that_are_not_those_of_the_last_round_or_have_no_key_are_refused(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say(None, "a"), say(None, "b", "c"), say("Paid.")) as at:
        path = waiting(at)
        for body in (outputs(a="no"), outputs(b="yes", c="no")):
            at.http.post(f"{path}/tool-outputs", json=body, headers=KEY).raise_for_status()
        for body in (outputs(a="no"), outputs(c="no"), outputs(b="yes", c="yes"), outputs(b="yes", c="no", a="no")):
            assert_problem(at.http.post(f"{path}/tool-outputs", json=body, headers=KEY), 409, "turn_not_open")
        answer = at.http.post(f"{path}/tool-outputs", json=outputs(b="yes", c="no"))
        assert_problem(answer, 409, "turn_not_open")


def test_repeated_outputs_get_the_error_of_their_round(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say(None, "a"), BROKEN, say("Never.")) as at:
        path = waiting(at)
        first, again = (at.http.post(f"{path}/tool-outputs", json=outputs(a="no"), headers=KEY) for _ in range(2))
        assert_problem(first, 502, "provider_error")
        assert (again.status_code, again.json()) == (502, first.json())
        assert at.model.hits == 2


def test_outputs_that_are_repeated_while_their_round_runs_are_in_flight(database_url: str, tmp_path: Path) -> None:
    released = threading.Event()
    with chat_service(database_url, tmp_path, say(None, "a"), say("Paid.", after=released.is_set)) as at:
        path = waiting(at)
        answers: list[Any] = []

        def post() -> None:
            answers.append(at.http.post(f"{path}/tool-outputs", json=outputs(a="no"), headers=KEY))

        first = threading.Thread(target=post)
        first.start()
        while at.model.hits < 2:
            time.sleep(0.01)
        again = at.http.post(f"{path}/tool-outputs", json=outputs(a="no"), headers=KEY)
        other = at.http.post(f"{path}/tool-outputs", json=outputs(a="yes"), headers=KEY)
        released.set()
        first.join()
        assert_problem(again, 409, "idempotency_in_flight")
        assert_problem(other, 409, "turn_in_progress")
        assert again.headers["retry-after"]
        assert answers[0].status_code == 201
