"""`/healthz`, `/readyz`, `/metrics`: what balancers and Prometheus ask. They need no key and name no tenant."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from app.api.direct_route import Call, OpenRoute, json_response
from app.api.schemas.deployment import HealthOut, ReadyOut
from app.domain.types import JsonObject
from app.services.views.deployment import readiness

router = APIRouter(tags=["operations"], route_class=OpenRoute)


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", response_model=HealthOut)
async def live() -> JsonObject:
    """200 while the process serves. It asks nothing else, so a database outage restarts no worker."""
    return {"status": "ok"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", response_model=ReadyOut, responses={503: {"model": ReadyOut, "description": "Not ready"}})
async def ready(call: Call) -> Response:
    """200 when the database answers and takes writes, and its schema is this version's; else 503, and what it is.

    503 with the status `draining` from the moment on that the process was told to end.
    """
    state = await readiness(call.rt)
    draining = call.service.drain.announced
    ready_now = state.ready and not draining
    body = {
        "status": "draining" if draining else "ready" if ready_now else "not_ready",
        "database": state.database,
        "migrations": state.migrations,
    }
    return json_response(body, 200 if ready_now else 503)


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(call: Call) -> Response:
    """Prometheus text, of all workers."""
    body, content_type = call.rt.telemetry.render()
    return Response(body, media_type=content_type)
