"""A session's stored turns under another policy or model: what would have been triggered, sent and lost.

No model is called. Every call is decided as in a real turn, with the window that this policy would have left. The
replies are the stored ones. Where a summary is due, the extractive fallback makes it at the fold's cap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from app.domain.frozen import replace
from app.domain.types import Summary, SummaryId, Turn, TurnStatus, Usage
from app.engine.messages.tokens import framing_tokens
from app.engine.messages.turns import no_turn
from app.engine.recall.index import EMPTY, Packed
from app.engine.recall.ranking import evicted_among
from app.engine.simulation.inputs import (
    Bill,
    CountedTurn,
    CountKey,
    HeadCost,
    PastTurn,
    Setting,
    SimulatedCall,
    SimulatedModel,
    tokens_of_users,
)
from app.engine.summary.block import render_summary
from app.engine.summary.extractive import fallback_summary
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import shrinks, summarizer_usage, summary_of
from app.engine.window.look_back import may_look_back
from app.engine.window.past import Past
from app.engine.window.plan import Ready, Refused, SummaryDue, passes_whole, plan, with_summary
from app.engine.window.shares import with_shared_budget
from app.engine.window.snapshot import Removal, Snapshot
from app.engine.window.triggers import fold_after_turn, may_fold_behind_answer
from app.engine.window.window import Cost, Window

_NOTHING = Usage(0, 0)


@dataclass(slots=True)
class TurnFigures:
    """The figures of one turn. Tokens sum over its calls; `input_tokens` count against the input budget.

    `summary` says whether one was made before a call, `later_summary` after the turn; `summarizer` is the usage for
    both, also of summaries that were then not used. `user_share` is the share, by tokens, of all users' text so far
    that the turn's last prompt contains verbatim.
    """

    seq: int
    calls: int = 0
    wire_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    summary: bool = False
    later_summary: bool = False
    prune: bool = False
    rejected: bool = False
    summarizer: Usage = _NOTHING
    user_share: float = 1.0


@dataclass(slots=True)
class Losses:
    """What the prompts lost: turns and messages folded into summaries; of other actions, count and targets by kind."""

    turns_folded: int = 0
    messages_folded: int = 0
    times: Counter[str] = field(default_factory=Counter[str])
    targets: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    def note(self, actions: Sequence[Removal]) -> None:
        """Count the actions on a prompt that was sent. Folded turns are counted when their summary is made."""
        for action in actions:
            if action.kind != "summary_folded":
                self.times[action.kind] += 1
                self.targets.setdefault(action.kind, set()).add(action.target)

    def targets_of(self, kind: str) -> int:
        return len(self.targets[kind])


class _Sent(NamedTuple):
    """What was sent for a call, in tokens: on the wire, against the input budget, and against it when the window was
    last laid out. `user_tokens` are those of users' text sent verbatim."""

    snapshot: Snapshot
    wire_tokens: int
    input_tokens: int
    laid_out_tokens: int
    user_tokens: int


