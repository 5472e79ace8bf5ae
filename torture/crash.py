"""kill -9 at named points of a turn: nothing acknowledged is lost or doubled, and the session goes on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal, TypeAlias
from uuid import UUID

import orjson

from tests.providers.server import Seen, Step, Stream
from tests.services.service import sound_summary
from torture.database_proxy import At, Fault, proxied
from torture.ledger import violations
from torture.models import Interrupted, new_mark, reply_text, stream_pieces, streamed_reply, tool_call, whole_in_pieces
from torture.replicas import Replica
from torture.results import Result
from torture.site import NETWORK_ERRORS, Answered, Site

LEASE_S = 1.0
_SLACK_S = 2.0
_BEHIND_ANSWER_S = 10.0
"""Within which a summary is made behind an answer."""
_AT_ONCE = 4
_LOOKED_AFTER_AT_ONCE = 48

_CLAIM = "UPDATE sessions SET last_turn_seq"
SETTLE = "UPDATE turns SET status = $"
_RECLAIM = "SET status = 'running', fence = fence + 1"
_CANCEL = "SET status = 'cancelled'"
_STORE_SUMMARY = "INSERT INTO session_summaries"

Scene: TypeAlias = Literal["plain", "stream", "summary", "ahead", "tools", "cancel"]
Trigger: TypeAlias = (
    At | Literal["model_called", "mid_answer", "last_byte", "summarizer_called", "first_delta", "answered"]
)


@dataclass(frozen=True, slots=True)
class Point:
    """A named moment. `settled` says that the turn's end is committed there, so that a retry must find it."""

    name: str
    scene: Scene
    trigger: Trigger
    settled: bool = False


POINTS = (
    Point("before the first BEGIN", "plain", At("BEGIN", "before")),
    Point("before the claim", "plain", At(_CLAIM, "before")),
    Point("after the claim, uncommitted", "plain", At(_CLAIM, "after")),
    Point("before the claim's commit", "plain", At(_CLAIM, "before", commit=True)),
    Point("after the claim's commit", "plain", At(_CLAIM, "after", commit=True)),
    Point("the model has been asked", "plain", "model_called"),
    Point("in the middle of the answer", "plain", "mid_answer"),
    Point("after the answer's last byte", "plain", "last_byte"),
    Point("before the end", "plain", At(SETTLE, "before")),
    Point("settled, before it is known", "plain", At(SETTLE, "after"), settled=True),
    Point("after the client was answered", "plain", "answered", settled=True),
    Point("stream: the model has been asked", "stream", "model_called"),
    Point("stream: after the first delta", "stream", "first_delta"),
    Point("stream: in the middle of the answer", "stream", "mid_answer"),
    Point("stream: before the end", "stream", At(SETTLE, "before")),
    Point("stream: settled, before it is known", "stream", At(SETTLE, "after"), settled=True),
    Point("the summarizer has been asked", "summary", "summarizer_called"),
    Point("before the summary is stored", "summary", At(_STORE_SUMMARY, "before")),
    Point("the summary is stored", "summary", At(_STORE_SUMMARY, "after")),
    Point("ahead: the summarizer has been asked", "ahead", "summarizer_called", settled=True),
    Point("ahead: before the summary is stored", "ahead", At(_STORE_SUMMARY, "before"), settled=True),
    Point("ahead: the summary is stored", "ahead", At(_STORE_SUMMARY, "after"), settled=True),
    Point("tool outputs: before they are stored", "tools", At(_RECLAIM, "before")),
    Point("tool outputs: stored, uncommitted", "tools", At(_RECLAIM, "after")),
    Point("tool outputs: after their commit", "tools", At(_RECLAIM, "after", commit=True)),
    Point("tool outputs: the model has been asked", "tools", "model_called"),
    Point("cancel: before it is stored", "cancel", At(_CANCEL, "before")),
    Point("cancel: after its commit", "cancel", At(_CANCEL, "after", commit=True)),
)


@dataclass(slots=True)
class _Victim:
    """A process that is to die, and what it was doing."""

    point: Point
    mark: str
    session: str
    fault: Fault
    turn: str | None = None
    replica: Replica | None = None
    killed_at: float | None = None
    answer: dict[str, Any] | None = None
    asked_before: int = 0

    def kill(self) -> None:
        """kill -9, once."""
        if self.killed_at is None and self.replica is not None:
            self.replica.send(signal.SIGKILL)
            self.killed_at = monotonic()

    @property
    def key(self) -> str:
        return f"key-{self.mark}"

    @property
    def body(self) -> dict[str, Any]:
        return {"content": f"{self.mark} and what then?", "stream": self.point.scene == "stream"}


@dataclass(slots=True)
class _Run:
    site: Site
    database_url: str
    database: Any
    survivor: Replica
    result: Result
    looking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_LOOKED_AFTER_AT_ONCE))
    free_after_s: list[float] = field(default_factory=list[float])
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    lost: int = 0
    doubled: int = 0


