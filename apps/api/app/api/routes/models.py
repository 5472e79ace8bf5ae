"""`/v1/models`"""

from __future__ import annotations

from fastapi import APIRouter

from app.api.direct_route import Call, DirectRoute
from app.api.openapi import answers
from app.api.schemas import ModelList
from app.domain.types import JsonObject
from app.providers.registry import Model

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=DirectRoute)


@router.get("", response_model=ModelList, responses=answers(401, 503))
async def get_models(call: Call) -> JsonObject:
    """The aliases: window and its source, prices where known, and the correction of estimates."""
    catalogue, calibrations = call.rt.catalogue, call.rt.calibrations
    models = [catalogue.model(alias, call.tenant_id) for alias in catalogue.aliases]
    items = [
        _model_json(model) | {"calibration_ratio": calibrations.ratio(call.tenant_id, model.alias, model.encoding)}
        for model in models
    ]
    listed = [{"id": model.alias, "object": "model", "created": 0, "owned_by": model.provider} for model in models]
    return {"default": catalogue.default, "items": items, "next_cursor": None, "object": "list", "data": listed}


def _model_json(model: Model) -> JsonObject:
    return {
        "alias": model.alias,
        "provider": model.provider,
        "model": model.model,
        "is_language_model": model.is_language_model,
        "context_window": model.context_window,
        "context_window_source": model.context_limit_source,
        "encoding": model.encoding,
        "fallbacks": model.fallbacks,
        "prices": model.prices,
    }
