"""The composition root: Settings -> Runtime (`composition.py`) -> FastAPI, whose lifespan owns all of a process's
resources."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from time import monotonic

import anyio
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send
from uuid_utils import uuid7

from app.api.direct_route import AppState, authenticate
from app.api.edge import Edge, Hosts, refusal
from app.api.openapi import describe
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
from app.composition import serving_runtime
from app.core.config import Settings
from app.core.fairness import FairThreads
from app.core.logging import configure_logging
from app.services.keys import Authenticator
from app.services.process_state import Allowance
from app.services.views.activity import Activity

logger = logging.getLogger(__name__)
_THREADS = 4
"""For work that would block the event loop. The more of them compute, the longer the loop waits for the interpreter."""

# The busiest first: routes are matched in order.
_ROUTERS = (
    turns.router,
    chat.router,
    messages.router,
    responses.router,
    conversations.router,
    sessions.router,
    context.router,
    sessions.pins_router,
    sessions.import_router,
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
            app.state.service = await _start(settings, owned)
            yield {"count_problem": app.state.service.rt.telemetry.problem_answered}  # for `Connection`

    app = FastAPI(
        title="Plimsoll",
        version=version("plimsoll-server"),
        summary="Keeps LLM conversations inside the model's context window, and can say why.",
        lifespan=lifespan,
        openapi_url=None,  # it is made on a thread (`api/routes/deployment.py`)
        docs_url=None,  # our own page loads nothing from other hosts (`api/routes/inspector.py`)
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # looked up at every request otherwise
    )
    app.router.routes[:0] = [route for router in _ROUTERS for route in router.routes]
    # FastAPI's own layers around the routes do nothing for ours, at every step of a request.
    app.middleware_stack = Edge(
        partial(_route, app.router),
        new_id=uuid7,
        max_body_bytes=settings.max_body_bytes,
        hosts=Hosts(settings.host, settings.allowed_hosts, settings.origins),
        larger_bodies={sessions.IMPORT_PATH: settings.max_import_bytes},
        authenticate=authenticate,
        count_problem=lambda code: app.state.service.rt.telemetry.problem_answered(code),  # noqa: PLW0108 - made later
        bodies=Allowance("bytes of bodies", settings.max_bodies_bytes, settings.tenant_share),
    )
    if settings.origins:  # browsers may give answers to pages of these
        app.middleware_stack = CORSMiddleware(
            app.middleware_stack, settings.origins, allow_methods=["*"], allow_headers=["*"], expose_headers=["*"]
        )
    describe(app)
    return app


async def _start(settings: Settings, owned: AsyncExitStack) -> AppState:
    if settings.log_content:
        logger.warning("PLIMSOLL_LOG_CONTENT is on: prompts and replies are written to this log")
    asyncio.get_running_loop().set_default_executor(FairThreads(_THREADS, settings.tenant_share, "work"))
    rt = await serving_runtime(settings, owned)
    return AppState(
        rt,
        Authenticator(rt.database, monotonic),
        Activity(Allowance("event streams", settings.max_event_streams, settings.tenant_share)),
        Allowance("bytes of answers", settings.max_bodies_bytes, settings.tenant_share),
        Allowance("bytes of exports", settings.max_exports_bytes, settings.tenant_share),
        heartbeat_s=settings.heartbeat_s,
        cancel_on_disconnect=settings.on_disconnect == "cancel",
    )


async def _route(router: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    try:
        await router(scope, receive, send)
    except HTTPException as error:
        if error.status_code == 405:
            allowed = ", ".join(sorted(_methods_here(scope)))
            headers = {"Allow": allowed} if allowed else None
            response = refusal(scope, "method_not_allowed", f"Allowed methods: {allowed}.", headers)
        else:
            detail = "There is nothing at this address. API paths begin with one /v1; /docs lists them."
            response = refusal(scope, "not_found", detail)
        await response(scope, receive, send)


def _methods_here(scope: Scope) -> set[str]:
    """All methods of the path: the router reports only those of the first matching route."""
    application: FastAPI = scope["app"]
    routes = [route for route in application.routes if isinstance(route, APIRoute)]
    here = [route.methods or set() for route in routes if route.matches(scope)[0] is not Match.NONE]
    return set[str]().union(*here)
