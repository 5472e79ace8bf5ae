"""Every error the service raises on purpose; it knows no HTTP (`api/problems.py` has the one table).

PlimsollError
├── InvalidRequest                 the request can never work as it is
│   ├── ToolOutputsMismatch        the outputs do not answer exactly the open calls
│   └── ImportRefused              what came to be imported contradicts itself, or can not be stored
├── NotFound                       session, turn, summary, pin … (also for another tenant's)
├── RetryLater                     the same request may work a little later
│   ├── Conflict
│   │   ├── TurnInProgress         the session already runs a turn
│   │   └── IdempotencyInFlight    the same key is still running
│   ├── DatabaseUnavailable
│   │   ├── TransactionConflict    the database rolled the transaction back in favour of another one
│   │   └── SessionBusy            the session's row is locked for longer than one waits
│   ├── Busy                       too much of it is in hand at this moment
│   │   ├── TenantBusy             by the tenant's own requests
│   │   └── ProcessBusy            by all of them together
│   │       └── TooManyStreams     event streams
│   └── ShuttingDown               the process ends and takes no new work
├── IdempotencyKeyReused           the same key with another body
├── ContextBudgetExceeded          does not fit after summarize and prune
├── PromptTooLarge                 a stored prompt is larger than any that is rebuilt
├── NothingToSummarize             no turn is old enough, or a summary would not be smaller
├── SummaryNotActive               only the active summary can be taken back
├── TurnNotLast                    only a session's last turn can be run again
├── TurnLost                       another process ended the turn while this one ran it
├── TurnCancelled                  a request cancelled the turn while it ran
├── TurnNotOpen                    the turn neither runs nor waits for tools, so nothing can be added or cancelled
├── StoredFailure                  how a stored turn ended, answered again to a retry with its idempotency key
├── LimitExceeded                  the tenant or the session has used what it may
├── Unauthenticated
└── ProviderError                  the model could not be called, or gave no answer
    ├── ProviderRefused            400/401/403/404/quota: calling again cannot help
    ├── ProviderOverflow           the provider says the prompt is too long
    ├── ProviderRateLimited        429 that outlasted the retries
    ├── ProviderDown               5xx, connection errors, malformed answers
    └── ProviderTimeout            the deadline of the whole call passed
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from app.domain.types import Usage

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class PlimsollError(Exception):
    """Base of the tree. `code` is the stable word of the contract, `detail` a sentence for people.

    `carries` names the attributes that the problem has beside them.
    """

    code = "internal_error"
    carries: ClassVar[tuple[str, ...]] = ()
    detail: str

    def __str__(self) -> str:
        return self.detail

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process: made again without its constructor, whose arguments differ from error to error."""
        return _same_error, (type(self), self.args), self.__dict__

    def members(self) -> dict[str, Any]:
        """What the problem carries beside code and detail."""
        return {name: getattr(self, name) for name in self.carries}

    def stored(self) -> dict[str, Any]:
        """The form in which a turn's `error` keeps it."""
        return {"code": self.code, "detail": self.detail, **self.members()}


def _same_error(kind: type[PlimsollError], args: tuple[Any, ...]) -> PlimsollError:
    return kind.__new__(kind, *args)


@dataclass(eq=False, repr=False)
class InvalidRequest(PlimsollError):
    """`where` is the path of the offending field, outermost first."""

    code = "invalid_request"
    where: tuple[str, ...] = ()


@contextmanager
def located(*path: str) -> Generator[None]:
    """Puts `path` in front of the place that an `InvalidRequest` raised in here names."""
    try:
        yield
    except InvalidRequest as error:
        error.where = (*path, *error.where)
        raise


class ToolOutputsMismatch(InvalidRequest):
    """`missing` are open calls without an output, `unknown` outputs for no open call, or a second one for the same."""

    carries = ("missing", "unknown")

    def __init__(self, missing: list[str], unknown: list[str], where: tuple[str, ...]) -> None:
        reasons = [f"{len(missing)} of the open calls have no output"] if missing else []
        reasons += [f"{len(unknown)} of the outputs answer no open call"] if unknown else []
        super().__init__(f"The outputs must answer exactly the open calls: {'; '.join(reasons)}.", where)
        self.missing = missing
        self.unknown = unknown


class ImportRefused(InvalidRequest):
    """`faults` are (place, sentence) of what is wrong, in the order it was found; at least one."""

    def __init__(self, faults: list[tuple[str, str]]) -> None:
        where, sentence = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        super().__init__(f"Nothing was imported. {where}: {sentence}{more}", (where,))
        self.faults = faults

    def members(self) -> dict[str, Any]:
        return {"errors": [{"where": where, "message": sentence} for where, sentence in self.faults]}


class NotFound(PlimsollError):
    """`noun` is what was looked for: `session`, `turn`, `summary`, `pin`, `audit`, `prompt`."""

    code = "not_found"

    def __init__(self, noun: str) -> None:
        super().__init__(f"There is no such {noun}.")
        self.noun = noun


def existing(found: T | None, noun: str) -> T:
    """What was looked for. Raises `NotFound` of the noun where it is None."""
    if found is None:
        raise NotFound(noun)
    return found


@dataclass(eq=False, repr=False)
class RetryLater(PlimsollError):
    """Another try makes sense after `retry_after_s`."""

    retry_after_s: int


