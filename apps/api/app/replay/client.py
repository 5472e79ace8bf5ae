"""The few calls a replay makes to a running Plimsoll, over real HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

import httpx

CONFLICT_TRIES = 20
MAX_CONFLICT_WAIT_S = 5.0


class ServiceUnavailableError(Exception):
    """The service cannot be used at all: not reachable, or it refuses the key or the session."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: its status, its JSON object (empty where it had none), and how long it took."""

    status_code: int
    body: Mapping[str, Any]
    elapsed_s: float = 0.0

    @property
    def code(self) -> str | None:
        """The problem's stable word, if the answer is a problem."""
        code = self.body.get("code")
        return code if isinstance(code, str) else None


class Service:
    """A Plimsoll at `url`. `timeout_s` is the patience with one answer; a turn waits for its model."""

    def __init__(self, url: str, *, key: str | None = None, timeout_s: float = 300.0) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # No proxy from the environment: the service is the operator's own, often on loopback.
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, trust_env=False)
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def create_session(self, body: Mapping[str, Any]) -> str:
        """Makes a session and gives its id; raises `ServiceUnavailableError` when the service will not."""
        answer = self.request("POST", "/v1/sessions", body)
        if answer.status_code != 201:
            problem = answer.body.get("detail") or answer.body.get("title") or "no reason given"
            raise ServiceUnavailableError(
                f"{self.url} makes no session: {answer.status_code} {answer.code or ''} {problem}"
            )
        return str(answer.body["id"])

    def post_turn(self, session_id: str, body: Mapping[str, Any]) -> Answer:
        """Posts a turn; waits and asks again while the session runs another one (409)."""
        return self._post_patiently(f"/v1/sessions/{session_id}/turns", body)

    def post_tool_outputs(self, session_id: str, turn_id: str, body: Mapping[str, Any]) -> Answer:
        """Answers the open tool calls of a turn, which runs its next round."""
        return self._post_patiently(f"/v1/sessions/{session_id}/turns/{turn_id}/tool-outputs", body)

    def cancel_turn(self, session_id: str, turn_id: str) -> Answer:
        """Ends a turn that runs or waits for tools."""
        return self.request("POST", f"/v1/sessions/{session_id}/turns/{turn_id}/cancel")

    def audit(self, session_id: str, turn_id: str, round_number: int | None = None) -> Mapping[str, Any]:
        """The audit row of a turn's last model call, or of a round's; empty if the service has none."""
        answer = self.request("GET", f"/v1/sessions/{session_id}/turns/{turn_id}/audit{_of_round(round_number)}")
        return answer.body if answer.status_code == 200 else {}

    def prompt(self, session_id: str, turn_id: str, round_number: int | None = None) -> Answer:
        """The messages and tools that were sent in a turn's last round, or in the given one."""
        return self.request("GET", f"/v1/sessions/{session_id}/turns/{turn_id}/prompt{_of_round(round_number)}")

    def summarizer_tokens(self, session_id: str) -> int | None:
        """Prompt and completion tokens of the session's summaries as reported; None where the service tells none."""
        total: int | None = None
        cursor: str | None = None
        while True:
            query = f"?limit=100&cursor={cursor}" if cursor else "?limit=100"
            answer = self.request("GET", f"/v1/sessions/{session_id}/summaries{query}")
            for summary in cast("list[Mapping[str, Any]]", answer.body.get("items") or []):
                reported = [summary.get("prompt_tokens"), summary.get("completion_tokens")]
                known = [tokens for tokens in reported if isinstance(tokens, int)]
                total = (total or 0) + sum(known) if known else total
            cursor = answer.body.get("next_cursor")
            if not cursor:
                return total

    def _post_patiently(self, path: str, body: Mapping[str, Any]) -> Answer:
        answer = self.request("POST", path, body)
        for _ in range(CONFLICT_TRIES):
            if answer.code != "turn_in_progress":
                break
            time.sleep(min(MAX_CONFLICT_WAIT_S, float(answer.body.get("retry_after_s", 1))))
            answer = self.request("POST", path, body)
        return answer

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """One request; raises `ServiceUnavailableError` when nothing answers."""
        started = time.perf_counter()
        try:
            response = self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise ServiceUnavailableError(f"{self.url} does not answer ({type(error).__name__}: {error})") from error
        elapsed_s = time.perf_counter() - started
        try:
            value: object = response.json()
        except ValueError:
            value = None
        found = dict(cast("Mapping[str, Any]", value)) if isinstance(value, dict) else {}
        if retry_after := response.headers.get("Retry-After"):
            found.setdefault("retry_after_s", float(retry_after) if retry_after.isdigit() else 1.0)
        return Answer(response.status_code, found, elapsed_s)


def _of_round(number: int | None) -> str:
    return "" if number is None else f"?round={number}"
