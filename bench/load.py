"""The load: turns posted over HTTP by one asyncio client, a session never twice at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from uuid import UUID

import aiohttp
import orjson

TEXTS_OF_AN_OUTPUT: Final = 4
"""About 130 tokens."""
_NO_OPTIONS: Final[Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True)
class Answered:
    """One turn, or round, as the client saw it; `compressed` says whether the service summarized or pruned before its
    call, and `open_call` are the ids of the turn and the tool call that wait for an output."""

    latency_ms: float
    prompt_tokens: int
    recalled: int
    compressed: bool
    open_call: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Load:
    """What a batch took, and its turns in no particular order."""

    wall_s: float
    answered: tuple[Answered, ...]

    def mean_prompt_tokens(self) -> float:
        """Of a turn, as the program estimated them."""
        return sum(turn.prompt_tokens for turn in self.answered) / len(self.answered)


class NotTheTurnThatWasMeant(Exception):
    """An answer that is no completed turn or round, or turns that did other work than the batch is to measure."""


async def post_turn(
    client: aiohttp.ClientSession, session_id: UUID, text: str, options: Mapping[str, object] = _NO_OPTIONS
) -> Answered:
    """Takes one turn, to its end or first tool call. Raises `NotTheTurnThatWasMeant` where it fails."""
    return await _post(client, f"/v1/sessions/{session_id}/turns", {"content": text, **options})


async def post_output(
    client: aiohttp.ClientSession, session_id: UUID, open_call: tuple[str, str], text: str
) -> Answered:
    """Takes the next round of a turn. Raises as `post_turn` does."""
    turn_id, call_id = open_call
    outputs = [{"tool_call_id": call_id, "content": text}]
    return await _post(client, f"/v1/sessions/{session_id}/turns/{turn_id}/tool-outputs", {"outputs": outputs})


async def _post(client: aiohttp.ClientSession, path: str, body: Mapping[str, object]) -> Answered:
    data = orjson.dumps(body)
    started = time.perf_counter()
    async with client.post(path, data=data, headers={"Content-Type": "application/json"}) as response:
        payload = await response.read()
    latency_ms = (time.perf_counter() - started) * 1000
    is_turn = response.status == 201
    if response.content_type == "text/event-stream":
        events, _, payload = payload.rpartition(b"\ndata: ")
        is_turn = events.endswith(b"event: turn.completed")
    if not is_turn:
        raise NotTheTurnThatWasMeant(f"{response.status}: {payload[:2000].decode(errors='replace')}")
    answer: dict[str, Any] = orjson.loads(payload)
    context, calls = answer["context"], answer.get("turn", {}).get("tool_calls")
    return Answered(
        latency_ms,
        context.get("estimated_wire_tokens") or context["estimated_input_tokens"],
        len(context["context_trim_log"].get("recalled") or ()),
        bool(context.get("summary_triggered") or context.get("prune_triggered")),
        (answer["turn"]["id"], calls[0]["id"]) if calls else None,
    )


async def drive(
    client: aiohttp.ClientSession,
    session_ids: Sequence[UUID],
    texts: Iterator[str],
    turns_each: int,
    concurrency: int,
    options: Mapping[str, object] = _NO_OPTIONS,
    open_calls: dict[UUID, tuple[str, str]] | None = None,
) -> Load:
    """Posts `turns_each` turns to every session, `concurrency` at a time. A session of `open_calls`, which is kept up
    to date, gets the output of its call."""
    waiting = iter(session_ids)
    open_calls = {} if open_calls is None else open_calls

    async def post(session_id: UUID) -> Answered:
        open_call = open_calls.pop(session_id, None)
        if open_call is None:
            answered = await post_turn(client, session_id, next(texts), options)
        else:
            answered = await post_output(client, session_id, open_call, " ".join(islice(texts, TEXTS_OF_AN_OUTPUT)))
        if answered.open_call is not None:
            open_calls[session_id] = answered.open_call
        return answered

    async def worker() -> list[Answered]:
        return [await post(session_id) for session_id in waiting for _ in range(turns_each)]

    started = time.perf_counter()
    by_worker = await asyncio.gather(*(worker() for _ in range(concurrency)))
    return Load(time.perf_counter() - started, tuple(turn for part in by_worker for turn in part))
