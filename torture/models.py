"""The models that are asked: one HTTP server that counts calls by the words a user message begins with."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, overload
from uuid import uuid4

from tests.providers.server import Answer, Seen, Step, Stream, serving
from tests.services.service import is_summary, sound_summary
from torture.nursery import ENCODING

Play: TypeAlias = Callable[[Seen], Step]
TIMEOUT_S = 20.0
_MARK = re.compile(r"[a-z]+-[0-9a-f]{12}")


@dataclass(slots=True)
class Models:
    """A mark is a name and twelve hexadecimal digits, the first word of a user message (`new_mark`).

    `calls` counts turns' model calls by mark, `summaries` the summarizer's. `plays` are by mark, `summarizes` is the
    summarizer's; what has none answers after `delay_s`.
    """

    base_url: str = ""
    calls: Counter[str] = field(default_factory=Counter[str])
    summaries: int = 0
    plays: dict[str, Play] = field(default_factory=dict[str, Play])
    summarizes: dict[str, Play] = field(default_factory=dict[str, Play])
    delay_s: float = 0.0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_asked(self, marks: Sequence[str]) -> None:
        """Returns once each of them has been asked."""
        while not all(self.calls[mark] for mark in marks):
            self.arrived.clear()
            await self.arrived.wait()

    def play(self, seen: Seen) -> Step:
        """Answers a request."""
        asked = seen.json
        if is_summary(seen):
            self.summaries += 1
            named = _MARK.search(asked["messages"][-1]["content"])
            own = self.summarizes.get(named[0]) if named else None
            return own(seen) if own else sound_summary(seen)
        mark = _mark(_newest_user_text(asked["messages"]))
        self.calls[mark] += 1
        self.arrived.set()
        own = self.plays.get(mark)
        if own is not None:
            return own(seen)
        return (
            streamed_reply(seen, self.delay_s / 8) if asked.get("stream") else Answer(reply(seen), delay_s=self.delay_s)
        )


def reply_text(mark: str) -> str:
    """What a model says to a message with this mark."""
    return f"Read {mark}: " + " ".join(f"word{number}" for number in range(30))


def reply(seen: Seen) -> dict[str, Any]:
    """A chat completion that names the mark."""
    return _completion({"role": "assistant", "content": reply_text(mark_of(seen))}, "stop")


def tool_call(seen: Seen) -> Answer:
    """A completion that calls a tool; an ordinary one once the tool has answered."""
    if seen.json["messages"][-1]["role"] == "tool":
        return Answer(reply(seen))
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return Answer(_completion({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"))


def streamed_reply(seen: Seen, pause_s: float = 0.0) -> Stream:
    """The same answer as a stream of eight pieces."""
    return Stream(stream_pieces(reply_text(mark_of(seen))), pause_s=pause_s)


def stream_pieces(text: str) -> list[bytes]:
    """Server-sent events of a chat completion: six of text, the usage, the end mark."""
    size = -(-len(text) // 6)
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in parts]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    chunks.append({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
    return [b"data: " + json.dumps({"id": "c", **chunk}).encode() + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]


@dataclass(frozen=True, slots=True)
class Interrupted(Sequence[bytes]):
    """Pieces of an answer; `then` happens when so many of them are out."""

    pieces: Sequence[bytes]
    after: int
    then: Callable[[], None]

    def __iter__(self) -> Iterator[bytes]:
        for at, piece in enumerate(self.pieces):
            if at == self.after:
                self.then()
            yield piece
        if self.after >= len(self.pieces):
            self.then()

    def __len__(self) -> int:
        return len(self.pieces)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        return self.pieces[index]


def whole_in_pieces(seen: Seen, after: int, then: Callable[[], None]) -> Stream:
    """A completion that is no stream, in four pieces; `then` happens when so many are out."""
    body = json.dumps(reply(seen)).encode()
    size = -(-len(body) // 4)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return Stream(Interrupted(pieces, after, then), content_type="application/json", pause_s=0.005)


def new_mark(name: str) -> str:
    """A mark that nobody else has."""
    return f"{name}-{uuid4().hex[:12]}"


def mark_of(seen: Seen) -> str:
    """The first word of the newest user message."""
    return _mark(_newest_user_text(seen.json["messages"]))


def _completion(message: dict[str, Any], finish_reason: str) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion",
        "model": "torture-model",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
    }


def _newest_user_text(messages: Sequence[dict[str, Any]]) -> str:
    return next(str(message["content"]) for message in reversed(messages) if message["role"] == "user")


def _mark(text: str) -> str:
    return text.split(" ", 1)[0]


@asynccontextmanager
async def models() -> AsyncGenerator[Models]:
    """Serves until the block ends."""
    own = Models()
    async with serving(own.play) as server:
        own.base_url = server.base_url
        forgetting = asyncio.create_task(_forget(server.seen))
        try:
            yield own
        finally:
            forgetting.cancel()


async def _forget(seen: list[Seen]) -> None:
    while True:
        await asyncio.sleep(1)
        seen.clear()


def write_catalogue(path: Path, own: Models) -> None:
    """The models file of every replica."""
    path.write_text(
        'default = "main"\n[models.main]\nprovider = "openai"\nmodel = "torture-model"\n'
        f'base_url = "{own.base_url}"\ncontext_window = 16384\nencoding = "{ENCODING}"\ntimeout_s = {TIMEOUT_S}\n'
    )
