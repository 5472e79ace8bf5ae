"""The computation of a simulation, in any process: counts stored turns, decides them by each policy, and reports."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final

from app.domain.extractive import kept_reading
from app.domain.frozen import frozen, replace, values_of
from app.domain.prices import total_usd
from app.domain.stored import StoredMessage, StoredTurn
from app.domain.types import JsonObject, Message, Pin, SessionId, Turn, TurnId, TurnStatus
from app.engine.messages.image_rules import image_rule_for
from app.engine.messages.tokens import Estimate, counted, with_images_by_rule
from app.engine.policy.fields import policy_values
from app.engine.simulation.inputs import CountKey, PastTurn, Setting, TurnCounter
from app.engine.simulation.simulation import FullHistory, Losses, Simulation, TurnFigures
from app.engine.simulation.stored_losses import StoredLosses
from app.services.heavy.child import Tools
from app.tokenizers.counters import ByWords

SENTENCES_KEPT: Final = 8_192
"""Cached sentences (about 8 MB): those of the raw windows of all policies."""
TEXTS_KEPT: Final = 512
"""Texts cached as statements: all of a small raw window, which several policies summarize shortly after each other."""


@frozen
class PlannedLane:
    """One policy for one model; `model_alias` is None when every turn uses the model that answered it."""

    name: str
    model_alias: str | None
    setting: Setting


@frozen
class Plan:
    """All that a simulation needs except the turns. The models' counters are made in the process that runs it.
    `histories` are the settings of the full history by the alias used for all turns, and `pins` the current pins with
    the time at which each was made."""

    session_id: SessionId
    stored_turns: int
    through_seq: int
    gone_aliases: tuple[str, ...]
    layers: tuple[tuple[str, str], ...]
    lanes: tuple[PlannedLane, ...]
    histories: Mapping[str | None, Setting]
    pins: tuple[tuple[datetime, Pin], ...]


def counted_elsewhere(_text: str) -> int:
    """The placeholder of a model's counter until the job makes its own. Always raises."""
    raise RuntimeError("a plan counts nothing; its job does, with tokenizers of its own")