async def crashes(site: Site) -> Result:
    """Every point, `site.kills` times."""
    result = Result(
        f"kill -9 at {len(POINTS)} points of a turn, {site.kills} times each",
        f"0 acknowledged turns lost, 0 doubled; no session stuck for longer than the lease + {_SLACK_S:g} s",
    )
    for point in POINTS:
        result.expect(point.name, site.kills)
    async with (
        site.database() as (url, database),
        site.nursery.running(site.environment(url, turn_lease_s=LEASE_S, db_pool_size=10), name="survivor") as survivor,
    ):
        run = _Run(site, url, database, survivor, result)
        waiting = [point for _ in range(site.kills) for point in POINTS]
        looked_after: list[asyncio.Task[None]] = []

        async def kill_some() -> None:
            while waiting:
                point = waiting.pop()
                victim = await _prepare(run, point)
                await _die(run, victim)
                looked_after.append(asyncio.create_task(_look_after(run, victim)))

        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(kill_some())
        await asyncio.gather(*looked_after)
        result.failures += await violations(database)
    slowest = max(run.free_after_s, default=0.0)
    result.measured = {
        "kills": sum(result.fired.values()),
        "acknowledged turns lost": run.lost,
        "doubled": run.doubled,
        f"slowest session free again (lease {LEASE_S:g} s)": f"{slowest:.2f} s",
    }
    result.check(slowest <= LEASE_S + _SLACK_S, f"a session was stuck for {slowest:.2f} s")
    return result


async def _prepare(run: _Run, point: Point) -> _Victim:
    """The session as the scene needs it, made on the process that lives on."""
    site, at = run.site, run.survivor.url
    mark = new_mark("crash")
    ahead, summarizes = point.scene == "ahead", point.scene in ("summary", "ahead")
    summarizing = {"mandatory_summary_turn": 2, "protected_turns": 1, "summarize_ahead": ahead}
    policy = summarizing if summarizes else {"summarize_when": "never"}
    session = await site.session(at, policy=policy)
    victim = _Victim(point, mark, session, Fault(_at_of(point), _nothing, armed=False))
    victim.fault.then = victim.kill
    if summarizes:
        for number in range(1 if ahead else 2):  # ahead, the victim's own turn is the second
            await site.post(f"{at}{session}/turns", {"content": f"{mark} before {number}" + " words" * 200})
        site.models.summarizes[mark] = lambda seen: _summarize(victim, seen)
    if point.scene in ("tools", "cancel"):
        site.models.plays[mark] = tool_call
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        asked = await site.post(f"{at}{session}/turns", victim.body | {"tools": tools}, key=victim.key)
        victim.turn = asked.json["turn"]["id"]
        if asked.json["turn"]["status"] != "awaiting_tools":
            raise RuntimeError(f"the turn does not wait for tools: {asked.body!r}")
    victim.asked_before = site.models.calls[mark]
    if not isinstance(point.trigger, At) and point.trigger in (
        "model_called",
        "mid_answer",
        "last_byte",
        "first_delta",
    ):
        site.models.plays[mark] = lambda seen: _answer(victim, seen)
    return victim


def _nothing() -> None:
    """Until there is somebody to kill."""


def _at_of(point: Point) -> At:
    return point.trigger if isinstance(point.trigger, At) else At("\0", "before")


def _answer(victim: _Victim, seen: Seen) -> Step:
    scene, trigger = victim.point.scene, victim.point.trigger
    if trigger == "model_called":
        victim.kill()
    if scene == "tools":
        return tool_call(seen)
    if scene == "stream":
        if trigger != "mid_answer":
            return streamed_reply(seen, pause_s=0.02)
        return Stream(Interrupted(stream_pieces(reply_text(victim.mark)), 4, victim.kill), pause_s=0.005)
    return whole_in_pieces(seen, 2 if trigger == "mid_answer" else 4, victim.kill)


def _summarize(victim: _Victim, seen: Seen) -> Step:
    if victim.point.trigger == "summarizer_called":
        victim.kill()
    return sound_summary(seen)


async def _die(run: _Run, victim: _Victim) -> None:
    """Boots a process, has it do the scene's request, and sees it killed on the way."""
    async with proxied(run.database_url, victim.fault) as url:
        environment = run.site.environment(url, turn_lease_s=LEASE_S, db_pool_size=2)
        victim.replica = await run.site.nursery.start(environment, name=f"victim-{victim.point.scene}")
        victim.fault.armed = True
        with contextlib.suppress(*NETWORK_ERRORS):
            await _ask(run.site, victim, victim.replica.url)
        if victim.point.scene == "ahead":
            await victim.replica.ended(_BEHIND_ANSWER_S)
        if victim.killed_at is not None:
            run.result.fire(victim.point.name)
        else:
            run.result.check(False, f"{victim.point.name}: the process was not killed")
            victim.replica.send(signal.SIGKILL)
        await victim.replica.ended(5)


