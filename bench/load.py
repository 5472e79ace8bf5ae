"""The load: turns posted over HTTP by one asyncio client, a session never twice at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import UUID

import aiohttp
import orjson

from bench.conversation import question

_case_numbers = count(1_000_000)


@dataclass(frozen=True, slots=True)
class Load:
    """What a batch took: seconds for all of it, milliseconds for each turn."""

    wall_s: float
    latencies_ms: tuple[float, ...]


class NotAPlainTurn(Exception):
    """An answer that is no completed turn, or one that summarized or pruned: the batch would measure something else."""


async def post_turn(client: aiohttp.ClientSession, session_id: UUID) -> float:
    """Takes one plain turn and answers its latency in milliseconds."""
    body = orjson.dumps({"content": question(next(_case_numbers))})
    started = time.perf_counter()
    async with client.post(
        f"/v1/sessions/{session_id}/turns", data=body, headers={"Content-Type": "application/json"}
    ) as response:
        payload = await response.read()
    latency_ms = (time.perf_counter() - started) * 1000
    context: dict[str, Any] = orjson.loads(payload)["context"] if response.status == 201 else {}
    if not context or context.get("summary_triggered") or context.get("prune_triggered"):
        raise NotAPlainTurn(f"{response.status}: {payload[:2000].decode(errors='replace')}")
    return latency_ms


async def drive(client: aiohttp.ClientSession, session_ids: Sequence[UUID], turns_each: int, concurrency: int) -> Load:
    """Posts `turns_each` turns to every session, `concurrency` at a time."""
    if concurrency == 1:
        started = time.perf_counter()
        latencies = [await post_turn(client, session_id) for _ in range(turns_each) for session_id in session_ids]
        return Load(time.perf_counter() - started, tuple(latencies))
    waiting = iter(session_ids)

    async def worker() -> list[float]:
        return [await post_turn(client, session_id) for session_id in waiting for _ in range(turns_each)]

    started = time.perf_counter()
    latencies_by_worker = await asyncio.gather(*(worker() for _ in range(concurrency)))
    return Load(time.perf_counter() - started, tuple(latency for part in latencies_by_worker for latency in part))
