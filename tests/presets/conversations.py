"""What is played through every preset: the shipped conversation, one in which tools are called, and one with pins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.domain.types import Pin
from plimsoll_demo.demo import GOAL, WINDOW_TOKENS, shipped_conversation
from plimsoll_demo.recording import RecordedCall, RecordedConversation, RecordedTurn, Round

TOOL = {
    "type": "function",
    "function": {
        "name": "query_ledger",
        "description": "Reads rows of the ledger.",
        "parameters": {"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]},
    },
}
TOOL_TURNS = 16


@dataclass(frozen=True, slots=True)
class Scene:
    """A conversation, the window and pins it is had with, and what of the preset it has otherwise."""

    conversation: RecordedConversation
    window_tokens: int
    pins: tuple[Pin, ...] = ()
    policy: Mapping[str, object] = field(default_factory=dict[str, object])


def _call(turn: int, number: int, rows: int) -> RecordedCall:
    lines = [
        f"{turn:02d}{row:03d};booked;corvid;EUR;{(turn * 7919 + row * 104729) % 90000};2024-03-{1 + row % 28:02d}"
        for row in range(rows)
    ]
    sql = f"batch {turn}, part {number} of entries"
    return RecordedCall(f"call-{turn}-{number}", "query_ledger", f'{{"sql":"{sql}"}}', "\n".join(lines))


def _tool_turn(turn: int) -> RecordedTurn:
    """Every third turn asks for nothing, every fourth calls twice at once, the others once, some in two rounds."""
    said = f"Batch {turn}: which entries differ from the bank's file, and by how much in total? Mind decision {turn}."
    answer = Round(f"Batch {turn} has {turn % 5} differences; the sum is {turn * 137} cents. " * 4)
    if turn % 3 == 0:
        return RecordedTurn(said, (answer,))
    if turn % 4 == 0:
        return RecordedTurn(said, (Round(None, (_call(turn, 1, 12), _call(turn, 2, 30))), answer))
    rounds = (Round("I look.", (_call(turn, 1, 8 + turn * 2),)),)
    if turn % 5 == 0:
        rounds += (Round(None, (_call(turn, 2, 20),)),)
    return RecordedTurn(said, (*rounds, answer))


def tool_conversation() -> RecordedConversation:
    """An assistant that reads a ledger by tools."""
    turns = tuple(_tool_turn(turn) for turn in range(1, TOOL_TURNS + 1))
    return RecordedConversation("ledger", turns, "You read the ledger by tools and add up differences.", (TOOL,))


def _pin(name: str, relevance: float | None, lines: int) -> Pin:
    body = "\n".join(
        f"{name} line {line}: the {name} of batch {line} is kept by clause {line * 3}." for line in range(lines)
    )
    return Pin(name, body, relevance, f"{name}.md")


SCENES = {
    "shipped": Scene(shipped_conversation(), WINDOW_TOKENS),
    "raw": Scene(shipped_conversation(), WINDOW_TOKENS, policy={"protected_share": None}),
    "tools": Scene(tool_conversation(), 8192, (Pin("rule", "Never touch account 4711.", 1.0),)),
    "pins": Scene(
        replace(shipped_conversation(), turns=shipped_conversation().turns[:28]),
        WINDOW_TOKENS,
        (_pin("ledger", 0.9, 250), _pin("bank", 0.2, 250), _pin("fees", 0.5, 250)),
    ),
}
GOAL_OF_ALL = GOAL
