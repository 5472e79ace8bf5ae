"""Random walks of a session: whatever has happened to it, its export can be imported, and its import, its fork and an
import of the fork would send the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from app.domain.errors import (
    ContextBudgetExceeded,
    NotFound,
    NothingToSummarize,
    ProviderRefused,
    SummaryNotActive,
    TurnInProgress,
)
from app.domain.responses import item_id
from app.domain.types import SUMMARY_LISTS, JsonObject, Pin, SessionId, TurnId, TurnStatus
from app.services.archive.transfer import fork_session
from app.services.openai.conversations import add_items, withdraw_item
from app.services.sessions import change_session, put_pin
from app.services.summaries import edit_summary, list_summaries, summarize_now, undo_summary
from app.services.turn.take import cancel_turn, prepare_regeneration, regenerate_turn, retry_turn
from app.services.turn.types import TurnOptions, TurnRequest
from app.services.views.preview import preview_turn
from app.services.views.turns import get_prompt, get_turn, list_turns
from tests.providers.server import Answer, Seen, serving
from tests.services.service import (
    NEWEST,
    OLDEST,
    TENANT,
    Service,
    chat,
    client_tools,
    is_summary,
    model,
    models_toml,
    ref_of,
    service,
)
from tests.services.test_archive import export_document, import_document, without_ids
from tests.services.test_tools import TOOLS, calls

_STEPS = 40
_ANY_ID = UUID(int=7)
_POLICIES: tuple[JsonObject, ...] = (
    {},
    {"preset": "rolling"},
    {"preset": "allocated"},
    {"mandatory_summary_turn": 3, "protected_turns": 1},
)
_LEGAL = (ContextBudgetExceeded, NotFound, NothingToSummarize, ProviderRefused, SummaryNotActive, TurnInProgress)
_ACTS = {
    "turn": 8, "too_long": 2, "policy": 1, "withdraw": 1, "undo": 1, "summarize": 1, "edit": 1, "pin": 1,
    "add": 1, "fork": 1, "import": 1, "regenerate": 1,
}  # fmt: skip
_ACTS_BY_STATUS = {
    TurnStatus.AWAITING_TOOLS: {"outputs": 12, "cancel": 2},
    TurnStatus.FAILED: {"retry": 20, "summarize": 10, "pin": 3},
    TurnStatus.CANCELLED: {"retry": 4},
}


@dataclass
class _ExportWalk:
    """A session, which a fork, an import or another try of its last turn replaces; `done` counts what happened."""

    at: Service
    random: Random
    session_id: SessionId
    done: Counter[str] = field(default_factory=Counter[str])

    async def turns(self) -> list[Any]:
        return (await list_turns(self.at.rt, ref_of(self.session_id), OLDEST)).items

    async def step(self) -> None:
        newest = (await self.turns())[-1:]
        acts = _ACTS | (_ACTS_BY_STATUS.get(newest[0].status, {}) if newest else {})
        (act,) = self.random.choices([*acts], [*acts.values()])
        try:
            if act in ("fork", "import", "regenerate"):
                self.session_id = await self._other(act, *newest)
            elif act in ("retry", "outputs", "cancel"):
                await self._go_on(act, newest[0].id)
            else:
                await self._change(act)
            self.done[act] += 1
        except _LEGAL as error:
            self.done[type(error).__name__] += 1

    def _words(self) -> str:
        return " ".join(self.random.choices(("bees", "cranes", "ledger", "rows"), k=self.random.choice((5, 150, 250))))

    async def _change(self, act: str) -> None:
        rt, session, random = self.at.rt, ref_of(self.session_id), self.random
        match act:
            case "policy":
                await change_session(rt, session, {"policy": random.choice(_POLICIES)})
            case "pin":
                await put_pin(rt, session, Pin(random.choice("abc"), self._words(), random.random()))
            case "add":
                item = {"type": "message", "role": random.choice(("user", "assistant")), "content": self._words()}
                await add_items(rt, session, [item])
            case "withdraw":
                rows = await self.at.rows("SELECT seq FROM messages WHERE session_id = :id", id=session.id)
                seqs = [row["seq"] for row in rows] or [1]
                await withdraw_item(rt, session, item_id("msg", session.id, random.choice(sorted(seqs))))
            case "summarize":
                await summarize_now(rt, session)
            case "undo":
                await undo_summary(rt, session, None)
            case "edit":
                for summary in (await list_summaries(rt, session, NEWEST)).items[:1]:
                    await edit_summary(rt, session, summary.id, {"summary_text": f"Edited {random.random()}."})
            case "too_long":
                await self.at.turn(session.id, "word " * random.choice((2000, 2500, 3000, 9000)))
            case _:
                ending = random.choices(("", "look", "break look", "break"), (6, 2, 4, 1))[0]
                await self.at.turn(session.id, f"{self._words()} {ending}", tools=TOOLS)

    async def _go_on(self, act: str, turn_id: TurnId) -> None:
        rt, session = self.at.rt, ref_of(self.session_id)
        turn = await get_turn(rt, session, turn_id)
        if act == "cancel":
            await cancel_turn(rt, session, turn_id)
        elif act == "outputs":
            ending = self.random.choice(("look", "break", "the end"))
            output = f"{'1 ' * self.random.choice((3, 300))}{ending}"
            await self.at.outputs(session.id, turn_id, {call.id: output for call in turn.tool_calls})
        else:
            await retry_turn(rt, session, turn_id, TurnOptions(TOOLS), "main")

    async def _other(self, act: str, newest: Any = None) -> SessionId:
        rt, session = self.at.rt, ref_of(self.session_id)
        if act == "import":
            return await import_document(self.at, await export_document(self.at, session.id))
        if act == "fork" or newest is None:
            return (await fork_session(rt, session, None)).id
        request = TurnRequest(self._words(), "0" * 64, TurnOptions())
        prepared = await prepare_regeneration(rt, session, newest.id, request)
        with suppress(ProviderRefused, ContextBudgetExceeded):
            await regenerate_turn(rt, TENANT, prepared)
        return prepared[0].id

    async def check(self) -> None:
        """Imports and forks of what the session is now are the same and send the same."""
        at = self.at
        await at.rt.chores.settle()
        document = await export_document(at, self.session_id)
        imported = await import_document(at, document)
        assert without_ids(await export_document(at, imported)) == without_ids(document)
        fork = (await fork_session(at.rt, ref_of(self.session_id), None)).id
        await self._send_the_same(fork, imported, await import_document(at, await export_document(at, fork)))
        turns = await self.turns()
        for turn in turns:
            with suppress(NotFound):  # it has sent nothing
                await get_prompt(at.rt, ref_of(self.session_id), turn.id, None)
        if turns:
            with suppress(TurnInProgress):
                middle = (await fork_session(at.rt, ref_of(self.session_id), self.random.choice(turns).id)).id
                await self._send_the_same(middle, await import_document(at, await export_document(at, middle)))

    async def _send_the_same(self, *sessions: SessionId) -> None:
        rt, request = replace(self.at.rt, new_id=lambda: _ANY_ID), TurnRequest("Cranes?", "0" * 64, TurnOptions())
        sent = [(await preview_turn(rt, ref_of(each), request)).context["prompt_sha256"] for each in sessions]
        assert len({*sent}) == 1


def _failing_model(random: Random) -> Callable[[Seen], Answer]:
    def play(request: Seen) -> Answer:
        messages = request.json["messages"]
        content, number = str(messages[-1]["content"]), len(messages)
        if "break" in content and random.random() < 0.5:
            return Answer({"error": {"message": "no"}}, status=400)
        if client_tools(request) and "look" in content:
            return calls(f"{number}a", f"{number}b", text=random.choice((None, "Let me see.")))
        return chat(f"So it is. {content[:300]}")

    return play


def _citing_summarizer(random: Random) -> Callable[[Seen], Answer]:
    """A summary that cites any messages which the summarizer was shown."""

    def play(request: Seen) -> Answer:
        shown = json.loads(request.json["messages"][-1]["content"])
        ids = [message["id"] for message in shown["messages"] + shown["context_messages"] if "id" in message]
        text = "The earlier part. " + "word " * random.choice((1, 1, 200))
        items = [
            [{"text": f"Port 84{random.randrange(99)}.", "message_ids": random.sample(ids, min(len(ids), 2))}]
            for _ in SUMMARY_LISTS
        ]
        return chat(json.dumps({"summary_text": text, **dict(zip(SUMMARY_LISTS, items, strict=True))}))

    return play


@pytest.mark.parametrize("seed", [8, 14])
async def test_an_export_and_a_fork_go_on_as_the_session_does(database_url: str, tmp_path: Path, seed: int) -> None:
    random, of_model = Random(seed), Random(seed + 1000)  # noqa: S311 - no secret
    async with (
        serving(model(_failing_model(of_model), _citing_summarizer(of_model))) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        walk = _ExportWalk(at, random, (await at.session(policy=random.choice(_POLICIES))).id)
        for _ in range(_STEPS):
            await walk.step()
            await walk.check()
    needed = ("ProviderRefused", "ContextBudgetExceeded", "retry", "outputs", "fork", "import")
    assert any(map(is_summary, server.seen))
    assert all(walk.done[each] for each in needed), walk.done
