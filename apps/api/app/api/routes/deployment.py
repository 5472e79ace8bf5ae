"""The deployment: `/`, `/healthz`, `/readyz`, `/metrics` and `/openapi.json`, for people, load balancers and other
tools, without key or tenant; `/v1/models`, the aliases of the catalogue; and `/v1/policies`, the presets and fields of
policies."""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import Annotated, Literal

from fastapi import APIRouter, FastAPI, Header
from pydantic import Field
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from app.api.direct_route import Call, DirectRoute, OpenRoute, json_response
from app.api.schemas.values import Answer, answer_of
from app.domain.prices import Prices
from app.domain.types import JsonObject
from app.services.views.deployment import (
    ListedAlias,
    ListedName,
    ListedPreset,
    PolicyField,
    list_models,
    list_policies,
    listed_model,
    readiness,
)

router = APIRouter(tags=["operations"], route_class=OpenRoute)
models_router = APIRouter(prefix="/v1/models", tags=["models"], route_class=DirectRoute)
policies_router = APIRouter(prefix="/v1/policies", tags=["policies"], route_class=DirectRoute)

_LINKS = {
    "ui": "/ui",
    "docs": "/docs",
    "openapi": "/openapi.json",
    "sessions": "/v1/sessions",
    "models": "/v1/models",
    "health": "/healthz",
    "ready": "/readyz",
    "metrics": "/metrics",
}


class HealthOut(Answer):
    status: Literal["ok"]


class ReadyOut(Answer):
    """`migrations` is null when the database does not answer; `behind` and `empty` require `plimsoll migrate`.

    `read_only` means that the database refuses writes, as a standby does until it is the primary."""

    status: Literal["ready", "not_ready", "draining"]
    database: Literal["ok", "read_only", "unavailable"]
    migrations: Literal["current", "behind", "ahead", "empty"] | None


class PricesOut(answer_of(Prices)):
    """US dollars per million tokens; null if no price is published."""

    tiers: list[PricesOut] = Field(description="Prices for larger prompts.")


class ModelOut(answer_of(ListedAlias)):
    """`context_window` is in tokens; `is_language_model` is false for the built-in offline responder."""

    prices: PricesOut | None


class ListedModel(Answer):
    """A model in OpenAI's and Anthropic's form. `id` is the alias; when it was made is not known, and always 1970."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["model"]
    created_at: str
    display_name: str


class ModelList(Answer):
    """`items` has the service's own form, `data` the same aliases in OpenAI's and Anthropic's."""

    default: str
    items: list[ModelOut]
    next_cursor: None = None
    object: Literal["list"]
    data: list[ListedModel]


class DesignNameOut(answer_of(ListedName)):
    """A setting of a design in its own spellings; `published` is null if the design publishes no value."""


class PresetOut(answer_of(ListedPreset)):
    """A design by name, with the value of every field."""

    names: list[DesignNameOut] = Field(description="The design's own settings, and the policy fields that they set.")


class PolicyFieldOut(answer_of(PolicyField)):
    """A field of a policy: its values, its meaning, and its value in each preset."""


class PolicyList(Answer):
    default: str
    presets: list[PresetOut]
    fields: list[PolicyFieldOut]


class RootOut(Answer):
    """Name, version and addresses of the service."""

    name: str
    version: str
    links: dict[str, str] = Field(description="Addresses by name.")


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", response_model=HealthOut)
async def get_health() -> JsonObject:
    """200 while the process serves. Does not use the database, whose outage must not restart workers."""
    return {"status": "ok"}


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", response_model=ReadyOut, responses={503: {"model": ReadyOut, "description": "Not ready"}})
async def get_readiness(call: Call) -> Response:
    """200 when the database answers and accepts writes and its schema is not too old; else 503 with the reason.

    After the signal to stop: 503 with the status `draining`.
    """
    state = await readiness(call.rt)
    status = "draining" if call.service.drain.announced else "ready" if state.ready else "not_ready"
    body = {"status": status, "database": state.database, "migrations": state.migrations}
    return json_response(body, 200 if status == "ready" else 503)


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", response_class=PlainTextResponse)
async def get_metrics(call: Call) -> Response:
    """Metrics of all workers, as Prometheus text."""
    body, content_type = await asyncio.to_thread(call.rt.telemetry.render)
    return Response(body, media_type=content_type)


@router.head("/openapi.json", include_in_schema=False)
@router.get("/openapi.json", include_in_schema=False)
async def get_document(call: Call) -> Response:
    """The OpenAPI document. Making it takes 0.7 s of CPU, which the event loop does not wait for."""
    return await asyncio.to_thread(_document, call.scope["app"])


_ONE_AT_A_TIME = Lock()


def _document(app: FastAPI) -> Response:
    with _ONE_AT_A_TIME:  # else all who ask before it is made would make it
        return json_response(app.openapi())


@router.head("/", include_in_schema=False)
@router.get("/", response_model=RootOut, responses={307: {"description": "To the inspector, for browsers"}})
async def get_root(call: Call, accept: Annotated[str, Header(include_in_schema=False)] = "") -> Response:
    """The service's name, version and addresses; browsers are redirected to the inspector."""
    vary = {"Vary": "Accept"}
    if "text/html" in accept:
        return RedirectResponse("ui/", 307, vary)
    app = call.scope["app"]
    return json_response({"name": app.title, "version": app.version, "links": _LINKS}, headers=vary)


@models_router.get("", response_model=ModelList)
async def get_models(call: Call) -> JsonObject:
    """The aliases: window and its source, prices if known, and the correction of estimates."""
    return list_models(call.rt, call.tenant_id)


@models_router.get("/{alias:path}", response_model=ListedModel)
async def get_model(call: Call, alias: str) -> JsonObject:
    """One alias in OpenAI's and Anthropic's form."""
    return listed_model(call.rt, alias)


@policies_router.get("", response_model=PolicyList)
async def get_policies(call: Call) -> JsonObject:
    """The presets with all their values, and each field with its range and meaning."""
    return list_policies(call.rt)
