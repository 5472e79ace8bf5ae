"""What a session should be, in plain Python: a list of turns, a chain of summaries, some pins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OPEN = ("running", "awaiting_tools")
LEGAL = {
    "awaiting_tools": {"awaiting_tools", "completed", "failed", "cancelled"},
    "completed": {"completed"},
    "failed": {"failed"},
    "rejected": {"rejected"},
    "cancelled": {"cancelled"},
}
"""What a turn that was seen in one status may be seen in later."""


@dataclass
class ModelTurn:
    """A turn as it was answered. `prompts` is what its rounds were sent, by round, as it was first read."""

    id: str
    status: str
    user_input: str
    output: str | None
    open_calls: list[str]
    rounds: int = 1
    prompts: dict[int, Any] = field(default_factory=dict[int, Any])

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def sends(self) -> bool:
        """Whether a model was ever asked, so that there is a prompt to read."""
        return self.status != "rejected"


@dataclass
class ModelSession:
    """`summaries` are (id, status, the one it folded in), oldest first."""

    id: str
    turns: list[ModelTurn] = field(default_factory=list[ModelTurn])
    summaries: list[list[str | None]] = field(default_factory=list[list[str | None]])
    pins: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def open_turn(self) -> ModelTurn | None:
        return next((turn for turn in self.turns if turn.is_open), None)

    @property
    def active_summary(self) -> list[str | None] | None:
        return next((summary for summary in self.summaries if summary[1] == "active"), None)

    def made_summary(self, summary_id: str) -> None:
        """A new one supersedes the active one, and folds it in."""
        before = self.active_summary
        if before is not None:
            before[1] = "superseded"
        self.summaries.append([summary_id, "active", before[0] if before else None])

    def undone(self) -> None:
        """The active one is taken back; the one that it folded in stands again."""
        active = self.active_summary
        assert active is not None
        active[1] = "undone"
        for summary in self.summaries:
            if summary[0] == active[2]:
                summary[1] = "active"


def assert_sendable(messages: list[dict[str, Any]]) -> None:
    """Every provider takes it: instructions lead, somebody speaks, every call has its one result and no result none."""
    roles = [message["role"] for message in messages]
    first = next(at for at, role in enumerate(roles) if role != "system")
    assert "system" not in roles[first:]
    assert "user" in roles
    assert roles[-1] in {"user", "tool"}
    assert roles[first] in {"user", "assistant"}
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting
            waiting.discard(message["tool_call_id"])
            continue
        assert not waiting
        calls = [call["id"] for call in message.get("tool_calls") or ()]
        assert len(calls) == len(set(calls))
        waiting = set(calls)
        assert message["content"] or calls
    assert not waiting
