"""`/v1/models`: the aliases of the catalogue."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import refusals
from app.api.schemas.deployment import ModelList
from app.domain.types import JsonObject
from app.services.views.deployment import list_models

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=DirectRoute)


@router.get("", response_model=ModelList, responses=refusals(401, 503))
async def get_models(call: Call) -> JsonObject:
    """The aliases: window and its source, prices where known, and the correction of estimates."""
    return list_models(call.rt, call.tenant_id)