async def _ask(site: Site, victim: _Victim, at: str) -> None:
    if victim.point.scene == "stream":
        await _listen(site, victim, at)
        return
    answered = await _ask_once(site, victim, at)
    if answered.status in (200, 201):
        victim.answer = answered.json
    if victim.point.trigger == "answered":
        victim.kill()


async def _ask_once(site: Site, victim: _Victim, at: str) -> Answered:
    turns = f"{at}{victim.session}/turns"
    match victim.point.scene:
        case "tools":
            outputs = {"outputs": [{"tool_call_id": await _open_call(site, victim, at), "content": "seen"}]}
            return await site.post(f"{turns}/{victim.turn}/tool-outputs", outputs)
        case "cancel":
            return await site.post(f"{turns}/{victim.turn}/cancel", {})
        case _:
            return await site.post(turns, victim.body, key=victim.key)


async def _open_call(site: Site, victim: _Victim, at: str) -> str:
    async with site.http.get(f"{at}{victim.session}/turns/{victim.turn}") as response:
        turn = orjson.loads(await response.read())
    calls = turn["tool_calls"]
    return calls[0]["id"] if calls else "call_1"


async def _listen(site: Site, victim: _Victim, at: str) -> None:
    """Streams; what counts as acknowledged is the last event."""
    heard = b""
    headers = {"Content-Type": "application/json", "Idempotency-Key": victim.key}
    async with site.http.post(
        f"{at}{victim.session}/turns", data=orjson.dumps(victim.body), headers=headers
    ) as response:
        async for chunk in response.content.iter_any():
            heard += chunk
            if victim.point.trigger == "first_delta" and b"event: output.delta" in heard:
                victim.kill()
    for name, data in Answered(response.status, response.headers, heard).events():
        if name == "turn.completed":
            victim.answer = data


async def _look_after(run: _Run, victim: _Victim) -> None:
    """Whoever retries on another process: is the session free in time, and is all that was promised there?"""
    async with run.looking:
        await _go_on(run, victim)
        if victim.point.scene in ("plain", "stream", "summary", "ahead"):
            await _retry(run, victim)
    asked = run.site.models.calls[victim.mark] - victim.asked_before
    if asked > 1:
        run.doubled += 1
        run.result.check(False, f"{victim.point.name}: the model was asked {asked} times")
    session_id = UUID(victim.session.rsplit("/", 1)[1])
    async with run.reading:
        found = await violations(run.database, session_id)
    run.result.failures += [f"{victim.point.name}: {sentence}" for sentence in found]


async def _go_on(run: _Run, victim: _Victim) -> None:
    """Repeats what was asked until it has an end, then posts the session's next turn."""
    since = victim.killed_at or monotonic()
    at = run.survivor.url
    if victim.point.scene in ("tools", "cancel"):
        ended = await _until(lambda: _ask_once(run.site, victim, at), busy=("turn_in_progress",))
        done = ended.status in (200, 201) or ended.code in ("turn_not_open", "tool_outputs_mismatch")
        run.result.check(done, f"{victim.point.name}: repeated, it gave {ended.status} {ended.code}")
    following = {"content": f"next-{victim.mark} and now?"}
    url = f"{at}{victim.session}/turns"
    free = await _until(lambda: run.site.post(url, following), busy=("turn_in_progress",))
    run.free_after_s.append(monotonic() - since)
    run.result.check(free.status == 201, f"{victim.point.name}: the next turn gave {free.status} {free.code}")


async def _retry(run: _Run, victim: _Victim) -> None:
    """The client repeats its request with its key. What it was answered must stand; what was settled, too."""
    url = f"{run.survivor.url}{victim.session}/turns"
    again = await _until(
        lambda: run.site.post(url, victim.body | {"stream": False}, key=victim.key),
        busy=("turn_in_progress", "idempotency_in_flight"),
    )
    kept = again.status == 201
    if victim.answer is not None and not (kept and again.json["turn"] == victim.answer["turn"]):
        run.lost += 1
        run.result.check(
            False, f"{victim.point.name}: answered {victim.answer['turn']}, then {again.status} {again.body!r}"
        )
    if victim.point.settled:
        run.result.check(kept, f"{victim.point.name}: it was settled, and a retry gave {again.status}")
        asked = run.site.models.calls[victim.mark] - victim.asked_before
        run.result.check(asked == 1, f"{victim.point.name}: it was settled, and the model was asked {asked} times")
    run.result.check(
        kept or again.code == "worker_lost", f"{victim.point.name}: a retry gave {again.status} {again.code}"
    )
    if kept:
        run.result.check(
            again.json["turn"]["assistant_output"] == reply_text(victim.mark),
            f"{victim.point.name}: the retried turn holds another reply",
        )


async def _until(ask: Callable[[], Awaitable[Answered]], *, busy: tuple[str, ...]) -> Answered:
    """Asks until the answer is another than that somebody is at it; for ten leases at most."""
    deadline = monotonic() + 10 * LEASE_S
    while True:
        answered = await ask()
        if answered.code not in busy or monotonic() > deadline:
            return answered
        await asyncio.sleep(0.1)
