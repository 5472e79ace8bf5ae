"""What every service needs, bundled once by the composition root and frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from app.db.database import Database
from app.engine.policy.policy import ContextPolicy
from app.providers.registry import Catalogue
from app.services.heavy.jobs import HeavyJobs
from app.services.pasts import Pasts
from app.services.upkeep.calibrations import Calibrations
from app.services.upkeep.capacity import HeavyWork
from app.services.upkeep.process_state import Chores, Cooldowns, Leases
from app.telemetry import NO_TRACES, Telemetry, Tracer
from app.tokenizers import Tokenizers


@dataclass(frozen=True, slots=True)
class Runtime:
    """Shared by all requests of a process.

    `now` is the wall clock (UTC) for what people read; leases use the database's clock. `new_id` makes UUIDv7s, so ids
    sort by creation. `guarded` is the default policy with the deployment's `CONTEXT_*` settings in it. `log_content` is
    whether prompts and answers go into the log.
    """

    database: Database
    heavy: HeavyWork
    jobs: HeavyJobs
    catalogue: Catalogue
    tokenizers: Tokenizers
    telemetry: Telemetry
    leases: Leases
    chores: Chores
    calibrations: Calibrations
    cooldowns: Cooldowns
    pasts: Pasts
    guarded: ContextPolicy
    turn_lease_s: float
    now: Callable[[], datetime]
    new_id: Callable[[], UUID]
    tracer: Tracer = NO_TRACES
    log_content: bool = False
