"""What one plain turn enters: the service's files and functions, in the order of first entry, and the types it makes.

`python -m bench.walk` runs the service in this process, over a database of its own and the bench's provider, and traces
the fourth turn of a session, from the first byte of the request to the last of the answer. `docs/architecture.md` has
the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import CodeType, FrameType

import httpx
import uvicorn

import app
from app.core.config import Settings
from app.main import create_app
from bench import programs
from bench.conversation import Conversation
from bench.servers import embedded_server

ROOT = Path(next(iter(app.__path__)))
_TURNS_BEFORE = 3
_BESIDE = frozenset({"services/background.py"})
"""What runs by the clock and not for a turn."""


@dataclass(slots=True)
class Walk:
    """Calls by file and function of the service; `objects` are those made of its types."""

    types: dict[CodeType, type]
    calls: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    objects: Counter[type] = field(default_factory=Counter[type])

    def enter(self, code: CodeType) -> None:
        if code in self.types:
            self.objects[self.types[code]] += 1
        path = Path(code.co_filename)
        if path.is_relative_to(ROOT) and (name := path.relative_to(ROOT).as_posix()) not in _BESIDE:
            self.calls.setdefault(name, Counter())[code.co_qualname] += 1


def main() -> None:
    """Traces the turn and prints a line for each file, and one for each type with the number of its fields."""
    with tempfile.TemporaryDirectory() as folder, embedded_server(Path(folder) / "postgres") as dsn:
        walk = asyncio.run(_walked(Path(folder), dsn))
    functions = sum(map(len, walk.calls.values()))
    print(
        f"{len(walk.calls)} files, {functions} functions, {sum(calls.total() for calls in walk.calls.values())} calls"
    )
    for name, calls in walk.calls.items():
        print(f"  {name}: {', '.join(calls)}")
    print(f"{len(walk.objects)} types, {sum(map(_field_count, walk.objects))} fields, {walk.objects.total()} objects")
    for kind, count in walk.objects.items():
        print(f"  {kind.__module__}.{kind.__qualname__}: {_field_count(kind)} fields, {count} objects")


async def _walked(folder: Path, dsn: str) -> Walk:
    models, port = folder / "models.toml", programs.free_port()
    programs.write_models_file(models, port)
    programs.migrate(dsn, models)
    os.environ |= programs.service_environment(dsn, models) | {"PLIMSOLL_LOG_LEVEL": "ERROR"}
    async with programs.mock_provider(port, 0.0, folder):
        return await asyncio.to_thread(_traced_turn)


def _traced_turn() -> Walk:
    traced: list[Walk] = []

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and traced:
            traced[0].enter(frame.f_code)

    talk = Conversation()
    with _served(profile) as address, httpx.Client(base_url=address, trust_env=False, timeout=60) as client:
        turns = f"/v1/sessions/{client.post('/v1/sessions').raise_for_status().json()['id']}/turns"
        for number in range(_TURNS_BEFORE):
            client.post(turns, json={"content": talk.question(number)}).raise_for_status()
        walk = Walk(_types())
        traced.append(walk)
        client.post(turns, json={"content": talk.question(_TURNS_BEFORE)}).raise_for_status()
        traced.clear()
    return walk


@contextlib.contextmanager
def _served(profile: Callable[[FrameType, str, object], None]) -> Generator[str]:
    """The service in a thread whose calls are profiled, as the threads are that it starts."""
    server = uvicorn.Server(uvicorn.Config(create_app(Settings()), port=0, log_config=None, lifespan="on"))
    threading.setprofile(profile)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        threading.setprofile(None)


def _types() -> dict[CodeType, type]:
    """The types of the service by the code that makes one."""
    found: dict[CodeType, type] = {}
    for name, module in list(sys.modules.items()):
        for kind in vars(module).values() if name.startswith("app.") else ():
            if inspect.isclass(kind) and kind.__module__.startswith("app."):
                made = vars(kind).get("__new__" if issubclass(kind, tuple) else "__init__")
                made = getattr(made, "__wrapped__", made)  # `__new__` is a static method
                if inspect.isfunction(made):
                    found[made.__code__] = kind
    return found


def _field_count(kind: type) -> int:
    names: tuple[str, ...] = getattr(kind, "_fields", ())  # of a named tuple
    return len(fields(kind)) if is_dataclass(kind) else len(names)


if __name__ == "__main__":
    main()
