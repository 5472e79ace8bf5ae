"""A fork has the ids of its source: what is read of the one is never of the other, whatever happens there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import monotonic
from uuid import UUID

import pytest

from app.db.claims import Claim, renew_lease, waiting_turn
from app.db.recall import save_vectors
from app.db.records import TurnEnd, record_end, recorded_before
from app.db.simulation_rows import dated_pins, stored_aliases, stored_totals, stored_turns
from app.db.turns import fail_lost_turns, newest_messages, newest_of
from app.db.turns import get_turn as stored_turn
from app.domain.errors import ContextBudgetExceeded, NotFound, ProviderError, existing
from app.domain.incoming import IncomingMessage
from app.domain.responses import ResponseRef, item_id
from app.domain.types import Pin, SessionId, SessionRef, TurnId, TurnStatus
from app.openai.chat_messages import cut_turns
from app.services.archive.transfer import draft_history, export_session, fork_session
from app.services.openai.conversations import page_of_items, withdraw_item
from app.services.openai.responses import delete_response
from app.services.pasts import Pasts
from app.services.runtime import Runtime
from app.services.sessions import (
    delete_pin,
    delete_session,
    figures_of,
    get_session,
    list_pins,
    put_pin,
    session_state,
    session_usage,
)
from app.services.summaries import edit_summary, list_summaries, summarize_now, undo_summary
from app.services.turn.additions import Additions, draft_outputs
from app.services.turn.outcome import stored_outcome
from app.services.turn.take import cancel_turn, retry_turn, take_turn
from app.services.turn.types import TurnOptions, TurnRequest
from app.services.views.context import pin_figures, read_overview, read_timeline, window_now
from app.services.views.preview import preview_turn
from app.services.views.search import look_back, search_session
from app.services.views.turns import get_expanded_audit, get_messages, get_prompt, get_turn, list_messages, list_turns
from tests.providers.server import serving
from tests.services.service import NEWEST, OLDEST, TENANT, Service, model, models_toml, outputs_of, ref_of, service
from tests.services.test_erasing import every_row, of_a_session, session_with_a_row_in_every_table, with_models
from tests.services.test_forks import busy_session, reply
from tests.services.test_tools import TOOLS

_CHANGED = (
    "UPDATE messages SET content = '\"Of the other.\"', tool_calls = NULL, name = 'other', token_estimate = 9999",
    "UPDATE turns SET status = 'failed', user_input = 'Of the other.', assistant_output = NULL, model_alias = 'other'",
    "UPDATE turn_steps SET status = 'failed', detail = '{\"of\": \"the other\"}'",
    "UPDATE turn_context_audit SET input_budget = 1, estimated_wire_tokens = 9999, prompt_sha256 = 'other'",
    "UPDATE prompt_blocks SET content = 'Of the other.'",
    "UPDATE session_summaries SET summary_text = 'Of the other.', key_facts = '[]', created_by_turn_id = NULL",
    "UPDATE pins SET content = 'Of the other.', relevance = 1",
)
"""Every row that a session has, changed so that one that is read in place of the other's shows."""
_LEFT_OUT = (
    "UPDATE turns SET status = 'rejected'",
    "UPDATE messages SET withdrawn = true, terms = NULL",
    "UPDATE turn_steps SET kind = 'summarize', status = 'failed'",
    "UPDATE session_summaries SET status = 'undone', created_by_turn_id = NULL",
)
"""No turn, message or summary that counts any more."""
_RENUMBERED = ("UPDATE turns SET seq = seq + 1000", "UPDATE messages SET seq = seq + 1000")
"""The same ids under other numbers."""
_OPEN = (
    "UPDATE turns SET status = 'running', completed_at = NULL"
    " WHERE seq = (SELECT max(t.seq) FROM turns t WHERE t.session_id = turns.session_id)",
)
"""A turn that runs."""


