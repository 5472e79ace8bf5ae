"""A small session's turns while another tenant forks, imports, exports, simulates, deletes and is purged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter
from typing import Any

import orjson

from app.db.database import Database
from app.domain.types import TenantId
from app.services.background import purge
from torture.keys import api_key
from torture.replicas import Replica
from torture.results import Result
from torture.site import NETWORK_ERRORS, Answered, Site

TURNS = 400
"""Of each phase; enough that a percentile of 99 is not one turn."""
LONG_TURNS = 2_000
AT_ONCE = 12
_MOST_SLOWER = 3.0
_TURNS_OF_A_SESSION = 8
_WORDS = " ".join(f"word{number}" for number in range(120))

Heavy = Callable[[], Awaitable[bool]]
"""Does one piece of the hog's work; whether it was done and not refused."""


async def neighbours(site: Site) -> Result:
    """One process with its own settings' defaults: quiet, then beside each kind of heavy work, then quiet again."""
    result = Result(
        f"a small session's turns beside another tenant's forks of {LONG_TURNS:,} turns, imports, exports, simulations "
        "and erasing",
        f"p99 at most {_MOST_SLOWER:.0f} times the quiet one, no turn refused",
    )
    async with site.database() as (url, database):
        environment = site.environment(url)
        del environment["MODELS_FILE"]  # the built-in model: what is measured is the service's own time
        async with site.nursery.running(environment, name="neighbours") as replica:
            small = _Small(site, replica, await api_key(url, "neighbour"))
            hog = _Hog(site, replica, await api_key(url, "hog"), url, database)
            await hog.prepare()
            await small.measure(TURNS // 4)  # a process that has just started
            quiet = await small.measure(TURNS)
            beside = {name: await _beside(small, hog, name, result) for name in hog.works}
            quiet += await small.measure(TURNS)
    limit_s = _MOST_SLOWER * _p99(quiet)
    result.measured = {"quiet": _shown(quiet)} | {name: _shown(seconds) for name, seconds in beside.items()}
    for name, seconds in beside.items():
        result.check(_p99(seconds) <= limit_s, f"p99 is {_p99(seconds) / _p99(quiet):.1f} times the quiet one ({name})")
    result.check(not small.failures, f"{len(small.failures)} turns failed, the first with {small.failures[:1]}")
    return result


async def _beside(small: _Small, hog: _Hog, name: str, result: Result) -> list[float]:
    result.expect(name, 1 if name == "purge" else 3)
    over = asyncio.Event()

    async def work() -> None:
        while not over.is_set():
            with suppress(*NETWORK_ERRORS):
                if await hog.works[name]():
                    result.fire(name)
                else:
                    await asyncio.sleep(0.1)

    workers = [asyncio.create_task(work()) for _ in range(hog.at_once.get(name, AT_ONCE))]
    try:
        return await small.measure(TURNS)
    finally:
        over.set()
        await asyncio.gather(*workers)


@dataclass(slots=True)
class _Small:
    """The neighbour: one client that posts a turn after the other, to sessions that stay small."""

    site: Site
    replica: Replica
    token: str
    failures: list[int] = field(default_factory=list[int])

    async def measure(self, turns: int) -> list[float]:
        """The seconds of so many turns."""
        seconds: list[float] = []
        at = ""
        for number in range(turns):
            if number % _TURNS_OF_A_SESSION == 0:
                at = await self.site.session(self.replica.url, self.token)
            started = perf_counter()
            answer = await self.site.post(
                f"{self.replica.url}{at}/turns", {"content": f"{number} {_WORDS}"}, token=self.token
            )
            seconds.append(perf_counter() - started)
            if answer.status != 201:
                self.failures.append(answer.status)
        return seconds


class _Hog:
    """The tenant with the long session. `works` are by name."""

    def __init__(self, site: Site, replica: Replica, token: str, url: str, database: Any) -> None:
        self._site = site
        self._replica = replica
        self._token = token
        self._url = url
        self._database = database
        self._long = ""
        self._document = b""
        self._made: list[str] = []
        self.at_once = {"purge": 1}
        self.works: dict[str, Heavy] = {
            "fork": self._fork,
            "import": self._import,
            "export": self._export,
            "simulate": self._simulate,
            "delete": self._delete,
            "purge": self._purge,
        }

    async def prepare(self) -> None:
        """Makes the long session."""
        messages = [
            {"role": role, "content": f"{number} {_WORDS}"}
            for number in range(LONG_TURNS)
            for role in ("user", "assistant")
        ]
        made = await self._ask("POST", "/v1/sessions/import", orjson.dumps({"messages": messages}))
        assert made.status == 201, made.body
        self._long = f"/v1/sessions/{made.json['id']}"
        self._document = (await self._ask("GET", f"{self._long}/export")).body

    async def _ask(self, method: str, path: str, body: bytes = b"") -> Answered:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        async with self._site.http.request(
            method, f"{self._replica.url}{path}", data=body or None, headers=headers
        ) as response:
            return Answered(response.status, response.headers, await response.read())

    async def _fork(self) -> bool:
        return self._keep(await self._ask("POST", f"{self._long}/fork", b"{}"))

    async def _import(self) -> bool:
        return self._keep(await self._ask("POST", "/v1/sessions/import", self._document))

    def _keep(self, made: Answered) -> bool:
        if made.status == 201:
            self._made.append(made.json["id"])
        return made.status == 201

    async def _export(self) -> bool:
        return (await self._ask("GET", f"{self._long}/export")).status == 200

    async def _simulate(self) -> bool:
        body = orjson.dumps({"policies": ["guarded", "rolling"], "max_turns": 300})
        return (await self._ask("POST", f"{self._long}/simulate", body)).status == 200

    async def _delete(self) -> bool:
        if not self._made:
            await self._fork()
            return False
        return (await self._ask("DELETE", f"/v1/sessions/{self._made.pop()}")).status == 204

    async def _purge(self) -> bool:
        """Purges what was made since, as the command does in a process of its own."""
        if len(self._made) < AT_ONCE:
            await self._fork()
            return False
        await self._database.execute(
            "UPDATE sessions SET updated_at = updated_at - interval '2 days' WHERE id = ANY($1::uuid[])", self._made
        )
        self._made.clear()
        own = Database(self._url, pool_size=1)
        try:
            return (await purge(own, timedelta(days=1), TenantId("hog"))).done > 0
        finally:
            await own.aclose()


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]


def _shown(seconds: list[float]) -> str:
    middle = sorted(seconds)[len(seconds) // 2]
    return f"p50 {middle * 1000:.0f} ms, p99 {_p99(seconds) * 1000:.0f} ms"
