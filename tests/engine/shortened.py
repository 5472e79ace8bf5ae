"""What a client does that follows a refusal's advice: the named item made shorter by so many tokens."""

from __future__ import annotations

from dataclasses import replace

from app.domain.types import Message, Pin
from app.engine.messages.tokens import tools_tokens
from app.engine.window.prompt import pin_text
from app.engine.window.snapshot import Snapshot
from tests.engine.histories import estimate


def shortened(snapshot: Snapshot, label: str, by_tokens: int) -> Snapshot | None:
    """The snapshot with the named item shorter by so many tokens; None where its own text can not give as much."""
    kind, _, name = label.partition(":")
    if kind == "message":
        current = snapshot.current
        messages = tuple(
            _cut_message(message, by_tokens) if str(message.id) == name else message for message in current.messages
        )
        return replace(snapshot, current=replace(current, messages=messages))
    if kind == "pin":
        pins = tuple(_cut_pin(pin, by_tokens) if pin.name == name else pin for pin in snapshot.pins)
        return replace(snapshot, pins=pins) if pins != snapshot.pins else None
    if kind == "goal":
        return replace(snapshot, goal=_cut(snapshot.goal or "", by_tokens))
    if kind == "pins":
        return _with_shorter_pins(snapshot, by_tokens)
    if kind == "tools":
        return _with_shorter_tools(snapshot, by_tokens)
    layers = tuple((each, _cut(text, by_tokens) if each == label else text) for each, text in snapshot.layers)
    return replace(snapshot, layers=layers)


def _with_shorter_pins(snapshot: Snapshot, by_tokens: int) -> Snapshot | None:
    pins: list[Pin] = []
    for pin in snapshot.pins:
        shorter = _cut_pin(pin, by_tokens) if by_tokens > 0 else pin
        if shorter is pin and by_tokens > 0:
            shorter = replace(pin, content="")
        by_tokens -= estimate(pin_text(pin)) - estimate(pin_text(shorter))
        pins.append(shorter)
    return replace(snapshot, pins=tuple(pins)) if by_tokens <= 0 else None


def _with_shorter_tools(snapshot: Snapshot, by_tokens: int) -> Snapshot | None:
    wanted = tools_tokens(snapshot.tools, estimate) - by_tokens
    for at, tool in enumerate(snapshot.tools):
        function = dict(tool["function"])
        text = str(function.get("description", ""))
        for length in range(len(text), -1, -1):
            shorter = {**tool, "function": {**function, "description": text[:length]}}
            tools = (*snapshot.tools[:at], shorter, *snapshot.tools[at + 1 :])
            if tools_tokens(tools, estimate) <= wanted:
                return replace(snapshot, tools=tools)
    return None


def _cut(text: str, by_tokens: int) -> str:
    return text[: (estimate(text) - by_tokens) * 4]


def _cut_message(message: Message, by_tokens: int) -> Message:
    text = message.content if isinstance(message.content, str) else str((message.content or [{}])[0].get("text"))
    return replace(message, content=_cut(text, by_tokens), tokens=message.tokens - by_tokens)


def _cut_pin(pin: Pin, by_tokens: int) -> Pin:
    wanted = estimate(pin_text(pin)) - by_tokens
    for length in range(len(pin.content), -1, -1):
        shorter = replace(pin, content=pin.content[:length])
        if estimate(pin_text(shorter)) <= wanted:
            return shorter
    return pin
