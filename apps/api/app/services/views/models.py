"""The aliases of the catalogue, as clients read them: in our own form, and as OpenAI lists models."""

from __future__ import annotations

from app.domain.types import JsonObject, TenantId
from app.services.runtime import Runtime


def list_models(rt: Runtime, tenant_id: TenantId) -> JsonObject:
    """Every alias with its window, its prices where known, and the correction of the tenant's estimates."""
    models = [rt.catalogue.model(alias, tenant_id) for alias in rt.catalogue.aliases]
    items = [
        {
            "alias": model.alias,
            "provider": model.provider,
            "model": model.model,
            "is_language_model": model.is_language_model,
            "context_window": model.context_window,
            "context_window_source": model.context_limit_source,
            "encoding": model.encoding,
            "fallbacks": model.fallbacks,
            "prices": model.prices,
            "calibration_ratio": rt.calibrations.ratio(tenant_id, model.alias, model.encoding),
        }
        for model in models
    ]
    listed = [{"id": model.alias, "object": "model", "created": 0, "owned_by": model.provider} for model in models]
    return {"default": rt.catalogue.default, "items": items, "next_cursor": None, "object": "list", "data": listed}
