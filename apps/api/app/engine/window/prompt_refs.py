"""Prompt references: what an audit row stores of a prompt, and how the exact prompt is rebuilt from it.

The form is `{"items": [...], "tools": sha256 | null}`. An item is one of these:

- `["b", sha256, role]`: a block.
- `["m", first_seq, last_seq]`: a run of stored messages with consecutive numbers; `"c"` for messages whose calls were
  sent without arguments, `"k"` (`"h"` with a handle) for texts that a prune has shortened, `"e"` (`"l"`) for tool
  results that were cleared, and `"p"` for messages whose media are replaced by markers. `["u", first_seq, last_seq]`:
  only the users' messages of a range.
- `["s", seq, sha256]`: a stored message whose content is replaced by the text of a block; in older rows `"j"` if the
  block is the JSON of a list of parts. `["w", sha256, role]`: a block that is a whole message, of a look-back.
  If reasoning was sent with stored messages, all of these letters but `"u"` are followed by `t` (reasoning as text) or
  `b` (the provider's blocks): `"mt"`.
- `["r", packed, …]`: recalled messages, as packed by `domain/recalled.py`.

A run has the same size however long it is, so storage grows with the number of turns, not with what they send.
`"regions": [[region, messages], …]`, in prompt order, has each region with its number of messages. Older rows have no
regions, no `"u"` and no `"r"`; they and exports list recalled messages like any others.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

from app.domain.audit import REFS_OF_BLOCKS, REFS_OF_RUNS, REFS_OF_SHORTENED
from app.domain.content import canonical_bytes
from app.domain.errors import PromptTooLarge
from app.domain.frozen import frozen, replace
from app.domain.recalled import RECALLED, Recalled, recalled_ref, rows_of
from app.domain.types import JsonObject, Message, PromptMessage, ReasoningForm, Region
from app.engine.window.prompt import (
    CLOSING,
    OPENING,
    Part,
    Prompt,
    PromptItem,
    Run,
    Stretch,
    message_json,
    neutral_message,
    without_inputs,
)
from app.engine.window.shortening import REMADE, remade_content

MOST_PROMPT_BYTES: Final = 64 * 1024 * 1024
"""Largest prompt that is rebuilt. No provider accepts a request of this size."""
MESSAGE_BYTES: Final = 512
"""Bytes counted for each message of a prompt besides its JSON, because it has a row in the prompt's layout."""

_CHANGED: Final = REFS_OF_SHORTENED | REMADE | {"c"}
"""The first letters of references to messages that were not sent as stored."""
_MARK_OF_FORM: Final[Mapping[ReasoningForm | None, str]] = {None: "", "text": "t", "blocks": "b"}
"""What follows the letter of a reference to stored messages."""
_FORM_OF_MARK: Final[Mapping[str, ReasoningForm | None]] = {mark: form for form, mark in _MARK_OF_FORM.items()}


@frozen
class Needed:
    """What has to be read to rebuild a prompt. `runs` are inclusive ranges of message `seq`; of `user_runs` only the
    users' messages are needed."""

    sha256s: tuple[str, ...]
    runs: tuple[tuple[int, int], ...]
    user_runs: tuple[tuple[int, int], ...] = ()


def refs_of(prompt: Prompt, recalled: Sequence[Recalled], others_between: Callable[[int, int], int]) -> JsonObject:
    """The references of a prompt with these recalled messages. `others_between` says how many of the past's messages
    between two numbers are not a user's, sent or not; users' with only such between them become one range."""
    items: list[list[Any]] = []
    runs = _Runs(items, others_between)
    rest = iter(recalled)
    for is_recalled, parts in groupby(prompt.parts, _is_recalled):
        if is_recalled:
            items.append(recalled_ref([next(rest) for _ in parts]))
            continue
        for part in parts:
            if isinstance(part, Run):
                for stretch in part.past.stretches_of_run(part.first, part.end):
                    runs.add(stretch)
            elif part.message is not None and not part.is_shortened:
                seq = part.message.seq
                runs.add(Stretch(part.message.reasoning_sent, seq, seq, int(part.message.role == "user")))
            else:
                runs.end()
                items.append(_ref_of(part))
    regions = [
        [region, sum([part.messages for part in run])] for region, run in groupby(prompt.parts, attrgetter("region"))
    ]
    return {"items": items, "tools": prompt.tools_block.sha256 if prompt.tools_block else None, "regions": regions}


def _is_recalled(part: Part) -> bool:
    return isinstance(part, PromptItem) and part.region == "recall" and part.message is not None


