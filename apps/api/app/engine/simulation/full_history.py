"""What resending everything would take: the plan that no policy is measured against kindly."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal

from app.domain.types import Turn, TurnStatus
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.messages.turns import sendable_messages
from app.engine.simulation.simulation import CountKey, PastTurn, Setting, SimulatedModel, call_ends, calls_cost
from app.engine.window.prompt import build_prompt
from app.engine.window.window import head_items


@dataclass(frozen=True, slots=True)
class FullHistoryTurn:
    """One turn with everything before it resent, in tokens on the wire over its calls. `fits` means that no prompt of
    it was beyond what the model's window leaves to prompts."""

    seq: int
    calls: int
    wire_tokens: int
    fits: bool
    cost_usd: Decimal | None


class FullHistory:
    """A session resent whole at every call, fed with its turns in time order."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._past_wire: Counter[CountKey] = Counter()
        self.turns: list[FullHistoryTurn] = []

    def feed(self, past: PastTurn) -> FullHistoryTurn:
        """Sums the turn's calls and lets it become history."""
        model = self.setting.models[past.model_alias]
        turn = past.versions[model.key]
        fixed = self._fixed_tokens(past, model) + self._past_wire[model.key]
        wire = [fixed + _wire_tokens(turn, end) for end in call_ends(turn.messages)]
        output = past.completion_tokens
        if output is None:
            output = sum(message.tokens for message in turn.messages if message.role == "assistant")
        figures = FullHistoryTurn(
            seq=turn.seq,
            calls=len(wire),
            wire_tokens=sum(wire),
            fits=max(wire, default=0) <= model.budget.prompt_ceiling,
            cost_usd=calls_cost(wire, output, model.prices),
        )
        self.turns.append(figures)
        for key, version in past.versions.items():
            # A client that resends all knows of no refusal of ours.
            sent = TurnStatus.FAILED if version.status is TurnStatus.REJECTED else version.status
            messages = sendable_messages([Turn(version.id, version.seq, sent, version.unresolved, version.messages)])
            self._past_wire[key] += sum(message.tokens + MESSAGE_FRAMING_TOKENS for message in messages)
        return figures

    def _fixed_tokens(self, past: PastTurn, model: SimulatedModel) -> int:
        head = head_items(past.layers, self.setting.goal, past.pins, model.estimate)
        return build_prompt(head, past.tools, model.estimate).wire_tokens


def _wire_tokens(turn: Turn, end: int) -> int:
    return sum(message.tokens + MESSAGE_FRAMING_TOKENS for message in turn.messages[:end])
