"""`/ui` and `/docs`: the pages. They need no key; what they show does."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import RedirectResponse, Response

from app.api.direct_route import OpenRoute
from app.api.inspector_files import InspectorFiles
from app.domain.errors import NotFound

router = APIRouter(route_class=OpenRoute, include_in_schema=False)

_FILES = InspectorFiles()


@router.head("/ui")
@router.get("/ui")
async def to_page() -> Response:
    """Addresses in the page are relative to its folder, and so is this one: a proxy may serve us below a path."""
    return RedirectResponse("ui/", 307)


@router.head("/ui/{path:path}")
@router.get("/ui/{path:path}")
async def get_page(path: str, if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """The inspector's page and its files."""
    answer = _FILES.response(path, if_none_match)
    if answer is None:
        raise NotFound("page")
    return answer


@router.head("/docs")
@router.get("/docs")
async def get_docs(if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """The API's page, whose script is served from here too."""
    return _FILES.docs(if_none_match)