def _ref_of(item: PromptItem) -> list[Any]:
    """The reference of an item that is not a message as it is stored."""
    if item.message is not None and item.inputs_cleared:
        return [f"c{_MARK_OF_FORM[item.message.reasoning_sent]}", item.message.seq, item.message.seq]
    if item.block is None:
        raise ValueError(f"{item.label} has neither a message nor a block")
    if item.message is None:
        return ["w" if item.block.is_message else "b", item.block.sha256, item.block.role]
    letter, seq = item.block.made_by or "s", item.message.seq
    # Older versions know no mark here.
    mark = _MARK_OF_FORM[item.message.reasoning_sent] if item.message.role == "assistant" else ""
    return [letter + mark, seq, seq if item.block.made_by else item.block.sha256]


class _Runs:
    """Appends stored messages to the items, in as few runs as possible."""

    def __init__(self, items: list[list[Any]], others_between: Callable[[int, int], int]) -> None:
        self._items = items
        self._others_between = others_between
        self._run: list[Any] | None = None
        self._of_users = False

    def add(self, stretch: Stretch) -> None:
        """Append a stretch. Only users' messages at its beginning can extend a range of users' messages."""
        kind, first, users = f"m{_MARK_OF_FORM[stretch.form]}", stretch.first_seq, stretch.users
        while users and self._run is not None and self._of_users and self._goes_on(kind, first):
            self._run[2] = first
            first, users = first + 1, users - 1
        if first > stretch.last_seq:
            return
        run = self._run
        if run is not None and run[0] == kind and run[2] == first - 1:
            run[2] = stretch.last_seq
            self._of_users = self._of_users and users > stretch.last_seq - first
        else:
            self._run = [kind, first, stretch.last_seq]
            self._of_users = users > stretch.last_seq - first
            self._items.append(self._run)

    def _goes_on(self, kind: str, seq: int) -> bool:
        """Whether this message continues the run of users' messages, which others between make a range."""
        assert self._run is not None
        if self._run[0] == kind and self._run[2] == seq - 1:
            return True
        if self._others_between(self._run[2], seq) != seq - self._run[2] - 1:
            return False
        self._run[0] = "u"
        return True

    def end(self) -> None:
        """End the current run: the next item is not a run of stored messages."""
        self._run = None


def spelled_out(refs: JsonObject) -> JsonObject:
    """The same references, with recalled messages in runs like any others."""
    items: list[list[Any]] = []
    runs = _Runs(items, lambda _first, _last: 0)
    for ref in refs["items"]:
        runs.end()
        if ref[0] != RECALLED:
            items.append(ref)
            continue
        for row in rows_of(ref):
            runs.add(Stretch(row.form, row.seq, row.seq, 0))
    return {**refs, "items": items}


def needed_for(refs: JsonObject) -> Needed:
    """The blocks and messages that a rebuild reads."""
    items = spelled_out(refs)["items"]
    sha256s = [ref[1] if ref[0] in REFS_OF_BLOCKS else ref[2] for ref in items if ref[0][0] not in REFS_OF_RUNS]
    if refs["tools"]:
        sha256s.append(refs["tools"])
    runs = [
        (ref[1], ref[2] if ref[0][0] in REFS_OF_RUNS else ref[1])
        for ref in items
        if ref[0] not in REFS_OF_BLOCKS | {"u"}
    ]
    user_runs = [(ref[1], ref[2]) for ref in items if ref[0] == "u"]
    return Needed(tuple(dict.fromkeys(sha256s)), tuple(_merged(runs)), tuple(_merged(user_runs)))


HowSent: TypeAlias = Callable[[Message], Literal["whole", "shortened", "marked"] | None]
"""How a stored message was sent in a prompt, `marked` with markers in place of its media alone; None if it was not."""


def how_sent_of(refs: JsonObject) -> HowSent:
    shortened = {ref[1]: ref[0] for ref in refs["items"] if ref[0][0] in _CHANGED}
    needed = needed_for(refs)

    def how_sent(message: Message) -> Literal["whole", "shortened", "marked"] | None:
        if kind := shortened.get(message.seq):
            return "marked" if kind[0] in "jp" else "shortened"
        runs = (needed.runs, needed.user_runs) if message.role == "user" else (needed.runs,)
        return "whole" if any(in_runs(each, message.seq) for each in runs) else None

    return how_sent


def in_runs(runs: Sequence[tuple[int, int]], seq: int) -> bool:
    """Whether one of these inclusive ranges, which are sorted, contains the number."""
    at = bisect_right(runs, seq, key=lambda run: run[0]) - 1
    return at >= 0 and seq <= runs[at][1]


