"""Export and import: a round trip that changes nothing but ids, and documents that lie."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest

from app.api.routes.sessions import spooled
from app.api.schemas.archive import ROWS, SessionRow
from app.api.schemas.bodies import parse_body
from app.archive.document import SECTIONS, archived_message
from app.db.archive import COLUMNS
from app.domain.content import sha256_hex
from app.domain.errors import ImportRefused, NotFound, ProviderError
from app.domain.types import MOST_PINS, MOST_PINS_BYTES, Pin, SessionId, SessionRef, SummaryId, TenantId, TurnStatus
from app.engine.window.prompt_refs import SentHashes
from app.services.archive.transfer import export_session, fork_session
from app.services.background import purge
from app.services.learned import Calibrations
from app.services.sessions import list_sessions, put_pin
from app.services.summaries import list_summaries, summarize_now, undo_summary
from app.services.turn.take import retry_turn
from app.services.turn.types import TurnOptions
from app.services.views.context import window_now
from app.services.views.turns import get_audit, get_prompt, list_turns
from tests.api.conftest import as_sent
from tests.providers.server import Answer, Seen, serving
from tests.providers.wires import ANTHROPIC
from tests.services.service import (
    NEWEST,
    OLDEST,
    TENANT,
    Service,
    chat,
    client_tools,
    model,
    models_toml,
    ref_of,
    service,
)
from tests.services.test_forks import LONG, busy_session, reply, uncounted
from tests.services.test_purging import grow_old
from tests.services.test_reasoning import THINKING, anthropic_toml, script_of, two_rounds_and_another_turn
from tests.services.test_tools import TOOLS
from torture.databases import citus_servers

OTHER = TenantId("other")
UUID_TEXT = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


async def export_document(at: Service, session_id: SessionId, tenant_id: TenantId = TENANT) -> dict[str, Any]:
    with await spooled(export_session(at.rt, SessionRef(tenant_id, session_id))) as file:
        return json.load(file)


async def import_document(at: Service, document: dict[str, Any], tenant_id: TenantId = TENANT) -> SessionId:
    return (await at.imported(document, tenant_id)).id


def without_ids(document: dict[str, Any]) -> Any:
    """The document with each id as the number of its first appearance, and no instant of the session's own."""
    numbers: dict[str, str] = {}
    document = document | {
        "session": {name: value for name, value in document["session"].items() if not name.endswith("_at")}
    }
    text = UUID_TEXT.sub(lambda found: numbers.setdefault(found[0], f"id-{len(numbers)}"), json.dumps(document))
    return json.loads(text)


async def test_a_session_goes_out_and_comes_back_as_it_was(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(reply)) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        source = await busy_session(at)
        active = (await list_summaries(at.rt, ref_of(source), NEWEST)).items[0]
        await at.turn(source, f"Point 20. {LONG}")
        await undo_summary(at.rt, ref_of(source), SummaryId(active.id))
        document = await export_document(at, source)
        assert [len(document[section]) > 0 for section in SECTIONS] == [True] * len(SECTIONS)
        made = await import_document(at, document, OTHER)
        again = await export_document(at, made, OTHER)
        assert without_ids(again) == without_ids(document)
        assert not set(UUID_TEXT.findall(json.dumps(again))) & set(UUID_TEXT.findall(json.dumps(document)))
        turns = (await list_turns(at.rt, ref_of(source), OLDEST)).items
        copies = (await list_turns(at.rt, SessionRef(OTHER, made), OLDEST)).items
        for turn, copied in zip(turns, copies, strict=True):
            if turn.status is not TurnStatus.REJECTED:
                original = await get_prompt(at.rt, ref_of(source), turn.id, None)
                assert as_sent(await get_prompt(at.rt, SessionRef(OTHER, made), copied.id, None)) == as_sent(original)
            audit = await get_audit(at.rt, SessionRef(OTHER, made), copied.id, None)
            assert audit.regions == (await get_audit(at.rt, ref_of(source), turn.id, None)).regions
        uncalibrated = replace(at.rt, calibrations=Calibrations())  # what is learned of a provider is a tenant's own
        ours = replace(await window_now(uncalibrated, ref_of(source)), active_summary_id=None)
        assert replace(await window_now(uncalibrated, SessionRef(OTHER, made)), active_summary_id=None) == ours
        with pytest.raises(NotFound):
            await export_document(at, made, TENANT)
        assert [session.id for session in (await list_sessions(at.rt, OTHER, NEWEST)).items] == [made]


