"""What goes wrong between a client and the service: lost answers, broken streams, refusals, silence. All clients."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import weakref
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from plimsoll_sdk import AsyncPlimsoll, Plimsoll, TurnCompleted
from plimsoll_sdk.errors import (
    ContextBudgetExceeded,
    DeadlinePassed,
    IdempotencyKeyReused,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Problem,
    ProviderFailed,
    StreamBroken,
    ToolLoopTooLong,
    TurnInProgress,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
    problem_of,
)
from plimsoll_sdk.models import Turn
from tests.api.conftest import PATIENCE_S, settings_for
from tests.api.conftest import serving as service_at
from tests.api.test_auth import make_key
from tests.api.test_streaming import chunk, sse
from tests.client.clients import ALL, BOTH, Kind, Talker, completion, models_file, talker, turns_of
from tests.client.proxy import proxied
from tests.client.test_contract import CALLS, TOOLS
from tests.pooling import own_connection
from tests.providers.playing import threaded_serving
from tests.providers.server import Answer, Seen, Stream

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


@ALL
async def test_an_answer_that_is_lost_is_fetched_again_and_there_is_one_turn(address: str, kind: Kind) -> None:
    with proxied(address) as proxy:
        async with talker(kind, proxy.url) as at:
            session = (await at.call("create_session")).id
            fault = proxy.breaks("/turns ", times=2)
            answer = await at.call("post_turn", session, "Hello")
            assert fault.fired == 2, "the answers were not lost"
            assert proxy.count("POST /v1/sessions/") == 3
            assert [turn.id for turn in await turns_of(at, session)] == [answer.turn.id]
            assert answer.turn.idempotency_key
            other = await at.call("post_turn", session, "Hello")
            assert other.turn.id != answer.turn.id, "the key of one call was used for another"


@ALL
async def test_a_call_that_cannot_be_repeated_is_sent_once_and_its_loss_is_reported(address: str, kind: Kind) -> None:
    with proxied(address) as proxy:
        fault = proxy.breaks("POST /v1/sessions ")
        async with talker(kind, proxy.url) as at:
            with pytest.raises(Unreachable) as lost:
                await at.call("create_session")
            assert (fault.fired, lost.value.maybe_done) == (1, True)
            assert proxy.count("POST /v1/sessions ") == 1
            assert len((await at.call("list_sessions")).items) == 1, "it was done all the same"


@ALL
async def test_a_deletion_whose_answer_is_lost_has_been_done(address: str, kind: Kind) -> None:
    with proxied(address) as proxy:
        async with talker(kind, proxy.url) as at:
            session = (await at.call("create_session")).id
            await at.call("put_pin", session, "note", "Text")
            for name, arguments in (("delete_pin", (session, "note")), ("delete_session", (session,))):
                fault = proxy.breaks("DELETE ")
                await at.call(name, *arguments)
                assert fault.fired == 1, "the answer was not lost"
                with pytest.raises(NotFound):
                    await at.call(name, *arguments)


@ALL
async def test_a_refused_connection_means_that_the_call_was_not_made(kind: Kind) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        async with talker(kind, f"http://127.0.0.1:{deaf.getsockname()[1]}", max_retries=2) as at:
            started = time.monotonic()
            with pytest.raises(Unreachable) as nobody:
                await at.call("create_session")
            assert nobody.value.maybe_done is False
            assert f"127.0.0.1:{deaf.getsockname()[1]}" in str(nobody.value)
            assert time.monotonic() - started > 0.5, "it was not tried again"


@pytest.mark.parametrize(
    ("kind", "after_bytes"),
    [*product(("sync", "async"), (0, 700, 1500, 2100)), ("typescript", 700), ("typescript", 2100)],
)
async def test_a_stream_that_breaks_goes_on_where_it_broke(
    database_url: str, tmp_path: Path, kind: Kind, after_bytes: int
) -> None:
    script = sse(*(chunk({"content": f"{word} "}) for word in WORDS), chunk({}, "stop"))
    with (
        threaded_serving(script) as model,
        service_at(settings_for(database_url, models_file=models_file(tmp_path, model.base_url))) as address,
        proxied(address) as proxy,
    ):
        async with talker(kind, proxy.url) as at:
            session = (await at.call("create_session")).id
            fault = proxy.breaks("/turns ", after_bytes=after_bytes)
            events = await at.events("stream_turn", session, "Count")
            assert fault.fired == 1, "the stream was not broken"
            names = [event.name for event in events]
            assert names[:2] == ["turn.created", "context.assembled"]
            assert names[-1] == "turn.completed"
            assert set(names[2:-1]) == {"output.delta"}
            text = "".join(event.text for event in events if event.name == "output.delta")
            (turn,) = await turns_of(at, session)
            assert text == turn.assistant_output == " ".join(WORDS) + " "
            assert getattr(events[-1], "turn", None) == await at.call("get_turn", session, turn.id)
            assert model.hits == 1


@BOTH
async def test_a_stream_that_is_left_is_closed_at_once_and_not_by_the_garbage_collector(
    address: str, kind: Kind
) -> None:
    # The collector would close it wherever it happens to run: also inside the lock that closing takes.
    async with talker(kind, address) as at:
        assert isinstance(at, Talker)
        session = (await at.call("create_session")).id
        gc.disable()
        try:
            if isinstance(at.client, Plimsoll):
                events = iter(at.client.stream_turn(session, "Hello"))
                next(events)
            else:
                events = aiter(at.client.stream_turn(session, "Hello"))
                await anext(events)
            left = weakref.ref(events)
            del events
            for _ in range(100):
                await asyncio.sleep(0.01 if left() else 0)
            assert left() is None
        finally:
            gc.enable()


@ALL
async def test_a_turn_has_ended_with_its_last_event_also_where_the_connection_stays_open(
    address: str, kind: Kind
) -> None:
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as http:
        session = (await http.post("/v1/sessions", json={})).json()["id"]
        body = {"content": "Hello", "stream": True}
        events = (await http.post(f"/v1/sessions/{session}/turns", json=body)).content
    assert b"turn.completed" in events
    with threaded_serving(Stream([events], ending="open")) as server:  # for 30 s, or until the client hangs up
        async with talker(kind, _root(server.base_url)) as at, asyncio.timeout(20):
            events = await at.events("stream_turn", session, "Hello")
    assert server.hits == 1
    assert events[-1].name == "turn.completed"


@ALL
async def test_a_broken_stream_that_is_not_resumed_says_what_it_knows(address: str, kind: Kind) -> None:
    with proxied(address) as proxy:
        async with talker(kind, proxy.url, max_retries=0) as at:
            session = (await at.call("create_session")).id
            waiting = (await at.call("post_turn", session, "Go", tools=TOOLS, recorded_reply=CALLS)).turn
            fault = proxy.breaks("/tool-outputs ", after_bytes=1300)
            reply = {"content": " ".join(WORDS * 20)}
            with pytest.raises(StreamBroken) as broken:
                await at.events("stream_tool_outputs", session, waiting.id, {"a": "42"}, recorded_reply=reply)
            assert fault.fired == 1
            assert (broken.value.session_id, broken.value.turn_id) == (session, waiting.id)
            assert reply["content"].startswith(broken.value.text)
            assert (await at.call("get_turn", session, waiting.id)).status in {"running", "completed"}


@ALL
async def test_tool_outputs_are_retried_and_their_broken_stream_goes_on(address: str, kind: Kind) -> None:
    reply = {"content": " ".join(WORDS * 20)}
    with proxied(address) as proxy:
        async with talker(kind, proxy.url) as at:
            for after_bytes in (None, 0, 1300):
                session = (await at.call("create_session")).id
                waiting = (await at.call("post_turn", session, "Go", tools=TOOLS, recorded_reply=CALLS)).turn
                fault = proxy.breaks("/tool-outputs ", after_bytes=after_bytes or 0)
                given = (session, waiting.id, {"a": "42"})
                if after_bytes is None:
                    turn = (await at.call("post_tool_outputs", *given, recorded_reply=reply)).turn
                else:
                    (*_, last) = await at.events("stream_tool_outputs", *given, recorded_reply=reply)
                    assert isinstance(last, TurnCompleted)
                    turn = last.turn
                assert (turn.status, turn.assistant_output) == ("completed", reply["content"])
                assert fault.fired == 1


@ALL
async def test_a_failed_stream_gives_the_problem_and_raises_it_when_the_answer_is_read(
    database_url: str, tmp_path: Path, kind: Kind
) -> None:
    with (
        threaded_serving(sse(chunk({"content": "Half an ans"}), cut=True)) as model,
        service_at(settings_for(database_url, models_file=models_file(tmp_path, model.base_url))) as address,
    ):
        async with talker(kind, address) as at:
            session = (await at.call("create_session")).id
            last = (await at.events("stream_turn", session, "Hi"))[-1]
            assert last.name == "turn.failed"
            assert isinstance(last.error, ProviderFailed)
            assert last.turn is not None
            assert last.turn.status == "failed"
        if kind == "async":
            async with AsyncPlimsoll(address) as client:
                with pytest.raises(ProviderFailed):
                    await client.stream_turn(session, "Hi").answer()


async def test_leaving_a_stream_early_closes_it_and_the_turn_goes_on(address: str) -> None:
    async with AsyncPlimsoll(address) as client:
        session = (await client.create_session()).id
        async with client.stream_turn(session, "Hello") as stream:
            async for event in stream:
                assert event.name == "turn.created"
                break
    with Plimsoll(address) as waiting:
        with waiting.stream_turn(session, "Hello again", idempotency_key="mine") as stream:
            assert next(iter(stream)).name == "turn.created"
        assert waiting.post_turn(session, "Hello again", idempotency_key="mine").turn.status == "completed"
        assert [turn.status for turn in waiting.iterate_turns(session)] == ["completed", "completed"]


@BOTH
async def test_a_session_that_runs_another_turn_is_waited_for(database_url: str, tmp_path: Path, kind: Kind) -> None:
    refused_for_good = threading.Event()

    def slow(_: Seen) -> Answer:
        if model.hits == 3:
            return Answer(completion("Done."), after=refused_for_good.is_set)
        return Answer(completion("Done."), after=lambda: proxy.count("/turns ") > 1)

    with (
        threaded_serving(slow) as model,
        service_at(settings_for(database_url, models_file=models_file(tmp_path, model.base_url))) as address,
        proxied(address) as proxy,
        Plimsoll(address) as other,
    ):
        async with talker(kind, proxy.url) as at:
            session = (await at.call("create_session")).id
            running = other.stream_turn(session, "First")
            events = iter(running)
            assert next(events).name == "turn.created"
            answer = await at.call("post_turn", session, "Second")
            assert proxy.count("/turns ") > 1, "it was not refused even once"
            assert answer.turn.seq == 2
            assert running.answer().turn.seq == 1
            hurried = at.with_patience(max_retries=0)
            third = other.stream_turn(session, "Third")
            next(iter(third))
            with pytest.raises(TurnInProgress) as refused:
                await hurried.call("post_turn", session, "Fourth")
            assert refused.value.retry_after_s == 1
            refused_for_good.set()
            third.answer()


@ALL
async def test_a_session_that_is_locked_by_other_work_is_waited_for(database_url: str, kind: Kind) -> None:
    with service_at(settings_for(database_url, db_lock_timeout_s=0.1)) as address, proxied(address) as proxy:
        async with talker(kind, proxy.url) as at, own_connection(database_url) as other:
            session_id = (await at.call("create_session")).id
            async with other.transaction(), asyncio.timeout(PATIENCE_S):
                await other.execute("SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE", session_id)
                posted = asyncio.create_task(at.call("post_turn", session_id, "Hi"))
                while proxy.count("/turns ") < 2:  # noqa: ASYNC110 - the proxy says nothing when it is refused once
                    await asyncio.sleep(0.01)
            assert (await posted).turn.seq == 1


@BOTH
async def test_a_wait_that_the_service_asks_for_is_obeyed_and_one_beyond_the_deadline_is_not_begun(kind: Kind) -> None:
    busy = {"code": "shutting_down", "title": "The process is shutting down", "detail": "Elsewhere.", "status": 503}
    script = (Answer(busy, status=503, headers={"Retry-After": "1"}), Answer({"status": "ok"}))
    with threaded_serving(*script) as server:
        async with talker(kind, _root(server.base_url)) as at:
            started = time.monotonic()
            assert (await at.call("get_health")).status == "ok"
            assert time.monotonic() - started >= 1
    with threaded_serving(Answer(busy, status=503, headers={"Retry-After": "30"})) as server:
        async with talker(kind, _root(server.base_url), deadline_s=20) as at:
            started = time.monotonic()
            with pytest.raises(Unavailable) as refused:
                await at.call("get_health")
            assert (refused.value.code, refused.value.retry_after_s) == ("shutting_down", 30)
            assert time.monotonic() - started < 15


@BOTH
@pytest.mark.parametrize(
    "script", [Answer(b"{}", delay_s=40), Stream([b" "] * 400, pause_s=0.1)], ids=["silent", "slow"]
)
@pytest.mark.parametrize("method", ["get_health", "stream_turn"])
async def test_no_call_takes_longer_than_its_deadline(kind: Kind, method: str, script: Answer | Stream) -> None:
    with threaded_serving(script) as server:
        async with talker(kind, _root(server.base_url), deadline_s=0.7) as at:
            started = time.monotonic()
            with pytest.raises(DeadlinePassed):
                await (at.call(method) if method == "get_health" else at.events(method, "s", "Hi"))
            assert 0.6 < time.monotonic() - started < 20


def _root(base_url: str) -> str:
    return base_url.removesuffix("/v1")


@ALL
async def test_something_else_at_the_address_is_reported_and_nothing_of_it_repeated(kind: Kind) -> None:
    page = Answer(b"<html>a secret page</html>", content_type="text/html")
    elsewhere = Answer(b"", status=302, headers={"Location": "http://127.0.0.1:1/"})
    other_fields = () if kind == "typescript" else (Answer({"status": 5}),)  # it checks no fields
    for answer in (page, elsewhere, *other_fields):
        with threaded_serving(answer) as server:
            async with talker(kind, _root(server.base_url), api_key="plk_canary") as at:
                with pytest.raises(UnexpectedAnswer) as wrong:
                    await at.call("get_health")
                assert "secret" not in str(wrong.value)
                assert server.hits == 1, "a redirect was followed"


@ALL
async def test_a_problem_that_has_openais_error_too_keeps_its_own_code_and_title(kind: Kind) -> None:
    error = {"message": "Unknown.", "type": "authentication_error", "param": None, "code": "invalid_api_key"}
    problem = {"title": "A key", "status": 401, "detail": "Unknown.", "code": "unauthenticated", "error": error}
    with threaded_serving(Answer(problem, status=401)) as server:
        async with talker(kind, _root(server.base_url)) as at:
            with pytest.raises(Problem) as refused:
                await at.call("get_models")
            assert (refused.value.code, refused.value.title) == ("unauthenticated", "A key")


@ALL
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (502, b"<html>Bad Gateway</html>"),
        (502, b'{"code": 502, "message": "Bad Gateway"}'),
        (504, b'{"error": {"code": 504, "message": "Deadline", "status": "DEADLINE_EXCEEDED"}}'),
        (522, b"error code: 522"),
        (500, b"upstream failed"),
    ],
)
async def test_what_a_proxy_says_when_it_cannot_reach_the_service_is_retried_whatever_its_words_are(
    kind: Kind, status: int, body: bytes
) -> None:
    alive = Answer({"status": "ok"})
    with threaded_serving(Answer(body, status=status), alive) as server:
        async with talker(kind, _root(server.base_url)) as at:
            await at.call("get_health")
            assert server.hits == 2
    with threaded_serving(Answer(body, status=status), alive) as server:
        async with talker(kind, _root(server.base_url)) as at:
            with pytest.raises(Problem):
                await at.call("create_session")
            assert server.hits == 1, "a call that may have been done was sent again"


@ALL
async def test_the_end_of_a_turn_that_the_database_was_away_for_is_not_waited_for_again(kind: Kind) -> None:
    """While it is away, the answer has `Retry-After`."""
    problem = {"type": "urn:plimsoll:problem:database_unavailable", "title": "Away", "status": 503, "detail": "Away."}
    ended = Answer(problem | {"code": "database_unavailable"}, status=503)
    away = Answer(problem | {"code": "database_unavailable"}, status=503, headers={"Retry-After": "0"})
    with threaded_serving(away, ended, Answer({"status": "ok"})) as server:
        async with talker(kind, _root(server.base_url)) as at:
            with pytest.raises(Unavailable):
                await at.call("get_health")
            assert server.hits == 2


@ALL
async def test_a_stream_from_something_else_is_reported_and_the_message_is_not_posted_again(kind: Kind) -> None:
    for body in (b"<html>\n\n<body>a secret page</body></html>", b"[" * 100_000):
        with threaded_serving(Answer(body, content_type="text/html")) as server:
            async with talker(kind, _root(server.base_url)) as at:
                with pytest.raises(UnexpectedAnswer) as wrong:
                    await at.events("stream_turn", "s", "Hi")
                assert "secret" not in str(wrong.value)
                assert server.hits == 1


@BOTH
async def test_a_refusal_that_is_nested_too_deeply_to_be_read_is_reported_as_its_status(kind: Kind) -> None:
    with threaded_serving(Answer(b"[" * 100_000, status=400)) as server:
        async with talker(kind, _root(server.base_url)) as at:
            with pytest.raises(Problem, match="400 unknown"):
                await at.call("create_session")


@BOTH
async def test_a_deadline_may_be_longer_than_any_timer(address: str, kind: Kind) -> None:
    for deadline_s in (1e12, float("inf")):
        async with talker(kind, address, deadline_s=deadline_s) as at:
            session = (await at.call("create_session")).id
            assert (await at.events("stream_turn", session, "Hi"))[-1].name == "turn.completed"


def test_every_error_comes_whole_out_of_another_process() -> None:
    turn = Turn.model_construct(id="t")
    document: dict[str, object] = {
        "code": "limit_exceeded",
        "title": "Over a limit",
        "detail": "None is left.",
        "limit": 0,
    }
    for error in (
        Unreachable("The service does not answer", maybe_done=True),
        DeadlinePassed(5.0),
        StreamBroken("It ended", session_id="s", turn_id="t", text="So far"),
        UnexpectedAnswer("The answer is not the expected one", 200),
        ToolLoopTooLong(turn, 3),
        problem_of(429, document, 2.0),
    ):
        same = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert (type(same), str(same), vars(same)) == (type(error), str(error), vars(error))


@ALL
async def test_refusals_are_errors_with_what_they_carry(address: str, kind: Kind) -> None:
    async with talker(kind, address) as at:
        session = (await at.call("create_session", policy={"max_context_tokens": 2048})).id
        with pytest.raises(ContextBudgetExceeded) as over:
            await at.call("post_turn", session, "word " * 2000)
        error = over.value
        assert error.budget.over_by == error.budget.estimated - error.budget.input_budget > 0
        assert (error.status, error.code) == (422, "context_budget_exceeded")
        assert error.shorten[0].by_tokens == error.budget.over_by
        assert error.largest_items[0].region == "user"
        assert error.regions["user"] > 2000
        with pytest.raises(InvalidRequest) as wrong:
            await at.call("post_turn", session, "")
        assert wrong.value.faults[0].where == "body.content"
        with pytest.raises(NotFound) as missing:
            await at.call("get_turn", session, session)
        assert missing.value.code == "turn_not_found"
        for strange in ("..", "../..", "a/b", "?", "#"):
            # `fetch` would read it as the address above: the client refuses it.
            with pytest.raises(ValueError if (kind, strange) == ("typescript", "..") else NotFound):
                await at.call("get_session", strange)
        await at.call("post_turn", session, "Hello", idempotency_key="k")
        with pytest.raises(IdempotencyKeyReused):
            await at.call("post_turn", session, "Other words", idempotency_key="k")
        limited = (await at.call("create_session", limits={"turns_per_day": 1})).id
        await at.call("post_turn", limited, "Hello")
        with pytest.raises(LimitExceeded) as used:  # it does not wait for tomorrow
            await at.with_patience(deadline_s=20).call("post_turn", limited, "Hello")
        assert used.value.limit is not None
        assert (used.value.limit.name, used.value.limit.value) == ("turns_per_day", 1)


SHOW = """
import asyncio, logging, os, sys, traceback
from plimsoll_sdk import AsyncPlimsoll, Plimsoll

logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)


def waiting(**options):
    with Plimsoll(**options) as client:
        print(client, repr(client.with_patience(max_retries=1)))
        print(client.list_sessions())


async def looping(**options):
    async with AsyncPlimsoll(**options) as client:
        print(client, repr(client.with_patience(max_retries=1)))
        print(await client.list_sessions())


key = os.environ["PLIMSOLL_API_KEY"]
for options in ({}, {"api_key": key[:-1] + "x"}, {"url": "http://127.0.0.1:1", "max_retries": 0}):
    for ask in (waiting, lambda **given: asyncio.run(looping(**given))):
        try:
            ask(**options)
        except Exception:
            traceback.print_exc(file=sys.stdout)
"""


def test_the_key_is_sent_and_shown_nowhere(database_url: str, tmp_path: Path) -> None:
    _, secret = make_key(database_url, "anna")
    with service_at(settings_for(database_url)) as address:
        output = subprocess.run(
            [sys.executable, "-c", SHOW],
            cwd=tmp_path,
            env={**os.environ, "PLIMSOLL_URL": address, "PLIMSOLL_API_KEY": secret},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=True,
        ).stdout
    for shown, times in {
        "items=[]": 2,
        "Unauthenticated: 401": 2,
        "Unreachable: ": 2,
        "send_request_headers": 8,
    }.items():
        assert output.count(shown) >= times, output
    assert secret[4:-1] not in output


NO_URLS = ("http://[::1", "http://host:port", "http://host:65536", "http://ho\nst")


@pytest.mark.parametrize("kind", [Plimsoll, AsyncPlimsoll])
def test_what_can_be_no_address_or_key_is_refused_at_once_and_not_quoted(kind: Any) -> None:
    for key in ("plk secret", "plk_secret\n", "plk_sécret"):
        with pytest.raises(ValueError, match="characters that no key has") as refused:
            kind(api_key=key)
        assert "cret" not in str(refused.value)
    for url in ("ftp://host", "host:8000", "http://", "http://me:secret@host", "http://host?key=secret", *NO_URLS):
        with pytest.raises(ValueError, match="url") as refused:
            kind(url)
        assert "secret" not in str(refused.value)
    for options in ({"deadline_s": 0}, {"deadline_s": float("nan")}, {"max_retries": -1}):
        with pytest.raises(ValueError, match="deadline_s"):
            kind(**options)


@ALL
async def test_lists_are_walked_page_by_page(address: str, kind: Kind) -> None:
    async with talker(kind, address) as at:
        made = [(await at.call("create_session")).id for _ in range(5)]
        assert [session.id for session in await at.all("iterate_sessions", limit=2)] == made[::-1]
        for name in "abc":
            await at.call("put_pin", made[0], name, "x")
        assert [pin.name for pin in await at.all("iterate_pins", made[0], limit=1)] == ["a", "b", "c"]
        page = await at.call("list_sessions", limit=4)
        assert [session.id for session in (await at.call("list_sessions", cursor=page.next_cursor)).items] == made[:1]
        assert await at.all("iterate_turns", made[0]) == []
        assert await at.all("iterate_summaries", made[0]) == []