def _merged(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same messages in ranges that do not overlap, so that each message is read once."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


class SentHashes:
    """The hashes of stored prompts, computed message by message: no prompt is ever in memory as a whole.

    `blocks` maps sha256 to text, `messages` maps `seq` to the stored message. Each is encoded once, however many
    prompts refer to it.
    """

    def __init__(self, blocks: Mapping[str, str], messages: Mapping[int, Message]) -> None:
        self._blocks = blocks
        self._messages = messages
        self._user_seqs = _user_seqs(messages)
        self._encoded: dict[tuple[str | int, str], bytes] = {}
        self.total_bytes = 0
        """Bytes of all prompts so far, counted as for `MOST_PROMPT_BYTES`, plus those of their tools."""

    def sha256(self, refs: JsonObject) -> str:
        """The hash of one prompt: what `Prompt.hashed` gives for the same messages and tools.

        Raises `PromptTooLarge` as soon as it is over `MOST_PROMPT_BYTES`, and `KeyError` when a part is missing.
        """
        digest = sha256(OPENING)
        size = 0
        for piece in self._messages_of(refs):
            # Every piece but the first keeps its comma.
            digest.update(piece if size else piece[1:])
            size += len(piece) + MESSAGE_BYTES
            if size > MOST_PROMPT_BYTES:
                raise PromptTooLarge(MOST_PROMPT_BYTES)
        tools = self._block(refs["tools"], "json") if refs["tools"] else b"[]"
        self.total_bytes += size + len(tools)
        digest.update(CLOSING % tools)
        return digest.hexdigest()

    def _messages_of(self, refs: JsonObject) -> Iterator[bytes]:
        """The canonical JSON of each message in order, with a leading comma. `content` is the first key of each."""
        for kind, first, second in spelled_out(refs)["items"]:
            if kind == "b":
                yield b',{"content":%b,"role":%b}' % (self._block(first, "text"), canonical_bytes(second))
            elif kind == "w":
                yield b"," + self._block(first, "json")
            elif kind[0] in REFS_OF_SHORTENED:
                content = self._block(second, "json" if kind[0] == "j" else "text")
                rest = canonical_bytes(neutral_message(_as_sent(self._messages[first], kind), content=""))
                yield b',{"content":%b%b' % (content, rest.removeprefix(b'{"content":""'))
            else:
                for seq in _seqs_of_run(kind, first, second, self._user_seqs):
                    piece = self._encoded.get((seq, kind))
                    if piece is None:
                        piece = self._encoded[seq, kind] = message_json(_as_sent(self._messages[seq], kind))
                    yield piece

    def _block(self, sha256_hex: str, form: str) -> bytes:
        if (sha256_hex, form) not in self._encoded:
            text = self._blocks[sha256_hex]
            self._encoded[sha256_hex, form] = canonical_bytes(json.loads(text) if form == "json" else text)
        return self._encoded[sha256_hex, form]


@frozen
class RebuiltPart:
    """One message of a rebuilt prompt, with its stored message, or None for a block."""

    sent: PromptMessage
    message: Message | None
    shortened: bool = False


def rebuilt_parts(
    refs: JsonObject, blocks: Mapping[str, str], messages: Mapping[int, Message]
) -> Iterator[RebuiltPart]:
    """The messages of a prompt in order, from blocks and messages as for `SentHashes`. Raises `KeyError` when a part is
    missing."""
    user_seqs = _user_seqs(messages)
    for kind, first, second in spelled_out(refs)["items"]:
        if kind == "b":
            yield RebuiltPart({"role": second, "content": blocks[first]}, None)
        elif kind == "w":
            yield RebuiltPart(json.loads(blocks[first]), None)
        elif kind[0] in REFS_OF_SHORTENED:
            content = json.loads(blocks[second]) if kind[0] == "j" else blocks[second]
            message = _as_sent(messages[first], kind)
            yield RebuiltPart(neutral_message(message, content=content), message, shortened=True)
        else:
            for seq in _seqs_of_run(kind, first, second, user_seqs):
                message = _as_sent(messages[seq], kind)
                yield RebuiltPart(neutral_message(message), message, shortened=kind[0] in _CHANGED)


def _as_sent(message: Message, kind: str) -> Message:
    """The message as references of this kind send it, except for content that is replaced."""
    sent = replace(message, reasoning_sent=_FORM_OF_MARK[kind[1:]])
    if kind[0] in REMADE:
        return replace(sent, content=remade_content(message, kind[0]))
    return without_inputs(sent) if kind[0] == "c" else sent


def _user_seqs(messages: Mapping[int, Message]) -> list[int]:
    return sorted(seq for seq, message in messages.items() if message.role == "user")


def _seqs_of_run(kind: str, first: int, last: int, user_seqs: Sequence[int]) -> Sequence[int]:
    """The numbers of a run's messages. Raises `KeyError` if a `"u"` range does not begin and end with a user's."""
    if kind != "u":
        return range(first, last + 1)
    seqs = user_seqs[bisect_left(user_seqs, first) : bisect_right(user_seqs, last)]
    if not seqs or (seqs[0], seqs[-1]) != (first, last):
        raise KeyError(first)
    return seqs


def regions_of(refs: JsonObject, messages: int) -> list[Region] | None:
    """The region of each of `messages` messages; None if none are stored, or if those of an import are not so many."""
    runs: Sequence[tuple[Region, int]] = refs.get("regions") or ()
    if sum(count for _, count in runs) != messages:
        return None
    return [region for region, count in runs for _ in range(count)]
