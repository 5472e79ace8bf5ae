"""A session's stored turns under another policy or model: what would have fired, been sent and been lost.

No model is called. Every call of every turn is decided by the engine's own doors, over the window as this policy would
have left it; the replies are the stored ones. Where a summary is due, the extractive fallback makes it at the fold's
cap. The work is linear in the turns, apart from the raw window that each call lays out, as the service does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TypeAlias
from uuid import UUID

from app.domain.content import content_text
from app.domain.prices import Prices, call_cost
from app.domain.types import (
    Message,
    Pin,
    ReasoningRule,
    Summary,
    SummaryId,
    ToolDefinition,
    Turn,
    TurnId,
    TurnStatus,
    Usage,
)
from app.engine.messages.reasoning import with_reasoning
from app.engine.messages.tokens import Estimate
from app.engine.messages.turns import completed_after, sendable_units
from app.engine.policy.budget import Budget
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.index import EMPTY, Packed
from app.engine.recall.ranking import Evicted, evicted_among
from app.engine.summary.fallback import fallback_summary
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import shrinks, summarizer_usage, summary_of
from app.engine.window.past import Past, past_of
from app.engine.window.plan import Ready, Refused, SummaryDue, plan
from app.engine.window.prompt import Prompt
from app.engine.window.shares import with_shared_budget
from app.engine.window.snapshot import Removal, Snapshot
from app.engine.window.triggers import fold_after_turn

CountKey: TypeAlias = tuple[str, str]
"""(alias, encoding): what a message's count depends on, images included."""
PricesOf: TypeAlias = Callable[[int], Prices]
"""What a call pays whose prompt has so many tokens."""
_NOTHING = Usage(0, 0)


@dataclass(frozen=True, slots=True)
class Summarizer:
    """Who would be asked for summaries: the largest prompt it takes, in tokens, and its prices."""

    alias: str
    prompt_ceiling: int
    prices: PricesOf


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """A model as turns are reckoned for it under one policy."""

    alias: str
    encoding: str
    budget: Budget
    estimate: Estimate
    calibration_ratio: float
    prices: PricesOf
    summarizer: Summarizer
    reasoning_rule: ReasoningRule | None = None

    @property
    def key(self) -> CountKey:
        return self.alias, self.encoding


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A stored turn as it ended; `versions` has it with its messages counted for each model that is reckoned with.

    `model_alias` is who answered it, `completion_tokens` what its calls were reported to have written, and `pins` those
    that were there when it was posted.
    """

    model_alias: str
    layers: tuple[tuple[str, str], ...]
    tools: tuple[ToolDefinition, ...]
    pins: tuple[Pin, ...]
    completion_tokens: int | None
    versions: Mapping[CountKey, Turn]


@dataclass(frozen=True, slots=True)
class Setting:
    """What holds for a whole simulation: `models` has every alias that a turn may be asked of."""

    policy: ContextPolicy
    goal: str | None
    models: Mapping[str, SimulatedModel]


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """One turn. Tokens sum over its calls; `input_tokens` count against the input budget.

    `summary` is a summary made before a call, `later_summary` of one made when the turn had completed, and
    `summarizer` what asking for them would have taken, also in vain.
    `user_share` is how much of the user's words so far its last prompt holds word for word, by tokens. Costs are in US
    dollars, None where a price is not known.
    """

    seq: int
    calls: int
    wire_tokens: int
    input_tokens: int
    output_tokens: int
    summary: bool
    later_summary: bool
    prune: bool
    rejected: bool
    summarizer: Usage
    user_share: float
    call_cost_usd: Decimal | None
    summary_cost_usd: Decimal | None


@dataclass(frozen=True, slots=True)
class Losses:
    """What left the prompts: folded into summaries for good; by kind of action, how often and of how many targets."""

    turns_folded: int
    messages_folded: int
    times: Mapping[str, int]
    targets: Mapping[str, int]


@dataclass(slots=True)
class _Spent:
    """What a turn's calls came to so far."""

    calls: int = 0
    answers: int = 0
    wire_tokens: int = 0
    input_tokens: int = 0
    prompts: list[int] = field(default_factory=list[int])
    output_tokens: int = 0
    summary: bool = False
    later_summary: bool = False
    prune: bool = False
    summarizer: Usage = _NOTHING
    user_share: float = 1.0


