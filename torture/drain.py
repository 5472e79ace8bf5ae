"""SIGTERM with turns in flight: they end, no answered turn is lost, and balancers know at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import aiohttp

from tests.providers.server import Answer
from torture.ledger import violations
from torture.models import new_mark, reply, reply_text, streamed_reply
from torture.replicas import Replica
from torture.results import Result
from torture.site import NETWORK_ERRORS, Answered, Site

SIGNALS = 10
STREAMS = 30
PLAIN = 20
GRACE_S = 30.0
_ANSWER_AFTER_S = 3.0
_TOLD_WITHIN_S = 1.0
_DELAY_S = 1.0
"""In which a balancer hears of the signal, and requests are still served."""
_IN_FLIGHT = "turns in flight at a SIGTERM"
_SIGTERM = "SIGTERMs that found all turns running"
_REFUSED = "connections refused while draining"


@dataclass(slots=True)
class _Seen:
    completed: int = 0
    ready_s: list[float] = field(default_factory=list[float])
    exit_s: list[float] = field(default_factory=list[float])


async def drains(site: Site) -> Result:
    """Each time on a new process."""
    result = Result(
        f"{SIGNALS} SIGTERMs with {STREAMS + PLAIN} turns in flight, {STREAMS} of them streams",
        f"none acknowledged is lost; /readyz 503 at once; exit within {GRACE_S:g} s",
    )
    result.expect(_IN_FLIGHT, SIGNALS * (STREAMS + PLAIN))
    result.expect(_SIGTERM, SIGNALS)
    result.expect(_REFUSED, SIGNALS)
    seen = _Seen()
    async with site.database() as (url, database):
        for _ in range(SIGNALS):
            environment = site.environment(url, shutdown_delay_s=_DELAY_S)
            replica = await site.nursery.start(environment, name="drain")
            await _once(site, database, replica, seen, result)
        stored = await database.fetchval("SELECT count(*) FROM turns WHERE status = 'completed'")
        result.failures += await violations(database)
    result.check(stored == seen.completed, f"{seen.completed} turns were answered as completed, {stored} are stored so")
    result.measured = {
        "turns in flight": result.fired.get(_IN_FLIGHT, 0),
        "of these completed, answered to their client": seen.completed,
        "slowest /readyz 503 after the signal": f"{max(seen.ready_s, default=0):.2f} s",
        f"slowest exit (model answers after {_ANSWER_AFTER_S:g} s)": f"{max(seen.exit_s, default=0):.1f} s",
    }
    return result


async def _once(site: Site, database: Any, replica: Replica, seen: _Seen, result: Result) -> None:
    sessions = await asyncio.gather(*(site.session(replica.url) for _ in range(STREAMS + PLAIN)))
    posts: list[asyncio.Task[Answered]] = []
    marks = [new_mark("drain") for _ in sessions]
    for number, (session, mark) in enumerate(zip(sessions, marks, strict=True)):
        stream = number < STREAMS
        site.models.plays[mark] = _slow_stream if stream else _slow
        body = {"content": f"{mark} take your time", "stream": stream}
        posts.append(asyncio.create_task(site.post(f"{replica.url}{session}/turns", body)))
    await site.models.until_asked(marks)
    running = await database.fetchval("SELECT count(*) FROM turns WHERE status = 'running'")
    result.fire(_IN_FLIGHT, running)
    replica.send(signal.SIGTERM)
    at = monotonic()
    watching = asyncio.create_task(_watch(site, replica, at, seen, result))
    if await _is_refused(site, replica, posts):
        result.fire(_REFUSED)
    answers = await asyncio.gather(*posts, return_exceptions=True)
    for number, (answered, mark) in enumerate(zip(answers, marks, strict=True)):
        seen.completed += _is_whole(answered, mark, stream=number < STREAMS, result=result)
    result.check(await replica.ended(max(0.0, GRACE_S - (monotonic() - at))), "it did not end in its grace time")
    seen.exit_s.append(monotonic() - at)
    await watching
    if running == len(marks):
        result.fire(_SIGTERM)


async def _is_refused(site: Site, replica: Replica, posts: Sequence[asyncio.Task[Answered]]) -> bool:
    """Whether connections are refused, once the delay is over, while turns still run."""
    deadline = monotonic() + _DELAY_S + _TOLD_WITHIN_S
    while monotonic() < deadline and not all(post.done() for post in posts):
        try:
            await site.post(f"{replica.url}/v1/sessions", {})
        except aiohttp.ClientConnectorError:
            return True
        except NETWORK_ERRORS:
            pass  # it came while the port was closed
        await asyncio.sleep(0.02)
    return False


async def _watch(site: Site, replica: Replica, at: float, seen: _Seen, result: Result) -> None:
    """Asks `/readyz` as a balancer does, until nobody listens any more: never ready again."""
    first: float | None = None
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
        while True:
            async with site.http.get(f"{replica.url}/readyz") as response:
                status = response.status
            if status == 503 and first is None:
                first = monotonic() - at
            if status == 200 and (first is not None or monotonic() - at > _TOLD_WITHIN_S):
                result.check(False, f"/readyz was 200 {monotonic() - at:.2f} s after the signal")
            await asyncio.sleep(0.02)
    result.check(first is not None and first <= _TOLD_WITHIN_S, f"/readyz was 503 after {first} s")
    if first is not None:
        seen.ready_s.append(first)


def _is_whole(answered: Answered | BaseException, mark: str, *, stream: bool, result: Result) -> bool:
    if isinstance(answered, BaseException):
        result.check(False, f"a client in flight got {type(answered).__name__}: {answered}")
        return False
    if stream:
        last, data = answered.last_event()
        whole = last == "turn.completed" and data["turn"]["assistant_output"] == reply_text(mark)
        result.check(whole, f"a stream in flight ended with {last}: {data}")
        return whole
    whole = answered.status == 201 and answered.json["turn"]["assistant_output"] == reply_text(mark)
    result.check(whole, f"a client in flight got {answered.status} {answered.code}")
    return whole


def _slow(seen: Any) -> Answer:
    return Answer(reply(seen), delay_s=_ANSWER_AFTER_S)


def _slow_stream(seen: Any) -> Any:
    return streamed_reply(seen, pause_s=_ANSWER_AFTER_S / 8)
