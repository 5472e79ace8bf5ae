"""The composition of what requests and commands work with: Settings -> Runtime."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import monotonic

from uuid_utils.compat import uuid7

from app.api.problems import KINDS
from app.core.config import Settings, variables
from app.db import embedded
from app.db.database import Database
from app.db.driver import new_id
from app.domain.errors import DatabaseUnavailable, InvalidRequest
from app.domain.frozen import replace
from app.engine.policy.policy import ContextPolicy
from app.providers.local_embeddings import LocalEmbeddings
from app.providers.openai import OpenAIProvider
from app.providers.registry import load_catalogue
from app.services.background import LOOPS, keep_going
from app.services.embeddings import LOCAL, Embeddings
from app.services.heavy.child import Tools
from app.services.heavy.jobs import HeavyJobs
from app.services.learned import load_windows
from app.services.pasts import Pasts
from app.services.policies import resolve_policy
from app.services.process_state import Allowance, HeavyWork
from app.services.runtime import Runtime
from app.telemetry.metrics import Telemetry
from app.telemetry.tracing import NO_TRACES, Tracer
from app.tokenizers.counters import Tokenizers, encoding_for_model

_LONGEST_USE_S = 25.0
_LONGEST_HEAVY_USE_S = 600.0
"""Seconds for which a database connection may be in use, besides a wait for a lock: far longer than any transaction
takes, so that requests end when the database is frozen."""


async def serving_runtime(settings: Settings, owned: AsyncExitStack) -> Runtime:
    """The runtime of a process that serves, with its background work; `owned` closes all of it."""
    if settings.database_url is not None:
        dsn = settings.database_url.get_secret_value()
    else:
        server = embedded.migrated(settings.data_folder, restart_s=settings.embedded_restart_s)
        dsn = await asyncio.to_thread(owned.enter_context, server)
    database = _pool(settings, dsn, settings.db_pool_size, _LONGEST_USE_S, owned)
    of_heavy_work = _pool(settings, dsn, settings.db_heavy_pool_size, _LONGEST_HEAVY_USE_S, owned)
    heavy = HeavyWork(of_heavy_work, settings.tenant_share)
    jobs = partial(HeavyJobs, log_level=settings.log_level, log_format=settings.log_format)
    rt = await _runtime(settings, database, heavy, jobs, owned)
    rt = replace(rt, embeddings=_embeddings(settings, rt, owned))
    measured = rt.telemetry.database
    database.watched_by(measured.connection_waited_for, measured.connection_used)
    measured.pool_of(settings.workers * settings.db_pool_size)
    measured.count_restarts = partial(embedded.count_restarts, dsn)
    for work in LOOPS:
        task = asyncio.create_task(keep_going(work, rt), name=work.__name__)
        owned.push_async_callback(_cancel, task)
    owned.push_async_callback(_keep_observations, rt)
    # Callbacks run in reverse order: turns end first, then their background work.
    owned.push_async_callback(rt.chores.drain, settings.drain_s)
    owned.push_async_callback(rt.leases.drain, settings.drain_s)
    return rt


@asynccontextmanager
async def command_runtime(settings: Settings, database: Database) -> AsyncGenerator[Runtime]:
    """The runtime of a command that only reads: without background work, with learned windows and calibrations."""
    async with AsyncExitStack() as owned:
        jobs = partial(HeavyJobs, own_processes=False)
        rt = await _runtime(settings, database, HeavyWork(database, 1.0), jobs, owned)
        await load_windows(database, rt.catalogue)
        await rt.calibrations.load(database)
        yield rt


async def _runtime(
    settings: Settings,
    database: Database,
    heavy: HeavyWork,
    jobs_with: Callable[[Tools], HeavyJobs],
    owned: AsyncExitStack,
) -> Runtime:
    tokenizers, now = Tokenizers(tenant_ratio=settings.tenant_share), partial(datetime.now, UTC)
    jobs = jobs_with(Tools(tokenizers, uuid7))
    owned.callback(jobs.close)
    catalogue = load_catalogue(
        settings.models_file,
        environ=variables(),
        fallback_window=settings.context_fallback_limit,
        now=now,
        encoding_for_model=encoding_for_model,
        estimator=tokenizers.estimator,
        tenant_ratio=settings.tenant_share,
    )
    owned.push_async_callback(catalogue.aclose)
    for encoding in {catalogue.model(alias).encoding for alias in catalogue.aliases}:
        await tokenizers.warm(encoding)
    metrics_folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")  # shared by workers; prometheus_client reads it too
    telemetry = Telemetry((*catalogue.aliases, LOCAL), Path(metrics_folder) if metrics_folder else None, KINDS)
    return Runtime(
        database=database,
        heavy=heavy,
        jobs=jobs,
        catalogue=catalogue,
        tokenizers=tokenizers,
        telemetry=telemetry,
        pasts=Pasts(settings.session_cache_bytes, monotonic, telemetry),
        windows=Allowance("bytes of windows", settings.max_windows_bytes, settings.tenant_share),
        guarded=guarded_policy(settings),
        turn_lease_s=settings.turn_lease_s,
        now=now,
        new_id=new_id,
        tracer=_tracer(settings, owned),
        recognizes_sessions=settings.recognize_sessions,
        log_content=settings.log_content,
    )


def _embeddings(settings: Settings, rt: Runtime, owned: AsyncExitStack) -> Embeddings | None:
    """Raises `InvalidRequest` or `LocalModelMissing`."""
    if not (alias := settings.context_embedding_model):
        return None
    if alias == LOCAL:
        source = LocalEmbeddings()
        owned.push_async_callback(source.aclose)
    else:
        source = rt.catalogue.provider(alias)
        if not isinstance(source, OpenAIProvider):
            raise InvalidRequest(f"CONTEXT_EMBEDDING_MODEL: {alias!r} is not an alias of the provider openai.")
    wait_s = settings.context_embedding_wait_ms / 1000
    return Embeddings(
        source, alias=alias, wait_s=wait_s, chores=rt.chores, cooldowns=rt.cooldowns, telemetry=rt.telemetry
    )


def _tracer(settings: Settings, owned: AsyncExitStack) -> Tracer:
    if settings.traces == "off":
        return NO_TRACES
    from app.telemetry.otel import traces_over_http  # noqa: PLC0415 - an optional extra, loaded only if enabled

    traces = traces_over_http(version("plimsoll-server"), to_providers=settings.traces_to_providers)
    owned.push_async_callback(traces.aclose)
    return traces


def _pool(settings: Settings, dsn: str, connections: int, longest_use_s: float, owned: AsyncExitStack) -> Database:
    database = Database(
        dsn,
        pool_size=connections,
        tenant_ratio=settings.tenant_share,
        lock_timeout_s=settings.db_lock_timeout_s,
        longest_use_s=settings.db_lock_timeout_s + longest_use_s,
        transaction_pooler=settings.db_pooler == "transaction",
    )
    owned.push_async_callback(database.aclose)
    return database


async def _keep_observations(rt: Runtime) -> None:
    with suppress(DatabaseUnavailable):
        await rt.calibrations.flush(rt.database)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def guarded_policy(settings: Settings) -> ContextPolicy:
    """The preset `guarded` with the deployment's settings. Raises `InvalidRequest` for an impossible combination."""
    fields = {
        "summary_trigger_ratio": settings.context_summary_trigger_ratio,
        "prune_trigger_ratio": settings.context_prune_trigger_ratio,
        "mandatory_summary_turn": settings.context_mandatory_summary_turn,
        "protected_turns": settings.context_protected_turns,
        "summary_model": settings.context_summary_model,
        "summary_role": settings.context_summary_role,
    }
    default = ContextPolicy(
        max_output_tokens=settings.context_max_output_tokens, summarize_ahead=settings.summarize_ahead
    )
    try:
        return resolve_policy(default, fields)
    except InvalidRequest as error:
        raise InvalidRequest(f"CONTEXT_{error.where[-1].upper()}: {error.detail}", error.where) from error
