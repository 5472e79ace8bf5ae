"""The session that a service begins with whose embedded database is empty."""

from __future__ import annotations

import sys
from collections.abc import Callable
from uuid import UUID

import orjson

from app.api.schemas.archive import read_import
from app.core.config import Settings
from app.db.database import Database
from app.db.sessions import list_sessions
from app.domain.errors import PlimsollError
from app.main import command_runtime
from app.services.archive.transfer import import_session
from app.services.keys import OPEN_TENANT


async def begin_with(settings: Settings, document: Callable[[], bytes], database: Database) -> None:
    """Imports the document, whose session gets the default model, unless there is a session. A failure is one line."""
    async with database.begin() as tx:
        if await list_sessions(tx, OPEN_TENANT, position=UUID(int=2**128 - 1), limit=1):
            return
    exported = orjson.loads(document())
    try:
        async with command_runtime(settings, database) as rt:
            exported["session"]["model_alias"] = rt.catalogue.default
            await import_session(rt, OPEN_TENANT, orjson.dumps(exported), read_import)
    except PlimsollError as error:
        sys.stderr.write(f"plimsoll: the session to begin with was not imported: {error.detail}\n")
