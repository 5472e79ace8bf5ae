"""`/v1/policies`: presets and fields. `/v1/sessions/{session_id}/simulate`: stored turns under other policies."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.direct_route import Call, DirectRoute, HeavyRoute
from app.api.openapi import WRITE, refusals
from app.api.schemas.deployment import PolicyList
from app.api.schemas.simulations import SimulateIn, SimulationOut
from app.domain.types import JsonObject, SessionId
from app.services.views.deployment import list_policies
from app.services.views.simulation import MOST_TURNS_DECIDED, THRESHOLDS, simulate, variant_of

router = APIRouter(prefix="/v1/policies", tags=["policies"], route_class=DirectRoute)
simulation_router = APIRouter(prefix="/v1/sessions/{session_id}/simulate", tags=["policies"], route_class=HeavyRoute)

_NOTHING_GIVEN = SimulateIn()


@router.get("", response_model=PolicyList, responses=refusals(401, 503))
async def get_policies(call: Call) -> JsonObject:
    """The presets with all their values, and each field with its range and meaning."""
    return list_policies(call.rt)


@simulation_router.post("", response_model=SimulationOut, responses=refusals(*WRITE))
async def post_simulation(call: Call, session_id: SessionId, body: SimulateIn = _NOTHING_GIVEN) -> JsonObject:
    """Computes the session's turns under other policies and models. Calls no model and writes nothing."""
    variants = THRESHOLDS if body.policies is None else tuple(map(variant_of, call.raw_body["policies"]))
    aliases = body.model_aliases or []
    most_turns = min(body.max_turns, MOST_TURNS_DECIDED // (len(variants) * max(1, len(aliases))))
    return await simulate(call.rt, call.tenant_id, session_id, variants, aliases, most_turns=most_turns)
