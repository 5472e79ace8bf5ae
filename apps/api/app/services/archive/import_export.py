"""An exported session as a new one: checked, counted and numbered anew, stored whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from app.archive.document import SECTIONS, check_document, message_of, with_ids
from app.db.archive import insert_rows, set_counters
from app.db.sessions import CHANGEABLE
from app.domain.content import canonical_json, content_text, sha256_hex
from app.domain.errors import ImportRefused, InvalidRequest
from app.domain.types import (
    SUMMARY_LISTS,
    Content,
    JsonObject,
    Message,
    MessageId,
    Session,
    SummaryBody,
    SummaryItem,
    TenantId,
)
from app.engine.messages.tokens import Estimate, message_tokens, reasoning_tokens
from app.engine.summary.block import render_summary
from app.engine.window.prompt_refs import SentHashes
from app.openai.chat_messages import joined
from app.services.runtime import Runtime
from app.services.sessions import insert_checked, with_defaults
from app.tokenizers import ENCODINGS, HEURISTIC, TWO_FIFTHS

_STORED_FIRST = ("turns", "messages")


async def import_export(rt: Runtime, tenant_id: TenantId, document: Mapping[str, Any]) -> Session:
    """Makes a session of the tenant from a document whose rows have been validated one by one.

    Ids are new; the order of things, their instants and their numbers stay. What can be told from the messages (counts,
    the user's text) is told anew, in the encoding a message was counted in where this service has it. Every prompt that
    the document has is rebuilt before anything is stored. Raises `ImportRefused` with the places of what is wrong.
    """
    await asyncio.to_thread(check_document, document, SentHashes)
    fields = _checked_fields(rt, document["session"])
    rows = await asyncio.to_thread(_renumbered, rt, document)
    await rt.tokenizers.off_loop(lambda: _count(rt, rows, fields["model_alias"]))
    async with rt.heavy.database.begin() as tx:
        session = await insert_checked(rt, tx, tenant_id, fields)
        for section in sorted(SECTIONS, key=lambda name: name not in _STORED_FIRST):
            await insert_rows(tx, session.id, section, rows[section])
        await set_counters(
            tx,
            session.id,
            last_turn_seq=len(rows["turns"]),
            last_message_seq=max((message["seq"] for message in rows["messages"]), default=0),
            summary_count_after_seq=document["session"]["summary_count_after_seq"],
        )
    return session


def _checked_fields(rt: Runtime, session: JsonObject) -> JsonObject:
    fields = {name: session[name] for name in CHANGEABLE if name in session}
    try:
        return with_defaults(rt, fields)
    except InvalidRequest as error:
        raise ImportRefused([(".".join(("body", "session", *error.where[1:])), error.detail)]) from error


def _renumbered(rt: Runtime, document: Mapping[str, Any]) -> dict[str, list[JsonObject]]:
    """The document's rows under new ids, which sort as the rows stand, with what only a stored row has."""
    sections = ("turns", "messages", "steps", "summaries", "audits")
    ids = {row["id"]: str(rt.new_id()) for section in sections for row in document[section]}
    rows: dict[str, list[JsonObject]] = {
        "pins": document["pins"],
        "blocks": document["blocks"],
        "turns": [row | {"id": ids[row["id"]], "error": with_ids(row["error"], ids)} for row in document["turns"]],
        "messages": [
            row | _own_ids(row, ids) | {"withdrawn": row.get("withdrawn", False)} for row in document["messages"]
        ],
        "steps": [row | _own_ids(row, ids) | {"detail": with_ids(row["detail"], ids)} for row in document["steps"]],
        "audits": [
            row | _own_ids(row, ids) | {"context_trim_log": with_ids(row["context_trim_log"], ids)}
            for row in document["audits"]
        ],
    }
    seqs = {message["id"]: message["seq"] for message in rows["messages"]}
    rows["summaries"] = [_summary_row(row, ids, seqs) for row in document["summaries"]]
    said: dict[str, list[Content]] = {}
    for message in rows["messages"]:
        if message["role"] == "user":
            said.setdefault(message["turn_id"], []).append(message["content"])
    for turn in rows["turns"]:
        turn["user_input"] = content_text(joined(said.get(turn["id"], ())))
        # No request asked for it here; the column tells two requests apart.
        turn["request_sha256"] = sha256_hex(canonical_json([turn["user_input"], turn["assistant_output"]]))
    return rows


def _own_ids(row: JsonObject, ids: Mapping[str, str]) -> JsonObject:
    return {"id": ids[row["id"]], "turn_id": ids[row["turn_id"]]}


def _summary_row(row: JsonObject, ids: Mapping[str, str], seqs: Mapping[str, int]) -> JsonObject:
    links = ("id", "from_message_id", "to_message_id", "previous_summary_id", "created_by_turn_id")
    new = {name: None if row[name] is None else ids[row[name]] for name in links}
    items = {
        field: [item | {"message_ids": [ids[cited] for cited in item["message_ids"]]} for item in row[field]]
        for field in SUMMARY_LISTS
    }
    return row | new | items | {"to_message_seq": seqs[ids[row["to_message_id"]]]}


def _count(rt: Runtime, rows: Mapping[str, Sequence[JsonObject]], model_alias: str) -> None:
    """Counts every row anew, whatever the document says it costs: a budget is kept by our figures or not at all."""
    own = rt.catalogue.model(model_alias).encoding
    for row in rows["messages"]:
        (tokens, of_reasoning), used = rt.tokenizers.count_with(
            _known(row["token_encoding"], own), partial(_message_and_reasoning, message_of(row))
        )
        row |= {"token_estimate": tokens, "reasoning_tokens": of_reasoning, "token_encoding": used}
    for row in rows["summaries"]:
        row["token_estimate"], row["token_encoding"] = rt.tokenizers.count_with(
            _known(row["token_encoding"], own), partial(message_tokens, render_summary(_body(row)))
        )


def _message_and_reasoning(message: Message, estimate: Estimate) -> tuple[int, int]:
    tokens = message_tokens(message.content, estimate, tool_calls=message.tool_calls, tool_call_id=message.tool_call_id)
    return tokens, reasoning_tokens(message.reasoning, message.reasoning_blocks, estimate)


def _known(encoding: str, own: str) -> str:
    return encoding if encoding in (*ENCODINGS, HEURISTIC, TWO_FIFTHS) else own


def _body(row: JsonObject) -> SummaryBody:
    items = {
        field: tuple(SummaryItem(item["text"], tuple(map(MessageId, item["message_ids"]))) for item in row[field])
        for field in SUMMARY_LISTS
    }
    return SummaryBody(row["summary_text"], **items)
