"""Many posts to one session at once, over three replicas: one runs, the others get a 409 with Retry-After."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from torture.balancer import REPLICAS, fleet
from torture.ledger import violations
from torture.models import new_mark
from torture.results import Result
from torture.site import Answered, Site

ROUNDS = 10
POSTS = 200
_ANSWER_AFTER_S = 0.4
_LOSER = "posts that lost"
_SAMPLE_S = 0.004


async def races(site: Site) -> Result:
    """Samples the database all the while."""
    result = Result(
        f"{POSTS} posts to one session at once, {ROUNDS} rounds, {REPLICAS} replicas",
        "at most 1 running in every sample; seq gapless; losers 409 with Retry-After",
    )
    result.expect(_LOSER, ROUNDS * POSTS // 2)
    won = 0
    async with (
        site.database() as (url, database),
        fleet(site.nursery, site.environment(url), name="racer") as balancer,
    ):
        session = await site.session(balancer.url)
        session_id = UUID(session.rsplit("/", 1)[1])
        samples: list[int] = []
        sampling = asyncio.create_task(_sample(database, session_id, samples))
        for _ in range(ROUNDS):
            site.models.delay_s = _ANSWER_AFTER_S
            body = {"content": f"{new_mark('race')} who is first?"}
            posts = [site.post(f"{balancer.url}{session}/turns", body) for _ in range(POSTS)]
            won += _judge(await asyncio.gather(*posts), result)
        site.models.delay_s = 0.0
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
        stored = await database.fetchval("SELECT count(*) FROM turns WHERE session_id = $1", session_id)
        result.failures += await violations(database)
    result.check(max(samples) == 1, f"{max(samples)} turns ran at once")
    result.check(sum(samples) >= 5 * ROUNDS, f"only {sum(samples)} samples saw a running turn")
    result.check(stored == won, f"{won} posts won and {stored} turns are stored")
    result.check(won >= ROUNDS, f"only {won} posts won")
    result.check(len(balancer.served) == REPLICAS, f"the balancer reached {len(balancer.served)} replicas")
    result.measured = {
        "most running in a sample": max(samples),
        "samples (with one running)": f"{len(samples):,} ({sum(samples):,})",
        "turns won": won,
        "losers": f"{result.fired.get(_LOSER, 0):,}, all 409 with Retry-After",
    }
    return result


def _judge(answers: list[Answered], result: Result) -> int:
    won = 0
    for answered in answers:
        if answered.status == 201:
            won += 1
            continue
        answer = (answered.status, answered.code, answered.headers.get("Retry-After", "").isdigit())
        result.check(answer == (409, "turn_in_progress", True), f"a loser got {answer}")
        result.fire(_LOSER)
    return won


async def _sample(database: Any, session_id: UUID, samples: list[int]) -> None:
    running = "SELECT count(*) FROM turns WHERE session_id = $1 AND status IN ('pending', 'running')"
    # Not on the caller's connection while it asks something: this task has it to itself until it is cancelled.
    while True:
        samples.append(await database.fetchval(running, session_id))
        await asyncio.sleep(_SAMPLE_S)
