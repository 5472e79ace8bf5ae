"""An exported session as the rows of a new one: numbered and counted anew, and written as JSON for the database."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from app.archive.document import SECTIONS, archived_message, with_ids
from app.domain.content import bytea_json, canonical_json, content_text, sha256_hex
from app.domain.stored import Counters, NewRows
from app.domain.types import SUMMARY_LISTS, Content, JsonObject, Message, MessageId, SummaryBody, SummaryItem
from app.engine.messages.tokens import Estimate, message_tokens, reasoning_tokens
from app.engine.recall.index import packed_terms
from app.engine.summary.block import render_summary
from app.openai.chat_messages import joined
from app.services.archive.drafted_turns import BATCH_BYTES, BATCH_ROWS, json_text
from app.services.heavy.child import Tools
from app.tokenizers import ENCODINGS, HEURISTIC, TWO_FIFTHS

_STORED_FIRST = ("turns", "messages")


def restored(tools: Tools, document: Mapping[str, Any], encoding: str) -> Generator[NewRows | Counters]:
    """What a checked document stores, in the order in which it can be. CPU-bound, most of it at once.

    Ids are new; the order of things, their instants and their numbers stay. What can be derived from the messages
    (counts, the user's text) is computed again, in the encoding a message was counted in where this service has it,
    else in this one.
    """
    rows = _renumbered(tools, document)
    _count(tools, rows, encoding)
    counters = Counters(
        last_turn_seq=len(rows["turns"]),
        last_message_seq=max((message["seq"] for message in rows["messages"]), default=0),
        summary_count_after_seq=document["session"]["summary_count_after_seq"],
    )
    return _parts(rows, counters)


def _parts(rows: dict[str, list[JsonObject]], counters: Counters) -> Generator[NewRows | Counters]:
    for section in sorted(SECTIONS, key=lambda name: name not in _STORED_FIRST):
        batch: list[bytes] = []
        for row in rows.pop(section):
            batch.append(orjson.dumps(row))
            if len(batch) >= BATCH_ROWS or sum(map(len, batch)) >= BATCH_BYTES:
                yield NewRows(section, json_text(batch))
                batch = []
        if batch:
            yield NewRows(section, json_text(batch))
    yield counters


def _renumbered(tools: Tools, document: Mapping[str, Any]) -> dict[str, list[JsonObject]]:
    """The document's rows under new ids, which sort as the rows stand, with what only a stored row has."""
    sections = ("turns", "messages", "steps", "summaries", "audits")
    ids = {row["id"]: str(tools.new_id()) for section in sections for row in document[section]}
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


def _count(tools: Tools, rows: Mapping[str, Sequence[JsonObject]], own: str) -> None:
    """Counts every row anew, whatever the document says it costs: a budget is kept by our figures or not at all.

    The terms of messages are packed anew as well.
    """
    for row in rows["messages"]:
        message = archived_message(row)
        (tokens, of_reasoning), used = tools.tokenizers.count_with(
            _known(row["token_encoding"], own), partial(_message_and_reasoning, message)
        )
        terms = bytea_json(packed_terms(message.role, message.content, has_calls=bool(message.tool_calls)))
        row |= {"token_estimate": tokens, "reasoning_tokens": of_reasoning, "token_encoding": used, "terms": terms}
    for row in rows["summaries"]:
        row["token_estimate"], row["token_encoding"] = tools.tokenizers.count_with(
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
