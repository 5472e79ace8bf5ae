"""What a simulation computes, in whichever process it runs: stored turns counted, decided by each policy, reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Final

from app.domain.sentences import read_sentence
from app.domain.stored import StoredMessage, StoredTurn
from app.domain.types import JsonObject, Message, Pin, SessionId, Turn, TurnId
from app.engine.messages.image_rules import image_rule_for
from app.engine.messages.tokens import Estimate, counted, with_images_by_rule
from app.engine.simulation.counted import CountKey, PastTurn, TurnCounter
from app.engine.simulation.setting import Setting
from app.engine.simulation.simulation import FullHistory, Simulation
from app.services.heavy.child import Tools
from app.services.views.simulation_report import Happened, Lane, report
from app.tokenizers.counting import by_words

SENTENCES_KEPT: Final = 8_192
"""Some 8 MB: the raw windows of all policies."""


@dataclass(frozen=True, slots=True)
class PlannedLane:
    """One policy for one model, as `Lane` describes it."""

    name: str
    model_alias: str | None
    setting: Setting


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a simulation needs but the turns. The models' counters are made where it runs.

    `layers` are the session's own system layers, `histories` the settings of the full history by the alias that is
    forced, `pins` those of now with the instant since which each is there, and `wire_models` the names by which
    providers know the aliases.
    """

    session_id: SessionId
    stored_turns: int
    through_seq: int
    gone_aliases: tuple[str, ...]
    layers: tuple[tuple[str, str], ...]
    lanes: tuple[PlannedLane, ...]
    histories: Mapping[str | None, Setting]
    pins: tuple[tuple[datetime, Pin], ...]
    wire_models: Mapping[str, str]


def counted_elsewhere(_text: str) -> int:
    """Stands in for a model's counter until the job makes its own."""
    raise RuntimeError("a plan counts nothing; its job does, with tokenizers of its own")


class SimulationJob:
    """`begin`, then `feed` with the turns in their order, then `report`."""

    def __init__(self, tools: Tools) -> None:
        self._tokenizers = tools.tokenizers
        self._happened = Happened()
        self._estimates: dict[str, Estimate] = {}
        self._read = lru_cache(SENTENCES_KEPT)(read_sentence)

    def begin(self, plan: Plan) -> None:
        self._plan = plan
        self._lanes = [
            Lane(each.name, each.model_alias, each.setting.policy, Simulation(self._counting(each.setting)))
            for each in plan.lanes
        ]
        self._histories = {alias: FullHistory(self._counting(setting)) for alias, setting in plan.histories.items()}
        self._all = [*(lane.simulation for lane in self._lanes), *self._histories.values()]
        self._counters: dict[CountKey, TurnCounter] = {
            model.key: TurnCounter(model.estimate, each.setting.goal, model.reasoning_rule)
            for each in self._all
            for model in each.setting.models.values()
        }

    def feed(self, turns: Sequence[StoredTurn]) -> None:
        """Decides the next turns under every policy."""
        for turn in turns:
            self._happened.feed(turn)
            past = self._past(turn)
            for each in self._all:
                each.feed(past)

    def report(
        self,
        summarizer_tokens: tuple[int, int],
        later_summaries: Sequence[datetime],
        folded: tuple[int, int] | None,
        actions: Mapping[str, tuple[int, int]],
    ) -> JsonObject:
        """The whole answer, with what the database sums up of what happened."""
        plan, happened = self._plan, self._happened
        happened.summarizer_tokens, happened.folded, happened.actions = summarizer_tokens, folded, actions
        happened.note_later_summaries(later_summaries)
        return report(
            plan.session_id,
            plan.stored_turns,
            plan.through_seq,
            plan.gone_aliases,
            happened,
            self._histories,
            self._lanes,
        )

    def _counting(self, setting: Setting) -> Setting:
        """The setting with counters that all lanes share: their summaries are made of the same words."""
        for model in setting.models.values():
            if model.encoding not in self._estimates:
                self._estimates[model.encoding] = by_words(self._tokenizers.estimator(model.encoding))
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
        alias, encoding = key
        rule = image_rule_for(self._plan.wire_models[alias])
        messages = tuple(with_images_by_rule(_counted(each, encoding, estimate), rule) for each in stored.messages)
        return Turn(TurnId(stored.id), stored.seq, stored.status, stored.unresolved, messages)


def _counted(stored: StoredMessage, encoding: str, estimate: Estimate) -> Message:
    message = stored.message
    found = stored.counts.get(encoding)
    if found == (message.tokens, message.reasoning_tokens):
        return message
    if found is not None:
        return replace(message, tokens=found[0], reasoning_tokens=found[1])
    return counted(message, estimate)
