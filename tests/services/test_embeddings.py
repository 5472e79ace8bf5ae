"""Recall by meaning over a real database and an endpoint that makes vectors: what it brings back, and that a turn goes
on without it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from app.domain.errors import NotFound, ProviderRefused
from app.domain.types import Pin, SessionRef, TenantId
from app.services.archive.transfer import fork_session
from app.services.pasts import Pasts
from app.services.sessions import delete_session, put_pin
from app.services.turn.recall import prepare_search, settled_meaning
from app.services.turn.take import retry_turn
from app.services.turn.types import TurnOptions, TurnRequest
from app.services.views.context import pin_figures
from app.services.views.preview import preview_turn
from app.services.views.search import look_back, search_session
from app.services.views.turns import get_audit, get_prompt
from tests.providers.server import Answer, Seen, serving
from tests.services.meaning import (
    FACT,
    POLICY,
    QUESTION,
    REPLY,
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
    used_tokens,
    vector_of,
    vector_rows,
    vectors,
)
from tests.services.service import TENANT, chat, client_tools, ref_of, service
from tests.services.test_tools import TOOLS, calls


async def test_what_has_no_word_of_the_question_comes_back_by_its_meaning_and_the_prompt_needs_no_vector_again(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(answers()) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        session_id = await talked(at)
        assert (await vector_rows(at, session_id))[1] == ("vectors-1/1", 5), "made behind the turn"
        await small_talk(at, session_id)
        request = TurnRequest(QUESTION, "")
        preview = await preview_turn(at.rt, ref_of(session_id), request)
        outcome = await at.turn(session_id, QUESTION)
        assert preview.context["prompt_sha256"] == outcome.context["prompt_sha256"]
        sent = [message["content"] for message in server.seen[-1].json["messages"]]
        await at.rt.chores.settle()
        assert FACT in sent
        recalled = outcome.context["context_trim_log"]["recalled"]
        assert [row["similarity"] for row in recalled if "similarity" in row] == [1.0]
        assert all("matched" not in row for row in recalled)
        await at.rows("WITH gone AS (DELETE FROM message_vectors RETURNING 1) SELECT count(*) FROM gone")
        prompt = await get_prompt(at.rt, ref_of(session_id), outcome.turn.id, None)
        assert [message["content"] for message in prompt.messages] == sent
        audit = await get_audit(at.rt, ref_of(session_id), outcome.turn.id, None)
        assert audit.context_trim_log == outcome.context["context_trim_log"]
        assert await used_tokens(at, session_id) == 3 * len(texts_for(server))
        assert b'purpose="embedding"' in at.rt.telemetry.render()[0]


async def test_a_round_and_a_retry_recall_by_meaning_in_a_process_that_did_not_begin_the_turn(
    database_url: str, tmp_path: Path
) -> None:
    failures = [Answer({"error": {"message": "no"}}, status=400)]

    def reply(request: Seen) -> Answer:
        last = request.json["messages"][-1]
        if last["role"] == "tool":
            return failures.pop() if failures else chat(REPLY)
        return calls("a") if last["content"] == QUESTION else chat(REPLY)

    async with (
        serving(answers(reply=reply)) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as other,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as third,
    ):
        session_id = await talked(at)
        for each in (at, other, third):
            await small_talk(each, session_id)  # from now on they wait for the vectors of its questions
        turn = (await at.turn(session_id, QUESTION, tools=TOOLS)).turn
        with pytest.raises(ProviderRefused):
            await other.outputs(session_id, turn.id, {"a": "Nothing."})
        await retry_turn(third.rt, ref_of(session_id), turn.id, TurnOptions(TOOLS), "main")
        sent = [seen.json["messages"] for seen in server.seen if client_tools(seen)]
        assert [FACT in [message["content"] for message in messages] for messages in sent] == [True] * 3


async def test_a_turn_goes_on_without_a_vector_that_is_late_and_the_next_has_it(
    database_url: str, tmp_path: Path
) -> None:
    released: list[bool] = []

    def late(request: Seen) -> Answer:
        answer = vectors(request)
        return Answer(answer.body, after=lambda: bool(released)) if QUESTION in request.json["input"] else answer

    async with (
        serving(answers(late)) as server,
        service(
            database_url, models_with(server), folder=tmp_path, embeds_with="vectors", embedding_wait_s=0.001
        ) as at,
    ):
        session_id = await talked(at)
        # Were this one's vector late too, the model would be left alone, and not asked for the question's.
        assert at.rt.embeddings
        await at.rt.embeddings.remember(TENANT, [SMALL_TALK], stores_nothing)
        await small_talk(at, session_id)
        outcome = await at.turn(session_id, QUESTION)
        assert "recalled" not in outcome.context["context_trim_log"]
        released.append(True)
        await at.rt.chores.settle()
        assert QUESTION in texts_for(server)
        assert FACT in await recalled_by(at, session_id)


async def test_an_endpoint_that_fails_costs_recall_by_meaning_alone_and_what_is_missing_is_made_later(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken: list[bool] = [True]

    def sometimes(request: Seen) -> Answer:
        echoed = Answer({"error": {"message": f"No vector of {request.json['input'][0]}"}}, 500)
        return echoed if broken else vectors(request)

    async with serving(answers(sometimes)) as server:
        async with service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at:
            session_id = await talked(at)
            await small_talk(at, session_id)
            assert not await recalled_by(at, session_id)
            assert not await vector_rows(at, session_id)
            assert len(texts_for(server)) <= len(SAID) * 2 + 2, "it is left alone for a while"
        assert "Ottilie" not in caplog.text
        assert "provider_error" in caplog.text
        broken.clear()
        async with service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at:
            await small_talk(at, session_id)
            assert 1 in await vector_rows(at, session_id)
            assert FACT in await recalled_by(at, session_id)


async def test_what_has_no_usable_vector_is_not_asked_for_again_and_long_texts_are_cut(
    database_url: str, tmp_path: Path
) -> None:
    def particular(request: Seen) -> Answer:
        texts = request.json["input"]
        if any(len(text) > 300 for text in texts):
            return Answer({"error": {"message": "input is too long"}}, 400)
        return Answer({"data": [{"embedding": [0.0] * 5 if "crane" in text else vector_of(text)} for text in texts]})

    async with (
        serving(answers(particular)) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        said = ("The weather is fine. " * 90, SAID[1], SAID[2])
        session = await at.imported({"messages": answered(*said), "policy": POLICY})
        await small_talk(at, session.id)
        sizes = {seq: size for seq, (_, size) in (await vector_rows(at, session.id)).items()}
        assert [sizes[seq] for seq in range(1, 5)] == [5, 5, 0, 5]
        asked_for = len(texts_for(server))
        for _ in range(4):
            await small_talk(at, session.id)
        assert len(await vector_rows(at, session.id)) > len(sizes)
        assert SAID[1] not in texts_for(server)[asked_for:]


@pytest.mark.parametrize("status", [400, 500])
async def test_a_text_that_the_model_never_takes_keeps_nothing_else_from_being_found(
    database_url: str, tmp_path: Path, status: int
) -> None:
    def particular(request: Seen) -> Answer:
        refused = any("\u06de" in text for text in request.json["input"])
        return Answer({"error": {"message": "input is too large to process"}}, status) if refused else vectors(request)

    async with (
        serving(answers(particular)) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        messages = answered("\u06de" * 900, *SAID)
        session = await at.imported({"messages": messages, "policy": POLICY})
        await small_talk(at, session.id)
        await small_talk(at, session.id)
        sizes = {seq: size for seq, (_, size) in (await vector_rows(at, session.id)).items()}
        assert [sizes[seq] for seq in range(1, 5)] == [0, 5, 5, 5]
        for _ in range(2):
            assert not (await search_session(at.rt, ref_of(session.id), "\u06de\u06de\u06de", 5)).items
        assert FACT in await recalled_by(at, session.id)
        asked_for = [seen.json["input"] for seen in server.seen if seen.path.endswith("/embeddings")]
        taken = [texts for texts in asked_for if not any("\u06de" in text for text in texts)]
        assert await used_tokens(at, session.id) == 3 * sum(map(len, taken))
        assert asked_for.count(["\u06de\u06de\u06de"]) == 2, "once, and once more after a plain word"


async def test_vectors_go_with_a_fork_and_an_erased_session_and_are_made_anew_for_another_model(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(answers()) as server:
        models = models_with(server, "vectors", "others")
        async with service(database_url, models, folder=tmp_path, embeds_with="vectors") as at:
            session_id = await talked(at)
            made = await vector_rows(at, session_id)
            fork = await fork_session(at.rt, ref_of(session_id), None)
            assert made
            assert await vector_rows(at, fork.id) == made
        async with service(database_url, models, folder=tmp_path, embeds_with="others") as at:
            await small_talk(at, session_id)
            rows = await vector_rows(at, session_id)
            assert {name for name, _ in rows.values()} == {"others-1/1"}
            assert rows.keys() >= made.keys()
            await small_talk(at, session_id)
            assert FACT in await recalled_by(at, session_id)
            await delete_session(at.rt, ref_of(session_id))
            assert not await vector_rows(at, session_id)
            assert await vector_rows(at, fork.id) == made, "the other session's are its own"


async def test_of_a_very_long_session_the_vectors_of_the_newest_messages_are_compared(
    database_url: str, tmp_path: Path
) -> None:
    """All took more than the cache holds, and were read again by every turn."""
    wide = Answer({"data": [{"index": 0, "embedding": [0.1] * 1_536}], "usage": {"prompt_tokens": 3}})
    async with (
        serving(answers(lambda _: wide)) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        session = ref_of((await at.session()).id)
        await at.rows(
            """
            INSERT INTO message_vectors (session_id, message_seq, model, vector)
            SELECT :id, seq, 'vectors-1/1', decode(repeat('01', 1536), 'hex') FROM generate_series(1, 20000) AS seq
            """,
            id=session.id,
        )
        await prepare_search(at.rt, session, QUESTION)
        pasts = Pasts(32 * 1024 * 1024, monotonic, at.rt.telemetry)
        async with at.rt.database.begin() as tx:
            first, again = [
                await settled_meaning(tx, pasts, session, 20_000, at.rt.embeddings, QUESTION) for _ in range(2)
            ]
        assert first
        assert again
        seqs = first.vectors.seqs
        assert seqs.tolist() == [*range(20_001 - len(seqs), 20_001)]
        assert 5_000 < len(seqs) < pasts.most_vectors_bytes / 1_536 < 20_000
        assert again.vectors is first.vectors


async def test_a_search_and_a_look_back_find_by_meaning_too_and_say_so(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(answers()) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        session_id = await talked(at)
        best = (await search_session(at.rt, ref_of(session_id), QUESTION, 5)).items[0]
        assert (best.excerpt, best.similarity, best.matched) == (FACT, 1.0, [])
        page = await look_back(at.rt, ref_of(session_id), query="insects", handle=None, page=None)
        assert FACT in page.content
        await at.rt.chores.settle()
        assert await used_tokens(at, session_id) == 3 * len(texts_for(server)), "what a search took, too"
        for tenant in (TENANT, TenantId("another")):
            empty = await at.session()
            with suppress(NotFound):
                assert not (await search_session(at.rt, SessionRef(tenant, empty.id), "Who is it?", 5)).items
        assert "Who is it?" not in texts_for(server), "there is nothing to compare it with"


async def test_a_tenant_with_many_questions_leaves_room_for_those_of_others(database_url: str, tmp_path: Path) -> None:
    released: list[bool] = []

    def late(request: Seen) -> Answer:
        return Answer(vectors(request).body, after=lambda: bool(released))

    async with (
        serving(late) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors", embedding_wait_s=0) as at,
    ):
        embeddings, other = at.rt.embeddings, TenantId("another")
        assert embeddings
        for number in range(20):
            await embeddings.prepare(TENANT, f"Question {number}?", stores_nothing)
        await embeddings.prepare(other, "Another's question?", stores_nothing)
        released.append(True)
        await at.rt.chores.settle()
        assert len(texts_for(server)) == 13
        assert embeddings.question(other, "Another's question?") is not None


async def test_the_usage_of_a_previewed_question_is_stored_without_a_later_turn(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(answers()) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        session_id = await talked(at)
        await at.turn(session_id, QUESTION)
        await at.rt.chores.settle()
        before = len(texts_for(server))
        await preview_turn(at.rt, ref_of(session_id), TurnRequest("Which insects are kept at home?", ""))
        await at.rt.chores.settle()
        assert len(texts_for(server)) == before + 1
        assert await used_tokens(at, session_id) == 3 * (before + 1)


async def test_pins_that_have_to_give_way_do_so_by_meaning_from_the_second_turn_on_and_in_its_preview(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(answers()) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        session = await at.session(policy={"preset": "allocated"})
        for name, text in (("crane", SAID[1]), ("bees", FACT)):
            await put_pin(at.rt, ref_of(session.id), Pin(name, f"{text} {'Lorem ipsum dolor. ' * 900}"))
        trimmed: list[str] = []
        for _ in range(2):
            preview = await preview_turn(at.rt, ref_of(session.id), TurnRequest("Which insects?", ""))
            outcome = await at.turn(session.id, "Which insects?")
            await at.rt.chores.settle()
            assert preview.context["prompt_sha256"] == outcome.context["prompt_sha256"]
            trimmed += [action["target"] for action in outcome.context["context_trim_log"]["actions"]]
        assert trimmed == ["bees", "crane"]
        assert await used_tokens(at, session.id) == 3 * len(texts_for(server)), "though nothing was summarized"
        figures = await pin_figures(at.rt, ref_of(session.id))
        assert figures["bees"].similarity == 1.0
        assert figures["bees"].relevance > figures["crane"].relevance


async def test_no_embedding_call_is_made_for_a_session_of_another_tenant(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(answers()) as server,
        service(database_url, models_with(server), folder=tmp_path, embeds_with="vectors") as at,
    ):
        session_id = await talked(at)
        await small_talk(at, session_id)
        with pytest.raises(NotFound):
            await at.turn(session_id, QUESTION, tenant_id=TenantId("another"))
        await at.rt.chores.settle()
        assert QUESTION not in texts_for(server)


async def test_without_an_embedding_model_there_are_no_vectors_and_no_calls(database_url: str, tmp_path: Path) -> None:
    async with serving(answers()) as server, service(database_url, models_with(server), folder=tmp_path) as at:
        session_id = await talked(at)
        await small_talk(at, session_id)
        assert not await recalled_by(at, session_id)
        assert not await vector_rows(at, session_id)
        assert not texts_for(server)
