"""`/v1/models`"""

from __future__ import annotations

from fastapi import APIRouter

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import answers
from app.api.schemas import ModelList
from app.domain.types import JsonObject
from app.services.models import list_models

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=DirectRoute)


@router.get("", response_model=ModelList, responses=answers(401, 503))
async def get_models(call: Call) -> JsonObject:
    """The aliases of the catalogue, with their windows, where those come from, and prices where known."""
    return {"default": call.rt.catalogue.default, "items": await list_models(call.rt), "next_cursor": None}
