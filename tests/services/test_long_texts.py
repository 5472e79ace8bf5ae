"""Long texts around the messages (instructions, goal, pins, tools): neither counted, hashed nor sent twice where the
event loop would wait for it, and what is sent of them can be rebuilt."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from app.domain.errors import ContextBudgetExceeded, PlimsollError
from app.domain.types import JsonObject, Pin, SessionId
from app.services.sessions import delete_session, put_pin
from app.services.summaries import summarize_now
from app.services.turn.types import TurnOptions, TurnRequest
from app.services.views.context import pin_figures, window_now
from app.services.views.preview import preview_turn
from app.services.views.turns import get_prompt
from app.tokenizers.counters import Tokenizers
from app.tokenizers.vocabularies import load_vocabulary
from tests.providers.server import serving
from tests.services.service import Service, chat, models_toml, ref_of, service

_LONG = "a long text of twenty thousand characters and more " * 500


class _Threads:
    """The vocabulary, and whether this thread, which runs the event loop, has counted a long text with it."""

    def __init__(self) -> None:
        self.counted_here: list[str] = []
        self.long_texts = 0
        self._loop = threading.get_ident()

    def count(self, text: str) -> int:
        if len(text) >= 20_000:
            self.long_texts += 1
            if threading.get_ident() == self._loop:
                self.counted_here.append(text[:60])
        return load_vocabulary("o200k_base").count(text)


def _tool(number: int) -> JsonObject:
    return {"type": "function", "function": {"name": f"tool_{number}", "description": f"{number} {_LONG}"}}


_AROUND = ("instructions", "goal", "pins", "instructions of the turn", "tools")


async def _session(at: Service, around: str) -> tuple[SessionId, TurnOptions]:
    fields = {"instructions": {"instructions": _LONG}, "goal": {"room_goal": _LONG}}.get(around, {})
    session = await at.session(**fields)
    if around == "pins":
        for number in range(12):
            await put_pin(at.rt, ref_of(session.id), Pin(f"pin {number}", f"{number} {_LONG}"))
    of_turn = {
        "instructions of the turn": TurnOptions(instructions=_LONG),
        "tools": TurnOptions(tools=tuple(map(_tool, range(6)))),
    }
    return session.id, of_turn.get(around, TurnOptions())


@pytest.mark.parametrize("around", _AROUND)
@pytest.mark.parametrize("window", [4096, 1_000_000])
async def test_long_texts_around_the_messages_are_counted_off_the_event_loop(
    database_url: str, tmp_path: Path, around: str, window: int
) -> None:
    """Four megabytes of instructions kept every request of the process waiting for 0.3 s, such tools for a second."""
    vocabulary = _Threads()
    async with (
        serving(chat("Noted.")) as server,
        service(
            database_url,
            models_toml(server, window=window),
            folder=tmp_path,
            tokenizers=Tokenizers(lambda _encoding: vocabulary),
        ) as at,
    ):
        session_id, options = await _session(at, around)
        request = TurnRequest("Hello", "x", options)
        await preview_turn(at.rt, ref_of(session_id), request)
        await window_now(at.rt, ref_of(session_id))
        await pin_figures(at.rt, ref_of(session_id))
        for _ in range(2):
            if window < 100_000:
                with pytest.raises(ContextBudgetExceeded):
                    await at.turn(session_id, "Hello", tools=options.tools, instructions=options.instructions)
                continue
            done = await at.turn(session_id, "Hello", tools=options.tools, instructions=options.instructions)
            await get_prompt(at.rt, ref_of(session_id), done.turn.id, None)
        assert vocabulary.long_texts
        assert vocabulary.counted_here == []


async def test_long_blocks_are_sent_to_the_database_once(database_url: str, tmp_path: Path) -> None:
    """Each turn sent all its pins to the database again, as one value of JSON."""
    async with (
        serving(chat("Noted.")) as server,
        service(database_url, models_toml(server, window=10_000_000), folder=tmp_path) as at,
    ):
        session = await at.session(instructions="Be brief.")
        for number in range(3):
            await put_pin(at.rt, ref_of(session.id), Pin(f"pin {number}", f"{number} {_LONG * 20}"))
        for _ in range(2):
            done = await at.turn(session.id, "Hello")
            prompt = await get_prompt(at.rt, ref_of(session.id), done.turn.id, None)
            assert prompt.messages == server.seen[-1].json["messages"]
        await put_pin(at.rt, ref_of(session.id), Pin("pin 1", f"another {_LONG * 20}"))
        changed = await at.turn(session.id, "Hello")
        await get_prompt(at.rt, ref_of(session.id), changed.turn.id, None)
        stored = await at.rows("SELECT length(content) AS chars, created_at FROM prompt_blocks ORDER BY 1")
        assert [row["chars"] > 500_000 for row in stored] == [False, True, True, True, True]


async def test_a_session_that_is_erased_while_its_turn_runs_leaves_no_long_block(
    database_url: str, tmp_path: Path
) -> None:
    erased = asyncio.Event()
    async with (
        serving(replace(chat("Noted."), after=erased.is_set)) as server,
        service(database_url, models_toml(server, window=10_000_000), folder=tmp_path) as at,
    ):
        session = await at.session()
        for number in range(3):
            await put_pin(at.rt, ref_of(session.id), Pin(f"pin {number}", f"{number} {_LONG * 20}"))
        turn = asyncio.create_task(at.turn(session.id, "Hello"))
        await server.arrived.wait()
        await delete_session(at.rt, ref_of(session.id))
        erased.set()
        with pytest.raises(PlimsollError):
            await turn
        assert await at.rows("SELECT 1 FROM prompt_blocks") == []


async def test_a_summary_without_a_summarizer_is_made_of_long_messages_off_the_event_loop(
    database_url: str, tmp_path: Path
) -> None:
    """Every sentence is read for it. Of six messages of four megabytes that kept the event loop for 8.8 s of CPU."""
    words = "We ship the order 4711 on Monday. The price is 12 euros, and it must not change! Who signs? " * 2_000
    messages = [{"role": role, "content": f"{at} {words}"} for at in range(8) for role in ("user", "assistant")]
    async with (
        serving(chat("This is no summary.")) as server,
        service(database_url, models_toml(server, window=2_000_000), folder=tmp_path) as at,
    ):
        session = await at.imported({"messages": messages})
        await window_now(at.rt, ref_of(session.id))  # which counts what has no count yet
        of_loop, of_all = time.thread_time(), time.process_time()
        made = await summarize_now(at.rt, ref_of(session.id))
        of_loop, of_all = time.thread_time() - of_loop, time.process_time() - of_all
        assert made.origin == "fallback"
        assert of_loop < of_all / 4, f"{of_loop:.2f} s of {of_all:.2f} s"