class Simulation:
    """One session under one setting, fed with its turns in time order."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._raw: list[tuple[PastTurn, TurnStatus, bool]] = []
        self._laid_out: tuple[CountKey, Past] | None = None
        self._summary: Summary | None = None
        self._index = EMPTY
        self._folded: dict[int, PastTurn] = {}
        self._summaries = 0
        self._count_after_seq = 0
        self._user_tokens: Counter[CountKey] = Counter()
        self._folded_turns = self._folded_messages = 0
        self._times: Counter[str] = Counter()
        self._targets: dict[str, set[str]] = {}
        self.turns: list[TurnFigures] = []

    @property
    def losses(self) -> Losses:
        """What has left the prompts so far."""
        targets = {kind: len(found) for kind, found in self._targets.items()}
        return Losses(self._folded_turns, self._folded_messages, dict(self._times), targets)

    def feed(self, past: PastTurn) -> TurnFigures:
        """Decides every call of the turn, and lets it become history as it would have."""
        model = self.setting.models[past.model_alias]
        turn = past.versions[model.key]
        spent = _Spent()
        refused = False
        for end in call_ends(turn.messages):
            decided = self._decide(past, model, replace(turn, messages=turn.messages[:end]), spent)
            spent.prune = spent.prune or decided.accounts.prune_triggered
            if isinstance(decided, Refused):
                refused = True
                break
            self._note_call(decided, model, turn, spent)
            if end < len(turn.messages):
                spent.answers += 1
                spent.output_tokens += turn.messages[end].tokens + turn.messages[end].reasoning_tokens
        if past.completion_tokens is not None and spent.answers == _answers(turn):
            spent.output_tokens = past.completion_tokens
        if not refused:
            self._settle(past, turn)
            if turn.status is TurnStatus.COMPLETED and self.setting.policy.summarizes_after_turns:
                self._after_turn(past, model, turn.seq, spent)
        figures = _figures(turn.seq, spent, model, rejected=refused)
        self.turns.append(figures)
        return figures

    def _decide(self, past: PastTurn, model: SimulatedModel, so_far: Turn, spent: _Spent) -> Ready | Refused:
        policy, estimate = self.setting.policy, model.estimate
        current = replace(so_far, status=TurnStatus.RUNNING, unresolved=True)
        snapshot = self._snapshot(past, model, current)
        decided = plan(snapshot, policy, estimate)
        if isinstance(decided, SummaryDue):
            self._count_after_seq = current.seq - 1
            made = self._summarize(decided.fold, model, spent)
            spent.summary = spent.summary or made is not None
            again = decided.with_summary(made, policy, estimate) if made else decided.snapshot
            decided = plan(again, policy, estimate, may_summarize=False)
        elif decided.summary_worthless:
            self._count_after_seq = current.seq - 1
        return decided

    def _after_turn(self, past: PastTurn, model: SimulatedModel, seq: int, spent: _Spent) -> None:
        """What the background would do once the answer is there, as if it were done at once."""
        said_nothing = Turn(TurnId(UUID(int=0)), seq + 1, TurnStatus.RUNNING, unresolved=True, messages=())
        fold = fold_after_turn(self._snapshot(past, model, said_nothing), self.setting.policy, model.estimate)
        if fold is not None:
            self._count_after_seq = seq
            spent.later_summary = self._summarize(fold, model, spent) is not None

    def _snapshot(self, past: PastTurn, model: SimulatedModel, current: Turn) -> Snapshot:
        laid_out = self._past_for(model)
        snapshot = Snapshot(
            budget=model.budget,
            layers=past.layers,
            goal=self.setting.goal,
            pins=past.pins,
            summary=self._summary,
            past=laid_out,
            current=with_reasoning(current, model.reasoning_rule),
            tools=past.tools,
            completed_since_summary=completed_after(laid_out.turns, self._count_after_seq),
            calibration_ratio=model.calibration_ratio,
            evicted=self._evicted(model, current),
        )
        return with_shared_budget(snapshot, self.setting.policy, model.estimate)

    def _evicted(self, model: SimulatedModel, current: Turn) -> Evicted | None:
        """What left the window and matches the user's message, counted for the model."""
        recall = self.setting.policy.recall
        if not recall.enabled or self._summary is None or not current.messages:
            return None
        text = content_text(current.messages[0].content)
        found = evicted_among(
            self._index,
            lambda seq: self._folded[seq].versions[model.key],
            text,
            recall,
            model.budget.input_budget,
        )
        return replace(found, turns=tuple(with_reasoning(turn, model.reasoning_rule) for turn in found.turns))

    def _past_for(self, model: SimulatedModel) -> Past:
        """The raw window counted for a model. Only the latest turn can be unresolved (contract.md, decision 7)."""
        if self._laid_out is None or self._laid_out[0] != model.key:
            last = len(self._raw) - 1
            turns = [
                _as_past(past.versions[model.key], status, model, unresolved=unresolved and at == last)
                for at, (past, status, unresolved) in enumerate(self._raw)
            ]
            self._laid_out = model.key, past_of(turns)
        return self._laid_out[1]

    def _summarize(self, fold: Fold, model: SimulatedModel, spent: _Spent) -> Summary | None:
        body = fallback_summary(fold, model.estimate)
        ceiling, extend = model.summarizer.prompt_ceiling, self.setting.policy.incremental
        asked = summarizer_usage(fold, body, ceiling, model.estimate, extend=extend)
        spent.summarizer = Usage(
            spent.summarizer.prompt_tokens + asked.prompt_tokens,
            spent.summarizer.completion_tokens + asked.completion_tokens,
        )
        if body is None or not shrinks(fold, body, model.estimate):
            return None
        self._summaries += 1
        self._summary = summary_of(SummaryId(UUID(int=self._summaries)), fold, body, "fallback")
        gone = {turn.id for turn in fold.turns}
        if self.setting.policy.recall.enabled:
            self._index = self._index.extended(Packed.of(fold.messages), self._summary.to_message_seq)
            taken = {turn.id: past for past, _, _ in self._raw for turn in (past.versions[model.key],)}
            self._folded |= {message.seq: taken[turn.id] for turn in fold.turns for message in turn.messages}
        self._raw = [lived for lived in self._raw if lived[0].versions[model.key].id not in gone]
        self._laid_out = None
        self._folded_turns += len(fold.turns)
        self._folded_messages += len(fold.messages)
        return self._summary

    def _note_call(self, ready: Ready, model: SimulatedModel, turn: Turn, spent: _Spent) -> None:
        spent.calls += 1
        spent.wire_tokens += ready.prompt.wire_tokens
        spent.prompts.append(ready.prompt.wire_tokens)
        spent.input_tokens += ready.accounts.tokens_after_prune
        self._note_actions(ready.accounts.actions)
        own = sum(message.tokens for message in turn.messages if message.role == "user")
        of_users = self._user_tokens[model.key] + own
        spent.user_share = verbatim_user_tokens(ready.prompt) / of_users if of_users else 1.0

    def _note_actions(self, actions: Sequence[Removal]) -> None:
        for action in actions:
            if action.kind != "summary_folded":
                self._times[action.kind] += 1
                self._targets.setdefault(action.kind, set()).add(action.target)

    def _settle(self, past: PastTurn, turn: Turn) -> None:
        """What was refused then and fits now has no reply to go on with: it stays as a turn that failed does."""
        rejected = turn.status is TurnStatus.REJECTED
        status = TurnStatus.FAILED if rejected else turn.status
        if self._raw and self._raw[-1][2]:
            self._raw[-1] = (*self._raw[-1][:2], False)
            self._laid_out = None
        self._raw.append((past, status, turn.unresolved or rejected))
        if self._laid_out is not None:
            key, laid_out = self._laid_out
            model = next(model for model in self.setting.models.values() if model.key == key)
            now_past = _as_past(past.versions[key], status, model, unresolved=turn.unresolved or rejected)
            self._laid_out = key, laid_out.extended((now_past,))
        for key, version in past.versions.items():
            units = sendable_units(replace(version, status=status))
            self._user_tokens[key] += sum(m.tokens for unit in units for m in unit.messages if m.role == "user")


