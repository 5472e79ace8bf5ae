"""Sorts OpenAI-style messages into turns and rounds, and puts right what a recording got wrong.

Every user message begins a turn, also directly after another one. What is mended, and what cannot be and is left out,
is counted: nothing of a recording disappears in silence.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast

from plimsoll_demo.definitions import definitions, function_name
from plimsoll_demo.recording import (
    OPENING_PROMPT,
    LeftOut,
    Mended,
    RecordedCall,
    RecordedConversation,
    RecordedTurn,
    Round,
)

_LONGEST_ID = 200


@dataclass
class _Call:
    id: str
    id_given: bool
    name: str
    arguments: str
    result: str | None = None


@dataclass
class _Round:
    texts: list[str] = field(default_factory=list[str])
    calls: list[_Call] = field(default_factory=list[_Call])
    has_results: bool = False


@dataclass
class _Turn:
    prompt: str
    rounds: list[_Round] = field(default_factory=list[_Round])


def conversation(name: str, messages: Iterable[Mapping[str, Any]], tools: object = None) -> RecordedConversation:
    """The conversation of `messages`; `tools` is the recording's own list of definitions, if it has one."""
    sorter = _Sorter()
    for message in messages:
        sorter.take(message)
    turns = tuple(_frozen(turn) for turn in sorter.turns)
    return RecordedConversation(
        name=name,
        turns=turns,
        instructions="\n\n".join(filter(None, sorter.instructions)) or None,
        tools=definitions(tools, turns, sorter.left_out),
        left_out=+sorter.left_out,
        mended=+sorter.mended,
    )


class _Sorter:
    def __init__(self) -> None:
        self.instructions: list[str] = []
        self.turns: list[_Turn] = []
        self.left_out: Counter[LeftOut] = Counter()
        self.mended: Counter[Mended] = Counter()
        self._known_ids: set[str] = set()
        self._calls = 0

    def take(self, message: Mapping[str, Any]) -> None:
        """Puts one message where it belongs."""
        text, media_parts = _text(message.get("content"))
        self.left_out["media_parts"] += media_parts
        listed = message.get("tool_calls")
        calls = [call for call in cast("list[object]", listed) if _is_object(call)] if isinstance(listed, list) else []
        match message["role"]:
            case "system" | "developer" if not self.turns:
                self.instructions.append(text)
            case "system" | "developer":
                self.left_out["system_messages"] += 1
            case "tool":
                self._result(message.get("tool_call_id"), text)
            case _ if not text.strip() and not calls:
                self.left_out["empty_messages"] += 1
            case "user":
                self.turns.append(_Turn(text))
            case _:
                self._reply(text, calls)

    def _reply(self, text: str, calls: list[Mapping[str, Any]]) -> None:
        """An assistant message; the first of a conversation answers `OPENING_PROMPT`.

        It goes on with the one before where that called nothing, or where both call and no result has come between
        (parallel calls, recorded one a message).
        """
        if not self.turns:
            self.turns.append(_Turn(OPENING_PROMPT))
        rounds = self.turns[-1].rounds
        previous = rounds[-1] if rounds else None
        if previous is not None and (not previous.calls or (calls and not previous.has_results)):
            self.mended["messages_joined"] += 1
            reply = previous
        else:
            reply = _Round()
            rounds.append(reply)
        if text:
            reply.texts.append(text)
        for call in calls:
            reply.calls.append(self._call(call, {known.id for known in reply.calls}))

    def _call(self, call: Mapping[str, Any], taken: set[str]) -> _Call:
        """A call with an id of its own within its message. An id of an earlier message is sent again as recorded:
        providers pair calls with the results that follow them, and so must the service."""
        self._calls += 1
        recorded_id = call.get("id")
        function: Mapping[str, Any] = found if _is_object(found := call.get("function")) else {}
        usable = isinstance(recorded_id, str) and 0 < len(recorded_id) <= _LONGEST_ID and recorded_id not in taken
        call_id = str(recorded_id) if usable else f"replayed_call_{self._calls}"
        self.mended["ids_given"] += not usable
        self.mended["ids_sent_again"] += call_id in self._known_ids
        self._known_ids.add(call_id)
        name = function_name(function.get("name"))
        self.mended["functions_renamed"] += name != function.get("name")
        arguments = function.get("arguments", "{}")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return _Call(call_id, not usable, name, arguments)

    def _result(self, call_id: object, text: str) -> None:
        """A result goes to the newest unanswered call of its id; one without an id, to the first call still open."""
        rounds = [round_ for turn in self.turns for round_ in turn.rounds]
        found = _asked_for(rounds, call_id)
        if found is None:
            self.left_out["tool_results_without_call"] += 1
            return
        round_, call = found
        call.result = text
        round_.has_results = True
        newest = self.turns[-1].rounds
        self.mended["results_moved"] += not newest or round_ is not newest[-1]


def _asked_for(rounds: list[_Round], call_id: object) -> tuple[_Round, _Call] | None:
    for round_ in reversed(rounds):
        for call in round_.calls:
            if call.result is None and not call.id_given and call.id == call_id:
                return round_, call
    for call in rounds[-1].calls if rounds else ():
        if call.result is None and (call.id_given or not call_id):
            return rounds[-1], call
    return None


def _frozen(turn: _Turn) -> RecordedTurn:
    rounds = (
        Round(
            "\n\n".join(round_.texts) or None,
            tuple(RecordedCall(call.id, call.name, call.arguments, call.result) for call in round_.calls),
        )
        for round_ in turn.rounds
    )
    return RecordedTurn(turn.prompt, tuple(rounds))


def _text(content: object) -> tuple[str, int]:
    """The text of a content and how many of its parts are no text; such a part leaves its type in brackets."""
    if content is None or isinstance(content, str):
        return content or "", 0
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False), 0
    texts: list[str] = []
    media_parts = 0
    for part in cast("list[Any]", content):
        if isinstance(part, str):
            texts.append(part)
        elif _is_object(part) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            media_parts += 1
            texts.append(f"[{part.get('type', 'media') if _is_object(part) else 'media'}]")
    return "\n".join(texts), media_parts


def _is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, dict)