@dataclass(eq=False, repr=False)
class Conflict(RetryLater):
    """Another request to the session or with the same key is under way."""

    retry_after_s: int = 1


class TurnInProgress(Conflict):
    code = "turn_in_progress"


class IdempotencyInFlight(Conflict):
    code = "idempotency_in_flight"


class IdempotencyKeyReused(PlimsollError):
    code = "idempotency_key_reused"


@dataclass(eq=False, repr=False, kw_only=True)
class ContextBudgetExceeded(PlimsollError):
    """The turn does not fit. Attributes are the members the problem carries; token figures are integers."""

    code = "context_budget_exceeded"
    carries = ("budget", "regions", "largest_items", "recovery")
    budget: dict[str, int]
    regions: dict[str, int]
    largest_items: list[dict[str, Any]]
    recovery: dict[str, Any]


class PromptTooLarge(PlimsollError):
    """`max_prompt_bytes` is what a prompt that is rebuilt may have."""

    code = "prompt_too_large"
    carries = ("max_prompt_bytes",)

    def __init__(self, max_prompt_bytes: int) -> None:
        super().__init__(f"The prompt has more than the {max_prompt_bytes} bytes up to which a prompt is rebuilt.")
        self.max_prompt_bytes = max_prompt_bytes


class NothingToSummarize(PlimsollError):
    code = "nothing_to_summarize"


class SummaryNotActive(PlimsollError):
    code = "summary_not_active"


class TurnNotLast(PlimsollError):
    code = "turn_not_last"


class TurnLost(PlimsollError):
    code = "worker_lost"


class TurnCancelled(PlimsollError):
    code = "turn_cancelled"


class TurnNotOpen(PlimsollError):
    code = "turn_not_open"


class StoredFailure(PlimsollError):
    """`error` is a turn's stored `error`."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error["detail"]))
        self.code = str(error["code"])
        self._members = {name: value for name, value in error.items() if name not in ("code", "detail")}

    def members(self) -> dict[str, Any]:
        return self._members


@dataclass(eq=False, repr=False)
class LimitExceeded(PlimsollError):
    """`retry_after_s` is None where time helps nothing; `limit` is answered as it is."""

    code = "limit_exceeded"
    carries = ("limit",)
    limit: dict[str, Any]
    retry_after_s: int | None


class Unauthenticated(PlimsollError):
    code = "unauthenticated"


@dataclass(eq=False, repr=False)
class DatabaseUnavailable(RetryLater):
    code = "database_unavailable"
    retry_after_s: int = 2


class TransactionConflict(DatabaseUnavailable):
    """A deadlock or a serialization failure: nothing of the transaction was written, and it may be tried again."""


class SessionBusy(DatabaseUnavailable):
    """Nothing was stored. Whoever waits out a database that is away waits this out too."""

    code = "session_busy"


class Busy(RetryLater):
    """Too much of it is in hand at this moment."""


class TenantBusy(Busy):
    code = "tenant_busy"


class ProcessBusy(Busy):
    code = "process_busy"


class TooManyStreams(ProcessBusy):
    code = "too_many_streams"


class ShuttingDown(RetryLater):
    """Nothing was begun: the same request to another process is no second one."""

    code = "shutting_down"


@dataclass(eq=False, repr=False, kw_only=True)
class ProviderError(PlimsollError):
    """`kind` labels metrics, `status` is the provider's HTTP status if it gave one, `attempts` counts the calls.

    `partial` is the text that had been streamed when the answer broke, "" when only reasoning had, None when nothing
    had; `usage` is what the provider had reported of it. They are for the record of the turn and no members of the
    problem.
    """

    code = "provider_error"
    kind: ClassVar[str] = "error"
    status: int | None = None
    attempts: int = 1
    partial: str | None = field(default=None, init=False)
    usage: Usage | None = field(default=None, init=False)

    def members(self) -> dict[str, Any]:
        return {"kind": self.kind, "provider_status": self.status, "attempts": self.attempts}


class ProviderRefused(ProviderError):
    kind = "refused"


@dataclass(frozen=True, slots=True)
class StatedOverflow:
    """What a provider's error states of a prompt that is too long, in its own tokens; None where it does not.

    `limit_tokens` is its window, or with `limit_is_window` false what it lets through for another reason (what an
    account may use in a minute), or a figure that the request itself holds, so that it may be an echo.
    `requested_tokens` is prompt and completion together where the provider adds them up, else the prompt alone, and
    `prompt_tokens` is known only where the provider names the prompt's tokens as such.
    """

    limit_tokens: int | None = None
    requested_tokens: int | None = None
    prompt_tokens: int | None = None
    limit_is_window: bool = True


@dataclass(eq=False, repr=False, kw_only=True)
class ProviderOverflow(ProviderError):
    """The prompt is too long for the provider; `stated` is what it stated of that."""

    code = "provider_context_overflow"
    kind = "overflow"
    stated: StatedOverflow = StatedOverflow()

    def members(self) -> dict[str, Any]:
        return super().members() | {
            "limit_tokens": self.stated.limit_tokens,
            "requested_tokens": self.stated.requested_tokens,
            "prompt_tokens": self.stated.prompt_tokens,
        }


class ProviderRateLimited(ProviderError):
    kind = "rate_limited"


class ProviderDown(ProviderError):
    kind = "down"


class ProviderTimeout(ProviderError):
    code = "provider_timeout"
    kind = "timeout"
