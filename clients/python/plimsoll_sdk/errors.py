"""Every error the client raises on purpose.

PlimsollError
├── Unreachable                    no answer came; `maybe_done` says whether the service may have done it all the same
├── DeadlinePassed                 no answer came in time
├── StreamBroken                   a stream ended early and could not be taken up again
├── UnexpectedAnswer               something answered that is not a Plimsoll of a version we know
├── ToolLoopTooLong                a model went on calling tools
└── Problem                        the service said no: `code` is the stable word to branch on
    ├── Unauthenticated
    ├── InvalidRequest             `faults` say where
    │   └── IdempotencyKeyReused
    ├── NotFound                   session, turn, summary, pin, audit, prompt, model …; also another tenant's
    ├── ContextBudgetExceeded      the turn does not fit; `budget`, `regions`, `largest_items`, `shorten`
    ├── Conflict
    │   ├── TurnInProgress         the session already runs a turn
    │   ├── IdempotencyInFlight    the same key is still running
    │   ├── TurnCancelled TurnNotOpen TurnNotLast NothingToSummarize SummaryNotActive
    ├── LimitExceeded              the tenant or the session has used what it may; `limit`
    ├── ProviderFailed             the model could not be had; `kind`, `provider_status`
    │   ├── ProviderOverflow
    │   └── ProviderTimeout
    ├── Unavailable                the service can not do it now
    │   └── WorkerLost             the turn's process died
    └── InternalError
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from plimsoll_sdk.models import Answer, Turn

A = TypeVar("A", bound=Answer)


class BudgetFigures(Answer):
    """Why a turn was refused: `estimated` tokens against `input_budget`, and by how many it is over."""

    limit: int
    input_budget: int
    estimated: int
    over_by: int


class LargeItem(Answer):
    """Something large in a prompt that was refused."""

    item: str
    region: str
    tokens: int


class ToShorten(Answer):
    """What to shorten by how many tokens, so that the turn fits."""

    item: str
    region: str
    by_tokens: int


class LimitFigures(Answer):
    """The limit that a turn would have gone over; `resets_at` is None where time helps nothing."""

    scope: str
    name: str
    value: float
    used: float
    reserved: float
    asked: float
    resets_at: datetime | None


class Fault(Answer):
    """A place of a request, and what is wrong there."""

    where: str
    message: str


class PlimsollError(Exception):
    """Base of the tree. Each can be pickled, as for another process."""

    def __reduce__(self) -> Any:
        return _same_error, (type(self), self.args), self.__dict__


def _same_error(kind: type[PlimsollError], args: tuple[Any, ...]) -> PlimsollError:
    """The error without a call of its constructor, whose arguments differ by class."""
    return kind.__new__(kind, *args)


class Unreachable(PlimsollError):
    """No answer came, after the retries. `maybe_done` is false when the request surely never reached the service."""

    def __init__(self, detail: str, *, maybe_done: bool) -> None:
        super().__init__(detail)
        self.maybe_done = maybe_done


class DeadlinePassed(PlimsollError):
    """The service may still do what was asked. `deadline_s` is what the call was given, retries included."""

    def __init__(self, deadline_s: float) -> None:
        super().__init__(f"No answer within {deadline_s:g} s.")
        self.deadline_s = deadline_s


class StreamBroken(PlimsollError):
    """The turn may still run, and is stored when it ends: read it by its ids. `text` is what had come of its answer."""

    def __init__(self, detail: str, *, session_id: str | None, turn_id: str | None, text: str) -> None:
        super().__init__(detail)
        self.session_id = session_id
        self.turn_id = turn_id
        self.text = text


class UnexpectedAnswer(PlimsollError):
    """`status` is the HTTP status. What was answered is not repeated: it could be anything."""

    def __init__(self, detail: str, status: int) -> None:
        super().__init__(f"{detail} (status {status})")
        self.status = status


class ToolLoopTooLong(PlimsollError):
    """After `rounds` rounds of tools the model wanted another one. The turn was cancelled."""

    def __init__(self, turn: Turn, rounds: int) -> None:
        super().__init__(f"The model still called tools after {rounds} rounds; the turn was cancelled.")
        self.turn = turn
        self.rounds = rounds


class Problem(PlimsollError):
    """The service refused or failed (RFC 9457). `fields` are the members that the problem has beside the usual ones."""

    def __init__(self, status: int, document: Mapping[str, Any], retry_after_s: float | None = None) -> None:
        self.code = str(document.get("code", "unknown"))
        self.title = str(document.get("title", ""))
        self.detail = str(document.get("detail", "") or self.title or f"status {status}")
        self.type = str(document.get("type", "about:blank"))
        self.status = status
        self.retry_after_s = retry_after_s
        usual = ("code", "title", "detail", "type", "status")
        self.fields: dict[str, Any] = {name: value for name, value in document.items() if name not in usual}
        super().__init__(f"{status} {self.code}: {self.detail}")


class Unauthenticated(Problem):
    """No API key, an unknown one, or a revoked one."""


class InvalidRequest(Problem):
    """The request can never work as it is."""

    @property
    def faults(self) -> list[Fault]:
        """Where, and what is wrong there."""
        return _each(Fault, self.fields.get("errors"))


class IdempotencyKeyReused(InvalidRequest):
    """The same key with another body."""


class NotFound(Problem):
    """It is not there, or it is another tenant's."""


