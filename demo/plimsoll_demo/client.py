"""The calls that a replay makes to a running Plimsoll, each with its status and its time, over the project's client."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import orjson

from plimsoll_sdk import Plimsoll, Problem
from plimsoll_sdk.call import Call, Request, reads_nothing
from plimsoll_sdk.errors import PlimsollError, UnexpectedAnswer

MOST_RETRIES = 20
"""Waits of one call, mostly for a session that still runs another turn."""
FIRST_RETRIES = 3
"""Those of the first call: at a wrong address no caller waits two minutes for the error."""


class ServiceUnavailableError(Exception):
    """The service cannot be used at all: not reachable, or it refuses the key or the session."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: its status, its JSON object (empty where it had none), and how long it took, waits included."""

    status_code: int
    body: Mapping[str, Any]
    elapsed_s: float = 0.0

    @property
    def code(self) -> str | None:
        """The problem's stable word, if the answer is a problem."""
        code = self.body.get("code")
        return code if isinstance(code, str) else None


class Service:
    """A Plimsoll at `url`. `timeout_s` is the patience with one answer; a turn waits for its model.

    Raises `ServiceUnavailableError` for an address or a key that can be none.
    """

    def __init__(self, url: str, *, key: str | None = None, timeout_s: float = 300.0) -> None:
        try:
            self._client = Plimsoll(url, api_key=key, deadline_s=timeout_s)
        except ValueError as error:
            raise ServiceUnavailableError(str(error)) from error
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def create_session(self, body: Mapping[str, Any]) -> str:
        """Makes a session and gives its id; raises `ServiceUnavailableError` when the service will not."""
        answer = self.request("POST", "/v1/sessions", body, max_retries=FIRST_RETRIES)
        if answer.status_code != 201:
            problem = answer.body.get("detail") or "no reason given"
            raise ServiceUnavailableError(
                f"{self.url} makes no session: {answer.status_code} {answer.code or ''} {problem}"
            )
        return str(answer.body["id"])

    def post_turn(self, session_id: str, body: Mapping[str, Any]) -> Answer:
        """Posts a turn, and waits while the session runs another one."""
        return self.request("POST", f"/v1/sessions/{session_id}/turns", body)

    def post_tool_outputs(self, session_id: str, turn_id: str, body: Mapping[str, Any]) -> Answer:
        """Answers the open tool calls of a turn, which runs its next round."""
        return self.request("POST", f"/v1/sessions/{session_id}/turns/{turn_id}/tool-outputs", body)

    def cancel_turn(self, session_id: str, turn_id: str) -> Answer:
        """Ends a turn that runs or waits for tools."""
        return self.request("POST", f"/v1/sessions/{session_id}/turns/{turn_id}/cancel")

    def audit(
        self, session_id: str, turn_id: str, round_number: int | None = None, expand: str | None = None
    ) -> Mapping[str, Any]:
        """The audit row of a turn's last model call, or of a round's; empty if the service has none.

        With `expand` "actions" its trim log names messages and turns one by one.
        """
        path = f"/v1/sessions/{session_id}/turns/{turn_id}/audit"
        answer = self.request("GET", path, round=round_number, expand=expand)
        return answer.body if answer.status_code == 200 else {}

    def prompt(self, session_id: str, turn_id: str, round_number: int | None = None) -> Answer:
        """The messages and tools that were sent in a turn's last round, or in the given one."""
        return self.request("GET", f"/v1/sessions/{session_id}/turns/{turn_id}/prompt", round=round_number)

    def summarizer_tokens(self, session_id: str) -> int | None:
        """Prompt and completion tokens of the session's summaries as reported; None where no summary reports any."""
        total: int | None = None
        cursor: str | None = None
        while True:
            answer = self.request("GET", f"/v1/sessions/{session_id}/summaries", limit=100, cursor=cursor)
            for summary in answer.body.get("items") or ():
                reported = [summary.get("prompt_tokens"), summary.get("completion_tokens")]
                known = [tokens for tokens in reported if isinstance(tokens, int)]
                total = (total or 0) + sum(known) if known else total
            cursor = answer.body.get("next_cursor")
            if not cursor:
                return total

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        max_retries: int = MOST_RETRIES,
        **query: object,
    ) -> Answer:
        """One request, sent again where the client does so; raises `ServiceUnavailableError` when nothing answers."""
        given = {name: str(value) for name, value in query.items() if value is not None}
        call = Call(method, path, method == "GET", Request(reads_nothing, query=given, body=body))
        started = time.perf_counter()
        status, answered = self._answered(call, self._client.with_patience(max_retries=max_retries))
        return Answer(status, answered, time.perf_counter() - started)

    def _answered(self, call: Call[None], client: Plimsoll) -> tuple[int, Mapping[str, Any]]:
        try:
            reply = client.exchanged(call, time.monotonic() + client.patience.deadline_s)
        except Problem as problem:
            return problem.status, {**problem.fields, "code": problem.code, "detail": problem.detail}
        except UnexpectedAnswer as answer:
            return answer.status, {}
        except PlimsollError as error:
            raise ServiceUnavailableError(f"{self.url}: {error}") from error
        return reply.status, orjson.loads(reply.body) if reply.body else {}
