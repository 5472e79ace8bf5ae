"""Every error that the service raises on purpose, without HTTP (`api/problems.py` maps errors to statuses).

PlimsollError
├── InvalidRequest                 the request can never work as it is
│   ├── ToolOutputsMismatch        the outputs do not answer exactly the open calls
│   └── InvalidFields              fields of a body, a query or a header
│       └── ImportRefused          the document to import contradicts itself, or cannot be stored
├── NotFound                       session, turn, summary, pin … (also for another tenant's)
├── RetryLater                     the same request may work a little later
│   ├── Conflict
│   │   ├── TurnInProgress         the session already runs a turn
│   │   └── IdempotencyInFlight    a request with the same key is still running
│   ├── DatabaseUnavailable
│   │   ├── TransactionConflict    the database rolled the transaction back in favour of another one
│   │   └── SessionBusy            a lock of the session or the tenant's limits was waited for too long
│   ├── Busy                       the process already has as much of this work as it accepts
│   │   ├── TenantBusy             from this tenant
│   │   └── ProcessBusy            from all tenants together
│   │       └── TooManyStreams     event streams
│   └── ShuttingDown               the process is shutting down and accepts no new work
├── IdempotencyKeyReused           the same key with another body
├── ContextBudgetExceeded          the prompt does not fit even after summarizing and pruning
├── PromptTooLarge                 a stored prompt is too large to be rebuilt
├── NothingToSummarize             no turn is old enough, or a summary would not be smaller
├── SummaryNotActive               only the active summary can be taken back
├── TurnNotLast                    only a session's last turn can be run again
├── TurnLost                       another process ended the turn while this one ran it
├── TurnCancelled                  a request cancelled the turn while it ran
├── TurnNotOpen                    the turn neither runs nor waits for tools, so nothing can be added or cancelled
├── StoredFailure                  a stored turn's error, returned again to a retry with its idempotency key
├── LimitExceeded                  a limit of the tenant or the session is used up
├── Unauthenticated
└── ProviderError                  the model could not be called, or gave no answer
    ├── ProviderRefused            400/401/403/404: calling again cannot help
    │   └── ProviderOutOfQuota     the account's quota or credit is used up: another model can answer
    ├── ProviderOverflow           the provider says the prompt is too long
    ├── ProviderRateLimited        429 that outlasted the retries
    ├── ProviderDown               5xx, connection errors, malformed answers
    └── ProviderTimeout            the deadline of the whole call passed
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from app.domain.frozen import frozen, values_of
from app.domain.types import Usage

T = TypeVar("T")


class OperatorError(Exception):
    """A command, or the start of the service, cannot go on. The message is a sentence that tells the operator why, and
    contains no connection string."""


@dataclass(eq=False, repr=False)
class PlimsollError(Exception):
    """Base of the tree. `code` is the stable word of the contract, `detail` a sentence for people; `carries` names the
    attributes that the problem has besides these."""

    code = "internal_error"
    carries: ClassVar[tuple[str, ...]] = ()
    detail: str

    def __str__(self) -> str:
        return self.detail

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle support: it is rebuilt without calling the constructor, whose arguments differ by class."""
        return _same_error, (type(self), self.args), self.__dict__

    def members(self) -> dict[str, Any]:
        """The members of the problem besides `code` and `detail`."""
        return {name: getattr(self, name) for name in self.carries}

    def stored(self) -> dict[str, Any]:
        """The form in which it is stored as a turn's `error`."""
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
    """Prefix `path` to the `where` of an `InvalidRequest` that is raised in the block."""
    try:
        yield
    except InvalidRequest as error:
        error.where = (*path, *error.where)
        raise


class ToolOutputsMismatch(InvalidRequest):
    """`missing` are open calls without an output; `unknown` are outputs for no open call or second ones for a call."""

    carries = ("missing", "unknown")

    def __init__(self, missing: list[str], unknown: list[str], where: tuple[str, ...]) -> None:
        reasons = [f"{len(missing)} of the open calls have no output"] if missing else []
        reasons += [f"{len(unknown)} of the outputs answer no open call, or one that has an output"] if unknown else []
        super().__init__(f"The outputs must answer exactly the open calls: {'; '.join(reasons)}.", where)
        self.missing = missing
        self.unknown = unknown


class InvalidFields(InvalidRequest):
    """`faults` are pairs (place, sentence), in the order of detection; at least one. They never have a value."""

    def __init__(self, faults: list[tuple[str, str]], detail: str | None = None) -> None:
        super().__init__(detail or ": ".join(faults[0]), (faults[0][0],))
        self.faults = faults

    def members(self) -> dict[str, Any]:
        return {"errors": [{"where": where, "message": sentence} for where, sentence in self.faults]}


class ImportRefused(InvalidFields):
    def __init__(self, faults: list[tuple[str, str]]) -> None:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        super().__init__(faults, f"Nothing was imported. {': '.join(faults[0])}{more}")