@pytest.mark.parametrize("other", ["fork", "source"])
async def test_a_session_reads_the_same_whatever_stands_in_one_with_the_same_ids(
    database_url: str, tmp_path: Path, other: str
) -> None:
    """Of two rows with one id, the older one is usually found first: so both are the other one once."""
    async with (
        serving(model(reply)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        source = await busy_session(at)
        fork = (await fork_session(at.rt, ref_of(source), None)).id
        read, changed = (source, fork) if other == "fork" else (fork, source)
        before = await everything_read(at.rt, ref_of(read))
        for statements in (_CHANGED, _OPEN, _LEFT_OUT, _RENUMBERED):
            for statement in statements:
                condition = f"{'AND' if ' WHERE ' in statement else 'WHERE'} session_id = :it"
                assert await at.rows(f"{statement} {condition} RETURNING 1", it=changed), statement
            assert _changes(before, await everything_read(at.rt, ref_of(read))) == [], statements
        await delete_session(at.rt, ref_of(changed))
        assert _changes(before, await everything_read(at.rt, ref_of(read))) == [], "deleted with the other"


async def test_what_happens_in_a_session_changes_no_row_of_its_fork(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(reply)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        source = await busy_session(at)
        with pytest.raises(ProviderError):
            await at.turn(source, "FAIL")
        fork = (await fork_session(at.rt, ref_of(source), None)).id
        before, of_source = await every_row(at, fork), await every_row(at, source)
        session = ref_of(source)
        failed = (await list_turns(at.rt, session, NEWEST)).items[0]
        with pytest.raises(ProviderError):
            await retry_turn(at.rt, session, failed.id, TurnOptions(), "main")
        await put_pin(at.rt, session, Pin("a", "Another."))
        await delete_pin(at.rt, session, "b")
        newest = (await list_summaries(at.rt, session, NEWEST)).items[0]
        await edit_summary(at.rt, session, newest.id, {"summary_text": "Of the source."})
        await undo_summary(at.rt, session, None)
        await at.turn(source, "And now?")
        await summarize_now(at.rt, session)
        changed = _changes(of_source, await every_row(at, source))
        assert set(changed) > {"sessions", "turns", "turn_steps", "messages", "pins", "session_summaries"}
        assert _changes(before, await every_row(at, fork)) == []


async def test_no_act_in_a_session_changes_a_row_of_one_with_the_same_rows(database_url: str, tmp_path: Path) -> None:
    """No fork has an open turn, leases or responses of its source: a copy has. In one of the copies the turn runs as it
    will in the session itself, so that what ends it there could end it here, too; and its turns and messages have the
    numbers of those that are added there."""
    async with with_models(database_url, tmp_path, model(reply)) as (at, _):
        session = await session_with_a_row_in_every_table(at)
        waiting = (await at.turn(session.id, "Look it up.", tools=TOOLS)).turn
        assert waiting.status is TurnStatus.AWAITING_TOOLS
        await at.rows("UPDATE messages SET terms = NULL WHERE session_id = :it RETURNING 1", it=session.id)
        for act in _ACTS:
            of_session = await every_row(at, session.id)
            copies = [await _copied(at, session.id, later) for later in range(2)]
            await _run(at, copies[1], waiting.id, lease_s=-60)
            before = [await every_row(at, copy) for copy in copies]
            await act(at, session.id, waiting.id)
            assert _changes(of_session, await every_row(at, session.id)), f"{act.__name__} did nothing"
            for copy, rows in zip(copies, before, strict=True):
                assert _changes(rows, await every_row(at, copy)) == [], act.__name__


async def _copied(at: Service, source: SessionId, later: int) -> SessionId:
    """A session that differs from another by nothing but its own id, and by so much in the numbers of its turns
    and messages."""
    copy = SessionId(at.rt.new_id())
    for table in of_a_session():
        own = "id" if table.name == "sessions" else "session_id"
        values = {column.name: column.name for column in table.columns} | {own: "CAST(:copy AS uuid)"}
        if table.name in ("turns", "messages"):
            values["seq"] = f"seq + {later}"
        await at.rows(
            f"INSERT INTO {table.name} ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {table.name}"  # noqa: S608 - our own names
            f" WHERE {own} = :source RETURNING 1",
            copy=copy,
            source=source,
        )
    return copy


async def _renew(at: Service, session_id: SessionId, turn_id: TurnId) -> None:
    await _run(at, session_id, turn_id, lease_s=60)
    assert await at.rt.database.run(renew_lease, await _claim_of(at, session_id, turn_id), 60.0)


async def _record(at: Service, session_id: SessionId, turn_id: TurnId) -> None:
    claim = await _claim_of(at, session_id, turn_id)
    end = TurnEnd(TurnStatus.AWAITING_TOOLS, "main", (), ())
    assert await at.rt.database.run(record_end, claim, end)
    assert await at.rt.database.run(recorded_before, claim)


async def _lose(at: Service, session_id: SessionId, turn_id: TurnId) -> None:
    await _run(at, session_id, turn_id, lease_s=-60)
    async with at.rt.database.begin() as tx:
        assert await fail_lost_turns(tx, session_id) == 1


async def _refuse(at: Service, session_id: SessionId, turn_id: TurnId) -> None:
    """The turn is ended by its outputs, another one follows, and both are taken back with the refused one."""
    session = ref_of(session_id)
    newest = existing(await at.rt.database.run(newest_of, session), "session")
    outputs = await draft_outputs(at.rt, outputs_of({"a": "yes"}))
    messages = IncomingMessage(0, "user", "And then?"), IncomingMessage(1, "assistant", "Then that.")
    history = await draft_history(at.rt, "main", cut_turns(messages))
    additions = Additions(newest, outputs, history, ("Be kind.",))
    with pytest.raises(ContextBudgetExceeded):
        await take_turn(at.rt, session, TurnRequest("word " * 200_000, "x", additions=additions), None)
    assert (await get_turn(at.rt, session, turn_id)).status is TurnStatus.AWAITING_TOOLS


async def _continue(at: Service, session_id: SessionId, turn_id: TurnId) -> None:
    assert (await at.outputs(session_id, turn_id, {"a": "yes"})).turn.status is TurnStatus.COMPLETED


async def _retry(at: Service, session_id: SessionId, turn_id: TurnId) -> None:
    await retry_turn(at.rt, ref_of(session_id), turn_id, TurnOptions(tools=tuple(TOOLS)), "main")


async def _cancel(at: Service, session_id: SessionId, turn_id: TurnId) -> None:
    await cancel_turn(at.rt, ref_of(session_id), turn_id)


async def _withdraw(at: Service, session_id: SessionId, turn_id: TurnId) -> None:
    (first, *_) = await at.rows("SELECT seq FROM messages WHERE session_id = :it ORDER BY seq LIMIT 1", it=session_id)
    await withdraw_item(at.rt, ref_of(session_id), item_id("msg", session_id, first["seq"]))


async def _recall(at: Service, session_id: SessionId, turn_id: TurnId) -> None:
    """Packs the terms that the messages lack, and counts them in another encoding."""
    at = Service(_elsewhere(at.rt))
    await at.turn(session_id, "Which ledger was point 3 about?", model_alias="other")


async def _embed(at: Service, session_id: SessionId, turn_id: TurnId) -> None:
    await at.rt.database.run(save_vectors, session_id, "another/1", [1], [b"\2"])


async def _summarize(at: Service, session_id: SessionId, turn_id: TurnId) -> None:
    newest = await summarize_now(at.rt, ref_of(session_id))
    await edit_summary(at.rt, ref_of(session_id), newest.id, {"summary_text": "Of a person."})
    for _ in range(3):  # these two, and the one before them, which the other sessions have too
        await undo_summary(at.rt, ref_of(session_id), None)


async def _delete_response(at: Service, session_id: SessionId, turn_id: TurnId) -> None:
    (row,) = await at.rows("SELECT reply_seq FROM responses WHERE session_id = :it", it=session_id)
    await delete_response(at.rt, TENANT, ResponseRef(session_id, row["reply_seq"]))


async def _delete(at: Service, session_id: SessionId, turn_id: TurnId) -> None:
    await delete_session(at.rt, ref_of(session_id))


_ACTS = (
    _cancel,
    _retry,
    _renew,
    _record,
    _refuse,
    _continue,
    _lose,
    _withdraw,
    _recall,
    _embed,
    _summarize,
    _delete_response,
    _delete,
)
"""In an order in which each finds the turn as it needs it."""


async def _run(at: Service, session_id: SessionId, turn_id: TurnId, *, lease_s: float) -> None:
    """Lets the turn run, as under a new claim."""
    assert await at.rows(
        "UPDATE turns SET status = 'running', fence = fence + 1, lease_expires_at = :until"
        " WHERE session_id = :it AND id = :turn RETURNING 1",
        until=at.rt.now() + timedelta(seconds=lease_s),
        it=session_id,
        turn=turn_id,
    )


async def _claim_of(at: Service, session_id: SessionId, turn_id: TurnId) -> Claim:
    async with at.rt.database.autocommit() as tx:
        state = await session_state(tx, ref_of(session_id))
    (turn,) = await at.rows("SELECT seq, fence FROM turns WHERE session_id = :it AND id = :t", it=session_id, t=turn_id)
    return Claim(state, turn_id, turn["fence"], turn["seq"], state.last_message_seq + 1, 1, 90, {})


def _changes(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return [name for name in before if after[name] != before[name]]


def _elsewhere(rt: Runtime) -> Runtime:
    """The runtime of a process that has cached nothing."""
    return replace(rt, pasts=Pasts(1 << 24, monotonic, rt.telemetry))


async def everything_read(rt: Runtime, session: SessionRef) -> dict[str, str]:
    """What each read of a session answers, in a process that has nothing of it in its cache."""
    rt = _elsewhere(rt)
    messages = (await list_messages(rt, session, OLDEST)).items
    reads: dict[str, Callable[[], Awaitable[object]]] = {
        "preview": lambda: _previewed(rt, session),
        "window": lambda: window_now(rt, session),
        "pin figures": lambda: pin_figures(rt, session),
        "pins": lambda: list_pins(rt, session, 9, None),
        "timeline": lambda: read_timeline(rt, session, OLDEST),
        "overview": lambda: read_overview(rt, session, points=5, first_seq=1, last_seq=None),
        "turns": lambda: list_turns(rt, session, OLDEST),
        "messages": lambda: list_messages(rt, session, OLDEST),
        "messages by id": lambda: get_messages(rt, session, [UUID(str(each.id)) for each in messages]),
        "summaries": lambda: list_summaries(rt, session, OLDEST),
        "search": lambda: search_session(rt, session, "ledger", 9),
        "look-back": lambda: look_back(rt, session, query="ledger rows", handle=None, page=None),
        "export": lambda: _exported(rt, session),
        "simulated": lambda: _simulated(rt, session.id),
        "items": lambda: page_of_items(rt, session, OLDEST),
        "usage": lambda: session_usage(rt, session.id),
        "listed": lambda: _listed(rt, session),
        "newest": lambda: rt.database.run(newest_of, session),
        "newest messages": lambda: rt.database.run(newest_messages, session.id, 9, 1_000_000),
        "forked": lambda: _forked(rt, session),
    }
    for turn in (await list_turns(rt, session, OLDEST)).items:
        reads |= {f"turn {turn.seq}": _of_turn(rt, session, turn.id)}
    return {name: repr(await read()) for name, read in reads.items()}


def _of_turn(rt: Runtime, session: SessionRef, turn_id: TurnId) -> Callable[[], Awaitable[object]]:
    async def read() -> object:
        found: list[object] = [await get_turn(rt, session, turn_id)]
        for whole in (get_expanded_audit, get_prompt):
            try:
                found.append(await whole(rt, session, turn_id, None))
            except NotFound as missing:
                found.append(repr(missing))
        async with rt.database.autocommit() as tx:
            turn = existing(await stored_turn(tx, session, turn_id), "turn")
            return *found, await stored_outcome(tx, session, turn), await waiting_turn(tx, session, turn_id)

    return read


async def _previewed(rt: Runtime, session: SessionRef) -> object:
    """A preview without its last row, the new message, whose id is another one each time."""
    found = await preview_turn(rt, session, TurnRequest("Which ledger rows does the job compare?", ""))
    return replace(found, layout=found.layout[:-1])


async def _listed(rt: Runtime, session: SessionRef) -> object:
    stored = await get_session(rt, session)
    return stored, await figures_of(rt, [stored])


async def _forked(rt: Runtime, session: SessionRef) -> object:
    """The rows of a fork, without what no two forks have in common."""
    fork = (await fork_session(rt, session, None)).id
    rows = await every_row(Service(rt), fork)
    await delete_session(rt, ref_of(fork))
    own = {"session_id", "created_at"}
    return {
        name: [{column: row[column] for column in row.keys() - own} for row in found]
        for name, found in rows.items()
        if name != "sessions"
    }


async def _exported(rt: Runtime, session: SessionRef) -> object:
    return [part async for part in export_session(rt, session) if part[0] != "exported_at"]


async def _simulated(rt: Runtime, session_id: SessionId) -> object:
    """All that a simulation reads."""
    async with rt.database.autocommit() as tx:
        turns = await stored_turns(tx, session_id, 0, 99, limit=99)
        totals, aliases = await stored_totals(tx, session_id, 99), await stored_aliases(tx, session_id, 99)
        return turns, totals, aliases, await dated_pins(tx, session_id)
