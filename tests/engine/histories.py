"""Conversations to plan on: messages, turns and snapshots with ids and token counts that agree with their text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Literal
from uuid import UUID

from app.domain.types import (
    Content,
    ContentPart,
    Message,
    MessageId,
    Pin,
    Summary,
    SummaryBody,
    SummaryId,
    ToolCall,
    ToolDefinition,
    Turn,
    TurnId,
    TurnStatus,
)
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, NAME_FRAMING_TOKENS, message_tokens
from app.engine.policy.budget import Budget
from app.engine.policy.policy import ContextPolicy
from app.engine.window.past import past_of
from app.engine.window.prompt import Prompt
from app.engine.window.snapshot import Snapshot
from app.engine.window.window import lay_out

_SENTENCES = (
    "The depot in Harbour Street opens at seven and closes at nine, except on the last day of a month with an audit, "
    "when a porter of the night shift stays until the ledger has been signed by the harbour master. ",
    "We decided to keep valve 12 shut until Friday. ",
    "Which of the two pumps has to be replaced first, the one behind the boiler that has run for nineteen years, or "
    "the newer one that stands in the wet cellar and has been repaired three times already this winter? ",
    "The invoice 2024-118 is over 4,310 euro and was paid. ",
    "You must never restart the controller while the lamp is red, whoever asks for it and however often it is said. ",
)
"""What texts are made of: facts, a decision, a question, a request, so that a summary of them has something to find."""

GUARDED = ContextPolicy()
_FIRST_SAID_AT = datetime(2026, 2, 27, 9, 30, tzinfo=UTC)
_BETWEEN_MESSAGES = timedelta(hours=7, microseconds=1)
UnitShape = Literal["assistant", "tool_group", "incomplete_group"]


def estimate(text: str) -> int:
    """A cheap tokenizer: four characters a token."""
    return -(-len(text) // 4)


def text_of(tokens: int, seed: int = 0) -> str:
    """A text of exactly so many tokens, its beginning different for each seed."""
    head = f"[{seed}] "
    sentences = "".join(_SENTENCES[(seed + at) % len(_SENTENCES)] for at in range(len(_SENTENCES)))
    return (head + sentences * (tokens * 4 // len(sentences) + 1))[: tokens * 4]


@dataclass
class History:
    """Gives out ids and `seq` numbers in time order, as a session row does."""

    _ids: count[int] = field(default_factory=lambda: count(1))
    _message_seqs: count[int] = field(default_factory=lambda: count(1))
    _turn_seqs: count[int] = field(default_factory=lambda: count(1))

    def new_id(self) -> UUID:
        return UUID(int=next(self._ids))

    def turn(
        self,
        *units: tuple[UnitShape, int, int],
        user_tokens: int = 10,
        status: TurnStatus = TurnStatus.COMPLETED,
        unresolved: bool | None = None,
        parts: bool = False,
        media: tuple[ContentPart, ...] = (),
        result_media: tuple[ContentPart, ...] = (),
        call_tokens: int = 0,
    ) -> Turn:
        """A turn of the user's words and `units`: (shape, tokens of its text or of each result, calls of a group).

        `media` stand beside the user's words, `result_media` beside the text of every tool result. A message that calls
        tools has a text of `call_tokens`.
        """
        turn_id = TurnId(self.new_id())
        messages = [self._message(turn_id, "user", user_tokens, parts=parts, media=media)]
        for shape, tokens, calls in units:
            if shape == "assistant":
                messages.append(self._message(turn_id, "assistant", tokens))
            else:
                messages += self._group(
                    turn_id, tokens, calls, result_media, complete=shape == "tool_group", call_tokens=call_tokens
                )
        unsettled = status is not TurnStatus.COMPLETED if unresolved is None else unresolved
        return Turn(turn_id, next(self._turn_seqs), status, unsettled, tuple(messages))

    def summary(self, body: SummaryBody) -> Summary:
        """A summary of messages that came before the first turn asked for."""
        first, last = MessageId(self.new_id()), MessageId(self.new_id())
        return Summary(SummaryId(self.new_id()), body, first, last, 0, "model")

    def _group(
        self,
        turn_id: TurnId,
        tokens: int,
        calls: int,
        media: tuple[ContentPart, ...],
        *,
        complete: bool,
        call_tokens: int,
    ) -> list[Message]:
        made = tuple(ToolCall(f"call_{self.new_id().int}", "look_up", '{"id": 7}') for _ in range(calls))
        caller = self._message(turn_id, "assistant", call_tokens, tool_calls=made)
        answered = made if complete else made[:-1]
        results = [self._message(turn_id, "tool", tokens, tool_call_id=call.id, media=media) for call in answered]
        return [caller, *results]

    def _message(
        self,
        turn_id: TurnId,
        role: Literal["user", "assistant", "tool"],
        tokens: int,
        *,
        tool_calls: tuple[ToolCall, ...] = (),
        tool_call_id: str | None = None,
        parts: bool = False,
        media: tuple[ContentPart, ...] = (),
    ) -> Message:
        seq = next(self._message_seqs)
        text = text_of(tokens, seq)
        content: Content = None if tool_calls and not text else text
        if parts or media:
            content = [{"type": "text", "text": text}, *media]
        counted = message_tokens(content, estimate, tool_calls=tool_calls, tool_call_id=tool_call_id)
        said_at = _FIRST_SAID_AT + seq * _BETWEEN_MESSAGES
        return Message(
            MessageId(self.new_id()), turn_id, seq, role, content, counted, tool_calls, tool_call_id, said_at=said_at
        )


def said_by(name: str | None, turn: Turn) -> Turn:
    """The turn, said by one of several people."""
    more = estimate(name) + NAME_FRAMING_TOKENS if name else 0
    first, *others = turn.messages
    return replace(turn, messages=(replace(first, name=name, tokens=first.tokens + more), *others))


def chat(history: History, turns: int, *, user_tokens: int = 10, assistant_tokens: int = 40) -> tuple[Turn, ...]:
    """Completed turns of one question and one answer."""
    return tuple(history.turn(("assistant", assistant_tokens, 1), user_tokens=user_tokens) for _ in range(turns))


def budget_of(input_budget: int) -> Budget:
    """A budget with this room for input, behind reserves of a middling window."""
    return Budget(input_budget + 2048 + 1024, "test", 2048, 1024, input_budget)


def snapshot_of(
    turns: tuple[Turn, ...],
    current: Turn,
    *,
    input_budget: int,
    policy: ContextPolicy = GUARDED,
    summary: Summary | None = None,
    layers: tuple[tuple[str, str], ...] = (("system:global", "Be brief."),),
    goal: str | None = None,
    pins: tuple[Pin, ...] = (),
    tools: tuple[ToolDefinition, ...] = (),
    completed_since_summary: int | None = None,
    calibration_ratio: float = 1.0,
) -> Snapshot:
    """A snapshot; the completed turns are counted unless a figure is given."""
    completed = sum(turn.status is TurnStatus.COMPLETED for turn in turns)
    return Snapshot(
        policy=policy,
        budget=budget_of(input_budget),
        layers=layers,
        goal=goal,
        pins=pins,
        summary=summary,
        past=past_of(turns),
        current=current,
        tools=tools,
        completed_since_summary=completed if completed_since_summary is None else completed_since_summary,
        calibration_ratio=calibration_ratio,
    )


def input_tokens_before(snapshot: Snapshot) -> int:
    """What counts of the untouched prompt of a snapshot against the budget."""
    return lay_out(snapshot, estimate).input_tokens


def input_tokens_of(snapshot: Snapshot, prompt: Prompt) -> int:
    """What a prompt costs the snapshot's input budget, summed up anew."""
    return snapshot.budget.input_tokens(
        wire_tokens=prompt.wire_tokens,
        overhead_tokens=prompt.framing_tokens + prompt.tools_tokens,
        calibration_ratio=snapshot.calibration_ratio,
    )


def wire_of(turn: Turn) -> int:
    """What all messages of a turn cost on the wire, by their stored counts."""
    return sum(message.tokens + MESSAGE_FRAMING_TOKENS for message in turn.messages)
