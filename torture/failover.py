"""Two Postgres servers, one the other's standby, change places under load, with a read-only time between."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

from app.db import embedded, embedded_identity
from app.db.embedded_identity import Identity
from app.db.embedded_server import find_binaries
from app.db.migrate import upgrade
from bench.programs import free_port
from torture.databases import execute
from torture.outage import CLIENTS, LEASE_S, REFUSED, Load, client, is_gone, judge, recovery_s
from torture.replicas import Replica
from torture.results import Result
from torture.site import Site, connect

SWITCHES = 4
READ_ONLY_S = 3.0
_UP_S = 4.0
_RECOVERED_WITHIN_S = 5.0
_SWITCHED = "the standby took over"
_NOT_READY = "/readyz says read-only or unavailable"


@dataclass(frozen=True, slots=True)
class _Node:
    """One server: `data` is its cluster, `port` its own on loopback."""

    data: Path
    port: int
    identity: Identity

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/plimsoll"

    def run(self, *command: str) -> None:
        """A program of Postgres, to its end."""
        program, *arguments = command
        subprocess.run(  # noqa: S603 - Postgres's own
            self.identity.command("wait", find_binaries() / program, arguments),
            cwd=self.data.parent,
            capture_output=True,
            check=True,
        )

    async def start(self) -> None:
        with (self.data.parent / f"{self.data.name}.log").open("ab") as log:
            options = ["-D", str(self.data), "-p", str(self.port), "-c", "unix_socket_directories="]
            options += ["-c", "listen_addresses=127.0.0.1"]
            command = self.identity.command("detach", find_binaries() / "postgres", options)
            run = partial(subprocess.run, command, cwd=self.data.parent, stdout=log, stderr=log, check=True)
            await asyncio.to_thread(run)
        await _until(lambda: self.ask("SELECT true"))

    async def stop(self) -> None:
        """In order: a standby has all that was written, then."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGINT)
        if not await is_gone(pid):
            raise RuntimeError("a server did not stop")

    async def follow(self, primary: _Node) -> None:
        """Starts as the standby of the other."""
        (self.data / "standby.signal").touch()
        self.identity.own(self.data / "standby.signal")
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = 'host=127.0.0.1 port={primary.port} user=postgres'\n")
        await self.start()

    async def ask(self, question: str, *arguments: object) -> Any:
        connection = await connect(self.url)
        try:
            return await connection.fetchval(question, *arguments)
        finally:
            await connection.close()


async def _until(holds: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    deadline = monotonic() + 30
    while True:
        try:
            if await holds():
                return
        except Exception:  # what a server says while it starts
            if monotonic() > deadline:
                raise
        if monotonic() > deadline:
            raise TimeoutError
        await asyncio.sleep(0.05)


async def failovers(site: Site) -> Result:
    """The service knows both servers and takes whichever writes. It gets no notice of a change."""
    result = Result(
        f"a failover between two servers under load, {SWITCHES} times, {READ_ONLY_S:g} s of them read-only",
        "503 with Retry-After and not ready meanwhile; nothing acknowledged lost; "
        f"the new primary is found within {_RECOVERED_WITHIN_S:g} s",
    )
    result.expect(_SWITCHED, SWITCHES)
    result.expect(_NOT_READY, SWITCHES)
    result.expect(REFUSED, SWITCHES * CLIENTS)
    folder = site.folder / f"failover-{uuid4().hex[:6]}"
    await asyncio.to_thread(lambda: embedded.start(folder).stop())  # made as the embedded one is, and then by our hands
    identity = embedded_identity.identity_for(folder / "postgres", find_binaries() / "postgres")
    first, second = (_Node(folder / "postgres" / name, free_port(), identity) for name in ("data", "standby"))
    await first.start()
    try:
        await upgrade(first.url)
        address = f"-h 127.0.0.1 -p {first.port} -U postgres -c fast -D"
        await asyncio.to_thread(first.run, "pg_basebackup", *address.split(), str(second.data))
        await second.follow(first)
        hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
        url = f"postgresql://postgres@{hosts}/plimsoll?target_session_attrs=read-write"
        async with site.nursery.running(site.environment(url, turn_lease_s=LEASE_S), name="failover") as replica:
            await _try(site, replica, url, [first, second], result)
    finally:
        for node in (first, second):
            if (node.data / "postmaster.pid").exists():
                await node.stop()
    return result


async def _try(site: Site, replica: Replica, url: str, nodes: list[_Node], result: Result) -> None:
    load, recovered = Load(), list[float]()
    clients = [asyncio.create_task(client(site, replica.url, load, result)) for _ in range(CLIENTS)]
    for _ in range(SWITCHES):
        await asyncio.sleep(_UP_S)
        old, new = nodes
        await execute(old.url, "ALTER SYSTEM SET default_transaction_read_only = on")
        await old.ask("SELECT pg_reload_conf()")
        await asyncio.sleep(READ_ONLY_S)
        async with site.http.get(f"{replica.url}/readyz") as ready:
            if ready.status == 503:
                result.fire(_NOT_READY)
        await execute(old.url, "ALTER SYSTEM RESET default_transaction_read_only")  # for its next time as primary
        written = await old.ask("SELECT pg_current_wal_lsn()::text")
        await _until(partial(new.ask, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", written))
        await old.stop()
        await new.ask("SELECT pg_promote()")
        promoted_at = monotonic()
        if not await new.ask("SELECT pg_is_in_recovery()"):
            result.fire(_SWITCHED)
        recovered.append(await recovery_s(load, promoted_at))
        await old.follow(new)
        nodes.reverse()
    await asyncio.sleep(_UP_S)
    load.stop = True
    await asyncio.gather(*clients)
    await judge(site, url, load, result)
    result.check(max(recovered) <= _RECOVERED_WITHIN_S, f"it recovered after {max(recovered):.1f} s")
    result.measured["slowest recovery"] = f"{max(recovered):.2f} s after the promotion"