class Simulation:
    """One session under one setting. Its turns are passed to `feed` in time order."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.turns: list[TurnFigures] = []
        self.losses = Losses()
        self.calls_bill, self.summaries_bill = Bill(), Bill()
        # The raw window by model, without a latest turn that is unresolved; no other can be (contract.md, decision 7).
        self._pasts: dict[CountKey, Past] = {model.key: Past() for model in setting.models.values()}
        self._unresolved: PastTurn | None = None
        self._completed = 0
        self._summary: Summary | None = None
        self._summaries = 0
        self._index = EMPTY
        self._settled: dict[int, PastTurn] = {}
        # Tokens of all users' text so far, and of the part that is folded into summaries.
        self._user_tokens: Counter[CountKey] = Counter()
        self._folded_user_tokens: Counter[CountKey] = Counter()

    def feed(self, past: PastTurn) -> None:
        """Decide every call of the turn, then add the turn to the history as this policy would have."""
        model = self.setting.models[past.model_alias]
        turn = past.versions[model.key]
        figures = TurnFigures(turn.turn.seq)
        prompts: list[int] = []
        sent: _Sent | None = None
        for call in turn.calls:
            snapshot = self._snapshot(past, model, call.current)
            now = self._whole(snapshot, model, turn.head, call) or self._fitted(snapshot, model, figures)
            if now is None:
                figures.rejected = True
                break
            sent = now
            prompts.append(sent.wire_tokens)
            figures.input_tokens += sent.input_tokens
            figures.output_tokens += call.output_tokens or 0
        of_users = self._user_tokens[model.key] + turn.user_tokens
        if sent is not None and of_users:
            figures.user_share = sent.user_tokens / of_users
        figures.calls, figures.wire_tokens = len(prompts), sum(prompts)
        if past.completion_tokens is not None and all(
            call.output_tokens is None for call in turn.calls[len(prompts) :]
        ):
            figures.output_tokens = past.completion_tokens
        if not figures.rejected:
            self._settle(past, turn)
            if turn.turn.status is TurnStatus.COMPLETED and self._may_fold(sent, turn):
                self._after_turn(past, model, figures)
        self.calls_bill.add_turn(prompts, figures.output_tokens, model.prices)
        if figures.summarizer != _NOTHING:
            used = figures.summarizer
            prices = model.summarizer_prices(min(used.prompt_tokens, model.summarizer_ceiling))
            self.summaries_bill.add(prices, used.prompt_tokens, used.completion_tokens)
        self.turns.append(figures)

    def _whole(self, snapshot: Snapshot, model: SimulatedModel, head: HeadCost, call: SimulatedCall) -> _Sent | None:
        """What is sent for a call if the window is sent unchanged, computed from sums without laying it out. None if
        something may be removed or added."""
        past, summary = snapshot.past, self._summary
        if summary is not None and snapshot.policy.recall.enabled:
            return None
        summary_tokens = model.estimate(render_summary(summary.body)) if summary else 0
        cost = Cost(
            snapshot,
            head.tokens + summary_tokens + past.tokens[-1] + call.tokens,
            head.messages + (summary is not None) + past.messages[-1] + call.messages,
            head.tools_tokens,
        )
        if not passes_whole(cost):
            return None
        spoken = sum([message.tokens for message in call.current.messages if message.role == "user"])
        user_tokens = self._user_tokens[model.key] - self._folded_user_tokens[model.key] + spoken
        return _Sent(snapshot, cost.wire_tokens, cost.input_tokens, cost.input_tokens, user_tokens)

    def _fitted(self, snapshot: Snapshot, model: SimulatedModel, figures: TurnFigures) -> _Sent | None:
        """What is sent for a call as a real turn would decide it; None if it is refused."""
        decided = self._decided(snapshot, model, figures)
        if isinstance(decided, Refused):
            return None
        window = decided.window
        self.losses.note(decided.accounts.actions)
        laid_out, user_tokens = window.log.tokens_after_summary, _verbatim_user_tokens(window)
        return _Sent(window.snapshot, window.wire_tokens, window.input_tokens, laid_out, user_tokens)

    def _decided(self, snapshot: Snapshot, model: SimulatedModel, figures: TurnFigures) -> Ready | Refused:
        decided = plan(self._with_evicted(snapshot, model), model.estimate)
        if isinstance(decided, SummaryDue):
            self._completed = 0
            made = self._summarize(decided.fold, model, figures)
            figures.summary = figures.summary or made is not None
            again = with_summary(decided.snapshot, decided.fold, made, model.estimate) if made else decided.snapshot
            decided = plan(self._with_evicted(again, model), model.estimate, may_summarize=False)
        elif decided.summary_worthless:
            self._completed = 0
        figures.prune = figures.prune or decided.accounts.prune_triggered
        return decided

    def _may_fold(self, sent: _Sent | None, turn: CountedTurn) -> bool:
        """Whether `_after_turn` may make a summary. `sent` is that of the turn's last call, if it had one."""
        if not self.setting.policy.summarizes_after_turns or sent is None:
            return self.setting.policy.summarizes_after_turns
        reply_tokens = turn.calls[-1].output_tokens or 0
        return may_fold_behind_answer(sent.snapshot, sent.laid_out_tokens, reply_tokens)

    def _after_turn(self, past: PastTurn, model: SimulatedModel, figures: TurnFigures) -> None:
        """Make the summary that would be made in the background after the answer, as if it were made immediately."""
        fold = fold_after_turn(self._snapshot(past, model, no_turn(figures.seq + 1)), model.estimate)
        if fold is not None:
            self._completed = 0
            figures.later_summary = self._summarize(fold, model, figures) is not None

    def _snapshot(self, past: PastTurn, model: SimulatedModel, current: Turn) -> Snapshot:
        snapshot = Snapshot(
            policy=self.setting.policy,
            budget=model.budget,
            layers=past.layers,
            goal=self.setting.goal,
            pins=past.pins,
            summary=self._summary,
            past=self._past_for(model.key),
            current=current,
            tools=past.tools,
            completed_since_summary=self._completed,
            calibration_ratio=model.calibration_ratio,
            may_look_back=model.takes_tools
            and may_look_back(self.setting.policy, past.tools, past.tool_choice, past.provider_options),
        )
        return with_shared_budget(snapshot, model.estimate)

    def _with_evicted(self, snapshot: Snapshot, model: SimulatedModel) -> Snapshot:
        """The snapshot with the summarized messages that match the user's message, counted for the model."""
        recall = self.setting.policy.recall
        if not recall.enabled or self._summary is None:
            return snapshot
        found = evicted_among(
            self._index,
            lambda seq: self._settled[seq].versions[model.key].turn,
            snapshot.current.messages[0],
            recall,
            model.budget.input_budget,
        )
        return replace(snapshot, evicted=found.with_reasoning(model.reasoning_rule))

    def _past_for(self, key: CountKey) -> Past:
        past, unresolved = self._pasts[key], self._unresolved
        return past if unresolved is None else past.extended((unresolved.versions[key].latest,))

    def _summarize(self, fold: Fold, model: SimulatedModel, figures: TurnFigures) -> Summary | None:
        body = fallback_summary(fold, model.estimate, self.setting.read, focus=self.setting.policy.focus)
        ceiling, extend = model.summarizer_ceiling, self.setting.policy.incremental
        used = summarizer_usage(fold, body, ceiling, model.estimate, extend=extend)
        figures.summarizer = Usage(
            figures.summarizer.prompt_tokens + used.prompt_tokens,
            figures.summarizer.completion_tokens + used.completion_tokens,
        )
        if body is None or not shrinks(fold, body, model.estimate):
            return None
        self._summaries += 1
        self._summary = summary_of(SummaryId(UUID(int=self._summaries)), fold, body, "fallback")
        if self.setting.policy.recall.enabled:
            stored = [replace(each, tokens=self._settled[each.seq].stored_tokens[each.seq]) for each in fold.messages]
            self._index = self._index.extended(Packed.of(stored), self._summary.to_message_seq)
        last_seq = fold.turns[-1].seq
        for key, past in self._pasts.items():
            folded = past.turns_between(0, past.place_of_turn(last_seq + 1))
            self._folded_user_tokens[key] += sum([tokens_of_users(turn) for turn in folded])
            self._pasts[key] = past.after(last_seq)
        self.losses.turns_folded += len(fold.turns)
        self.losses.messages_folded += len(fold.messages)
        return self._summary

    def _settle(self, past: PastTurn, turn: CountedTurn) -> None:
        self._completed += turn.turn.status is TurnStatus.COMPLETED
        if not turn.turn.messages:  # they were all withdrawn
            return
        older = [self._unresolved] if self._unresolved else []
        self._unresolved = past if turn.latest.unresolved else None
        if self._unresolved is None:
            older.append(past)
        for key, of_model in self._pasts.items():
            self._pasts[key] = of_model.extended([each.versions[key].older for each in older])
            self._user_tokens[key] += past.versions[key].user_tokens
        if self.setting.policy.recall.enabled:
            self._settled |= dict.fromkeys((message.seq for message in turn.turn.messages), past)


