"""The figures of a replay: of each turn as the service gave them, and what they sum to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

REGIONS = ("system", "goal", "pins", "summary", "history", "recall", "user", "tools", "framing")
"""The regions of a prompt in the order of the contract's section 5."""
RESERVED_REGIONS = ("framing", "tools")
"""What the overhead reserve pays for before anything of it is charged to the input, in this order."""
STANDING_REGIONS = ("system", "goal", "pins", "tools")

Outcome: TypeAlias = Literal["completed", "refused", "rejected_request", "server_error"]


@dataclass(frozen=True, slots=True)
class Window:
    """A prompt against its budget, in tokens. `charged_tokens` is what the input budget pays for."""

    limit_tokens: int
    input_budget_tokens: int
    output_reserve_tokens: int
    overhead_reserve_tokens: int
    regions: Mapping[str, int]
    wire_tokens: int
    charged_before_tokens: int
    charged_after_summary_tokens: int
    charged_tokens: int

    @property
    def reserve_used_tokens(self) -> int:
        """What framing and tool definitions take out of the overhead reserve."""
        return min(self.overhead_reserve_tokens, sum(self.regions.get(name, 0) for name in RESERVED_REGIONS))

    def charged_regions(self) -> dict[str, int]:
        """The regions less what the overhead reserve pays for: what stands against the input budget."""
        charged = {name: self.regions.get(name, 0) for name in REGIONS}
        paid = self.reserve_used_tokens
        for name in RESERVED_REGIONS:
            relief = min(paid, charged[name])
            charged[name] -= relief
            paid -= relief
        return charged


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """One turn of a replay. `window` is None when the answer carried none (a 5xx, a request that did not validate).

    `full_history_tokens` is the prompt a client that resends everything would have sent for this turn.
    """

    number: int
    outcome: Outcome
    status_code: int
    turn_id: str | None = None
    code: str | None = None
    window: Window | None = None
    summary: bool = False
    prune: bool = False
    reported_prompt_tokens: int | None = None
    full_history_tokens: int = 0
    elapsed_s: float = 0.0

    @property
    def over_budget(self) -> bool:
        """Whether a prompt was sent that its budget does not cover, by the estimate or by the provider's own count."""
        if self.outcome != "completed" or self.window is None:
            return False
        room_tokens = self.window.limit_tokens - self.window.output_reserve_tokens
        return (
            self.window.charged_tokens > self.window.input_budget_tokens
            or (self.reported_prompt_tokens or 0) > room_tokens
        )


class FullHistory:
    """What a client that resends the whole conversation with every turn would send, from the service's own figures.

    One prompt is the turn's standing regions (system, goal, pins, tools) + every earlier user message and reply + the
    user's message + framing. A user message is the turn's `user` region, a reply the `completion_tokens` of its turn,
    and a message's framing what the second prompt's `framing` has over the first's, halved (two messages came between).
    Turns that were not answered are left out, as the service leaves a rejected one out of later prompts.
    """

    DEFAULT_FRAMING_TOKENS = 4

    def __init__(self) -> None:
        self._past_tokens = 0
        self._past_messages = 0
        self._first_framing_tokens: int | None = None
        self._message_framing_tokens: float = self.DEFAULT_FRAMING_TOKENS

    def prompt_tokens(self, regions: Mapping[str, int], *, compressed: bool) -> int:
        """The full-history prompt of a turn whose own prompt had these regions."""
        framing_tokens = regions.get("framing", 0)
        if self._first_framing_tokens is None:
            self._first_framing_tokens = framing_tokens
        elif self._past_messages == 2 and not compressed:
            self._message_framing_tokens = (framing_tokens - self._first_framing_tokens) / 2
        standing_tokens = sum(regions.get(name, 0) for name in STANDING_REGIONS)
        framing_tokens = self._first_framing_tokens + round(self._past_messages * self._message_framing_tokens)
        return standing_tokens + self._past_tokens + regions.get("user", 0) + framing_tokens

    def answered(self, user_tokens: int, reply_tokens: int) -> None:
        """Takes a turn's two messages into the history of the turns after it."""
        self._past_tokens += user_tokens + reply_tokens
        self._past_messages += 2


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """A replayed session: its turns and what they sum to. `summarizer_tokens` went to and from the summarizer."""

    name: str
    session_id: str
    turns: Sequence[TurnFigures]
    skipped: Mapping[str, int]
    summarizer_tokens: int | None = None

    def count(self, outcome: Outcome) -> int:
        return sum(1 for turn in self.turns if turn.outcome == outcome)

    @property
    def sent(self) -> list[tuple[TurnFigures, Window]]:
        """The turns whose prompt reached the model, with their windows."""
        return [(turn, turn.window) for turn in self.turns if turn.outcome == "completed" and turn.window is not None]


