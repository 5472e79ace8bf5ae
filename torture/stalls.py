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
        models = site.folder / "two-encodings.toml"
        models.write_text(_MODELS)
        environment = {**site.environment(url), "MODELS_FILE": str(models)}
        token = await api_key(url, "stalls")
        async with site.nursery.running(environment, name="stalls-prepare") as replica:
            long = await _long_session(_Client(site, replica, token, ""))
        for name, work in _WORKS.items():
            async with site.nursery.running(environment, name=f"stalls-{name.replace(' ', '-')}") as replica:
                client = _Client(site, replica, token, long)
                result.expect(name, TIMES)
                for _ in range(TIMES):
                    answer = await work(client)
                    if answer.status < 400 or (name in _REFUSED and answer.status in (400, 413, 422)):
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


_MODEL = "offline"
_MODELS = """
default = "offline"
[models.offline]
provider = "offline"
model = "offline"
context_window = 16384
[models.other]
provider = "offline"
model = "offline"
context_window = 16384
encoding = "cl100k_base"
"""
"""Built in: what is measured is the service's own time."""
_LARGE = [{"role": "user", "content": _MEGABYTE}]
_LARGEST = [{"role": "user", "content": _MEGABYTE * 4}]
"""Nearly as large as a body may be."""
_LARGE_TOOLS = [
    {"type": "function", "function": {"name": f"tool_{number}", "description": f"{number} {_MEGABYTE[:30_000]}"}}
    for number in range(100)
]
_MANY_DIRECTIONS = [
    *({"role": "developer", "content": f"{number} {_WORDS}"} for number in range(1_000)),
    {"role": "user", "content": "And now?"},
]
_REFUSED = (
    "large instructions",
    "large pins",
    "large tools",
    "large outputs",
    "many developer messages",
    "large turn",
    "largest chat",
    "large pin",
    "large chat",
    "large message",
    "large response",
    "large completion",
)
"""What no window has room for; a pin of that size may be refused as well."""
_LIST = [{"role": role, "content": f"{number} {_WORDS}"} for number in range(TURNS) for role in ("user", "assistant")]
"""The messages of the long session, as a client resends them."""
_ASKED = [*_LIST, {"role": "user", "content": "And now?"}]
_FUNCTION = {"name": "look_up", "arguments": "{}"}
_WITH_CALLS = [
    *(
        message
        for number in range(TURNS // 2)
        for message in (
            {"role": "user", "content": f"{number} {_WORDS}"},
            {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": _FUNCTION}]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"{number} {_WORDS}"},
            {"role": "assistant", "content": f"{number} {_WORDS}"},
        )
    ),
    {"role": "user", "content": "And now?"},
]
_CALLS = [{"id": f"c{number}", "type": "function", "function": _FUNCTION} for number in range(100)]
_LARGE_OUTPUTS = [{"tool_call_id": call["id"], "content": _MEGABYTE[:35_000]} for call in _CALLS]


async def _long_session(client: _Client) -> str:
    made = await client.ask("POST", "/v1/sessions/import", {"messages": _LIST})
    assert made.status == 201, made.body
    return f"/v1/sessions/{made.json['id']}"


async def _turn(client: _Client) -> Answered:
    return await client.ask("POST", f"{client.long}/turns", {"content": f"And now? {_WORDS}"})


async def _large_turn(client: _Client) -> Answered:
    return await client.ask("POST", f"{client.long}/turns", {"content": _MEGABYTE})


async def _large_instructions(client: _Client) -> Answered:
    made = await client.ask("POST", "/v1/sessions", {"instructions": _MEGABYTE * 3})
    return await client.ask("POST", f"/v1/sessions/{made.json['id']}/turns", {"content": "And now?"})


async def _large_tools(client: _Client) -> Answered:
    """In a session of its own: an export of 5,000 turns is a case by itself, and so is one of 3 MB in a row."""
    made = await client.ask("POST", "/v1/sessions", {})
    return await _with_large_tools(client, f"/v1/sessions/{made.json['id']}")


async def _with_large_tools(client: _Client, session: str) -> Answered:
    return await client.ask("POST", f"{session}/turns", {"content": "And now?", "tools": _LARGE_TOOLS})


async def _large_outputs(client: _Client) -> Answered:
    made = await client.ask("POST", "/v1/sessions", {})
    turns = f"/v1/sessions/{made.json['id']}/turns"
    tools = [{"type": "function", "function": {"name": "look_up"}}]
    calls = {"content": None, "tool_calls": _CALLS}
    waiting = await client.ask("POST", turns, {"content": "And now?", "tools": tools, "recorded_reply": calls})
    return await client.ask("POST", f"{turns}/{waiting.json['turn']['id']}/tool-outputs", {"outputs": _LARGE_OUTPUTS})


async def _large_pins(client: _Client) -> Answered:
    made = await client.ask("POST", "/v1/sessions", {})
    session = f"/v1/sessions/{made.json['id']}"
    for number in range(12):
        await client.ask("PUT", f"{session}/pins/{number}", {"content": f"{number} {_MEGABYTE}"})
    return await client.ask("POST", f"{session}/turns", {"content": "And now?"})


async def _preview(client: _Client) -> Answered:
    return await client.ask("POST", f"{client.long}/context/preview", {"content": f"And now? {_WORDS}"})


async def _search(client: _Client) -> Answered:
    return await client.ask("GET", f"{client.long}/search?q=word7+word11")


async def _fork(client: _Client) -> Answered:
    return await client.ask("POST", f"{client.long}/fork", {})


async def _export_and_import(client: _Client) -> Answered:
    return await _imported_again(client, client.long)


async def _export_and_import_of_large_rows(client: _Client) -> Answered:
    """The turn is refused, as no window has room for its tools; its row keeps them."""
    made = await client.ask("POST", "/v1/sessions", {})
    session = f"/v1/sessions/{made.json['id']}"
    await _with_large_tools(client, session)
    return await _imported_again(client, session)


async def _imported_again(client: _Client, session: str) -> Answered:
    exported = await client.ask("GET", f"{session}/export")
    return await client.ask("POST", "/v1/sessions/import", exported.body)


async def _delete(client: _Client) -> Answered:
    made = await _fork(client)
    return await client.ask("DELETE", f"/v1/sessions/{made.json['id']}")


async def _simulate(client: _Client) -> Answered:
    return await client.ask("POST", f"{client.long}/simulate", {"policies": ["guarded", "rolling"], "max_turns": 200})


async def _summarize(client: _Client) -> Answered:
    made = await _fork(client)
    return await client.ask("POST", f"/v1/sessions/{made.json['id']}/summaries", {})


async def _other_encoding(client: _Client) -> Answered:
    """In a fork, whose messages nobody has counted in it."""
    made = await _fork(client)
    body = {"content": f"And now? {_WORDS}", "model_alias": "other"}
    return await client.ask("POST", f"/v1/sessions/{made.json['id']}/turns", body)


async def _regenerate(client: _Client) -> Answered:
    return await client.ask("POST", f"{client.long}/turns/{await _newest_turn(client)}/regenerate", {})


async def _audit_and_prompt(client: _Client) -> Answered:
    turn = f"{client.long}/turns/{await _newest_turn(client)}"
    audit = await client.ask("GET", f"{turn}/audit?expand=actions")
    return audit if audit.status >= 400 else await client.ask("GET", f"{turn}/prompt")


async def _newest_turn(client: _Client) -> str:
    listed = await client.ask("GET", f"{client.long}/turns?limit=100&from_seq={TURNS + 1}")
    return str(listed.json["items"][-1]["id"])


def _post(path: str, body: Any, method: str = "POST") -> Work:
    """The same body each time; `{long}` in the path is the long session's."""

    async def post(client: _Client) -> Answered:
        return await client.ask(method, path.replace("{long}", client.long), body)

    return post


def _get(path: str) -> Work:
    async def get(client: _Client) -> Answered:
        return await client.ask("GET", client.long + path)

    return get


async def _document(client: _Client) -> Answered:
    return await client.ask("GET", "/openapi.json")


_WORKS: dict[str, Work] = {
    "document": _document,
    "session": _get(""),
    "turns": _get("/turns?limit=100"),
    "messages": _get("/messages?limit=100"),
    "context": _get("/context"),
    "timeline": _get("/timeline"),
    "summaries": _get("/summaries"),
    "search": _search,
    "preview": _preview,
    "summarize": _summarize,  # before the turns, whose summaries leave nothing to summarize
    "another encoding": _other_encoding,
    "turn": _turn,
    "regenerate": _regenerate,
    "audit and prompt": _audit_and_prompt,
    "large turn": _large_turn,
    "look-back": _get("/look-back?q=word7+word11"),
    "overview": _get("/timeline/overview"),
    "large instructions": _large_instructions,
    "large pins": _large_pins,
    "large tools": _large_tools,
    "large outputs": _large_outputs,
    "many developer messages": _post("/v1/responses", {"model": _MODEL, "input": _MANY_DIRECTIONS}),
    "large pin": _post("{long}/pins/large", {"content": _MEGABYTE}, "PUT"),
    "chat, all of it": _post("/v1/chat/completions", {"model": _MODEL, "messages": _ASKED}),
    "chat with tool calls": _post("/v1/chat/completions", {"model": _MODEL, "messages": _WITH_CALLS}),
    "large chat": _post("/v1/chat/completions", {"model": _MODEL, "messages": _LARGE}),
    "largest chat": _post("/v1/chat/completions", {"model": _MODEL, "messages": _LARGEST}),
    "messages, all of it": _post("/v1/messages", {"model": _MODEL, "max_tokens": 100, "messages": _ASKED}),
    "large message": _post("/v1/messages", {"model": _MODEL, "max_tokens": 100, "messages": _LARGE}),
    "count of all of it": _post("/v1/messages/count_tokens", {"model": _MODEL, "messages": _ASKED}),
    "response, all of it": _post("/v1/responses", {"model": _MODEL, "input": _ASKED}),
    "large response": _post("/v1/responses", {"model": _MODEL, "input": _MEGABYTE}),
    "large completion": _post("/v1/completions", {"model": _MODEL, "prompt": _MEGABYTE}),
    "fork": _fork,
    "delete": _delete,
    "export and import": _export_and_import,
    "export and import of large rows": _export_and_import_of_large_rows,
    "simulate": _simulate,
}