def _verbatim_user_tokens(window: Window) -> int:
    recalled = [item.tokens for item in window.recalled if item.message and item.message.role == "user"]
    spoken = [piece for piece in window.pieces if piece.kind == "user"]
    changed = [item.tokens for piece in spoken for item in piece.items if item.block]
    return sum([piece.tokens for piece in spoken]) + sum(recalled) - sum(changed)


class FullHistory:
    """A session whose whole history is sent at every call. Its turns are passed to `feed` in time order. `wire_tokens`
    sum over its `calls`. `first_over_seq` is the first turn with a larger prompt than the window leaves to prompts."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.calls = self.wire_tokens = 0
        self.first_over_seq: int | None = None
        self.bill = Bill()
        self._past_tokens: Counter[CountKey] = Counter()

    def feed(self, past: PastTurn) -> None:
        model = self.setting.models[past.model_alias]
        turn = past.versions[model.key]
        head = turn.head
        fixed = head.tokens + framing_tokens(head.messages) + head.tools_tokens + self._past_tokens[model.key]
        prompts = [fixed + call.resent_tokens for call in turn.calls]
        self.calls += len(prompts)
        self.wire_tokens += sum(prompts)
        if self.first_over_seq is None and max(prompts, default=0) > model.budget.prompt_ceiling:
            self.first_over_seq = turn.turn.seq
        output_tokens = past.completion_tokens
        if output_tokens is None:
            output_tokens = sum(message.tokens for message in turn.turn.messages if message.role == "assistant")
        self.bill.add_turn(prompts, output_tokens, model.prices)
        for key, version in past.versions.items():
            self._past_tokens[key] += version.resent_tokens
