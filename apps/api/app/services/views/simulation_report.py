"""What a simulation answers: each policy's figures, in one form with what happened and with the full history."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from app.domain.stored import StoredTurn, values_of
from app.domain.types import JsonObject, SessionId, TurnStatus
from app.engine.policy.fields import policy_values
from app.engine.policy.policy import ContextPolicy
from app.engine.simulation.simulation import FullHistory, Simulation

SUMMARIES_FROM = (
    "the offline extractive fallback, at the cap of each fold: a model's summaries would be of other words and sizes"
)
ASSUMED = (
    "Replies, tool results and tools are the stored ones, whatever prompt they would have been given for.",
    "System layers, room goal and pins are those of now, each pin from when it was made.",
    "A background summary is done before the next turn; no call fails, and no provider refuses a prompt.",
    "Tokens are estimates, by today's windows and calibration; prices are the catalogue's, without cache discounts.",
)


@dataclass(frozen=True, slots=True)
class Lane:
    """One policy for one model; `model_alias` is None where every turn goes to the model that answered it."""

    name: str
    model_alias: str | None
    policy: ContextPolicy
    simulation: Simulation


@dataclass(slots=True)
class Happened:
    """What the stored turns were really like."""

    turns: list[JsonObject] = field(default_factory=list[JsonObject])
    began: list[datetime] = field(default_factory=list[datetime])
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    summarizer_tokens: tuple[int, int] = (0, 0)
    folded: tuple[int, int] | None = None
    """Turns and messages under the summary of now; None where not all turns are looked at."""
    actions: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def feed(self, turn: StoredTurn) -> None:
        self.turns.append(
            {
                "seq": turn.seq,
                "calls": turn.calls,
                "wire_tokens": turn.wire_tokens or 0,
                "input_tokens": turn.input_tokens or 0,
                "summary": turn.summary,
                "later_summary": False,
                "prune": turn.prune,
                "rejected": turn.status is TurnStatus.REJECTED,
            }
        )
        self.began.append(turn.created_at)
        self.output_tokens += turn.completion_tokens or 0
        if turn.calls:
            self.cost_usd = None if self.cost_usd is None or turn.cost_usd is None else self.cost_usd + turn.cost_usd

    def note_later_summaries(self, made: Sequence[datetime]) -> None:
        """Puts each to the last turn that had begun by then."""
        for instant in made:
            at = bisect_right(self.began, instant)
            if at:
                self.turns[at - 1]["later_summary"] = True


def report(
    session_id: SessionId,
    stored_turns: int,
    through_seq: int,
    gone_aliases: Sequence[str],
    happened: Happened,
    histories: Mapping[str | None, FullHistory],
    lanes: Sequence[Lane],
) -> JsonObject:
    """The whole answer; tokens are estimates, costs US dollars (null where a price is not known).

    For `gone_aliases`, which are no longer in the catalogue, the session's own model stands in.
    """
    return {
        "session_id": session_id,
        "stored_turns": stored_turns,
        "turns": through_seq,
        "truncated": through_seq < stored_turns,
        "gone_aliases": list(gone_aliases),
        "summaries_from": SUMMARIES_FROM,
        "assumed": list(ASSUMED),
        "happened": _happened(happened),
        "full_history": [_full_history(alias, history) for alias, history in histories.items()],
        "policies": [_lane(lane) for lane in lanes],
    }


def _totals(turns: Sequence[JsonObject]) -> JsonObject:
    wire_tokens = sum(turn["wire_tokens"] for turn in turns)
    sent = sum(1 for turn in turns if turn["calls"])
    return {
        "calls": sum(turn["calls"] for turn in turns),
        "wire_tokens": wire_tokens,
        "wire_tokens_per_turn": round(wire_tokens / sent, 1) if sent else 0.0,
        "input_tokens": sum(turn["input_tokens"] for turn in turns),
        "summaries": [turn["seq"] for turn in turns if turn["summary"]],
        "later_summaries": [turn["seq"] for turn in turns if turn["later_summary"]],
        "prunes": [turn["seq"] for turn in turns if turn["prune"]],
        "rejections": [turn["seq"] for turn in turns if turn["rejected"]],
    }


def _happened(happened: Happened) -> JsonObject:
    folded = happened.folded or (None, None)
    return _totals(happened.turns) | {
        "output_tokens": happened.output_tokens,
        "summarizer_prompt_tokens": happened.summarizer_tokens[0],
        "summarizer_completion_tokens": happened.summarizer_tokens[1],
        "cost_usd": happened.cost_usd,
        "lost": {
            "turns_folded": folded[0],
            "messages_folded": folded[1],
            "actions": {
                kind: {"times": times, "targets": targets}
                for kind, (times, targets) in happened.actions.items()
                if kind != "summary_folded"
            },
        },
        "per_turn": happened.turns,
    }


def _full_history(alias: str | None, history: FullHistory) -> JsonObject:
    return {
        "model_alias": alias,
        "calls": history.calls,
        "wire_tokens": history.wire_tokens,
        "first_turn_over_the_window": history.first_over_seq,
        "cost_usd": _dollars(history.bill.cost_usd),
    }


def _lane(lane: Lane) -> JsonObject:
    turns, losses = lane.simulation.turns, lane.simulation.losses
    per_turn = [values_of(turn, "output_tokens", "summarizer", "user_share") for turn in turns]
    shares = [turn.user_share for turn in turns if turn.calls]
    calls_cost, summaries_cost = lane.simulation.calls_bill.cost_usd, lane.simulation.summaries_bill.cost_usd
    return {
        "name": lane.name,
        "model_alias": lane.model_alias,
        "policy": policy_values(lane.policy),
        **_totals(per_turn),
        "output_tokens": sum(turn.output_tokens for turn in turns),
        "summarizer_prompt_tokens": sum(turn.summarizer.prompt_tokens for turn in turns),
        "summarizer_completion_tokens": sum(turn.summarizer.completion_tokens for turn in turns),
        "cost_usd": _dollars(calls_cost, summaries_cost),
        "summaries_cost_usd": _dollars(summaries_cost),
        "lost": {
            "turns_folded": losses.turns_folded,
            "messages_folded": losses.messages_folded,
            "actions": {
                kind: {"times": times, "targets": len(losses.targets[kind])}
                for kind, times in sorted(losses.times.items())
            },
            "users_words_verbatim_mean": round(sum(shares) / len(shares), 4) if shares else 1.0,
            "users_words_verbatim_at_end": round(shares[-1], 4) if shares else 1.0,
        },
        "per_turn": per_turn,
    }


def _dollars(*costs: Decimal | None) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return float(sum(known, Decimal(0))) if len(known) == len(costs) else None