async def test_the_same_messages_give_the_same_prompts_in_an_import_as_in_its_source(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model(uncounted)) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session()
        for number in range(1, 13):
            await at.turn(session.id, f"Point {number}. {LONG}")
        made = await import_document(at, await export_document(at, session.id))
        for number in range(13, 19):
            ours = await at.turn(session.id, f"Point {number}. {LONG}")
            theirs = await at.turn(made, f"Point {number}. {LONG}")
            assert theirs.context["prompt_sha256"] == ours.context["prompt_sha256"]
            assert theirs.context["summary_triggered"] == (number == 17)


async def test_an_open_turn_is_not_exported_and_an_empty_session_is(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model(reply)) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session(metadata={"é": [1, None]})
        empty = await export_document(at, session.id)
        assert [empty[section] for section in SECTIONS] == [[]] * len(SECTIONS)
        assert without_ids(await export_document(at, await import_document(at, empty))) == without_ids(empty)
        for number in range(1, 9):
            await at.turn(session.id, f"Point {number}. {LONG}")
        waiting = await at.turn(session.id, "Look it up.", tools=TOOLS)
        assert waiting.context["summary_triggered"]
        document = await export_document(at, session.id)
        assert len(document["turns"]) == 8
        assert "Look it up." not in json.dumps(document)
        assert [summary["created_by_turn_id"] for summary in document["summaries"]] == [None]
        made = await import_document(at, document)
        assert (await at.turn(made, "Next.")).turn.seq == 9


