"""`/`: where everything is. People are sent to the inspector."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from pydantic import BaseModel, Field
from starlette.responses import RedirectResponse, Response

from app.api.direct_route import Call, OpenRoute, json_response

router = APIRouter(tags=["operations"], route_class=OpenRoute)

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


class RootOut(BaseModel):
    """What answers here, and where the rest of it is."""

    name: str
    version: str
    links: dict[str, str] = Field(description="Addresses by what is there.")


@router.head("/", include_in_schema=False)
@router.get("/", response_model=RootOut, responses={307: {"description": "To the inspector, for who accepts HTML"}})
async def get_root(call: Call, accept: Annotated[str, Header(include_in_schema=False)] = "") -> Response:
    """The service's name, version and addresses; who accepts HTML is sent to the inspector."""
    vary = {"Vary": "Accept"}
    if "text/html" in accept:
        return RedirectResponse("ui/", 307, vary)
    app = call.scope["app"]
    answer = json_response({"name": app.title, "version": app.version, "links": _LINKS})
    answer.headers.update(vary)
    return answer
