"""What a client does that follows a refusal's advice: the named item made shorter by so many tokens."""

from __future__ import annotations

from dataclasses import replace

from app.domain.types import Message, Pin
from app.engine.window.prompt import pin_text
from app.engine.window.window import Snapshot
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
    layers = tuple((each, _cut(text, by_tokens) if each == label else text) for each, text in snapshot.layers)
    return replace(snapshot, layers=layers)


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