@dataclass(frozen=True, slots=True)
class Totals:
    """The row of a table: of one session, or of all."""

    name: str
    sessions: int
    turns: int
    summaries: int
    prunes: int
    refusals: int
    rejected_requests: int
    server_errors: int
    sent_tokens: int
    summarizer_tokens: int
    full_history_tokens: int
    largest_prompt_tokens: int
    largest_prompt_budget_tokens: int
    over_budget: int

    @property
    def saved_ratio(self) -> float:
        """The share of the full history's tokens that was not sent, the summarizer's own tokens counted as sent."""
        if not self.full_history_tokens:
            return 0.0
        return 1 - (self.sent_tokens + self.summarizer_tokens) / self.full_history_tokens

    @property
    def failed(self) -> bool:
        return bool(self.over_budget or self.server_errors)


def totals(name: str, sessions: Iterable[SessionFigures]) -> Totals:
    """Sums sessions; the largest prompt is the one that fills most of its budget."""
    sessions = list(sessions)
    turns = [turn for session in sessions for turn in session.turns]
    sent = [pair for session in sessions for pair in session.sent]
    largest = max((window for _, window in sent), key=_fill_ratio, default=None)
    return Totals(
        name=name,
        sessions=len(sessions),
        turns=len(turns),
        summaries=sum(turn.summary for turn in turns),
        prunes=sum(turn.prune for turn in turns),
        refusals=sum(session.count("refused") for session in sessions),
        rejected_requests=sum(session.count("rejected_request") for session in sessions),
        server_errors=sum(session.count("server_error") for session in sessions),
        sent_tokens=sum(window.wire_tokens for _, window in sent),
        summarizer_tokens=sum(session.summarizer_tokens or 0 for session in sessions),
        full_history_tokens=sum(turn.full_history_tokens for turn, _ in sent),
        largest_prompt_tokens=largest.charged_tokens if largest else 0,
        largest_prompt_budget_tokens=largest.input_budget_tokens if largest else 0,
        over_budget=sum(turn.over_budget for turn in turns),
    )


def window_of_context(context: Mapping[str, Any]) -> Window:
    """Reads the `context` member of a turn's answer, or an audit row that carries `regions`."""
    return Window(
        limit_tokens=int(context["model_context_limit"]),
        input_budget_tokens=int(context["input_budget"]),
        output_reserve_tokens=int(context["output_reserve"]),
        overhead_reserve_tokens=int(context["overhead_reserve"]),
        regions=cast("Mapping[str, int]", context["regions"]),
        wire_tokens=int(context["estimated_wire_tokens"]),
        charged_before_tokens=int(context["estimated_input_tokens_before"]),
        charged_after_summary_tokens=int(context["estimated_input_tokens_after_summary"]),
        charged_tokens=int(context["estimated_input_tokens_after_prune"]),
    )


def window_of_refusal(problem: Mapping[str, Any]) -> Window | None:
    """Reads what a 422 `context_budget_exceeded` says about the prompt that did not fit."""
    budget, regions = problem.get("budget"), problem.get("regions")
    if not isinstance(budget, dict) or not isinstance(regions, dict):
        return None
    budget, regions = cast("dict[str, int]", budget), cast("dict[str, int]", regions)
    estimated_tokens = int(budget["estimated"])
    return Window(
        limit_tokens=int(budget["limit"]),
        input_budget_tokens=int(budget["input_budget"]),
        output_reserve_tokens=0,
        overhead_reserve_tokens=max(0, sum(regions.values()) - estimated_tokens),
        regions=regions,
        wire_tokens=sum(regions.values()),
        charged_before_tokens=estimated_tokens,
        charged_after_summary_tokens=estimated_tokens,
        charged_tokens=estimated_tokens,
    )


def _fill_ratio(window: Window) -> float:
    return window.charged_tokens / window.input_budget_tokens if window.input_budget_tokens > 0 else 0.0