def _answers(turn: Turn) -> int:
    return sum(1 for end in call_ends(turn.messages) if end < len(turn.messages))


def call_ends(messages: Sequence[Message]) -> list[int]:
    """How many of a turn's messages each of its model calls was asked with: one call for every assistant message, and
    one whose answer never came where the last message is not an assistant's."""
    ends = [at for at, message in enumerate(messages) if at and message.role == "assistant"]
    if messages and messages[-1].role != "assistant":
        ends.append(len(messages))
    return ends


def calls_cost(prompts: Sequence[int], output_tokens: int, prices: PricesOf) -> Decimal | None:
    """US dollars of a turn's calls; its output at the prices of its largest prompt. None where a price is unknown."""
    parts = [call_cost(Usage(tokens, 0), prices(tokens)) for tokens in prompts]
    parts.append(call_cost(Usage(0, output_tokens), prices(max(prompts, default=0))))
    known = [part for part in parts if part is not None]
    return sum(known, Decimal(0)) if len(known) == len(parts) else None


def _as_past(turn: Turn, status: TurnStatus, model: SimulatedModel, *, unresolved: bool) -> Turn:
    return with_reasoning(replace(turn, status=status, unresolved=unresolved), model.reasoning_rule)


def verbatim_user_tokens(prompt: Prompt) -> int:
    """Tokens of users' messages that a prompt holds as they were written."""
    return sum(item.tokens for item in prompt.items if item.message and item.message.role == "user" and not item.block)


def _figures(seq: int, spent: _Spent, model: SimulatedModel, *, rejected: bool) -> TurnFigures:
    return TurnFigures(
        seq=seq,
        calls=spent.calls,
        wire_tokens=spent.wire_tokens,
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        summary=spent.summary,
        later_summary=spent.later_summary,
        prune=spent.prune,
        rejected=rejected,
        summarizer=spent.summarizer,
        user_share=spent.user_share,
        call_cost_usd=calls_cost(spent.prompts, spent.output_tokens, model.prices),
        summary_cost_usd=call_cost(
            spent.summarizer,
            model.summarizer.prices(min(spent.summarizer.prompt_tokens, model.summarizer.prompt_ceiling)),
        ),
    )
