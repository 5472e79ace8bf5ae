"""The composition root: Settings -> Runtime -> FastAPI. The lifespan owns all of a process's resources."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import anyio
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Match
from uuid_utils.compat import uuid7

from app.api.direct_route import AppState, authenticate, count_problem
from app.api.edge import Edge, Hosts, refusal
from app.api.openapi import describe
from app.api.problems import KINDS
from app.api.routes import (
    chat,
    context,
    conversations,
    deployment,
    events,
    inspector,
    messages,
    responses,
    sessions,
    turns,
)
from app.core.config import Settings
from app.core.fairness import FairThreads
from app.core.logging import configure_logging
from app.db import embedded, migrate
from app.db.database import Database
from app.db.embedded import kept_running
from app.domain.errors import DatabaseUnavailable, InvalidRequest
from app.domain.frozen import replace
from app.engine.policy.policy import ContextPolicy
from app.providers.local_embeddings import LocalEmbeddings
from app.providers.openai import OpenAIProvider
from app.providers.registry import load_catalogue
from app.services.background import LOOPS, keep_going
from app.services.embeddings import LOCAL, Embeddings
from app.services.heavy.child import Tools, collect_seldom
from app.services.heavy.jobs import HeavyJobs
from app.services.keys import Authenticator
from app.services.learned import load_windows
from app.services.pasts import Pasts
from app.services.policies import resolve_policy
from app.services.process_state import Allowance, HeavyWork
from app.services.runtime import Runtime
from app.services.views.activity import Activity
from app.telemetry.metrics import Telemetry
from app.telemetry.tracing import NO_TRACES, Tracer
from app.tokenizers.counters import Tokenizers, encoding_for_model

logger = logging.getLogger(__name__)
_THREADS = 4
"""For work that would block the event loop. The more of them compute, the longer the loop waits for the interpreter."""
_LONGEST_USE_S = 25.0
_LONGEST_HEAVY_USE_S = 600.0
"""Seconds for which a database connection may be in use, besides a wait for a lock: far longer than any transaction
takes, so that requests end when the database is frozen."""

# The busiest first: routes are matched in order.
_ROUTERS = (
    turns.router,
    chat.router,
    responses.compact_router,
    messages.router,
    responses.router,
    conversations.router,
    sessions.router,
    context.router,
    sessions.pins_router,
    sessions.import_router,
    sessions.export_router,
    deployment.models_router,
    deployment.policies_router,
    context.simulate_router,
    context.search_router,
    events.router,
    deployment.router,
    inspector.router,
)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The service as an ASGI application. Without `settings` it reads the environment and `.env`.

    With no `DATABASE_URL` the lifespan starts (or joins) the embedded Postgres under the data folder and brings its
    schema up to date.
    """
    settings = settings or Settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[dict[str, object]]:
        configure_logging(settings.log_level, settings.log_format)
        async with anyio.create_task_group():
            pass  # else the first stream loads anyio's backend, which blocks the event loop for 13 ms
        async with AsyncExitStack() as owned:
            thresholds = gc.get_threshold()
            app.state.service = await _start(settings, owned)
            collect_seldom()
            try:
                yield {"count_problem": app.state.service.rt.telemetry.problem_answered}  # for `Connection`
            finally:
                gc.set_threshold(*thresholds)
                gc.unfreeze()  # else a process that starts several services, as tests do, never frees them: 70 MB each

    app = FastAPI(
        title="Plimsoll",
        version=version("plimsoll-server"),
        summary="Keeps LLM conversations inside the model's context window, and can say why.",
        lifespan=lifespan,
        docs_url=None,  # our own page loads nothing from other hosts (`api/routes/inspector.py`)
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # looked up at every request otherwise
        exception_handlers={HTTPException: _refused_by_router},
    )
    app.router.routes[:0] = [route for router in _ROUTERS for route in router.routes]
    app.add_middleware(
        Edge,
        new_id=uuid7,
        max_body_bytes=settings.max_body_bytes,
        hosts=Hosts(settings.host, settings.allowed_hosts, settings.origins),
        larger_bodies={sessions.IMPORT_PATH: settings.max_import_bytes},
        authenticate=authenticate,
        count_problem=count_problem,
        bodies=Allowance("bytes of bodies", settings.max_bodies_bytes, settings.tenant_share),
    )
    _allow_origins(app, settings.origins)
    describe(app)
    return app


