"""What grows with a session or a message is computed on a thread, where the event loop does not wait for it."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import httpx
from fastapi.openapi.utils import get_openapi

from app.api.routes.deployment import get_document
from app.core.config import Settings
from app.db.archive import exported_rows, fork_point
from app.db.messages import message_from_row
from app.db.simulation_rows import stored_turns
from app.domain.types import CompletionRequest, JsonObject, SessionId
from app.engine.messages import media
from app.engine.recall import bm25
from app.engine.simulation.stored_losses import StoredLosses
from app.engine.summary.block import fit_summary
from app.engine.summary.extractive import keep_lasting
from app.engine.summary.fold import Fold
from app.engine.window.columns import Columns
from app.engine.window.prompt import neutral_message
from app.main import create_app
from app.providers.offline import OfflineProvider
from app.services.heavy.child import receive, send
from app.services.turn.gather import settled_columns
from app.services.views.search import look_back, search_session
from app.services.views.simulation import SMALL_WORK, Variant, simulate
from app.services.views.turns import get_prompt
from tests.providers.server import Answer, Seen, serving
from tests.services.service import Service, chat, model, models_toml, ref_of, service, sound_summary

_WORDS = " ".join(f"word{number}" for number in range(20))


@contextmanager
def calls_here() -> Generator[set[object]]:
    """The code of all functions that this thread, which runs the event loop, calls in the block."""
    called: set[object] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            called.add(frame.f_code)

    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)


async def _long_session(at: Service, turns: int) -> SessionId:
    messages: list[JsonObject] = [
        {"role": role, "content": f"{number} {_WORDS}"} for number in range(turns) for role in ("user", "assistant")
    ]
    return (await at.imported({"messages": messages})).id


async def test_a_long_session_is_searched_and_looked_back_into_off_the_event_loop(
    database_url: str, tmp_path: Path
) -> None:
    """In 100,000 messages a search took 38 ms of the event loop, and a look-back 83 ms."""
    async with serving(chat("Noted.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = ref_of(await _long_session(at, 2_100))
        with calls_here() as called:
            found = await search_session(at.rt, session, _WORDS, 5)
            page = await look_back(at.rt, session, query=_WORDS, handle=None, page=None)
        assert search_session.__code__ in called
        assert bm25.search.__code__ not in called
        assert len(found.items) == 5
        assert page.handles


async def test_the_messages_of_a_long_summary_are_gathered_off_the_event_loop(
    database_url: str, tmp_path: Path
) -> None:
    """Of 20,000 messages that took 18 ms of the event loop, in the session's first turn."""
    async with serving(chat("Noted.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session_id = await _long_session(at, 600)
        with calls_here() as called:
            done = await at.turn(session_id, "And now?")
        assert done.summary is not None
        assert Fold.sources.func.__code__ not in called


async def test_a_summary_that_is_far_over_its_cap_is_cut_off_the_event_loop(database_url: str, tmp_path: Path) -> None:
    """The text of an answer of 3.6 MB was counted again and again on it, to find where to end it: 6.6 s."""

    def summary(request: Seen) -> Answer:
        answer = json.loads(sound_summary(request).body["choices"][0]["message"]["content"])
        return chat(json.dumps(answer | {"summary_text": f"{_WORDS} " * 500}))

    async with (
        serving(model(summary=summary)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session_id = await _long_session(at, 20)
        with calls_here() as called:
            done = await at.turn(session_id, "And now?")
        assert done.summary is not None
        assert done.summary.origin == "model"
        assert keep_lasting.__code__ in called
        assert fit_summary.__code__ not in called


async def test_stored_turns_are_converted_and_their_losses_counted_off_the_event_loop_for_a_simulation(
    database_url: str, tmp_path: Path
) -> None:
    """A turn of 30,000 messages took 150 ms of the event loop, and 2,000 ranges of trim logs, each over 8,000 messages,
    8 seconds."""
    async with serving(chat("Noted.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = await at.session()
        await at.turn(session.id, "Hello")
        with calls_here() as called:
            await simulate(at.rt, ref_of(session.id), [Variant("same", {})])
        assert simulate.__code__ in called
        assert stored_turns.__code__ in called
        assert message_from_row.__code__ not in called
        assert StoredLosses.feed.__code__ not in called


async def test_what_a_job_in_another_process_gets_is_encoded_off_the_event_loop(
    database_url: str, tmp_path: Path
) -> None:
    """Of a simulated turn of 30,000 messages that took 420 ms."""
    async with serving(chat("Noted.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        session = ref_of(await _long_session(at, SMALL_WORK + 1))
        with calls_here() as called:
            await simulate(at.rt, session, [Variant("same", {})])
        assert at.rt.jobs.pids
        assert stored_turns.__code__ in called
        assert not {send.__code__, receive.__code__} & called


async def test_the_pages_of_a_large_file_are_counted_off_the_event_loop(database_url: str, tmp_path: Path) -> None:
    """Those of 3 MB took 20 ms of the event loop, and 8,000 small files 46 ms."""
    data = base64.b64encode(b"/Type /Page " * 20_000).decode()
    content = [{"type": "file", "file": {"file_data": f"data:application/pdf;base64,{data}"}}]
    async with (
        serving(chat("Noted.")) as server,
        service(database_url, models_toml(server, window=100_000_000), folder=tmp_path) as at,
    ):
        session = await at.session()
        with calls_here() as called:
            done = await at.turn(session.id, content)
        assert done.context["estimated_wire_tokens"] > 1_000 * 20_000
        assert media.pdf_pages.__code__ not in called


async def test_large_tools_are_counted_off_the_event_loop_by_the_built_in_model() -> None:
    """A megabyte of tools took 24 ms of the event loop."""
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(threading.get_ident())
        return len(text)

    tools = ({"type": "function", "function": {"name": "look_up", "description": "word " * 20_000}},)
    request = CompletionRequest(messages=[{"role": "user", "content": "Hello"}], max_output_tokens=10, tools=tools)
    await OfflineProvider(count).complete(request)
    assert counted
    assert threading.get_ident() not in counted


async def test_a_turn_of_hundreds_of_messages_is_exported_in_parts(database_url: str, tmp_path: Path) -> None:
    """Those of one turn were converted at once: 40,000 took 45 ms of the event loop."""
    async with serving(chat("Noted.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        said = [{"role": "user", "content": f"{number}"} for number in range(250)]
        session = await at.imported({"messages": [*said, {"role": "assistant", "content": "Noted."}]})
        async with at.rt.database.begin(snapshot=True) as tx:
            point = await fork_point(tx, session.id, None)
            parts = [len(rows) async for rows in exported_rows(tx, session.id, "messages", point)]
        assert parts == [100, 100, 51]


async def test_large_messages_are_exported_a_few_at_a_time(database_url: str, tmp_path: Path) -> None:
    """Those of 25 turns were read at once: 25 messages of 4 MB with an emoji took 700 MB of the process."""
    async with serving(chat("Noted.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        said = [{"role": "user", "content": f"{number} " + "word " * 700_000} for number in range(5)]
        session = await at.imported({"messages": said})
        async with at.rt.database.begin(snapshot=True) as tx:
            point = await fork_point(tx, session.id, None)
            parts = [len(rows) async for rows in exported_rows(tx, session.id, "messages", point)]
        assert parts == [2, 2, 1]


async def test_a_turn_of_thousands_of_texts_is_read_into_columns_off_the_event_loop(
    database_url: str, tmp_path: Path
) -> None:
    """One of 30,000 took 25 ms of the event loop."""
    async with serving(chat("Noted.")) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        said = [{"role": "user", "content": f"{number}"} for number in range(4_200)]
        reply = {"role": "assistant", "content": "Noted."}
        session = await at.imported({"messages": [*said, reply, {"role": "user", "content": "And"}, reply]})
        with calls_here() as called:
            await at.turn(session.id, "And now?")
        assert settled_columns.__code__ in called
        assert Columns.extend_texts.__code__ not in called


async def test_a_long_prompt_is_rebuilt_off_the_event_loop(database_url: str, tmp_path: Path) -> None:
    """One of 20,000 messages was rebuilt twice on it after its hash was checked: 150 ms."""
    async with (
        serving(chat("Noted.")) as server,
        service(database_url, models_toml(server, window=1_000_000), folder=tmp_path) as at,
    ):
        session_id = await _long_session(at, 20)
        turn = (await at.turn(session_id, "And now?")).turn
        with calls_here() as called:
            prompt = await get_prompt(at.rt, ref_of(session_id), turn.id, None)
        assert len(prompt.messages) == len(prompt.layout) > 8
        assert get_prompt.__code__ in called
        assert neutral_message.__code__ not in called


async def test_the_openapi_document_is_made_off_the_event_loop() -> None:
    """It took 0.7 s of it, once in each process."""
    app = create_app(Settings.model_construct())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        with calls_here() as called:
            answer = await client.get("/openapi.json")
    assert get_document.__code__ in called
    assert get_openapi.__code__ not in called
    assert answer.json() == app.openapi()
