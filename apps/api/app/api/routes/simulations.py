"""`/v1/sessions/{session_id}/simulate`: stored turns under other policies and models, without calling one."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter

from app.api.direct_route import Call, HeavyRoute
from app.api.openapi import WRITE, answers
from app.api.schemas import SimulateIn, SimulationOut
from app.domain.types import JsonObject, SessionId
from app.services.views.simulation import MOST_TURNS_DECIDED, THRESHOLDS, simulate, variant_of

router = APIRouter(prefix="/v1/sessions/{session_id}/simulate", tags=["policies"], route_class=HeavyRoute)

_NOTHING_GIVEN = SimulateIn()


@router.post("", response_model=SimulationOut, responses=answers(*WRITE))
async def post_simulation(call: Call, session_id: UUID, body: SimulateIn = _NOTHING_GIVEN) -> JsonObject:
    """What other policies and models would have made of the session's turns. Calls no model and writes nothing."""
    variants = THRESHOLDS if body.policies is None else tuple(map(variant_of, call.raw_body["policies"]))
    aliases = body.model_aliases or []
    most_turns = min(body.max_turns, MOST_TURNS_DECIDED // (len(variants) * max(1, len(aliases))))
    return await simulate(call.rt, call.tenant_id, SessionId(session_id), variants, aliases, most_turns=most_turns)