class SimulationJob:
    """Call `begin`, then `feed` with the turns in their order, then `report`."""

    def __init__(self, tools: Tools) -> None:
        self._tokenizers = tools.tokenizers
        self._happened = Happened()
        self._estimates: dict[str, Estimate] = {}
        self._read = kept_reading(TEXTS_KEPT, SENTENCES_KEPT)

    def begin(self, plan: Plan) -> None:
        self._plan = plan
        self._lanes = [(each, Simulation(self._counting(each.setting))) for each in plan.lanes]
        self._histories = {alias: FullHistory(self._counting(setting)) for alias, setting in plan.histories.items()}
        self._all = [*(simulation for _, simulation in self._lanes), *self._histories.values()]
        models = [(each.setting.goal, model) for each in self._all for model in each.setting.models.values()]
        self._counters = {model.key: TurnCounter(model.estimate, goal, model.reasoning_rule) for goal, model in models}
        self._image_rules = {model.key: image_rule_for(model.wire_model) for _, model in models}

    def feed(self, turns: Sequence[StoredTurn]) -> None:
        """Decides the next turns by every policy."""
        for turn in turns:
            self._happened.feed(turn)
            past = self._past(turn)
            for each in self._all:
                each.feed(past)

    def report(self, totals: JsonObject) -> JsonObject:
        """The whole answer, with the database's totals of what happened. Tokens are estimates, costs US dollars (null
        if a price is not known). Aliases that are not in the catalogue now are replaced by the session's own model."""
        plan, happened = self._plan, self._happened
        happened.note_later_summaries(totals["later_summaries"])
        return {
            "session_id": plan.session_id,
            "stored_turns": plan.stored_turns,
            "turns": plan.through_seq,
            "truncated": plan.through_seq < plan.stored_turns,
            "gone_aliases": list(plan.gone_aliases),
            "summaries_from": SUMMARIES_FROM,
            "assumed": list(ASSUMED),
            "happened": _happened(happened, totals, all_turns=plan.through_seq == plan.stored_turns),
            "full_history": [_full_history(alias, history) for alias, history in self._histories.items()],
            "policies": [_lane(planned, simulation) for planned, simulation in self._lanes],
        }

    def _counting(self, setting: Setting) -> Setting:
        """The setting with counters that all lanes share, because their summaries consist of the same words."""
        for model in setting.models.values():
            if model.encoding not in self._estimates:
                self._estimates[model.encoding] = ByWords(self._tokenizers.estimator(model.encoding))
        models = {
            was: replace(model, estimate=self._estimates[model.encoding]) for was, model in setting.models.items()
        }
        return replace(setting, models=models, read=self._read)

    def _past(self, stored: StoredTurn) -> PastTurn:
        request = stored.request or {}
        own = request.get("instructions")
        layers = (*self._plan.layers, ("system:turn", own)) if own else self._plan.layers
        pins = tuple(pin for since, pin in self._plan.pins if since <= stored.created_at)
        tools = tuple(request.get("tools") or ())
        return PastTurn(
            model_alias=stored.model_alias,
            layers=layers,
            tools=tools,
            pins=pins,
            completion_tokens=stored.completion_tokens,
            versions={
                key: counter.version(self._counted_turn(stored, key, counter.estimate), layers, pins, tools)
                for key, counter in self._counters.items()
            },
            stored_tokens={each.message.seq: each.message.tokens for each in stored.messages},
            tool_choice=request.get("tool_choice"),
            provider_options=request.get("options") or {},
        )

    def _counted_turn(self, stored: StoredTurn, key: CountKey, estimate: Estimate) -> Turn:
        encoding, rule = key[1], self._image_rules[key]
        return _turn(
            stored, [with_images_by_rule(_counted(each, encoding, estimate), rule) for each in stored.messages]
        )


def _turn(stored: StoredTurn, messages: Sequence[Message]) -> Turn:
    return Turn(TurnId(stored.id), stored.seq, stored.status, stored.unresolved, tuple(messages))


def _counted(stored: StoredMessage, encoding: str, estimate: Estimate) -> Message:
    message = stored.message
    found = stored.counts.get(encoding)
    if found == (message.tokens, message.reasoning_tokens):
        return message
    if found is not None:
        return replace(message, tokens=found[0], reasoning_tokens=found[1])
    return counted(message, estimate)


SUMMARIES_FROM = (
    "the offline extractive fallback, at the cap of each fold: a model's summaries would be of other words and sizes"
)
ASSUMED = (
    "Replies, tool results and tools are the stored ones, whatever prompt they would have been given for.",
    "System layers, room goal and pins are those of now, each pin from when it was made.",
    "A background summary is done before the next turn; no call fails, and no provider refuses a prompt.",
    "Tokens are estimates, by today's windows and calibration; prices are the catalogue's, without cache discounts.",
)


@dataclass(slots=True)
class Happened:
    turns: list[TurnFigures] = field(default_factory=list[TurnFigures])
    began: list[datetime] = field(default_factory=list[datetime])
    losses: StoredLosses = field(default_factory=StoredLosses)
    cost_usd: float | None = 0.0

    def feed(self, turn: StoredTurn) -> None:
        self.turns.append(
            TurnFigures(
                seq=turn.seq,
                calls=turn.calls,
                wire_tokens=turn.wire_tokens or 0,
                input_tokens=turn.input_tokens or 0,
                output_tokens=turn.completion_tokens or 0,
                summary=turn.summary,
                prune=turn.prune,
                rejected=turn.status is TurnStatus.REJECTED,
            )
        )
        self.began.append(turn.created_at)
        self.losses.feed(_turn(turn, [each.message for each in turn.messages]), turn.trims)
        if turn.calls:
            self.cost_usd = None if self.cost_usd is None or turn.cost_usd is None else self.cost_usd + turn.cost_usd

    def note_later_summaries(self, made: Sequence[datetime]) -> None:
        """Marks, for each summary, the last turn that had begun before it was made."""
        for instant in made:
            at = bisect_right(self.began, instant)
            if at:
                self.turns[at - 1].later_summary = True


