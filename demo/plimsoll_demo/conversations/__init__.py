"""Conversations that ship with Plimsoll, as JSON lines of OpenAI-style messages, and what a service begins with."""

from __future__ import annotations

import gzip
from importlib.resources import files

DOCUMENT = "demo.json.gz"


def first_session() -> bytes:
    """The session "Demo", a body of `POST /v1/sessions/import`; `plimsoll_demo.first_session` makes it."""
    return gzip.decompress((files(__name__) / DOCUMENT).read_bytes())
