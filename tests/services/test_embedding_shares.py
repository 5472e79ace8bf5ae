"""What tenants share of the embedding model: none takes recall by meaning from another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from app.db.driver import new_id
from app.domain.types import SessionId, SessionRef, TenantId
from tests.providers.server import Answer, Seen, serving
from tests.services.meaning import (
    POLICY,
    QUESTION,
    SAID,
    SMALL_TALK,
    answered,
    answers,
    models_with,
    stores_nothing,
    vector_rows,
    vectors,
)
from tests.services.service import TENANT, Service, service

_OTHER = TenantId("another")
_SLOW = [f"The weather of day {number} took long." for number in range(20)]


def late_for_slow_texts(may_end: Callable[[int], bool]) -> Callable[[Seen], Answer]:
    """Vectors, of texts that take long once `may_end` holds for the number of the call."""
    calls: list[Seen] = []

    def play(request: Seen) -> Answer:
        if not any("took long" in text for text in request.json["input"]):
            return vectors(request)
        calls.append(request)
        number = len(calls)
        return Answer(vectors(request).body, after=lambda: may_end(number))

    return play


async def _starts_vectors(at: Service, tenant_id: TenantId, *said: str) -> SessionId:
    session = await at.imported({"messages": answered(*said), "policy": POLICY}, tenant_id)
    await at.turn(session.id, SMALL_TALK, tenant_id=tenant_id)
    return session.id


async def _gets_vectors(at: Service, session_id: SessionId) -> bool:
    """Whether it does while the calls for slow texts last: they are given up in the end."""
    assert at.rt.embeddings
    while not await vector_rows(at, session_id):
        if at.rt.embeddings.is_resting(TENANT):
            return False
        await asyncio.sleep(0.01)
    return True


async def test_a_tenant_whose_texts_take_long_leaves_others_a_call_for_theirs(
    database_url: str, tmp_path: Path
) -> None:
    """With 8 s for a call of 16 texts, one tenant's sessions kept those of others without vectors for minutes."""
    released: list[bool] = []
    async with (
        serving(answers(late_for_slow_texts(lambda _: bool(released)))) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        for _ in range(4):
            await _starts_vectors(at, TENANT, *_SLOW)
        assert await _gets_vectors(at, await _starts_vectors(at, _OTHER, *SAID))
        released.append(True)
        await at.rt.chores.settle()


async def test_a_session_with_many_texts_lets_other_tenants_in_after_each_call(
    database_url: str, tmp_path: Path
) -> None:
    ended: list[int] = []
    async with (
        serving(answers(late_for_slow_texts(lambda number: number in ended or 0 in ended))) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        for tenant in (TENANT, TENANT, TenantId("third")):
            await _starts_vectors(at, tenant, *_SLOW)
        waiting = await _starts_vectors(at, _OTHER, *SAID)
        assert not await vector_rows(at, waiting)
        ended.append(1)
        assert await _gets_vectors(at, waiting)
        ended.append(0)
        await at.rt.chores.settle()


async def test_the_questions_and_sessions_of_one_tenant_do_not_displace_those_of_another(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(vectors) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        embeddings, session = at.rt.embeddings, SessionRef(_OTHER, SessionId(new_id()))
        assert embeddings
        embeddings.compared_in(session, "recall")
        await embeddings.prepare(_OTHER, QUESTION, stores_nothing)
        newest = ""
        for number in range(0, 1_200, 400):
            texts = [f"Question {each}?" for each in range(number, number + 400)]
            await embeddings.remember(TENANT, texts, stores_nothing)
            newest = texts[-1]
            for _ in texts:
                embeddings.compared_in(SessionRef(TENANT, SessionId(new_id())), "recall")
        assert embeddings.question(_OTHER, QUESTION) is not None
        assert embeddings.compares_in(session, "recall")
        assert embeddings.question(TENANT, newest) is not None
        assert embeddings.question(TENANT, "Question 0?") is None
