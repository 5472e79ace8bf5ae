"""Pasts from elsewhere as rows of a session, with tokens counted here, written as JSON for the database: turns of a
conversation, to be added to a session, and the rows of an exported session, to be stored under new ids; and the job
that reads and checks such a body."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import orjson

from app.archive.document import ROWS_WITH_ID, SECTIONS, archived_message, check_document, with_ids
from app.domain.content import bytea_json, canonical_json, content_text, joined, sha256_hex
from app.domain.errors import InvalidRequest, TurnCancelled, located
from app.domain.frozen import frozen
from app.domain.incoming import IncomingList
from app.domain.stored import Counters, JsonText, NewHistory, NewRows, message_row, summary_lists
from app.domain.types import SUMMARY_LISTS, Content, JsonObject, SummaryBody, TurnId, TurnStatus
from app.engine.messages.tokens import counted, counts_of, message_tokens
from app.engine.recall.index import terms_of_message
from app.engine.summary.block import render_summary
from app.engine.window.prompt_refs import SentHashes
from app.openai.chat_messages import IncomingTurn, check_pairing, cut_turns, read_messages
from app.services.heavy.child import Tools
from app.tokenizers.counters import HEURISTIC, TWO_FIFTHS
from app.tokenizers.vocabularies import ENCODINGS

BATCH_ROWS = 100
BATCH_BYTES = 128 * 1024
"""A statement ends at either size, so that its sender and its parser are blocked by at most this and one more row."""
_STORED_FIRST = ("turns", "messages")
_UNANSWERED = TurnCancelled("The turn came from elsewhere without a final answer; the message is kept.").stored()


def drafted(tools: Tools, encoding: str, model_alias: str, turns: Sequence[IncomingTurn]) -> Generator[NewHistory]:
    """The turns with new ids and the token counts of their messages, for statements of a bounded size, which have to be
    run in this order, and in each of which numbers count from 1. CPU-bound. The last turn may have open tool calls; its
    status is then `awaiting_tools`. The caller has checked the pairing."""
    of_turns: list[bytes] = []
    of_messages: list[bytes] = []
    size, turn_id = 0, None

    def ended() -> NewHistory:
        rows = json_array(of_turns), json_array(of_messages)
        return NewHistory(*rows, len(of_turns), len(of_messages), turn_id)

    for turn in turns:
        if len(of_messages) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield ended()
            of_turns, of_messages, size = [], [], 0
        turn_id = TurnId(tools.new_id())
        of_turns.append(orjson.dumps(_turn_row(turn_id, len(of_turns) + 1, turn, model_alias), default=str))
        for seq, message in enumerate(turn.messages, len(of_messages) + 1):
            counts, used = tools.tokenizers.count_with(encoding, partial(counts_of, message))
            row = message_row(tools.new_id(), message, counts, used, terms_of_message(message))
            of_messages.append(orjson.dumps({**row, "turn_id": turn_id, "seq": seq}, default=str))
            size += len(of_messages[-1])
        size += len(of_turns[-1])
    yield ended()


def json_array(rows: Sequence[bytes]) -> JsonText:
    """The JSON array of these rows, each of which is JSON already."""
    return JsonText((b"[" + b",".join(rows) + b"]").decode())


def _turn_row(turn_id: TurnId, seq: int, turn: IncomingTurn, model_alias: str) -> JsonObject:
    output = turn.assistant_output
    ended_by_tools = turn.messages[-1].role == "tool"
    status = TurnStatus.COMPLETED if output is not None or ended_by_tools else TurnStatus.CANCELLED
    if turn.open_calls:
        status = TurnStatus.AWAITING_TOOLS
    return {
        "id": turn_id,
        "seq": seq,
        "status": status.value,
        "user_input": turn.user_input,
        "assistant_output": output,
        "error": _UNANSWERED if status is TurnStatus.CANCELLED else None,
        "model_alias": model_alias,
        "finish_reason": "tool_calls" if turn.open_calls or ended_by_tools else "stop" if output is not None else None,
        # The turn came without a request; this column distinguishes requests.
        "request_sha256": sha256_hex(canonical_json([turn.user_input, output])),
    }


def restored(tools: Tools, document: Mapping[str, Any], encoding: str) -> Generator[NewRows | Counters]:
    """The rows of a checked document, in an order in which they can be stored, under new ids, with their order, times
    and numbers. CPU-bound, mostly before the first part. What can be derived from the messages (counts, the user's
    text) is computed again: counts in the encoding of before if this service has that, else in `encoding`."""
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
                yield NewRows(section, json_array(batch))
                batch = []
        if batch:
            yield NewRows(section, json_array(batch))
    yield counters


def _renumbered(tools: Tools, document: Mapping[str, Any]) -> dict[str, list[JsonObject]]:
    """The document's rows under new ids, which sort in the rows' order, with the fields that only stored rows have."""
    ids: dict[str, str] = {row["id"]: str(tools.new_id()) for section in ROWS_WITH_ID for row in document[section]}
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
    contents: dict[str, list[Content]] = {}
    for message in rows["messages"]:
        if message["role"] == "user" and not message["withdrawn"]:
            contents.setdefault(message["turn_id"], []).append(message["content"])
    for turn in rows["turns"]:
        turn["user_input"] = content_text(joined(contents.get(turn["id"], ())))
        # The turn came without a request; this column distinguishes requests.
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
    """Counts rows and packs terms again: only our own counts keep a prompt within its budget."""
    for row in rows["messages"]:
        message = archived_message(row)
        message, used = tools.tokenizers.count_with(_known(row["token_encoding"], own), partial(counted, message))
        row |= {"token_estimate": message.tokens, "token_encoding": used, "reasoning_tokens": message.reasoning_tokens}
        row["terms"] = bytea_json(terms_of_message(message))
    for row in rows["summaries"]:
        rendered = render_summary(SummaryBody(row["summary_text"], **summary_lists(row)))
        row["token_estimate"], row["token_encoding"] = tools.tokenizers.count_with(
            _known(row["token_encoding"], own), partial(message_tokens, rendered)
        )


def _known(encoding: str, own: str) -> str:
    return encoding if encoding in (*ENCODINGS, HEURISTIC, TWO_FIFTHS) else own


@frozen
class ImportedMessages:
    """The fields of a new session and OpenAI-style messages, each of them valid by itself."""

    fields: JsonObject
    messages: Sequence[Mapping[str, Any]]


BodyReader: TypeAlias = Callable[[bytes], JsonObject | ImportedMessages]
"""Reads a body: messages, or the document of an exported session, whose rows are valid one by one."""


class ImportJob:
    """Reads a body: call `read`, then `draft`, then `next_part` until it returns None."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._source: JsonObject | IncomingList | None = None
        self._parts: Iterator[NewHistory | NewRows | Counters] = iter(())

    def read(self, read: BodyReader, raw: bytes) -> tuple[JsonObject, bool]:
        """Checks the whole body; returns the session's fields, with a conversation's system and developer messages in
        their instructions, and whether it is an export. Raises `InvalidRequest` with the places of errors."""
        source = read(raw)
        if not isinstance(source, ImportedMessages):
            check_document(source, SentHashes)
            self._source = source
            return source["session"], True
        listed = read_messages(source.messages)
        if not listed.messages:
            raise InvalidRequest("There is no message of a user, an assistant or a tool.", ("body", "messages"))
        with located("body", "messages"):
            check_pairing(listed.messages)
        texts = [text for text in (source.fields.get("instructions"), listed.instructions) if text]
        self._source = listed
        return source.fields | {"instructions": "\n\n".join(texts) or None}, False

    def draft(self, model_alias: str, encoding: str) -> None:
        """Numbers and counts what was read, for a session of this model. A conversation's turn without a final answer
        is `cancelled`: later prompts contain the user's messages and its complete tool groups."""
        source, self._source = self._source, None
        if isinstance(source, IncomingList):
            self._parts = iter([*drafted(self._tools, encoding, model_alias, cut_turns(source.messages))])
        elif source is not None:
            self._parts = restored(self._tools, source, encoding)

    def next_part(self) -> NewHistory | NewRows | Counters | None:
        """The rows that the next statement stores, or None after the last."""
        return next(self._parts, None)
