"""The document of an exported session: its format, and the checks of an imported one.

`api/schemas/archive.py` has validated the shape of every row. Here rows are checked against each other: numbers,
references, hashes. The session of a valid document can be stored, continued and rebuilt like any other session.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final, Protocol, TypeAlias, cast

from app.domain.audit import REFS_OF_BLOCKS, REFS_OF_RUNS
from app.domain.content import sha256_hex, tool_calls_from_json
from app.domain.errors import ImportRefused, PromptTooLarge
from app.domain.types import MOST_PINS, MOST_PINS_BYTES, SUMMARY_LISTS, JsonObject, Message, MessageId, TurnId

FORMAT: Final = "plimsoll.session"
VERSION: Final = 1
SECTIONS: Final = ("pins", "blocks", "turns", "messages", "steps", "summaries", "audits")
"""The lists of a document, in the order of the document."""
ROWS_WITH_ID: Final = ("turns", "messages", "steps", "summaries", "audits")

MOST_FAULTS: Final = 20
MOST_PROMPTS_BYTES: Final = 8 * 1024 * 1024 * 1024
"""Most bytes of all prompts of a document, with `MESSAGE_BYTES` a message. It limits the time to check their hashes."""

_NUMBERS_A_MESSAGE: Final = 64
_MOST_NUMBERS_LEFT_OUT: Final = 65_536
"""Numbers that a session may leave out, beside `_NUMBERS_A_MESSAGE` for each message. It leaves one out for each reply
that never came. To read a window takes time in proportion to its numbers."""


Faults: TypeAlias = Iterator[tuple[str, str]]
"""Places of a document, each with a sentence that says what is wrong there."""


class PromptHashes(Protocol):
    """Rebuilds and hashes stored prompts. Raises `PromptTooLarge`, `KeyError`, `TypeError` or `ValueError`."""

    total_bytes: int

    def sha256(self, refs: JsonObject) -> str: ...


PromptHashesOf: TypeAlias = Callable[[Mapping[str, str], Mapping[int, Message]], PromptHashes]
"""Makes a `PromptHashes` from the contents of blocks by hash, and messages by number."""


def check_document(
    document: Mapping[str, Any], hashes_of: PromptHashesOf, *, most_prompts_bytes: int = MOST_PROMPTS_BYTES
) -> None:
    """Raises `ImportRefused`, with the places, if parts of the document contradict each other. CPU-bound."""
    # Later checks depend on the earlier ones.
    turn_seqs: dict[str, int] = {turn["id"]: turn["seq"] for turn in document["turns"]}
    for faults in (
        _faults_of_keys_and_turns(document),
        _faults_of_turn_ids(document, turn_seqs),
        _faults_of_messages(document, turn_seqs),
        chain(_faults_of_summaries(document, turn_seqs), _faults_of_blocks(document)),
        _faults_of_prompts(document, turn_seqs, hashes_of, most_prompts_bytes),
    ):
        if found := [(f"body.{place}", sentence) for place, sentence in islice(faults, MOST_FAULTS)]:
            raise ImportRefused(found)


def _faults_of_keys_and_turns(document: Mapping[str, Any]) -> Faults:
    yield from _repeated(document["pins"], "pins", ("name",))
    yield from _repeated(document["blocks"], "blocks", ("sha256",))
    yield from _repeated_ids(document)
    if len(document["pins"]) > MOST_PINS:
        yield "pins", f"A session has {MOST_PINS} pins at most."
    if sum([len(pin["content"].encode()) for pin in document["pins"]]) > MOST_PINS_BYTES:
        yield "pins", f"A session's pins have {MOST_PINS_BYTES} bytes together at most."
    yield from _faults_of_turns(document)


def _faults_of_turn_ids(document: Mapping[str, Any], turn_seqs: Mapping[str, int]) -> Faults:
    for section, keys in (("messages", ()), ("steps", ("seq",)), ("audits", ("round", "attempt"))):
        for at, row in enumerate(document[section]):
            if row["turn_id"] not in turn_seqs:
                yield f"{section}.{at}.turn_id", "The document has no turn of this id."
        if keys:
            yield from _repeated(document[section], section, ("turn_id", *keys))


def _repeated(rows: Sequence[JsonObject], section: str, keys: tuple[str, ...]) -> Faults:
    seen: set[tuple[Any, ...]] = set()
    for at, row in enumerate(rows):
        value = tuple(row[key] for key in keys)
        if value in seen:
            yield f"{section}.{at}.{keys[-1]}", f"An earlier one of the {section} has the same {' and '.join(keys)}."
        seen.add(value)


def _repeated_ids(document: Mapping[str, Any]) -> Faults:
    """Rows with the id of another one, also of another section: new ids are given by the old ones."""
    seen: set[str] = set()
    for section in ROWS_WITH_ID:
        for at, row in enumerate(document[section]):
            if row["id"] in seen:
                yield f"{section}.{at}.id", "An earlier row of the document has the same id."
            seen.add(row["id"])


def _faults_of_turns(document: Mapping[str, Any]) -> Faults:
    turns: Sequence[JsonObject] = document["turns"]
    last_roles: dict[str, str] = {message["turn_id"]: message["role"] for message in document["messages"]}
    for at, turn in enumerate(turns):
        if turn["seq"] != at + 1:
            yield f"turns.{at}.seq", f"Turns are numbered from 1 without a gap; this one is number {at + 1}."
        if (turn["status"] == "completed") != (turn["error"] is None):
            yield f"turns.{at}.error", "A completed turn has no error, and any other has one."
        # A turn ends with results of tools if the client's next message came together with them.
        has_end = turn["assistant_output"] is not None or last_roles.get(turn["id"]) == "tool"
        if turn["status"] == "completed" and not has_end:
            yield f"turns.{at}.assistant_output", "A completed turn has an output, or ends with results of tools."
    if document["session"]["summary_count_after_seq"] > len(turns):
        yield "session.summary_count_after_seq", "There is no turn of this number."


def _faults_of_messages(document: Mapping[str, Any], turn_seqs: Mapping[str, int]) -> Faults:
    messages: Sequence[JsonObject] = document["messages"]
    yield from _repeated(messages, "messages", ("seq",))
    rejected = {turn["id"] for turn in document["turns"] if turn["status"] == "rejected"}
    newest_seq = begun_seq = newest_turn = 0
    called_ids: set[str] = set()
    open_ids: set[str] = set()
    for at, message in enumerate(messages):
        turn_seq, is_rejected = turn_seqs[message["turn_id"]], message["turn_id"] in rejected
        # A turn that was tried again after the next one was rejected has messages whose numbers are beyond that one's.
        if message["seq"] <= (begun_seq if is_rejected else newest_seq):
            yield f"messages.{at}.seq", "Messages are ordered by seq, without repetition."
        if message["seq"] > _NUMBERS_A_MESSAGE * (at + 1) + _MOST_NUMBERS_LEFT_OUT:
            yield f"messages.{at}.seq", "Too many numbers before this one belong to no message."
        if turn_seq not in (newest_turn, newest_turn + 1):
            yield f"messages.{at}.turn_id", "Messages are in the order of their turns, and every turn has one."
        if is_rejected or turn_seq != newest_turn:
            begun_seq = message["seq"]
        is_withdrawn = message.get("withdrawn", False)
        if turn_seq != newest_turn or message["role"] != "tool":
            called_ids = {call["id"] for call in message["tool_calls"] or ()}
            open_ids = set() if is_withdrawn else set(called_ids)
        newest_seq, newest_turn = max(newest_seq, message["seq"]), turn_seq
        # An output that was withdrawn, because the request that brought it was rejected, may be followed by another.
        for sentence in _wrong_for_role(message, called_ids if is_withdrawn else open_ids):
            yield f"messages.{at}", sentence
        if not is_withdrawn:
            open_ids.discard(message["tool_call_id"])
    if newest_turn != len(turn_seqs):
        yield "messages", f"Turn {newest_turn + 1} has no message."


def _wrong_for_role(message: JsonObject, callable_ids: set[str]) -> Iterable[str]:
    calls: Sequence[JsonObject] = message["tool_calls"] or ()
    if message["role"] != "assistant":
        if message["content"] is None:
            yield "A message of this role has content."
        if calls or message["reasoning"] is not None or message.get("reasoning_blocks") is not None:
            yield "Only an assistant's message has tool calls or reasoning."
    elif len({call["id"] for call in calls}) < len(calls):
        yield "Two tool calls of this message have the same id."
    if (message["role"] == "tool") != (message["tool_call_id"] is not None):
        yield "A tool's message, and no other, has a tool_call_id."
    elif message["role"] == "tool" and message["tool_call_id"] not in callable_ids:
        yield "This tool message answers no open call of its turn."


def _faults_of_summaries(document: Mapping[str, Any], turn_seqs: Mapping[str, int]) -> Faults:
    places: dict[str, int] = {message["id"]: at for at, message in enumerate(document["messages"])}
    turn_ends = set(_turn_ends(document["messages"]))
    ends: dict[str, int] = {}
    active: list[int] = []
    for at, summary in enumerate(document["summaries"]):
        first, last = places.get(summary["from_message_id"]), places.get(summary["to_message_id"])
        if first is None or last is None:
            yield f"summaries.{at}", "The document does not have the messages that the summary replaces."
            continue
        if first > last or last not in turn_ends:
            yield f"summaries.{at}.to_message_id", "A summary replaces whole turns, from the first to the last."
        previous = summary["previous_summary_id"]
        if previous is not None and ends.get(previous, last + 1) > last:
            yield f"summaries.{at}.previous_summary_id", "No summary before this one, of no more, has this id."
        if summary["created_by_turn_id"] is not None and summary["created_by_turn_id"] not in turn_seqs:
            yield f"summaries.{at}.created_by_turn_id", "The document has no turn of this id."
        for field in SUMMARY_LISTS:
            if any(cited not in places for item in summary[field] for cited in item["message_ids"]):
                yield f"summaries.{at}.{field}", "An item cites a message that the document does not have."
        ends[summary["id"]] = last
        active += [at] if summary["status"] == "active" else []
    for at in active[1:]:
        yield f"summaries.{at}.status", "Another summary is the active one."


def _turn_ends(messages: Sequence[JsonObject]) -> Iterator[int]:
    """The places at which a summary may end: the last of each turn, also without messages that are withdrawn."""
    ends = False
    for at in range(len(messages) - 1, -1, -1):
        after = messages[at + 1] if at + 1 < len(messages) else None
        ends = after is None or after["turn_id"] != messages[at]["turn_id"] or (ends and after.get("withdrawn", False))
        if ends:
            yield at


def _faults_of_blocks(document: Mapping[str, Any]) -> Faults:
    for at, block in enumerate(document["blocks"]):
        if sha256_hex(block["content"]) != block["sha256"]:
            yield f"blocks.{at}.sha256", "This is not the hash of the content."


def _faults_of_prompts(
    document: Mapping[str, Any], turn_seqs: Mapping[str, int], hashes_of: PromptHashesOf, most_bytes: int
) -> Faults:
    messages: list[JsonObject] = sorted(document["messages"], key=itemgetter("seq"))
    seqs: list[int] = [message["seq"] for message in messages]
    turns = [turn_seqs[message["turn_id"]] for message in messages]
    hashes = hashes_of(
        {block["sha256"]: block["content"] for block in document["blocks"]},
        {message["seq"]: archived_message(message) for message in document["messages"]},
    )
    for at, audit in enumerate(document["audits"]):
        refs, expected = audit["prompt_refs"], audit["prompt_sha256"]
        if (refs is None) != (expected is None):
            yield f"audits.{at}.prompt_sha256", "A prompt has references and a hash, or neither."
        if refs is None or expected is None:
            continue
        try:
            sha256 = hashes.sha256(refs)
        except PromptTooLarge as error:
            yield f"audits.{at}.prompt_refs", error.detail
            continue
        except (KeyError, TypeError, ValueError):
            yield (
                f"audits.{at}.prompt_refs",
                "The prompt cannot be rebuilt from the blocks and messages of the document.",
            )
            continue
        if sha256 != expected:
            yield f"audits.{at}.prompt_sha256", "The rebuilt prompt has another hash."
        for kind, first, second in [ref for ref in refs["items"] if ref[0] not in REFS_OF_BLOCKS]:
            last = second if kind[0] in REFS_OF_RUNS else first
            newest = max(turns[bisect_left(seqs, first) : bisect_right(seqs, last)], default=0)
            if newest > turn_seqs[audit["turn_id"]]:
                yield f"audits.{at}.prompt_refs", "The prompt has a message of a later turn."
                break
        if hashes.total_bytes > most_bytes:
            yield f"audits.{at}.prompt_refs", f"All prompts together have more than {most_bytes} bytes."
            break


def archived_message(row: Mapping[str, Any]) -> Message:
    """A message of a document as the domain's `Message`. The document's token count is not trusted: `tokens` is 0."""
    return Message(
        id=MessageId(row["id"]),
        turn_id=TurnId(row["turn_id"]),
        seq=row["seq"],
        role=row["role"],
        content=row["content"],
        tokens=0,
        tool_calls=tool_calls_from_json(row["tool_calls"]),
        tool_call_id=row["tool_call_id"],
        reasoning=row["reasoning"],
        reasoning_blocks=tuple(row.get("reasoning_blocks") or ()),
        name=row.get("name"),
    )


def with_ids(value: Any, ids: Mapping[str, str]) -> Any:
    """A copy of a JSON value with every known id replaced by its new id, also in strings such as `message:<id>`."""
    if isinstance(value, str):
        kind, colon, tail = value.rpartition(":")
        return kind + colon + ids.get(tail, tail)
    if isinstance(value, dict):
        return {name: with_ids(member, ids) for name, member in cast("JsonObject", value).items()}
    if isinstance(value, list):
        return [with_ids(item, ids) for item in cast("list[Any]", value)]
    return value
