"""The figures of a replay: of each turn as the service gave them, and what they sum to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from app.domain.types import REGIONS

PRUNE_RATIO = 0.9
RESERVED_REGIONS = ("framing", "tools")
"""What the overhead reserve pays for before anything of it counts against the input budget, in this order."""
MARK_MEANINGS = {
    "S": "summarized",
    "B": "summarized after the answer",
    "P": "pruned",
    "X": "refused (422)",
    "C": "cancelled",
    "!": "error",
}
"""What was done in a turn, by the letter that stands at it in the plot and in the picture."""

PromptFault: TypeAlias = Literal[
    "orphaned_results", "unanswered_calls", "no_user_message", "over_budget", "not_verbatim"
]
RoundOutcome: TypeAlias = Literal["answered", "refused", "rejected_request", "server_error"]
Outcome: TypeAlias = Literal["completed", "cancelled", "refused", "rejected_request", "server_error"]


@dataclass(frozen=True, slots=True)
class PromptFigures:
    """A prompt against its budget, in tokens. `input_tokens` is what the input budget pays for."""

    limit_tokens: int
    input_budget_tokens: int
    output_reserve_tokens: int
    overhead_reserve_tokens: int
    regions: Mapping[str, int]
    wire_tokens: int
    input_before_tokens: int
    input_after_summary_tokens: int
    input_tokens: int

    @property
    def reserve_used_tokens(self) -> int:
        """What framing and tool definitions take out of the overhead reserve."""
        return min(self.overhead_reserve_tokens, sum(self.regions.get(name, 0) for name in RESERVED_REGIONS))

    def input_regions(self) -> dict[str, int]:
        """The regions less what the overhead reserve pays for: what stands against the input budget."""
        counted = {name: self.regions.get(name, 0) for name in REGIONS}
        paid = self.reserve_used_tokens
        for name in RESERVED_REGIONS:
            relief = min(paid, counted[name])
            counted[name] -= relief
            paid -= relief
        return counted


@dataclass(frozen=True, slots=True)
class ReplayedRound:
    """One model call of a turn, or the attempt at one. `window` is None when the answer carried none (a 5xx, a request
    that did not validate).

    `full_history_tokens` is the prompt a client that resends everything would have sent for it. `faults` is what the
    sent prompt breaks, by kind; None where nothing was sent or the prompt was not looked at.
    """

    number: int
    outcome: RoundOutcome
    status_code: int
    code: str | None = None
    detail: str | None = None
    window: PromptFigures | None = None
    summary: bool = False
    prune: bool = False
    reported_prompt_tokens: int | None = None
    full_history_tokens: int = 0
    elapsed_s: float = 0.0
    faults: Mapping[PromptFault, int] | None = None

    @property
    def over_budget(self) -> bool:
        """Whether a prompt was sent that its budget does not cover: by the answer's figures, by the audit's, or by the
        provider's own count."""
        if self.outcome != "answered" or self.window is None:
            return False
        room_tokens = self.window.limit_tokens - self.window.output_reserve_tokens
        return (
            self.window.input_tokens > self.window.input_budget_tokens
            or (self.reported_prompt_tokens or 0) > room_tokens
            or bool((self.faults or {}).get("over_budget"))
        )


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
    """One turn of a replay, with a round for each model call; at least one. `summary_after` says that a summary was
    made when the client had its answer."""

    number: int
    outcome: Outcome
    rounds: tuple[ReplayedRound, ...]
    turn_id: str | None = None
    summary_after: bool = False

    @property
    def window(self) -> PromptFigures | None:
        """The fullest of the turn's windows; of a refused turn, the one that did not fit."""
        windows = [round_.window for round_ in self.rounds if round_.window is not None]
        return max(windows, key=_fill_ratio, default=None)

    @property
    def summary(self) -> bool:
        return any(round_.summary for round_ in self.rounds)

    @property
    def prune(self) -> bool:
        return any(round_.prune for round_ in self.rounds)

    @property
    def over_budget(self) -> bool:
        return any(round_.over_budget for round_ in self.rounds)

    @property
    def full_history_tokens(self) -> int:
        """What the turn's last prompt would have been with everything resent."""
        return max(round_.full_history_tokens for round_ in self.rounds)


@dataclass(frozen=True, slots=True)
class ReplayedSession:
    """A replayed session: its turns and what they sum to. `summarizer_tokens` went to and from the summarizer."""

    name: str
    session_id: str
    turns: Sequence[ReplayedTurn]
    left_out: Mapping[str, int]
    mended: Mapping[str, int]
    summarizer_tokens: int | None = None

    def count(self, outcome: Outcome) -> int:
        return sum(1 for turn in self.turns if turn.outcome == outcome)

    @property
    def rounds(self) -> list[ReplayedRound]:
        return [round_ for turn in self.turns for round_ in turn.rounds]

    @property
    def sent(self) -> list[tuple[ReplayedRound, PromptFigures]]:
        """The rounds whose prompt reached the model, with their windows."""
        return [(round_, round_.window) for round_ in self.rounds if round_.outcome == "answered" and round_.window]


