"""Two sessions with the same history: workers that keep pasts and open turns run the one, round by round in turns, and
a worker that reads everything the other. Both decide and send the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from app.domain.errors import NotFound, PlimsollError
from app.domain.responses import item_id
from app.domain.types import JsonObject, Pin, SessionId, ToolCall, TurnId, TurnStatus
from app.engine.window.look_back import NAME
from app.services.archive.transfer import fork_session
from app.services.openai.conversations import withdraw_item
from app.services.pasts import Pasts
from app.services.runtime import Runtime
from app.services.sessions import change_session, put_pin
from app.services.summaries import summarize_now, undo_summary
from app.services.turn.take import cancel_turn, continue_turn, retry_turn
from app.services.turn.types import OutputsRequest, TurnOptions, TurnOutcome, TurnRequest
from app.services.views.preview import preview_turn
from app.services.views.turns import get_audit, get_prompt, list_turns
from tests.engine.pictures import image, png
from tests.providers.server import Answer, Seen, serving
from tests.providers.wires import OPENAI, ModelReply
from tests.services.service import OLDEST, Service, client_tools, model, outputs_of, ref_of, service
from tests.services.test_tools import TOOLS

_STEPS = 70
_NO_TURN = TurnId(UUID(int=0))
_POLICIES: tuple[JsonObject, ...] = (
    {},
    {"preset": "rolling", "look_back": "on"},
    {"preset": "allocated"},
    {"auto_summarize": False, "protected_turns": 1},
    {"mandatory_summary_turn": 3},
    {"estimator": "heuristic"},
)
_ALIAS = """
[models.{alias}]
provider = "openai"
model = "{name}"
base_url = "{url}"
context_window = {window}
return_reasoning = "tool_loop"
"""
_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_OPS = {
    "turn": 8, "outputs": 40, "preview": 3, "pin": 1, "policy": 1, "retry": 1, "cancel": 0.5, "withdraw": 0.5,
    "summarize": 0.7, "undo": 0.5, "fork": 0.3,
}  # fmt: skip


@dataclass
class _Twin:
    """A session, and its newest turn with the calls that it waits for."""

    at: Service
    session_id: SessionId
    turn_id: TurnId = _NO_TURN
    calls: tuple[ToolCall, ...] = ()


_Op: TypeAlias = Callable[[Runtime, _Twin], Awaitable[object]]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_workers_that_run_rounds_of_a_turn_in_turns_send_what_one_does_that_reads_everything(
    database_url: str, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)  # noqa: S311 - no secret
    async with serving(model(_answer)) as server:
        models = 'default = "main"\n' + "".join([
            _ALIAS.format(alias=alias, name=name, window=window, url=server.base_url)
            for alias, name, window in (("main", "gpt-4o", 6000), ("other", "gpt-4-vision-preview", 5000))
        ])  # fmt: skip
        async with (  # each learns from its own calls how far estimates are off
            service(database_url, models, folder=tmp_path) as at,
            service(database_url, models, folder=tmp_path) as reading,
        ):
            policy, most_bytes = random.choice(_POLICIES), random.choice((1 << 24, 100_000))
            kept, read = [_Twin(each, (await each.session(policy=policy)).id) for each in (at, reading)]
            reader, workers = _worker(reading.rt, 0), [_worker(at.rt, most_bytes) for _ in range(2)]
            for step in range(_STEPS):
                name, op = _next(random, kept)
                worker = random.randrange(2)
                if random.random() < 0.05:
                    workers[worker] = _worker(at.rt, most_bytes)  # it died, and another one begins
                seen = [await _seen(op, rt, twin) for rt, twin in ((workers[worker], kept), (reader, read))]
                assert seen[0] == seen[1], (step, name)
            for twin in (kept, read):
                await _rebuild_prompts(twin)


def _worker(rt: Runtime, most_bytes: int) -> Runtime:
    return replace(rt, pasts=Pasts(most_bytes, monotonic, rt.telemetry))


def _answer(request: Seen) -> Answer:
    """Calls tools as the last message says, with reasoning; after 80 messages it answers."""
    messages = request.json["messages"]
    content, number = str(messages[-1]["content"]), len(messages)
    if "break" in content:
        return Answer({"error": {"message": "no such thing"}}, status=400)
    calls: list[ToolCall] = []
    if client_tools(request) and "look" in content and number < 80:
        calls = [ToolCall(f"{number}{letter}", "look_up", "{}") for letter in "ab"]
    if "glance" in content and any(tool["function"]["name"] == NAME for tool in request.json.get("tools", ())):
        calls.append(ToolCall(f"{number}c", NAME, '{"query": "bees cranes"}'))
    return OPENAI.whole(ModelReply(f"So it is. {content[:200]}", "I think. " * (number % 3), tuple(calls)))


async def _seen(op: _Op, rt: Runtime, twin: _Twin) -> str:
    """What comes of it, without the ids that the twins do not share."""
    try:
        result = await op(rt, twin)
    except PlimsollError as error:
        result = type(error)
    if isinstance(result, TurnOutcome):
        twin.turn_id, twin.calls = result.turn.id, result.turn.tool_calls
        result = (result.turn.status, result.turn.assistant_output, result.turn.tool_calls, result.context)
    return _ID.sub("", str(result))


async def _rebuild_prompts(twin: _Twin) -> None:
    """Every prompt is rebuilt, which is held against its hash, and its messages have the tokens of its audit."""
    for turn in (await list_turns(twin.at.rt, ref_of(twin.session_id), OLDEST)).items:
        try:
            for number in range(1, 100):
                prompt = await get_prompt(twin.at.rt, ref_of(twin.session_id), turn.id, number)
                audit = await get_audit(twin.at.rt, ref_of(twin.session_id), turn.id, number)
                tokens = Counter[str]()
                for row in prompt.layout:
                    tokens[str(row.region)] += row.tokens
                assert tokens == Counter({**audit.regions, "framing": 0, "tools": 0})
        except NotFound:
            continue


def _next(random: Random, twin: _Twin) -> tuple[str, _Op]:
    """The next operation, with all that is random about it. Turns are posted while none is open, outputs while one
    is."""
    odds = _OPS | {"turn": 0.2 if twin.calls else 30, "outputs": 40 if twin.calls else 0.5}
    (name,) = random.choices([*odds], [*odds.values()])
    return name, _operation(name, random)


def _operation(name: str, random: Random) -> _Op:
    words = " ".join(random.choices(("bees", "cranes", "ledger", "rows"), k=random.choice((5, 40))))
    (ending,) = random.choices(("look", "look and glance", "break", "done"), (20, 3, 1, 1))
    content: Any = random.choice((f"{words} {ending}", [{"type": "text", "text": words}, image(png(600, 400))]))
    if name == "outputs" and random.random() < 0.8:
        content = f"{'1 ' * random.choice((3, 200))} {ending}"
    (alias,) = random.choices(("main", "other", None), (1, 1, 12))
    policy, share = random.choice(_POLICIES), random.random()

    async def turn(rt: Runtime, twin: _Twin) -> object:
        return await Service(rt).turn(twin.session_id, content, model_alias=alias, tools=TOOLS)

    async def outputs(rt: Runtime, twin: _Twin) -> object:
        request = OutputsRequest(outputs_of({call.id: content for call in twin.calls}), model_alias=alias)
        return await continue_turn(rt, ref_of(twin.session_id), twin.turn_id, request)

    async def preview(rt: Runtime, twin: _Twin) -> object:
        return await preview_turn(rt, ref_of(twin.session_id), TurnRequest(content, "", model_alias=alias))

    async def pin(rt: Runtime, twin: _Twin) -> object:
        return (await put_pin(rt, ref_of(twin.session_id), Pin("note", words, share))).content

    async def change_policy(rt: Runtime, twin: _Twin) -> object:
        return (await change_session(rt, ref_of(twin.session_id), {"policy": policy})).policy

    async def retry(rt: Runtime, twin: _Twin) -> object:
        return await retry_turn(rt, ref_of(twin.session_id), twin.turn_id, TurnOptions(TOOLS), alias or "main")

    async def cancel(rt: Runtime, twin: _Twin) -> object:
        cancelled = await cancel_turn(rt, ref_of(twin.session_id), twin.turn_id)
        twin.calls = ()
        return cancelled.status

    async def withdraw(rt: Runtime, twin: _Twin) -> object:
        """A message of the newest ones."""
        rows = await twin.at.rows(
            "SELECT m.seq, t.status FROM messages m JOIN turns t ON t.session_id = m.session_id AND t.id = m.turn_id"
            " WHERE m.session_id = :id AND NOT m.withdrawn AND t.status <> 'rejected' ORDER BY m.seq DESC LIMIT 20",
            id=twin.session_id,
        )
        if not rows:
            return None
        row = rows[int(share * len(rows))]
        await withdraw_item(rt, ref_of(twin.session_id), item_id("msg", twin.session_id, row["seq"]))
        twin.calls = () if row["status"] == TurnStatus.AWAITING_TOOLS else twin.calls
        return row

    async def summarize(rt: Runtime, twin: _Twin) -> object:
        return (await summarize_now(rt, ref_of(twin.session_id))).summary_text

    async def undo(rt: Runtime, twin: _Twin) -> object:
        return (await undo_summary(rt, ref_of(twin.session_id), None)).summary_text

    async def fork(rt: Runtime, twin: _Twin) -> object:
        twin.session_id, twin.calls = (await fork_session(rt, ref_of(twin.session_id), None)).id, ()
        return None

    return {
        "turn": turn, "outputs": outputs, "preview": preview, "pin": pin, "policy": change_policy, "retry": retry,
        "cancel": cancel, "withdraw": withdraw, "summarize": summarize, "undo": undo, "fork": fork,
    }[name]  # fmt: skip
