"""An exported session on its way out: written piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

import orjson

from app.api.direct_route import plain_json
from app.archive.document import FORMAT, SECTIONS, VERSION

_IN_MEMORY_BYTES = 1024 * 1024
_OPTIONS = orjson.OPT_UTC_Z


async def spooled(parts: AsyncIterator[tuple[str, Any]]) -> IO[bytes]:
    """The document of these parts in a file that nobody else sees, read from its beginning.

    A slow client then reads from the file, while the connection that the parts were read by serves others. Up to 1 MiB
    stays in memory.
    """
    file = cast("IO[bytes]", SpooledTemporaryFile(_IN_MEMORY_BYTES))  # noqa: SIM115 - whoever sends it closes it
    try:
        file.write(orjson.dumps({"format": FORMAT, "version": VERSION})[:-1])
        waiting = list(SECTIONS)
        separator = b""
        async for name, value in parts:
            if name == "session":
                file.write(b',"session":%b' % _encoded(value))
                continue
            while name in waiting:
                file.write(_opening(waiting.pop(0)))
                separator = b""
            for row in value:
                file.write(separator + _encoded(row))
                separator = b",\n"
        file.write(b"".join(map(_opening, waiting)) + b"]}\n")
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _opening(section: str) -> bytes:
    """The end of the list before, and the beginning of this one."""
    return (b"" if section == SECTIONS[0] else b"]") + b',"%b":[' % section.encode()


def _encoded(value: object) -> bytes:
    return orjson.dumps(value, default=_plain, option=_OPTIONS)


def _plain(value: object) -> object:
    """Prices keep all their digits."""
    return format(value, "f") if isinstance(value, Decimal) else plain_json(value)