def _totals(turns: Sequence[TurnFigures]) -> JsonObject:
    wire_tokens = sum(turn.wire_tokens for turn in turns)
    sent = sum(1 for turn in turns if turn.calls)
    return {
        "calls": sum(turn.calls for turn in turns),
        "wire_tokens": wire_tokens,
        "wire_tokens_per_turn": round(wire_tokens / sent, 1) if sent else 0.0,
        "input_tokens": sum(turn.input_tokens for turn in turns),
        "summaries": [turn.seq for turn in turns if turn.summary],
        "later_summaries": [turn.seq for turn in turns if turn.later_summary],
        "prunes": [turn.seq for turn in turns if turn.prune],
        "rejections": [turn.seq for turn in turns if turn.rejected],
        "output_tokens": sum(turn.output_tokens for turn in turns),
    }


def _per_turn(turns: Sequence[TurnFigures]) -> list[JsonObject]:
    return [values_of(turn, "output_tokens", "summarizer", "user_share") for turn in turns]


def _happened(happened: Happened, totals: JsonObject, *, all_turns: bool) -> JsonObject:
    """The current summary may replace turns beyond those that are simulated: then nothing is said of it."""
    return _totals(happened.turns) | {
        "summarizer_prompt_tokens": totals["prompt_tokens"],
        "summarizer_completion_tokens": totals["completion_tokens"],
        "cost_usd": happened.cost_usd,
        "lost": {
            "turns_folded": totals["folded_turns"] if all_turns else None,
            "messages_folded": totals["folded_messages"] if all_turns else None,
            "actions": _actions(happened.losses),
        },
        "per_turn": _per_turn(happened.turns),
    }


def _actions(losses: Losses | StoredLosses) -> JsonObject:
    return {kind: {"times": times, "targets": losses.targets_of(kind)} for kind, times in sorted(losses.times.items())}


def _full_history(alias: str | None, history: FullHistory) -> JsonObject:
    return {
        "model_alias": alias,
        "calls": history.calls,
        "wire_tokens": history.wire_tokens,
        "first_turn_over_the_window": history.first_over_seq,
        "cost_usd": _dollars(history.bill.cost_usd),
    }


def _lane(planned: PlannedLane, simulation: Simulation) -> JsonObject:
    turns, losses = simulation.turns, simulation.losses
    shares = [turn.user_share for turn in turns if turn.calls]
    calls_cost, summaries_cost = simulation.calls_bill.cost_usd, simulation.summaries_bill.cost_usd
    return {
        "name": planned.name,
        "model_alias": planned.model_alias,
        "policy": policy_values(planned.setting.policy),
        **_totals(turns),
        "summarizer_prompt_tokens": sum(turn.summarizer.prompt_tokens for turn in turns),
        "summarizer_completion_tokens": sum(turn.summarizer.completion_tokens for turn in turns),
        "cost_usd": _dollars(calls_cost, summaries_cost),
        "summaries_cost_usd": _dollars(summaries_cost),
        "lost": {
            "turns_folded": losses.turns_folded,
            "messages_folded": losses.messages_folded,
            "actions": _actions(losses),
            "users_words_verbatim_mean": round(sum(shares) / len(shares), 4) if shares else 1.0,
            "users_words_verbatim_at_end": round(shares[-1], 4) if shares else 1.0,
        },
        "per_turn": _per_turn(turns),
    }


def _dollars(*costs: Decimal | None) -> float | None:
    total = total_usd(costs)
    return None if total is None else float(total)
