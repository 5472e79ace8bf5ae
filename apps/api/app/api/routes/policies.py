"""`/v1/policies`: the presets and the fields that a session's policy may have."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import answers
from app.api.schemas.deployment import PolicyList
from app.domain.types import JsonObject
from app.services.views.deployment import list_policies

router = APIRouter(prefix="/v1/policies", tags=["policies"], route_class=DirectRoute)


@router.get("", response_model=PolicyList, responses=answers(401, 503))
async def get_policies(call: Call) -> JsonObject:
    """The presets with all their values, and each field with what it takes and means."""
    return list_policies(call.rt)
