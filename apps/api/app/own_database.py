"""The database of this installation: the configured one, or the embedded one.

Apart from `serving.py`, so that short commands need not wait for the whole application to be imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from app.core.config import Settings
from app.db import embedded, migrate


class Refused(Exception):
    """A command can not be carried out as things are; the sentence says what to do."""


@contextmanager
def database_url(settings: Settings) -> Generator[str]:
    """The connection string of the configured database, or of the embedded one, started and migrated for the block.

    Raises `EmbeddedPostgresError` and `MigrationFailed`, for the embedded one only.
    """
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    server = embedded.start(settings.data_dir)
    try:
        asyncio.run(migrate.upgrade(server.dsn))  # it is private to this installation, so nobody else decides when
        yield server.dsn
    finally:
        server.stop()
