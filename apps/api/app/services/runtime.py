"""What every service needs, made once by the composition root and frozen; and the retry of transactions that the
database rolled back because of a conflict, or for which it was not available."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import field
from datetime import datetime
from functools import wraps
from time import monotonic
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from uuid import UUID

from app.domain.errors import DatabaseUnavailable, TransactionConflict
from app.domain.frozen import frozen
from app.services.learned import Calibrations
from app.services.process_state import Chores, Cooldowns, Leases, Warnings
from app.telemetry.tracing import NO_TRACES, Tracer

if TYPE_CHECKING:  # the commands for operators do without models, engine and metrics
    from app.db.database import Database
    from app.engine.policy.policy import ContextPolicy
    from app.providers.registry import Catalogue
    from app.services.embeddings import Embeddings
    from app.services.heavy.jobs import HeavyJobs
    from app.services.pasts import Pasts
    from app.services.process_state import Allowance, HeavyWork
    from app.telemetry.metrics import Telemetry
    from app.tokenizers.counters import Tokenizers

logger = logging.getLogger(__name__)

_PAUSES_S = (0.02, 0.1, 0.5)
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 1.0
P = ParamSpec("P")
T = TypeVar("T")


def retried(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The work, with up to three retries after pauses when its transaction was rolled back for a conflict. It has no
    effects outside of its transactions, and commits none of them when it raises, unless a second run does no harm."""

    @wraps(work)
    async def again(*args: P.args, **kwargs: P.kwargs) -> T:
        for pause_s in _PAUSES_S:
            try:
                return await work(*args, **kwargs)
            except TransactionConflict:
                await asyncio.sleep(random.uniform(0.5, 1.5) * pause_s)  # noqa: S311 - no secret, it keeps two apart
        return await work(*args, **kwargs)

    return again


async def once_available(work: Callable[[], Awaitable[T]], patience_s: float, what: str) -> T:
    """The result of the work, which is repeated for at most `patience_s` while the database is down, out of a resource,
    or rolls it back for a lock or a conflict. Raises the last `DatabaseUnavailable`. A log line names `what` waits."""
    wait_s, ends_at = _FIRST_WAIT_S, monotonic() + patience_s
    while True:
        try:
            return await work()
        except DatabaseUnavailable as error:
            if monotonic() + wait_s > ends_at:
                raise
            if wait_s == _FIRST_WAIT_S:
                logger.warning("%s waits for the database: %s", what, error.detail)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


@frozen
class Runtime:
    """Shared by all requests of a process.

    `now` is the wall clock (UTC) for what people read; leases use the database's clock. `new_id` makes UUIDv7s, so ids
    sort by creation. `guarded` is the default policy with the deployment's `CONTEXT_*` settings applied. With
    `recognizes_sessions` the session of a client that names none is recognized by the messages that it resends.
    """

    database: Database
    heavy: HeavyWork
    jobs: HeavyJobs
    catalogue: Catalogue
    tokenizers: Tokenizers
    telemetry: Telemetry
    pasts: Pasts
    windows: Allowance
    guarded: ContextPolicy
    turn_lease_s: float
    now: Callable[[], datetime]
    new_id: Callable[[], UUID]
    leases: Leases = field(default_factory=Leases)
    chores: Chores = field(default_factory=Chores)
    calibrations: Calibrations = field(default_factory=Calibrations)
    cooldowns: Cooldowns = field(default_factory=lambda: Cooldowns(monotonic))
    warnings: Warnings = field(default_factory=lambda: Warnings(monotonic))
    tracer: Tracer = NO_TRACES
    embeddings: Embeddings | None = None
    recognizes_sessions: bool = True
    log_content: bool = False