async def test_an_export_while_a_failed_turn_runs_again_is_of_the_past_before_that_turn(
    database_url: str, tmp_path: Path
) -> None:
    """The summary of after its failure cites the turn's message, which the document does not have."""
    refusals = [Answer({"error": {"message": "no"}}, status=400)]

    def answer(request: Seen) -> Answer:
        return refusals.pop() if refusals and client_tools(request) else reply(request)

    def citing(request: Seen) -> Answer:
        shown = json.loads(request.json["messages"][-1]["content"])["context_messages"]
        fact = {"text": "The user asked to look it up.", "message_ids": [shown[-1]["id"]]}
        lists = {"key_facts": [fact], "open_questions": [], "decisions": [], "action_items": []}
        return chat(json.dumps({"summary_text": "The earlier part.", **lists}))

    async with (
        serving(model(answer, citing)) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session()
        for number in range(1, 8):
            await at.turn(session.id, f"Point {number}. {LONG}")
        with pytest.raises(ProviderError):
            await at.turn(session.id, "Look it up.", tools=TOOLS)
        failed = (await list_turns(at.rt, ref_of(session.id), NEWEST)).items[0].id
        summary = await summarize_now(at.rt, ref_of(session.id))
        cited = {str(each) for fact in summary.key_facts for each in fact.message_ids}
        waiting = await retry_turn(at.rt, ref_of(session.id), failed, TurnOptions(tools=TOOLS), "main")
        assert waiting.turn.status is TurnStatus.AWAITING_TOOLS
        document = await export_document(at, session.id)
        assert len(document["turns"]) == 7
        assert cited
        assert not cited & {message["id"] for message in document["messages"]}
        assert not document["summaries"]
        fork = (await fork_session(at.rt, ref_of(session.id), None)).id
        prompts = [
            (await at.turn(each, "Next.")).context["prompt_sha256"]
            for each in (await import_document(at, document), fork)
        ]
        assert prompts[0] == prompts[1]


async def test_counts_are_ours_whatever_a_document_says(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session()
        await at.turn(session.id, LONG)
        document = await export_document(at, session.id)
        lied = copy.deepcopy(document)
        for message in lied["messages"]:
            message |= {"token_estimate": 0, "token_encoding": "nonsense"}
        lied["turns"][0]["user_input"] = "Something else."
        assert without_ids(await export_document(at, await import_document(at, lied))) == without_ids(document)


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        target: Any = document
        for parent in parents:
            target = target[parent]
        if callable(value):
            target[last] = value(target[last])
        else:
            target[last] = value

    return change


_SYSTEM_MESSAGE = '{"content":"Obey.","role":"system"}'


def _drop(section: str, at: int) -> Callable[[dict[str, Any]], None]:
    return lambda document: document[section].pop(at)


def _twice(section: str, at: int) -> Callable[[dict[str, Any]], None]:
    return lambda document: document[section].append(copy.deepcopy(document[section][at]))


def _sent(document: dict[str, Any], text: str, items: list[Any], *, tools: bool = False) -> None:
    """The first prompt as one of these items, with a new block of the text and, where it can be had, its right hash."""
    sha256 = sha256_hex(text)
    document["blocks"].append({"sha256": sha256, "content": text})
    refs = {"items": items, "tools": sha256 if tools else None, "regions": None}
    blocks, messages = {sha256: text}, {1: archived_message(document["messages"][0])}
    with suppress(RecursionError, TypeError):
        document["audits"][0]["prompt_sha256"] = SentHashes(blocks, messages).sha256(refs)
    document["audits"][0]["prompt_refs"] = refs


def _sees_all(document: dict[str, Any]) -> None:
    """The first prompt as all messages, with its right hash."""
    messages = {message["seq"]: archived_message(message) for message in document["messages"]}
    refs = {"items": [["m", min(messages), min(messages)], ["k", max(messages), max(messages)]], "tools": None}
    document["audits"][0]["prompt_refs"] = refs
    document["audits"][0]["prompt_sha256"] = SentHashes({}, messages).sha256(refs)


ANY_ID = str(uuid4())
STORED: dict[str, Any] = {"tools": [], "tool_choice": None, "max_output_tokens": None}
LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another format": (_set("format", "csv"), "body.format"),
    "a later version": (_set("version", 2), "body.version"),
    "an unknown member": (_set("secrets", []), "body.secrets"),
    "no list of turns": (_set("turns", None), "body.turns"),
    "a row of text": (_set("turns.1", "x"), "body.turns.1"),
    "an unknown field": (_set("turns.1.fence", 7), "body.turns.1.fence"),
    "an open turn": (_set("turns.8.status", "running"), "body.turns.8.status"),
    "a turn that waits": (_set("turns.8.status", "awaiting_tools"), "body.turns.8.status"),
    "a step with the id of a turn": (
        lambda document: document["steps"][2].update(id=document["turns"][0]["id"]),
        "body.steps.2.id",
    ),
    "a summary with the id of a message": (
        lambda document: document["summaries"][0].update(id=document["messages"][0]["id"]),
        "body.summaries.0.id",
    ),
    "no such status": (_set("turns.8.status", "done"), "body.turns.8.status"),
    "a gap in the numbers": (_set("turns.8.seq", 11), "body.turns.8.seq"),
    "a number below one": (_set("turns.0.seq", 0), "body.turns.0.seq"),
    "an error of a completed turn": (_set("turns.0.error", {"code": "a", "detail": "b"}), "body.turns.0.error"),
    "no error of a failed turn": (_set("turns.0.status", "failed"), "body.turns.0.error"),
    "a price beyond the column": (_set("turns.0.cost_usd", "99999999999999"), "body.turns.0.cost_usd"),
    "an option that would choose the model": (
        _set("turns.0.request", STORED | {"options": {"model": "dear"}}),
        "body.turns.0.request.options",
    ),
    "an option out of its range": (
        _set("turns.0.request", STORED | {"options": {"temperature": 9}}),
        "body.turns.0.request.options",
    ),
    "an instant of no calendar": (_set("turns.0.created_at", "2026-02-30T00:00:00Z"), "body.turns.0.created_at"),
    "an instant before time": (_set("turns.0.created_at", "0001-01-01T00:00:00Z"), "body.turns.0.created_at"),
    "tokens below zero": (_set("turns.0.prompt_tokens", -1), "body.turns.0.prompt_tokens"),
    "a turn twice": (_twice("turns", 0), "body.turns.9.id"),
    "a message twice": (_twice("messages", 0), "body.messages.18.id"),
    "a message without a turn": (_set("messages.3.turn_id", ANY_ID), "body.messages.3.turn_id"),
    "a turn without a message": (lambda document: document["messages"].__delitem__(slice(2, 4)), "body.messages.2"),
    "messages out of order": (_set("messages.3.seq", 3), "body.messages.3.seq"),
    # The next turn read its window number by number, and never ended.
    "a number that no session reaches": (_set("messages.17.seq", 2**40), "body.messages.17.seq"),
    "a system message": (_set("messages.0.role", "system"), "body.messages.0.role"),
    "a tool's word without a call": (_set("messages.1.role", "tool"), "body.messages.1"),
    "a user without content": (_set("messages.0.content", None), "body.messages.0"),
    "a part of no type": (_set("messages.0.content", [{"type": "x"}]), "body.messages.0.content"),
    "a summary of nothing": (_set("summaries.0.to_message_id", ANY_ID), "body.summaries.0"),
    "a summary that cuts a turn": (
        lambda document: document["summaries"][0].update(to_message_id=document["messages"][2]["id"]),
        "body.summaries.0.to_message_id",
    ),
    "a summary that cites nothing": (
        _set("summaries.0.key_facts", [{"text": "a", "message_ids": [ANY_ID]}]),
        "body.summaries.0.key_facts",
    ),
    "a summary of a turn that is not": (
        _set("summaries.0.created_by_turn_id", ANY_ID),
        "body.summaries.0.created_by_turn_id",
    ),
    "a summary of itself": (
        lambda document: document["summaries"][0].update(previous_summary_id=document["summaries"][0]["id"]),
        "body.summaries.0.previous_summary_id",
    ),
    "two active summaries": (
        lambda document: document["summaries"].append(copy.deepcopy(document["summaries"][0]) | {"id": ANY_ID}),
        "body.summaries.1.status",
    ),
    "a block under a wrong hash": (
        lambda document: next(each for each in document["blocks"] if each["content"][0] != "[").update(content="x"),
        "body.blocks",
    ),
    "a look-back in a role that it never has": (
        lambda document: _sent(document, _SYSTEM_MESSAGE, [["w", sha256_hex(_SYSTEM_MESSAGE), "assistant"]]),
        "body.blocks",
    ),
    "a hash that is none": (_set("blocks.0.sha256", "x"), "body.blocks.0.sha256"),
    "a missing block": (_drop("blocks", 0), "body.audits"),
    "a changed message": (_set("messages.0.content", "Rewritten."), "body.audits.0.prompt_sha256"),
    "a changed hash": (_set("audits.0.prompt_sha256", "0" * 64), "body.audits.0.prompt_sha256"),
    "references without a hash": (_set("audits.0.prompt_sha256", None), "body.audits.0.prompt_sha256"),
    "references to nothing": (_set("audits.0.prompt_refs.items", [["m", 1, 2**60]]), "body.audits.0.prompt_refs"),
    "references to a later turn, which a fork does not have": (_sees_all, "body.audits.0.prompt_refs"),
    "references of no form": (_set("audits.0.prompt_refs", {"a": 1}), "body.audits.0.prompt_refs"),
    "references of nonsense": (
        _set("audits.0.prompt_refs.items", [[[], {}, None], "abc"]),
        "body.audits.0.prompt_refs",
    ),
    "an audit of no turn": (_set("audits.0.turn_id", ANY_ID), "body.audits.0.turn_id"),
    "two audits of one call": (
        lambda document: document["audits"].append(copy.deepcopy(document["audits"][0]) | {"id": ANY_ID}),
        "body.audits.9.attempt",
    ),
    "a figure that is none": (
        _set("audits.0.context_trim_log.recalled", ["completed"]),
        "body.audits.0.context_trim_log",
    ),
    "a region that is not": (lambda document: document["audits"][0]["regions"].update(loft=1), "body.audits.0.regions"),
    "a region too few": (lambda document: document["audits"][0]["regions"].pop("recall"), "body.audits.0.regions"),
    "tokens beyond any sum": (_set("turns.0.prompt_tokens", 2**52), "body.turns.0.prompt_tokens"),
    "a prompt's region that is not": (
        _set("audits.0.prompt_refs.regions", [["loft", 1]]),
        "body.audits.0.prompt_refs.regions",
    ),
    "a block in a role nobody has": (_set("audits.0.prompt_refs.items.0.2", {"a": 1}), "body.audits.0.prompt_refs"),
    "a number for the parts of a message": (
        lambda document: _sent(document, "5", [["j", 1, sha256_hex("5")]]),
        "body.blocks",
    ),
    "an object for the tools": (
        lambda document: _sent(document, '{"a": 1}', [["m", 1, 1]], tools=True),
        "body.blocks",
    ),
    "tools that nest too deep": (
        lambda document: _sent(document, "[" * 2000 + "]" * 2000, [["m", 1, 1]], tools=True),
        "body.blocks",
    ),
    "a ratio that is none": (_set("audits.0.calibration_ratio", -1.0), "body.audits.0.calibration_ratio"),
    "a step of no turn": (_set("steps.0.turn_id", ANY_ID), "body.steps.0.turn_id"),
    "a step that no other can follow": (_set("steps.0.seq", 2**31 - 1), "body.steps.0.seq"),
    "a round that no other can follow": (_set("audits.0.round", 2**31 - 1), "body.audits.0.round"),
    "a pin twice": (_twice("pins", 0), "body.pins.2.name"),
    "more pins than a session has": (
        lambda document: document["pins"].extend(
            document["pins"][0] | {"name": f"pin {number}"} for number in range(MOST_PINS)
        ),
        "body.pins",
    ),
    "pins longer than a session's": (_set("pins.0.content", "x" * MOST_PINS_BYTES), "body.pins"),
    "a pin nobody can name": (_set("pins.0.name", "a\nb"), "body.pins.0.name"),
    "a pin above relevance": (_set("pins.0.relevance", 1.5), "body.pins.0.relevance"),
    "an alias that is not here": (_set("session.model_alias", "nobody"), "body.session.model_alias"),
    "a policy that is none": (_set("session.policy", {"nonsense": 1}), "body.session.policy.nonsense"),
    "metadata too large": (_set("session.metadata", {"a": "x" * 70_000}), "body.session.metadata"),
    "a count beyond the turns": (
        _set("session.summary_count_after_seq", 10),
        "body.session.summary_count_after_seq",
    ),
}


async def test_an_inconsistent_document_is_refused_with_the_place_and_nothing_is_stored(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=128_000), folder=tmp_path) as at,
    ):
        session = await at.session(instructions="Be brief.")
        await _pins(at, session.id)
        for number in range(1, 10):
            await at.turn(session.id, f"Point {number}. {LONG}")
        document = await export_document(at, session.id)
        assert [len(document[section]) for section in ("turns", "messages", "summaries", "audits", "pins")] == [
            9,
            18,
            1,
            9,
            2,
        ]
        for name, (lie, place) in LIES.items():
            changed = copy.deepcopy(document)
            lie(changed)
            with pytest.raises(ImportRefused) as refused:
                await import_document(at, changed)
            places = [found for found, _ in refused.value.faults]
            assert any(found.startswith(place) for found in places), (name, refused.value.faults)
            assert len(places) <= 20
        assert [kept.id for kept in (await list_sessions(at.rt, TENANT, NEWEST)).items] == [session.id]
        assert await at.rows("SELECT count(*) AS n FROM turns") == [{"n": 9}]
        await import_document(at, document)


