"""The embedded Postgres is killed under load: the service starts it again, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from time import monotonic
from urllib.parse import quote
from uuid import uuid4

from app.db.embedded import count_restarts
from torture.outage import CLIENTS, LEASE_S, REFUSED, Load, client, is_gone, judge, recovery_s
from torture.results import Result
from torture.site import Site

KILLS = 6
_UP_S = 3.0
_RECOVERED_WITHIN_S = 10.0
_KILLED = "postmaster killed"


async def postmasters(site: Site) -> Result:
    """Kills the postmaster alone; its backends notice by themselves or are ended."""
    result = Result(
        f"kill -9 of the embedded Postgres under load, {KILLS} times",
        f"started again by the service within {_RECOVERED_WITHIN_S:g} s; 503 meanwhile; nothing acknowledged lost",
    )
    result.expect(_KILLED, KILLS)
    result.expect(REFUSED, KILLS)
    folder = site.folder / f"own-{uuid4().hex[:6]}"
    url = f"postgresql://postgres@/plimsoll?host={quote(str(folder / 'postgres' / 'run'))}&port=5432"
    environment = site.environment(url, turn_lease_s=LEASE_S, data_dir=folder)
    del environment["DATABASE_URL"]
    load, recovered = Load(), list[float]()
    async with site.nursery.running(environment, name="postmaster") as replica:
        clients = [asyncio.create_task(client(site, replica.url, load, result)) for _ in range(CLIENTS)]
        for _ in range(KILLS):
            await asyncio.sleep(_UP_S)
            pid = int((folder / "postgres/data/postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGKILL)
            killed_at = monotonic()
            if await is_gone(pid):
                result.fire(_KILLED)
            recovered.append(await recovery_s(load, killed_at + 0.1))  # answers on their way are none of the new server
        await asyncio.sleep(_UP_S)
        load.stop = True
        await asyncio.gather(*clients)
        await judge(site, url, load, result)
        result.check(count_restarts(url) == KILLS, f"{count_restarts(url)} restarts were counted")
    result.check(max(recovered) <= _RECOVERED_WITHIN_S, f"it recovered after {max(recovered):.1f} s")
    result.measured["recovery"] = f"{min(recovered):.2f} to {max(recovered):.2f} s after the kill"
    return result
