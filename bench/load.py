"""The load: turns posted over HTTP by one asyncio client, a session never twice at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import aiohttp
import orjson


@dataclass(frozen=True, slots=True)
class Answered:
    """One turn as the client saw it; `compressed` says whether the service summarized or pruned before its call."""

    latency_ms: float
    prompt_tokens: int
    recalled: int
    compressed: bool


@dataclass(frozen=True, slots=True)
class Load:
    """What a batch took, and its turns in no particular order."""

    wall_s: float
    answered: tuple[Answered, ...]

    def mean_prompt_tokens(self) -> float:
        """Of a turn, as the program estimated them."""
        return sum(turn.prompt_tokens for turn in self.answered) / len(self.answered)


class NotTheTurnThatWasMeant(Exception):
    """An answer that is no completed turn, or turns that did other work than the batch is to measure."""


async def post_turn(client: aiohttp.ClientSession, session_id: UUID, text: str) -> Answered:
    """Takes one turn. Raises `NotTheTurnThatWasMeant` where it does not complete."""
    body = orjson.dumps({"content": text})
    started = time.perf_counter()
    async with client.post(
        f"/v1/sessions/{session_id}/turns", data=body, headers={"Content-Type": "application/json"}
    ) as response:
        payload = await response.read()
    latency_ms = (time.perf_counter() - started) * 1000
    if response.status != 201:
        raise NotTheTurnThatWasMeant(f"{response.status}: {payload[:2000].decode(errors='replace')}")
    context: dict[str, Any] = orjson.loads(payload)["context"]
    return Answered(
        latency_ms,
        context.get("estimated_wire_tokens") or context["estimated_input_tokens"],
        len(context["context_trim_log"].get("recalled") or ()),
        bool(context.get("summary_triggered") or context.get("prune_triggered")),
    )


async def drive(
    client: aiohttp.ClientSession, session_ids: Sequence[UUID], texts: Iterator[str], turns_each: int, concurrency: int
) -> Load:
    """Posts `turns_each` turns to every session, `concurrency` at a time."""
    waiting = iter(session_ids)

    async def worker() -> list[Answered]:
        return [await post_turn(client, session_id, next(texts)) for session_id in waiting for _ in range(turns_each)]

    started = time.perf_counter()
    by_worker = await asyncio.gather(*(worker() for _ in range(concurrency)))
    return Load(time.perf_counter() - started, tuple(turn for part in by_worker for turn in part))