class ContextBudgetExceeded(Problem):
    """The turn does not fit into the window. No model was called, and later prompts do not have it."""

    @property
    def budget(self) -> BudgetFigures:
        """What there is room for, and what was asked."""
        return BudgetFigures.model_validate(self.fields.get("budget"))

    @property
    def regions(self) -> dict[str, int]:
        """Tokens of the prompt that was refused, by what they are for."""
        return dict(self.fields.get("regions") or {})

    @property
    def largest_items(self) -> list[LargeItem]:
        """What is largest in it, the largest first."""
        return _each(LargeItem, self.fields.get("largest_items"))

    @property
    def shorten(self) -> list[ToShorten]:
        """What to shorten by how much, so that it fits."""
        recovery = cast("Mapping[str, Any]", self.fields.get("recovery") or {})
        return _each(ToShorten, recovery.get("shorten"))


class Conflict(Problem):
    """Not now, or not any more."""


class TurnInProgress(Conflict):
    """The session already runs a turn, or waits for tools."""


class IdempotencyInFlight(Conflict):
    """The first request with this key still runs."""


class TurnCancelled(Conflict):
    """Somebody cancelled the turn while it ran."""


class TurnNotOpen(Conflict):
    """The turn has ended."""


class TurnNotLast(Conflict):
    """Only a session's last turn can be run again."""


class NothingToSummarize(Conflict):
    """No turn is old enough, or a summary would not be smaller."""


class SummaryNotActive(Conflict):
    """Only the active summary can be taken back."""


class LimitExceeded(Problem):
    """Nothing was stored or sent to the model."""

    @property
    def limit(self) -> LimitFigures | None:
        """Which limit; None where a proxy said it and not the service."""
        return next(iter(_each(LimitFigures, [self.fields.get("limit")])), None)


class ProviderFailed(Problem):
    """The model could not be had, after the service's own retries. The user's message is kept."""

    @property
    def kind(self) -> str | None:
        """`refused`, `overflow`, `rate_limited`, `down`, `timeout` or `error`."""
        return self.fields.get("kind")

    @property
    def provider_status(self) -> int | None:
        """The provider's own HTTP status, where it gave one."""
        return self.fields.get("provider_status")


class ProviderOverflow(ProviderFailed):
    """The provider says that the prompt is too long."""


class ProviderTimeout(ProviderFailed):
    """The model did not answer in time."""


class Unavailable(Problem):
    """The database is away, the process is shutting down, or it has too much in hand at this moment."""


class WorkerLost(Unavailable):
    """The turn's process died or was stopped."""


class InternalError(Problem):
    """A defect of the service."""


BY_CODE: Mapping[str, type[Problem]] = {
    "context_budget_exceeded": ContextBudgetExceeded,
    "invalid_request": InvalidRequest,
    "method_not_allowed": InvalidRequest,
    "body_too_large": InvalidRequest,
    "unsupported_media_type": InvalidRequest,
    "prompt_too_large": InvalidRequest,
    "headers_too_large": InvalidRequest,
    "invalid_http": InvalidRequest,
    "host_not_allowed": InvalidRequest,
    "origin_not_allowed": InvalidRequest,
    "idempotency_key_reused": IdempotencyKeyReused,
    "idempotency_in_flight": IdempotencyInFlight,
    "turn_in_progress": TurnInProgress,
    "turn_cancelled": TurnCancelled,
    "turn_not_open": TurnNotOpen,
    "turn_not_last": TurnNotLast,
    "nothing_to_summarize": NothingToSummarize,
    "summary_not_active": SummaryNotActive,
    "worker_lost": WorkerLost,
    "limit_exceeded": LimitExceeded,
    "unauthenticated": Unauthenticated,
    "not_found": NotFound,
    "session_not_found": NotFound,
    "model_not_found": NotFound,
    "turn_not_found": NotFound,
    "message_not_found": NotFound,
    "summary_not_found": NotFound,
    "response_not_found": NotFound,
    "previous_response_not_found": NotFound,
    "compaction_not_found": NotFound,
    "conversation_not_found": NotFound,
    "item_not_found": NotFound,
    "pin_not_found": NotFound,
    "audit_not_found": NotFound,
    "prompt_not_found": NotFound,
    "request_timeout": Unavailable,
    "provider_error": ProviderFailed,
    "provider_context_overflow": ProviderOverflow,
    "provider_timeout": ProviderTimeout,
    "database_unavailable": Unavailable,
    "session_busy": Conflict,
    "tenant_busy": Unavailable,
    "process_busy": Unavailable,
    "too_many_streams": Unavailable,
    "too_many_connections": Unavailable,
    "shutting_down": Unavailable,
    "interrupted": Unavailable,
    "internal_error": InternalError,
    # Chat completions say these in OpenAI's words.
    "context_length_exceeded": ContextBudgetExceeded,
    "invalid_api_key": Unauthenticated,
    "rate_limit_exceeded": ProviderFailed,
}
_BY_STATUS: Mapping[int, type[Problem]] = {
    401: Unauthenticated,
    404: NotFound,
    409: Conflict,
    422: InvalidRequest,
    429: LimitExceeded,
    500: InternalError,
    502: ProviderFailed,
    503: Unavailable,
    504: ProviderTimeout,
}


def problem_of(status: int, document: Mapping[str, Any], retry_after_s: float | None = None) -> Problem:
    """The error of a problem's document; a code of a later version goes by its status."""
    kind = BY_CODE.get(str(document.get("code"))) or _BY_STATUS.get(status, Problem)
    return kind(status, document, retry_after_s)


def _each(kind: type[A], value: object) -> list[A]:
    """The values of a list that are of this kind; what is not is left to `fields`."""
    try:
        return [kind.model_validate(item) for item in cast("list[Any]", value or [])]
    except (ValidationError, TypeError):
        return []
