"""What every client of a run does: questions with a tool, one of them streamed, and a question that is too long.

    python FILE WHICH ADDRESS KEY TURNS [SESSION]

`WHICH` names one of the file's clients, `SESSION` a session for the header `X-Session-Id`. Prints JSON of what it saw.
The file gives `talk` for each client a function that connects it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

REMARK = " ".join(f"It was ordered on day {number} for department {number * 7}." for number in range(8))
LONGEST = "word " * 12_000
SYSTEM = "You are a clerk. Look invoices up."
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "string", "description": "The invoice's number."}},
    "required": ["id"],
}


@dataclass
class Job:
    """Where the service is. `looked_up` has what the tool was called with."""

    address: str
    key: str
    headers: dict[str, str]
    looked_up: list[str] = field(default_factory=list)

    @property
    def v1(self) -> str:
        return f"{self.address}/v1"

    def openai(self) -> dict[str, Any]:
        """The options of a client of the `openai` package."""
        return {"base_url": self.v1, "api_key": self.key, "default_headers": self.headers}

    def anthropic(self) -> dict[str, Any]:
        """The options of a client of the `anthropic` package."""
        return {"base_url": self.address, "api_key": self.key, "default_headers": self.headers}

    def look_up(self, id: str) -> str:
        """Says whether an invoice is paid."""
        self.looked_up.append(str(id))
        return f"Invoice {id} is paid, by transfer. {REMARK}"


@dataclass
class Client:
    """A connected client with its history.

    `ask` gives the answer of a whole turn, with the rounds of its tool; `stream` gives the pieces of one. Both may be
    coroutines, and `stream` an iterator of either kind.
    """

    ask: Callable[[str], Any]
    stream: Callable[[str], Any] | None = None


def talk(clients: Mapping[tuple[str, str], Callable[[Job], Client]]) -> None:
    """Runs the client that the command line names. The keys are its name there, and the package that it is."""
    which, address, key, turns, *session = sys.argv[1:]
    ((package, connect),) = (((package, make)) for (name, package), make in clients.items() if name == which)
    job = Job(address, key, {"X-Session-Id": session[0]} if session else {})
    with asyncio.Runner() as runner:
        seen = runner.run(_talk(connect, job, int(turns)))
    print("\n" + json.dumps({"version": version(package), **seen}))


async def _talk(connect: Callable[[Job], Client], job: Job, turns: int) -> dict[str, Any]:
    client = await _done(connect(job))
    answered = 0
    for number in range(1, turns + 1):
        answered += f"Invoice {number} is paid" in str(await _done(client.ask(_question(number))))
    pieces: list[str] = []
    if client.stream is not None:
        given = await _done(client.stream(_question(turns + 1)))
        pieces = [piece async for piece in given] if hasattr(given, "__aiter__") else list(given)
    called = len(set(job.looked_up) & {str(number) for number in range(1, turns + 1)})
    streamed = len(pieces) > 1 and f"Invoice {turns + 1} is paid" in "".join(pieces)
    return {
        "answered": answered,
        "called": called,
        "streamed": streamed if client.stream else None,
        "refused": await _refused(client),
    }


async def _refused(client: Client) -> dict[str, Any]:
    try:
        answer = await _done(client.ask(f"Is invoice 99 paid? {LONGEST}"))
    except Exception as error:
        while error.__cause__ is not None and not hasattr(error, "status_code"):
            error = error.__cause__
        return {"error": type(error).__name__, "status": getattr(error, "status_code", None), "text": str(error)[:300]}
    return {"error": None, "text": str(answer)[:300]}


def _question(number: int) -> str:
    return f"Is invoice {number} paid? {REMARK}"


async def _done(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given
