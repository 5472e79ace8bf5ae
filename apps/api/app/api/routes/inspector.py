"""`/ui` and `/docs`: the files built from `apps/web`. They are read once and served with security headers.

They contain no secrets, so they need no key. The data they show comes from the API, which needs one.
"""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import RedirectResponse, Response

from app.api.direct_route import OpenRoute
from app.domain.errors import existing
from app.domain.frozen import frozen

FOLDER = Path(__file__).parents[2] / "_ui"
"""The folder that `make web` builds into. It is part of the repository and of the wheel."""

DOCS_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
    )
)
# Text can never become HTML or script. /docs does without this rule, because Swagger UI renders Markdown as HTML.
CONTENT_SECURITY_POLICY = f"{DOCS_POLICY}; require-trusted-types-for 'script'; trusted-types 'none'"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_FOR_EVER = "public, max-age=31536000, immutable"


@frozen
class _File:
    content: bytes
    media_type: str
    etag: str
    cache_control: str


def read_files(folder: Path = FOLDER) -> dict[str, _File]:
    """The built files by their path below the folder."""
    return {path.relative_to(folder).as_posix(): _file(path, folder) for path in folder.rglob("*") if path.is_file()}


def file_answer(file: _File | None, policy: str, if_none_match: str | None) -> Response:
    """Raises `NotFound` if there is no such file."""
    file = existing(file, "page")
    headers = {**_HEADERS, "Content-Security-Policy": policy, "Cache-Control": file.cache_control, "ETag": file.etag}
    if if_none_match is not None and file.etag in if_none_match:
        return Response(status_code=304, headers=headers)
    return Response(file.content, 200, headers, file.media_type)


def _file(path: Path, folder: Path) -> _File:
    content = path.read_bytes()
    # Vite names the files in assets/ after the hash of their content.
    hashed = path.relative_to(folder).parts[0] == "assets"
    return _File(
        content,
        mimetypes.guess_type(path.name)[0] or "application/octet-stream",
        f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        _FOR_EVER if hashed else "no-cache",
    )


router = APIRouter(route_class=OpenRoute, include_in_schema=False)

_FILES = read_files()
_DOCS = _FILES.pop("docs.html", None)
"""Apart from the files of `/ui`, because its addresses are relative to another folder."""


@router.head("/ui")
@router.get("/ui")
async def to_page() -> Response:
    """Redirect to a relative address, because a proxy may serve the application below a path."""
    return RedirectResponse("ui/", 307)


@router.head("/ui/{path:path}")
@router.get("/ui/{path:path}")
async def get_page(path: str, if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """The inspector's page and its files."""
    return file_answer(_FILES.get(path or "index.html"), CONTENT_SECURITY_POLICY, if_none_match)


@router.head("/docs")
@router.get("/docs")
async def get_docs(if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """The page of the API reference. Its script is one of the files of `/ui`."""
    return file_answer(_DOCS, DOCS_POLICY, if_none_match)
