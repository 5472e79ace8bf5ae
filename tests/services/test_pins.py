"""What a session may pin, beside other requests to it."""

from __future__ import annotations

import asyncio

from app.domain.errors import InvalidRequest
from app.domain.types import MOST_PINS_BYTES, Pin
from app.services.sessions import list_pins, put_pin
from tests.services.service import ref_of, service


async def test_pins_that_are_put_at_once_stay_within_their_most_bytes_together(database_url: str) -> None:
    content = "x" * (MOST_PINS_BYTES * 3 // 10)
    async with service(database_url) as at, service(database_url) as elsewhere:
        session = ref_of((await at.session()).id)
        puts = [
            put_pin(rt, session, Pin(f"{number} of {which}", content))
            for which, rt in enumerate((at.rt, elsewhere.rt))
            for number in range(4)
        ]
        refused = [each for each in await asyncio.gather(*puts, return_exceptions=True) if not isinstance(each, Pin)]
        assert [type(error) for error in refused] == [InvalidRequest] * 5
        assert len((await list_pins(at.rt, session, 10, None)).items) == 3
