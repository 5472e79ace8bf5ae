"""All clients behind one form, so that one test holds for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import pytest

from plimsoll_sdk import AsyncPlimsoll, Plimsoll, TurnEvent
from tests.client.typescript import Driven, driven

Kind: TypeAlias = Literal["sync", "async", "typescript"]
BOTH = pytest.mark.parametrize("kind", ["sync", "async"])
"""The two of Python."""
ALL = pytest.mark.parametrize("kind", ["sync", "async", "typescript"])


class Talker:
    """One of the clients: its methods by name, awaited whichever it is."""

    def __init__(self, client: Plimsoll | AsyncPlimsoll) -> None:
        self.client = client

    def with_patience(self, **patience: Any) -> Talker:
        """The same client with another deadline or number of retries."""
        return Talker(self.client.with_patience(**patience))

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method and waits for its answer."""
        method = getattr(self.client, name)
        return await (asyncio.to_thread(method, *args, **kwargs) if self._waits else method(*args, **kwargs))

    async def all(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Everything that an iterator or a stream of this method gives."""
        method = getattr(self.client, name)
        if self._waits:
            return await asyncio.to_thread(lambda: list(method(*args, **kwargs)))
        return [item async for item in method(*args, **kwargs)]

    async def events(self, name: str, *args: Any, **kwargs: Any) -> list[TurnEvent]:
        """The events of a turn that is streamed."""
        return cast("list[TurnEvent]", await self.all(name, *args, **kwargs))

    @property
    def _waits(self) -> bool:
        return isinstance(self.client, Plimsoll)


@asynccontextmanager
async def talker(kind: Kind, url: str, **options: Any) -> AsyncGenerator[Talker | Driven]:
    """A client of this kind at an address."""
    if kind == "typescript":
        async with driven(url, **options) as client:
            yield client
        return
    if kind == "sync":
        with Plimsoll(url, **options) as waiting:
            yield Talker(waiting)
        return
    async with AsyncPlimsoll(url, **options) as client:
        yield Talker(client)


async def turns_of(at: Talker | Driven, session_id: str) -> list[Any]:
    """The turns of a session, as the client lists them."""
    return (await at.call("list_turns", session_id)).items


def models_file(folder: Path, base_url: str) -> str:
    """A catalogue with one model at this address, and its path."""
    path = folder / "models.toml"
    path.write_text(
        'default = "main"\n[models.main]\nprovider = "openai"\nmodel = "m"\ncontext_window = 8192\ntimeout_s = 60\n'
        f'base_url = "{base_url}"\n'
    )
    return str(path)


def completion(text: str) -> dict[str, Any]:
    """A chat completion with this text."""
    message = {"role": "assistant", "content": text}
    return {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
