"""`/healthz`, `/readyz`, `/metrics`: what balancers and Prometheus ask. They need no key and tell nothing of a tenant."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from app.api.direct_route import Call, OpenRoute, Service, json_response
from app.api.schemas import Document
from app.domain.types import JsonObject

router = APIRouter(tags=["operations"], route_class=OpenRoute)


@router.get("/healthz", response_model=Document)
async def live(call: Call) -> JsonObject:
    """200 while the process serves. Asks nothing else, so a database outage restarts no worker."""
    return {"status": "ok"}


@router.get("/readyz", response_model=Document, responses={503: {"model": Document, "description": "Not ready"}})
async def ready(call: Call) -> Response:
    """200 when the database answers and its schema is this version's; else 503 and why."""
    service: Service = call.app.state.service
    state = await service.readiness()
    return json_response(...)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(call: Call) -> Response:
    """Prometheus text, of all workers."""
    service: Service = call.app.state.service
    body, content_type = service.telemetry.render()
    return Response(body, media_type=content_type)
