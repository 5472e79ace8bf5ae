"""When a call is sent again: decided here for both clients, which only do what is yielded.

Sent again, within the deadline: what surely was not begun (no connection, 408, 429, 503 `shutting_down`, a session
that runs another turn or is locked), and for repeatable calls also what perhaps was (a connection that broke, other
503s, and a 5xx without a code of the service, from a proxy before it). A deletion whose answer was lost has been done
when there is nothing to delete any more. Waits are the service's `Retry-After` or longer ones that grow, `max_retries`
of them; but while the first request with the same idempotency key still runs (409 `idempotency_in_flight`), its end is
waited for as long as the deadline allows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from random import SystemRandom
from typing import Any, Final, Literal, TypeAlias

from plimsoll_sdk.call import Call, Reply, error_of
from plimsoll_sdk.errors import BY_CODE, DeadlinePassed, PlimsollError, Unreachable

_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 8.0
_random = SystemRandom()


@dataclass(frozen=True)
class Patience:
    """How long a call may take in all, and how often it is sent again."""

    deadline_s: float
    max_retries: int


@dataclass(frozen=True)
class Send:
    """Send the call once, within `timeout_s`. Answered by a `Reply`, `Lost` or `OutOfTime`."""

    call: Call[Any]
    timeout_s: float


@dataclass(frozen=True)
class Sleep:
    """Wait so long."""

    seconds: float


@dataclass(frozen=True)
class Lost:
    """No answer came. `begun` is false when the request surely did not reach the service."""

    reason: str
    begun: bool


@dataclass(frozen=True)
class OutOfTime:
    """No answer came in the time that was given."""


Step: TypeAlias = Send | Sleep
Came: TypeAlias = Reply | Lost | OutOfTime | None
_Again: TypeAlias = Literal["no", "counted", "until the deadline"]


def exchange(
    call: Call[Any], patience: Patience, ends_at: float, clock: Callable[[], float]
) -> Generator[Step, Came, Reply]:
    """The steps that lead to an answer of success. Raises a `Problem`, `Unreachable`, `DeadlinePassed`."""
    retries, is_lost = 0, False
    while True:
        left_s = ends_at - clock()
        if left_s <= 0:
            raise DeadlinePassed(patience.deadline_s)
        came = yield Send(call, left_s)
        if came is None or isinstance(came, OutOfTime):
            raise DeadlinePassed(patience.deadline_s)
        if isinstance(came, Reply) and (_is_answer(call, came) or (is_lost and _is_gone(call, came))):
            return came
        is_lost = is_lost or (isinstance(came, Lost) and came.begun)
        asked_s = retry_after_s(came.headers) if isinstance(came, Reply) else None
        again, error = _judged(call, came, asked_s)
        if again == "no" or (again == "counted" and retries >= patience.max_retries):
            raise error
        wait_s = max(asked_s or 0.0, 0.0 if again != "counted" else _grown(retries))
        wait_s = wait_s or _FIRST_WAIT_S
        if clock() + wait_s >= ends_at:
            raise error
        retries += again == "counted"
        yield Sleep(wait_s)


def _is_answer(call: Call[Any], reply: Reply) -> bool:
    """A stream is answered by events, and `/readyz` says no with a 503 that is what was asked for."""
    if reply.status < 300:
        return reply.has_events or not call.request.streamed
    return call.path == "/readyz" and reply.status == 503 and b'"status"' in reply.body and b'"database"' in reply.body


def _is_gone(call: Call[Any], reply: Reply) -> bool:
    """Whether there is nothing at the address of a deletion."""
    return call.method == "DELETE" and str(getattr(error_of(reply, None), "code", "")).endswith("_not_found")


def _judged(call: Call[Any], came: Reply | Lost, asked_s: float | None) -> tuple[_Again, PlimsollError]:
    if isinstance(came, Lost):
        again: _Again = "counted" if call.repeatable or not came.begun else "no"
        return again, Unreachable(f"The service does not answer: {came.reason}", maybe_done=came.begun)
    error = error_of(came, asked_s)
    return _again(call.repeatable, came.status, getattr(error, "code", "unknown"), asked_s), error


def _again(repeatable: bool, status: int, code: str, asked_s: float | None) -> _Again:
    match status, code:
        case 409, "idempotency_in_flight":
            return "until the deadline"
        case (429, "limit_exceeded") | (503, "database_unavailable") if asked_s is None:
            return "no"  # time helps nothing: the latter is how the turn of this key ended
        case (409, "turn_in_progress" | "session_busy") | (503, "shutting_down") | (408 | 429, _):
            return "counted"
        case 503, "worker_lost":
            return "no"  # the same key gets the same end
        case _ if repeatable and (status == 503 or (status > 499 and code not in BY_CODE)):
            return "counted"
        case _:
            return "no"


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of the header `Retry-After`, in either of its forms; None where there is none to understand."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    aware = at if at.tzinfo else at.replace(tzinfo=timezone.utc)
    return max(0.0, (aware - datetime.now(timezone.utc)).total_seconds())


def _grown(retries: int) -> float:
    """Grows with each try, and differs from that of others who were refused at the same time."""
    return min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**retries) * _random.uniform(0.75, 1.25)
