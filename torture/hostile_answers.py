"""Answers made to hurt, one after the other: what a session next door notices of them, and whether they end in time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import orjson

from bench.programs import ROOT
from tests.providers.hostile import HOSTILE, Hostile
from torture.hostile_server import READY
from torture.ledger import violations
from torture.nursery import ENCODING
from torture.replicas import Replica
from torture.results import Result
from torture.site import Site

DEADLINE_S = 3.0
_DEADLINE_SLACK_S = 0.5
_MOST_LATE_S = 0.1
_MOST_GROWTH_BYTES = 128 * 1024 * 1024
_QUIET_TURNS = 100
_TAKEN = {"completed", "awaiting_tools"}


async def hostile_answers(site: Site) -> Result:
    """Each at an alias of its own; the session next door is answered by the offline responder meanwhile."""
    result = Result(
        f"{len(HOSTILE)} hostile answers, on all wires, while another session takes turns",
        f"no turn of the other session more than {_MOST_LATE_S * 1000:g} ms later than usual; all end by the deadline "
        f"+ {_DEADLINE_SLACK_S:g} s as documented; memory +{_MOST_GROWTH_BYTES / 2**20:g} MiB at most",
    )
    for hostile in HOSTILE:
        result.expect(hostile.name, 1)
    async with _server() as port, site.database() as (url, database):
        catalogue = site.folder / "hostile.toml"
        catalogue.write_text(_catalogue(port))
        environment = site.environment(url) | {"MODELS_FILE": str(catalogue)}
        async with site.nursery.running(environment, name="hostile") as replica:
            trial = _Trial(site, replica, port, result)
            await trial.warm_up()
            before = replica.resident_bytes()
            with _no_collections():
                for number, hostile in enumerate(HOSTILE):
                    await trial.play(number, hostile)
            grown = _most_resident_bytes(replica) - before
            result.failures += await violations(database)
    result.check(grown <= _MOST_GROWTH_BYTES, f"memory grew by {grown / 2**20:.0f} MiB")
    worst, name = max(trial.late)
    result.measured = {
        "turns next door": f"{trial.turns:,}, usually {trial.usual_s * 1000:.1f} ms",
        "the latest": f"{worst * 1000:.0f} ms more ({name})",
        f"slowest end (deadline {DEADLINE_S:g} s)": f"{max(trial.ends):.2f} s",
        "memory": f"+{grown / 2**20:.0f} MiB",
    }
    return result


class _Trial:
    def __init__(self, site: Site, replica: Replica, port: int, result: Result) -> None:
        self._site = site
        self._replica = replica
        self._port = port
        self._result = result
        self._next_door = ""
        self.usual_s = 0.0
        self.turns = 0
        self.late: list[tuple[float, str]] = []
        self.ends: list[float] = []

    async def warm_up(self) -> None:
        """Learns how long a turn next door takes when nothing else happens."""
        self._next_door = await self._new_session()
        took = [await self._turn_next_door() for _ in range(_QUIET_TURNS)]
        self.usual_s = median(took[_QUIET_TURNS // 2 :])

    async def play(self, number: int, hostile: Hostile) -> None:
        """One hostile answer, with turns next door from before it is asked for until it has ended."""
        made = await self._site.post(f"http://127.0.0.1:{self._port}/{number}/{READY}", {})
        self._result.check(made.status == 200, f"{hostile.name}: it was not made")
        turns = await self._new_session(model_alias=f"hostile-{number}")
        self._next_door = await self._new_session()  # one that has grown long is slow by itself
        gc.collect()
        playing = asyncio.create_task(self._hostile_turn(turns, hostile))
        while not playing.done():
            self.late.append((await self._turn_next_door() - self.usual_s, hostile.name))
        await playing
        worst = max(late for late, name in self.late if name == hostile.name)
        self._result.check(
            worst <= _MOST_LATE_S, f"{hostile.name}: a turn next door took {worst * 1000:.0f} ms more than usual"
        )

    async def _new_session(self, **fields: str) -> str:
        """The address of its turns."""
        session = await self._site.session(self._replica.url, policy={"summarize_when": "never"}, **fields)
        return f"{self._replica.url}{session}/turns"

    async def _turn_next_door(self) -> float:
        started = monotonic()
        answered = await self._site.post(self._next_door, {"content": "How are you?"})
        self.turns += 1
        self._result.check(answered.status == 201, f"a turn next door was answered {answered.status}")
        return monotonic() - started

    async def _hostile_turn(self, turns: str, hostile: Hostile) -> None:
        started = monotonic()
        await self._site.post(turns, {"content": "say it", "stream": hostile.stream})
        took_s = monotonic() - started
        self.ends.append(took_s)
        self._result.fire(hostile.name)
        self._result.check(took_s <= DEADLINE_S + _DEADLINE_SLACK_S, f"{hostile.name}: it took {took_s:.2f} s")
        async with self._site.http.get(turns) as response:
            stored: dict[str, Any] = orjson.loads(await response.read())["items"][0]
        code = stored["error"]["code"] if stored["error"] else None
        holds = (code is None) == (stored["status"] in _TAKEN) and code in hostile.codes
        self._result.check(holds, f"{hostile.name}: stored as {stored['status']} {code}")


@contextlib.contextmanager
def _no_collections() -> Generator[None]:
    """No automatic collection of garbage in this process: one takes some 115 ms, which a turn next door would have
    taken longer by this clock."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _most_resident_bytes(replica: Replica) -> int:
    lines = Path(f"/proc/{replica.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@contextlib.asynccontextmanager
async def _server() -> AsyncGenerator[int]:
    """The port of the server of hostile answers, which ends with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "torture.hostile_server",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "apps/api"), str(ROOT)))},
    )
    assert process.stdin
    assert process.stdout
    try:
        yield int(await process.stdout.readline())
    finally:
        process.stdin.close()
        await process.wait()


def _catalogue(port: int) -> str:
    entries = ['default = "quick"\n[models.quick]\nprovider = "offline"\nmodel = "offline"']
    entries += [
        f'[models.hostile-{number}]\n{hostile.wire.toml}model = "m"\ncontext_window = 16384\n'
        f'base_url = "http://127.0.0.1:{port}/{number}/v1"\nencoding = "{ENCODING}"\ntimeout_s = {DEADLINE_S}'
        for number, hostile in enumerate(HOSTILE)
    ]
    return "\n".join(entries) + "\n"