def _allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    """Lets browsers give answers to pages of these origins. Call it last, so that it wraps all other middleware."""
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=["*"]
        )


@asynccontextmanager
async def command_runtime(settings: Settings, database: Database) -> AsyncGenerator[Runtime]:
    """The runtime of a command that only reads: without background work, with learned windows and calibrations."""
    async with AsyncExitStack() as owned:
        rt = await _runtime(settings, database, HeavyWork(database, 1.0), owned, own_processes=False)
        await load_windows(database, rt.catalogue)
        await rt.calibrations.load(database)
        yield rt


async def _runtime(
    settings: Settings, database: Database, heavy: HeavyWork, owned: AsyncExitStack, *, own_processes: bool
) -> Runtime:
    tokenizers, now = Tokenizers(tenant_ratio=settings.tenant_share), partial(datetime.now, UTC)
    jobs = HeavyJobs(
        Tools(tokenizers, uuid7),
        own_processes=own_processes,
        log_level=settings.log_level,
        log_format=settings.log_format,
    )
    owned.callback(jobs.close)
    catalogue = load_catalogue(
        settings.models_file,
        environ=os.environ,
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
        new_id=uuid7,
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


async def _start(settings: Settings, owned: AsyncExitStack) -> AppState:
    if settings.log_content:
        logger.warning("PLIMSOLL_LOG_CONTENT is on: prompts and replies are written to this log")
    asyncio.get_running_loop().set_default_executor(FairThreads(_THREADS, settings.tenant_share, "work"))
    dsn = await _dsn(settings, owned)
    database = _pool(settings, dsn, settings.db_pool_size, _LONGEST_USE_S, owned)
    of_heavy_work = _pool(settings, dsn, settings.db_heavy_pool_size, _LONGEST_HEAVY_USE_S, owned)
    heavy = HeavyWork(of_heavy_work, settings.tenant_share)
    rt = await _runtime(settings, database, heavy, owned, own_processes=True)
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
    return AppState(
        rt,
        Authenticator(database, monotonic),
        Activity(Allowance("event streams", settings.max_event_streams, settings.tenant_share)),
        Allowance("bytes of answers", settings.max_bodies_bytes, settings.tenant_share),
        Allowance("bytes of exports", settings.max_exports_bytes, settings.tenant_share),
        heartbeat_s=settings.heartbeat_s,
        cancel_on_disconnect=settings.on_disconnect == "cancel",
    )


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


async def _dsn(settings: Settings, owned: AsyncExitStack) -> str:
    if settings.database_url is not None:
        return settings.database_url.get_secret_value()
    server = await asyncio.to_thread(embedded.start, settings.data_folder)
    owned.callback(server.stop)
    await migrate.upgrade(server.dsn)
    owned.enter_context(kept_running(server, give_up_after_s=settings.embedded_restart_s))
    return server.dsn


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


async def _keep_observations(rt: Runtime) -> None:
    with suppress(DatabaseUnavailable):
        await rt.calibrations.flush(rt.database)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _refused_by_router(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = ", ".join(sorted(_methods_here(request)))
        headers = {"Allow": allowed} if allowed else None
        return refusal(request.scope, "method_not_allowed", f"Allowed methods: {allowed}.", headers)
    detail = "There is nothing at this address. Those of the API begin with one /v1; /docs lists them."
    return refusal(request.scope, "not_found", detail)


def _methods_here(request: Request) -> set[str]:
    """All methods of the path: the router reports only those of the first matching route."""
    application: FastAPI = request.app
    methods: set[str] = set()
    for route in application.routes:
        if isinstance(route, APIRoute) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return methods