class NotFound(PlimsollError):
    """`noun` is what was looked for: `session`, `turn`, `summary`, `pin`, `audit`, `prompt`."""

    code = "not_found"

    def __init__(self, noun: str, advice: str = "") -> None:
        super().__init__(f"There is no such {noun.replace('_', ' ')}. {advice}".rstrip())
        self.noun = noun


def existing(found: T | None, noun: str) -> T:
    """Return `found`. Raises `NotFound` with the noun if it is None."""
    if found is None:
        raise NotFound(noun)
    return found


@dataclass(eq=False, repr=False)
class RetryLater(PlimsollError):
    """The same request may succeed after `retry_after_s` seconds."""

    retry_after_s: int


@dataclass(eq=False, repr=False)
class Conflict(RetryLater):
    retry_after_s: int = 1


class TurnInProgress(Conflict):
    code = "turn_in_progress"


class IdempotencyInFlight(Conflict):
    code = "idempotency_in_flight"


class IdempotencyKeyReused(PlimsollError):
    code = "idempotency_key_reused"


@dataclass(eq=False, repr=False, kw_only=True)
class ContextBudgetExceeded(PlimsollError):
    code = "context_budget_exceeded"
    carries = ("budget", "regions", "largest_items", "recovery")
    budget: dict[str, int]
    regions: dict[str, int]
    largest_items: list[dict[str, Any]]
    recovery: dict[str, Any]


class PromptTooLarge(PlimsollError):
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
    """`retry_after_s` is None if waiting does not help. `limit` is returned to the client unchanged."""

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
    """A deadlock or a serialization failure: nothing of the transaction was written, and it can be retried."""


class SessionBusy(DatabaseUnavailable):
    """Nothing was stored. Code that waits while the database is unavailable waits for this too."""

    code = "session_busy"


class Busy(RetryLater):
    """The process already has as much of this work as it accepts."""


class TenantBusy(Busy):
    code = "tenant_busy"


class ProcessBusy(Busy):
    code = "process_busy"


class TooManyStreams(ProcessBusy):
    code = "too_many_streams"


class ShuttingDown(RetryLater):
    """No work was started, so the same request can be sent to another process without running twice."""

    code = "shutting_down"


ProviderFault: TypeAlias = Literal["error", "refused", "overflow", "rate_limited", "down", "timeout"]


@dataclass(eq=False, repr=False, kw_only=True)
class ProviderError(PlimsollError):
    """`kind` labels metrics, `status` is the provider's HTTP status if it gave one, `attempts` counts the calls.
    `retry_after_s` is the delay that the provider asked for, or None.

    For the turn's record, not in the problem: `partial` is the text that was streamed before the answer broke off (""
    if only reasoning was, None if nothing was); `usages` has what each attempt used that had begun to answer, as far as
    the provider had reported it, with `prompt_tokens` of 0 where it had not.
    """

    code = "provider_error"
    kind: ClassVar[ProviderFault] = "error"
    status: int | None = None
    attempts: int = 1
    retry_after_s: float | None = None
    partial: str | None = field(default=None, init=False)
    usages: tuple[Usage, ...] = field(default=(), init=False)

    def members(self) -> dict[str, Any]:
        return {"kind": self.kind, "provider_status": self.status, "attempts": self.attempts}


@dataclass(eq=False, repr=False, kw_only=True)
class ProviderRefused(ProviderError):
    """`provider_message` is the provider's own sentence, without keys. It may quote the prompt: only clients see it."""

    kind = "refused"
    provider_message: str | None = None

    def members(self) -> dict[str, Any]:
        stated = {"provider_message": self.provider_message} if self.provider_message else {}
        return super().members() | stated


class ProviderOutOfQuota(ProviderRefused):
    """The account's quota or credit is used up. `status` is not 400: the request is not to blame."""


@frozen
class StatedOverflow:
    """The figures in a provider's error about a too long prompt, in the provider's tokens; None if not stated.

    `limit_tokens` is the window or, if `limit_is_window` is false, another limit (what an account may use in a minute),
    or a figure of the request, which the provider may only have repeated. `requested_tokens` is prompt plus completion
    if the provider adds them up, else the prompt alone. `prompt_tokens` is only known if they are named as such.
    """

    limit_tokens: int | None = None
    requested_tokens: int | None = None
    prompt_tokens: int | None = None
    limit_is_window: bool = True


@dataclass(eq=False, repr=False, kw_only=True)
class ProviderOverflow(ProviderError):
    """The prompt is too long for the provider; `stated` has the figures of its error."""

    code = "provider_context_overflow"
    kind = "overflow"
    stated: StatedOverflow = field(default_factory=StatedOverflow)

    def members(self) -> dict[str, Any]:
        return super().members() | values_of(self.stated, "limit_is_window")


class ProviderRateLimited(ProviderError):
    kind = "rate_limited"


class ProviderDown(ProviderError):
    kind = "down"


class ProviderTimeout(ProviderError):
    code = "provider_timeout"
    kind = "timeout"