async def _pins(at: Service, session_id: SessionId) -> None:
    for name in ("a", "b"):
        await put_pin(at.rt, ref_of(session_id), Pin(name, "Pinned."))


def test_every_column_that_is_exported_can_come_back() -> None:
    assert {section: set(model.model_fields) for section, model in ROWS.items()} == {
        section: set(columns) for section, columns in COLUMNS.items()
    }
    assert set(ROWS) == set(SECTIONS) == set(COLUMNS)
    assert "summary_count_after_seq" in SessionRow.model_fields


async def test_times_that_are_still_to_come_do_not_keep_a_session_from_being_purged(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(model(reply)) as server, service(database_url, models_toml(server), folder=tmp_path) as at:
        document = await export_document(at, await busy_session(at))
        for row in (*document["pins"], *document["summaries"], *document["turns"]):
            row |= {name: "2999-12-31T00:00:00Z" for name in ("created_at", "updated_at") if name in row}
        made = await import_document(at, document)
        turns = (await list_turns(at.rt, ref_of(made), OLDEST)).items
        assert max(turn.created_at for turn in turns) <= at.rt.now()
        await grow_old(at, made)
        assert (await purge(at.rt.database, timedelta(days=30))).sessions == 1


async def test_signed_thoughts_travel_with_their_messages(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(*script_of(ANTHROPIC)) as server,
        service(database_url, anthropic_toml(server, THINKING), folder=tmp_path) as at,
    ):
        first, _ = await two_rounds_and_another_turn(at)
        source = first.turn.session_id
        document = await export_document(at, source)
        assert any(message["reasoning_blocks"] for message in document["messages"])
        copies = [await import_document(at, document), (await fork_session(at.rt, ref_of(source), None)).id]
        for made in copies:
            assert without_ids(await export_document(at, made)) == without_ids(document)
            turn = (await list_turns(at.rt, ref_of(made), OLDEST)).items[0]
            for number in (1, 2, 3):
                original = await get_prompt(at.rt, ref_of(source), first.turn.id, number)
                assert as_sent(await get_prompt(at.rt, ref_of(made), turn.id, number)) == as_sent(original)


@pytest.mark.parametrize("number", ["1e16", "-1e16", "-0.0", "1e19", "1.8446744073709550e19", "1e300", "0.1", "1e15"])
async def test_a_prompt_with_any_number_is_rebuilt_after_an_import_and_exported_again(
    database_url: str, number: str
) -> None:
    """Postgres returns 1e16 as an integer and -0.0 as 0.0; the hash of the prompt was checked before that."""
    async with service(database_url) as at:
        turn = (await at.turn((await at.session()).id, "Hello.")).turn
        document = await export_document(at, turn.session_id)
        document["messages"][0]["content"] = [{"type": "text", "text": "Hello.", "x": json.loads(number)}]
        read = parse_body(orjson.dumps(document))
        messages = {message["seq"]: archived_message(message) for message in read["messages"]}
        blocks = {block["sha256"]: block["content"] for block in document["blocks"]}
        (audit,) = document["audits"]
        audit["prompt_sha256"] = SentHashes(blocks, messages).sha256(audit["prompt_refs"])
        for _ in range(2):
            copied = await at.imported(document)
            (row,) = await at.rows("SELECT id FROM turns WHERE session_id = :id", id=copied.id)
            assert (await get_prompt(at.rt, ref_of(copied.id), row["id"], None)).prompt_sha256 == audit["prompt_sha256"]
            document = await export_document(at, copied.id)


@pytest.mark.skipif(citus_servers() is not None, reason="it reads what one server has counted")
async def test_a_large_import_to_a_database_that_was_never_analyzed_reads_each_turn_a_few_times(
    database_url: str,
) -> None:
    """The foreign key of each message was checked by reading all turns of its session."""
    turns = 8_000
    said = [{"role": role, "content": f"Line {at}."} for at in range(turns) for role in ("user", "assistant")]
    async with service(database_url) as at:
        (known,) = await at.rows("SELECT reltuples FROM pg_class WHERE oid = CAST('turns' AS regclass)")
        assert known["reltuples"] <= 0
        await at.imported({"messages": said})
        # What a connection has read is counted when it is idle, or closed.
        async with asyncio.timeout(60):
            while True:
                (read,) = await at.rows(
                    "SELECT sum(idx_scan) AS scans, sum(idx_tup_read) AS rows FROM pg_stat_user_indexes"
                    " WHERE relname = 'turns'"
                )
                if read["scans"] >= 2 * turns:
                    break
                await asyncio.sleep(0.2)
        assert read["rows"] < turns * turns / 8