@dataclass(frozen=True, slots=True)
class Totals:
    """The row of a table: of one session, or of all. `prompts` reached the model, `checked` of them were looked at;
    of these `broken` break something, `faults` says how often what."""

    name: str
    sessions: int
    turns: int
    prompts: int
    summaries: int
    prunes: int
    cancelled: int
    refusals: int
    rejected_requests: int
    server_errors: int
    sent_tokens: int
    summarizer_tokens: int
    full_history_tokens: int
    largest_prompt_tokens: int
    largest_prompt_budget_tokens: int
    over_budget: int
    checked: int
    broken: int
    faults: Mapping[PromptFault, int]

    @property
    def saved_ratio(self) -> float:
        """The share of the full history's tokens that was not sent, the summarizer's own tokens counted as sent."""
        if not self.full_history_tokens:
            return 0.0
        return 1 - (self.sent_tokens + self.summarizer_tokens) / self.full_history_tokens

    @property
    def failed(self) -> bool:
        return bool(self.over_budget or self.server_errors or self.broken)


def totals(name: str, sessions: Iterable[ReplayedSession]) -> Totals:
    """Sums sessions; the largest prompt is the one that fills most of its budget."""
    sessions = list(sessions)
    rounds = [round_ for session in sessions for round_ in session.rounds]
    sent = [pair for session in sessions for pair in session.sent]
    largest = max((window for _, window in sent), key=_fill_ratio, default=None)
    checked = [round_.faults for round_ in rounds if round_.faults is not None]
    faults: Counter[PromptFault] = Counter()
    for found in checked:
        faults.update(found)
    return Totals(
        name=name,
        sessions=len(sessions),
        turns=sum(len(session.turns) for session in sessions),
        prompts=len(sent),
        summaries=sum(round_.summary for round_ in rounds),
        prunes=sum(round_.prune for round_ in rounds),
        cancelled=sum(session.count("cancelled") for session in sessions),
        refusals=sum(session.count("refused") for session in sessions),
        rejected_requests=sum(session.count("rejected_request") for session in sessions),
        server_errors=sum(session.count("server_error") for session in sessions),
        sent_tokens=sum(window.wire_tokens for _, window in sent),
        summarizer_tokens=sum(session.summarizer_tokens or 0 for session in sessions),
        full_history_tokens=sum(round_.full_history_tokens for round_, _ in sent),
        largest_prompt_tokens=largest.input_tokens if largest else 0,
        largest_prompt_budget_tokens=largest.input_budget_tokens if largest else 0,
        over_budget=sum(round_.over_budget for round_ in rounds),
        checked=len(checked),
        broken=sum(any(found.values()) for found in checked),
        faults=dict(faults),
    )


def window_of_context(context: Mapping[str, Any]) -> PromptFigures:
    """Reads the `context` member of a turn's answer, or an audit row that carries `regions`."""
    return PromptFigures(
        limit_tokens=int(context["model_context_limit"]),
        input_budget_tokens=int(context["input_budget"]),
        output_reserve_tokens=int(context["output_reserve"]),
        overhead_reserve_tokens=int(context["overhead_reserve"]),
        regions=cast("Mapping[str, int]", context["regions"]),
        wire_tokens=int(context["estimated_wire_tokens"]),
        input_before_tokens=int(context["estimated_input_tokens_before"]),
        input_after_summary_tokens=int(context["estimated_input_tokens_after_summary"]),
        input_tokens=int(context["estimated_input_tokens_after_prune"]),
    )


def window_of_refusal(problem: Mapping[str, Any]) -> PromptFigures | None:
    """Reads what a 422 `context_budget_exceeded` says about the prompt that did not fit."""
    budget, regions = problem.get("budget"), problem.get("regions")
    if not isinstance(budget, dict) or not isinstance(regions, dict):
        return None
    budget, regions = cast("dict[str, int]", budget), cast("dict[str, int]", regions)
    estimated_tokens = int(budget["estimated"])
    return PromptFigures(
        limit_tokens=int(budget["limit"]),
        input_budget_tokens=int(budget["input_budget"]),
        output_reserve_tokens=0,
        overhead_reserve_tokens=max(0, sum(regions.values()) - estimated_tokens),
        regions=regions,
        wire_tokens=sum(regions.values()),
        input_before_tokens=estimated_tokens,
        input_after_summary_tokens=estimated_tokens,
        input_tokens=estimated_tokens,
    )


def _fill_ratio(window: PromptFigures) -> float:
    return window.input_tokens / window.input_budget_tokens if window.input_budget_tokens > 0 else 0.0
