"""Every route on a session of thousands of turns, with messages of a megabyte: how long each keeps the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from torture.keys import api_key
from torture.replicas import Replica
from torture.results import Result
from torture.site import Answered, Site

TURNS = 5_000
TIMES = 8
"""Of each route: a beat comes every 20 ms, so that one stall alone may be seen for 20 ms less than it lasts."""
_MOST_LAG_S = 0.020
_WORDS = " ".join(f"word{number}" for number in range(24))
_MEGABYTE = f"{_WORDS} " * (1_000_000 // (len(_WORDS) + 1))

Work = Callable[["_Client"], Awaitable[Answered]]


async def stalls(site: Site) -> Result:
    """A process for each route, so that what it shows of its event loop is that route's."""
    result = Result(
        f"each route on a session of {TURNS:,} turns, and messages of a megabyte",
        f"nothing keeps the event loop for more than {_MOST_LAG_S * 1000:.0f} ms of its own CPU time",
    )
    async with site.database() as (url, _):
        environment = site.environment(url)
        del environment["MODELS_FILE"]  # the built-in model: what is measured is the service's own time
        token = await api_key(url, "stalls")
        async with site.nursery.running(environment, name="stalls-prepare") as replica:
            long = await _long_session(_Client(site, replica, token, ""))
        for name, work in _WORKS.items():
            async with site.nursery.running(environment, name=f"stalls-{name.replace(' ', '-')}") as replica:
                client = _Client(site, replica, token, long)
                result.expect(name, TIMES)
                for _ in range(TIMES):
                    answer = await work(client)
                    if answer.status < 400 or (name == "large turn" and answer.code == "context_budget_exceeded"):
                        result.fire(name)
                lag_s = await client.lag_s()
            result.measured[name] = f"{lag_s * 1000:.0f} ms"
            result.check(lag_s <= _MOST_LAG_S, f"{name}: {lag_s * 1000:.0f} ms")
    return result


class _Client:
    """The requests of one tenant to one process; `long` is the path of the long session."""

    def __init__(self, site: Site, replica: Replica, token: str, long: str) -> None:
        self._site = site
        self._url = replica.url
        self._token = token
        self.long = long

    async def ask(self, method: str, path: str, body: Any = None) -> Answered:
        """Sends a request; a body that is no bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else None if body is None else orjson.dumps(body)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        async with self._site.http.request(method, f"{self._url}{path}", data=data, headers=headers) as response:
            return Answered(response.status, response.headers, await response.read())

    async def lag_s(self) -> float:
        """What the process shows of its event loop."""
        await asyncio.sleep(0.1)  # the beat after the last request
        async with self._site.http.get(f"{self._url}/metrics") as response:
            text = await response.text()
        (line,) = [line for line in text.splitlines() if line.startswith("event_loop_lag_seconds ")]
        return float(line.split()[1])


async def _long_session(client: _Client) -> str:
    messages = [
        {"role": role, "content": f"{number} {_WORDS}"} for number in range(TURNS) for role in ("user", "assistant")
    ]
    made = await client.ask("POST", "/v1/sessions/import", {"messages": messages})
    assert made.status == 201, made.body
    return f"/v1/sessions/{made.json['id']}"


async def _turn(client: _Client) -> Answered:
    return await client.ask("POST", f"{client.long}/turns", {"content": f"And now? {_WORDS}"})


async def _large_turn(client: _Client) -> Answered:
    return await client.ask("POST", f"{client.long}/turns", {"content": _MEGABYTE})


async def _preview(client: _Client) -> Answered:
    return await client.ask("POST", f"{client.long}/context/preview", {"content": f"And now? {_WORDS}"})


async def _search(client: _Client) -> Answered:
    return await client.ask("GET", f"{client.long}/search?q=word7+word11")


async def _fork(client: _Client) -> Answered:
    return await client.ask("POST", f"{client.long}/fork", {})


async def _export_and_import(client: _Client) -> Answered:
    exported = await client.ask("GET", f"{client.long}/export")
    return await client.ask("POST", "/v1/sessions/import", exported.body)


async def _delete(client: _Client) -> Answered:
    made = await _fork(client)
    return await client.ask("DELETE", f"/v1/sessions/{made.json['id']}")


async def _simulate(client: _Client) -> Answered:
    return await client.ask("POST", f"{client.long}/simulate", {"policies": ["guarded", "rolling"], "max_turns": 200})


async def _summarize(client: _Client) -> Answered:
    made = await _fork(client)
    return await client.ask("POST", f"/v1/sessions/{made.json['id']}/summaries", {})


def _get(path: str) -> Work:
    async def get(client: _Client) -> Answered:
        return await client.ask("GET", client.long + path)

    return get


_WORKS: dict[str, Work] = {
    "session": _get(""),
    "turns": _get("/turns?limit=100"),
    "messages": _get("/messages?limit=100"),
    "context": _get("/context"),
    "timeline": _get("/timeline"),
    "summaries": _get("/summaries"),
    "search": _search,
    "preview": _preview,
    "summarize": _summarize,  # before the turns, whose summaries leave nothing to summarize
    "turn": _turn,
    "large turn": _large_turn,
    "fork": _fork,
    "delete": _delete,
    "export and import": _export_and_import,
    "simulate": _simulate,
}
