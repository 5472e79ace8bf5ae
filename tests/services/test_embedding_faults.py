"""Embedding models that refuse texts, fail, are replaced and come back: what is missing is made, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from app.domain.types import JsonObject, TenantId
from app.services.turn import recall
from tests.providers.server import Answer, Seen, serving
from tests.services.meaning import (
    FACT,
    POLICY,
    SAID,
    SMALL_TALK,
    answered,
    answers,
    models_with,
    recalled_by,
    small_talk,
    stores_nothing,
    talked,
    texts_for,
    vector_of,
    vector_rows,
    vectors,
)
from tests.services.service import TENANT, Service, service
from torture.databases import citus_servers

_REFUSED = "\u06de"


def _refusing(answer: Callable[[list[str]], Answer]) -> Callable[[Seen], Answer]:
    """Answers with the function if one of the texts is refused, which no plain text is."""

    def step(request: Seen) -> Answer:
        texts: list[str] = request.json["input"]
        return answer(texts) if any(_REFUSED in text for text in texts) else vectors(request)

    return answers(step)


def _firewall(_texts: list[str]) -> Answer:
    return Answer({"error": {"message": "That looks like an attack."}}, 403)


def _law(_texts: list[str]) -> Answer:
    return Answer(status=451)


def _no_vectors(_texts: list[str]) -> Answer:
    return Answer({"data": []})


def _nulls(texts: list[str]) -> Answer:
    rows = [[None] * 5 if _REFUSED in text else vector_of(text) for text in texts]
    return Answer({"data": [{"index": at, "embedding": row} for at, row in enumerate(rows)]})


@pytest.mark.parametrize("refusal", [_firewall, _law, _no_vectors, _nulls])
async def test_a_text_without_a_vector_rests_no_model_however_the_server_says_so(
    database_url: str, tmp_path: Path, refusal: Callable[[list[str]], Answer]
) -> None:
    async with (
        serving(_refusing(refusal)) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        session = await at.imported({"messages": answered(_REFUSED * 900, *SAID), "policy": POLICY})
        await small_talk(at, session.id)
        assert at.rt.embeddings
        assert not at.rt.embeddings.is_resting(TENANT), "other tenants need it"
        sizes = {seq: size for seq, (_, size) in (await vector_rows(at, session.id)).items()}
        assert [sizes[seq] for seq in range(1, 5)] == [0, 5, 5, 5]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_model_that_is_late_or_fails_for_one_tenant_is_called_for_another_until_it_is_for_both(
    database_url: str, tmp_path: Path, *, fails: bool
) -> None:
    released: list[bool] = []

    def step(request: Seen) -> Answer:
        if "well" in request.json["input"]:
            return vectors(request)
        return Answer(status=503) if fails else Answer(vectors(request).body, after=lambda: bool(released))

    async with (
        serving(step) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors", embedding_wait_s=0.05) as at,
    ):
        embeddings, other, third = at.rt.embeddings, TenantId("another"), TenantId("third")
        assert embeddings
        await embeddings.prepare(TENANT, "badly", stores_nothing)
        await embeddings.prepare(TENANT, "well", stores_nothing)
        assert "well" not in texts_for(server), "it rests for the tenant"
        await embeddings.prepare(other, "well", stores_nothing)
        await embeddings.prepare(other, "badly", stores_nothing)
        await embeddings.prepare(third, "well", stores_nothing)
        released.append(True)
        await at.rt.chores.settle()
        assert embeddings.question(other, "well") is not None
        assert texts_for(server).count("well") == 1, "it rests for all"


async def test_sessions_that_wait_for_their_vectors_do_not_call_a_model_that_rests(
    database_url: str, tmp_path: Path
) -> None:
    calls: list[Seen] = []

    def down(request: Seen) -> Answer:
        calls.append(request)
        return Answer(status=503)

    async with (
        serving(answers(down)) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        sessions = [await at.imported({"messages": answered(*SAID), "policy": POLICY}) for _ in range(12)]
        assert at.rt.embeddings
        for number in range(3):  # all slots, so that none is left for the sessions
            await at.rt.embeddings.gate.acquire(number, 1)
        await asyncio.gather(*(at.turn(session.id, SMALL_TALK) for session in sessions))
        assert len(at.rt.embeddings.busy) == len(sessions), "all of them wait"
        for number in range(3):
            at.rt.embeddings.gate.release(number)
        await at.rt.chores.settle()
        assert 1 <= len(calls) <= 2
        assert not at.rt.embeddings.busy


async def test_a_model_that_comes_back_makes_what_another_replaced_meanwhile(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "EMBEDDED_A_TURN", 16)
    said = (FACT, *(f"The invoice of crane {number} came." for number in range(19)))
    async with serving(answers()) as server:
        models = models_with(server, "vectors", "others")
        async with service(database_url, models, folder=tmp_path, embeds_with="vectors") as at:
            session_id = (await at.imported({"messages": answered(*said), "policy": POLICY})).id
            for _ in range(4):
                await small_talk(at, session_id)
            made = await vector_rows(at, session_id)
        async with service(database_url, models, folder=tmp_path, embeds_with="others") as at:
            await small_talk(at, session_id)
            replaced = [model for model, _ in (await vector_rows(at, session_id)).values()]
            assert replaced.count("others-1/1") == 16 < len(made), "only some"
        async with service(database_url, models, folder=tmp_path, embeds_with="vectors") as at:
            assert FACT not in await recalled_by(at, session_id), "not yet, and these vectors are cached now"
            await recalled_by(at, session_id)
            assert {model for model, _ in (await vector_rows(at, session_id)).values()} == {"vectors-1/1"}
            assert FACT in await recalled_by(at, session_id)


async def test_vectors_are_made_again_for_other_parameters_of_the_same_model(database_url: str, tmp_path: Path) -> None:
    def wide(request: Seen) -> Answer:
        missing: list[float] = [0.0] * (request.json.get("dimensions", 5) - 5)
        data: list[JsonObject] = [
            {"index": at, "embedding": vector_of(text) + missing} for at, text in enumerate(request.json["input"])
        ]
        return Answer({"data": data})

    async with serving(answers(wide)) as server:
        models = models_with(server)
        async with service(database_url, models, folder=tmp_path, embeds_with="vectors") as at:
            session_id = await talked(at)
        models += "parameters = { dimensions = 8 }\n"
        async with service(database_url, models, folder=tmp_path, embeds_with="vectors") as at:
            for _ in range(2):
                await small_talk(at, session_id)
            assert {size for _, size in (await vector_rows(at, session_id)).values()} == {8}
            assert FACT in await recalled_by(at, session_id)


@pytest.mark.skipif(citus_servers() is not None, reason="Citus takes no triggers")
async def test_a_call_whose_vectors_cannot_be_stored_is_in_the_usage(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(answers()) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        session = await at.imported({"messages": answered(*SAID), "policy": POLICY})
        await _raise_at(at, "message_vectors", "disk_full", "true")
        await small_talk(at, session.id)
        assert await vector_rows(at, session.id) == {}
        (used,) = await at.rows("SELECT prompt_tokens FROM usage_records WHERE purpose = 'embedding'")
        assert used["prompt_tokens"] == 3 * len(texts_for(server)) > 0


@pytest.mark.skipif(citus_servers() is not None, reason="Citus takes no triggers")
async def test_a_call_whose_usage_is_stored_at_the_second_try_counts_once(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(answers()) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        session = await at.imported({"messages": answered(*SAID), "policy": POLICY})
        await at.rows("CREATE SEQUENCE tries")
        await _raise_at(at, "usage_records", "deadlock_detected", "NEW.purpose = 'embedding' AND nextval('tries') = 1")
        await small_talk(at, session.id)
        assert (await at.rows("SELECT last_value FROM tries")) == [{"last_value": 2}]
        (used,) = await at.rows("SELECT prompt_tokens FROM usage_records WHERE purpose = 'embedding'")
        metrics = at.rt.telemetry.render()[0].decode().splitlines()
        counted = 'model_tokens_total{kind="prompt",model_alias="vectors",purpose="embedding"} '
        (line,) = [line for line in metrics if line.startswith(counted)]
        assert float(line.removeprefix(counted)) == used["prompt_tokens"] == 3 * len(texts_for(server))


async def _raise_at(at: Service, table: str, condition: str, when: str) -> None:
    """Every row that is put into the table raises this error of Postgres, when the condition on the row holds."""
    await at.rows(
        f"""
        CREATE FUNCTION refused() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF {when} THEN RAISE {condition}; END IF; RETURN NEW; END $$
        """
    )
    await at.rows(f"CREATE TRIGGER refused BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refused()")
