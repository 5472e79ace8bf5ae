"""How a session's context is kept: one value, `ContextPolicy`; a preset is such a value (contract.md, section 9)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Len

from app.domain.types import MOST_EXCLUDED_TOOLS, MOST_FOCUS_CHARS, Name

PresetName: TypeAlias = Literal["guarded", "post_turn", "rolling", "allocated", "turn_atomic"]
SummaryRole: TypeAlias = Literal["system", "user"]
SummarizeWhen: TypeAlias = Literal["preflight", "post_turn", "both", "never"]
LookBackMode: TypeAlias = Literal["auto", "on", "off"]
SummaryCallMode: TypeAlias = Literal["auto", "separate", "cached"]
EstimatorKind: TypeAlias = Literal["tiktoken", "heuristic"]
PruneUnit: TypeAlias = Literal["message", "turn"]
PruneOrder: TypeAlias = Literal["oldest", "value"]
PriorityRegion: TypeAlias = Literal["goal", "pins", "summary", "history"]

PRIORITY_REGIONS: tuple[PriorityRegion, ...] = ("goal", "pins", "summary", "history")

LARGEST_INTEGER: Final = 2**31 - 1
Ratio: TypeAlias = Annotated[float, Gt(0), Le(1)]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]
Percent: TypeAlias = Annotated[float, Ge(0), Le(100.0)]
PositiveCount: TypeAlias = Annotated[int, Ge(1), Le(LARGEST_INTEGER)]
TriggerTokens: TypeAlias = Annotated[int, Ge(1000), Le(LARGEST_INTEGER)]


@dataclass(frozen=True, slots=True)
class Allocation:
    """Shares of the room that system text, the user's message and tools leave, in percent; at most 100 together."""

    goal_pct: Percent = 15
    pinned_files_pct: Percent = 50
    map_pct: Percent = 25
    reserved_for_output_pct: Percent = 10


@dataclass(frozen=True, slots=True)
class Recall:
    """Whether evicted messages that match the user's come back, in which share of the input budget at most, and how
    near to the best match's score they must be."""

    enabled: bool = True
    max_share: Share = 0.7
    min_score_ratio: Share = 0.05


@dataclass(frozen=True, slots=True)
class ClearToolResults:
    """When older tool results give way to a line that says so, and which stay.

    They do at `trigger_tokens` of input, or with `trigger_uses` at more results than that instead. The newest `keep`
    stay, and those of `exclude_tools`; nothing is cleared while it would save less than `at_least_tokens`. With
    `clear_inputs` the arguments of the calls leave as well.
    """

    trigger_tokens: PositiveCount = 100_000
    trigger_uses: PositiveCount | None = None
    keep: Annotated[int, Ge(0), Le(LARGEST_INTEGER)] = 3
    at_least_tokens: Annotated[int, Ge(0), Le(LARGEST_INTEGER)] = 0
    exclude_tools: Annotated[tuple[Name, ...], Len(0, MOST_EXCLUDED_TOOLS)] = ()
    clear_inputs: bool = False


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """What fires compression, when, what is protected from it, and what leaves first.

    The annotations state which values a field takes; `services/policies.py` holds clients to them.

    Triggers, each off where it is None: `summary_trigger_ratio` is a share of the turn's input budget,
    `summary_trigger_tokens` a number of tokens as they count against it, `mandatory_summary_turn` a number of completed
    turns, `usage_threshold` a share of the model's window, `max_messages` a number of messages in the raw window. Below
    them all stands `prune_trigger_ratio`, a share of the input budget: there every policy that summarizes at all tries
    a summary before anything is pruned.

    The newest `protected_turns` turns stay raw, as far as they fit into `protected_share` of the input budget; either
    may be None, not both. A prune takes the oldest first, or what is worth the least per token, and `prune_block_share`
    of the input budget more than it must, so that the next turns need none. `max_context_tokens` caps the model's
    window from above, so that a model with a window of a million tokens still compacts at a chosen size.
    The window of an unknown model is `unknown_window_tokens`, or else `unknown_window_outputs` times
    `max_output_tokens`, the ceiling of the output reserve, which is the deployment's by default.
    With `look_back` a model that takes tools is offered to read back what left its window: once something has, or `on`
    in every prompt. With `clear_tool_results` older tool results leave before anything else is decided. `allow_extreme`
    takes values that are mistakes most often. With `show_time` a prompt says on which days its messages were sent; with
    `show_names` who spoke stands before the words for every model. `whole_past` is no field of a session's policy
    (`with_whole_past`).
    """

    preset: PresetName = "guarded"
    summary_trigger_ratio: Ratio | None = 0.70
    summary_trigger_tokens: TriggerTokens | None = None
    prune_trigger_ratio: Ratio = 0.90
    mandatory_summary_turn: PositiveCount | None = 8
    usage_threshold: Ratio | None = None
    max_messages: Annotated[int, Ge(2), Le(LARGEST_INTEGER)] | None = None
    protected_turns: Annotated[int, Ge(0), Le(LARGEST_INTEGER)] | None = 4
    protected_share: Ratio | None = 0.25
    prune_protected: bool = True
    prune_unit: PruneUnit = "message"
    prune_order: PruneOrder = "oldest"
    prune_block_share: Share = 0.0
    summarize_when: SummarizeWhen = "preflight"
    auto_summarize: bool = True
    summarize_ahead: bool = True
    incremental: bool = False
    summary_model: str = ""
    summary_call: SummaryCallMode = "auto"
    summary_max_ratio: Ratio = 0.15
    summary_role: SummaryRole = "system"
    focus: Annotated[str, Len(0, MOST_FOCUS_CHARS)] = ""
    allocation: Allocation | None = None
    context_priority: Annotated[tuple[PriorityRegion, ...], Len(4, 4)] = PRIORITY_REGIONS
    max_context_tokens: PositiveCount | None = None
    recall: Recall = Recall()
    look_back: LookBackMode = "auto"
    clear_tool_results: ClearToolResults | None = None
    emergency_drop_ratio: Ratio | None = None
    unknown_window_tokens: PositiveCount | None = None
    unknown_window_outputs: PositiveCount | None = None
    estimator: EstimatorKind = "tiktoken"
    max_output_tokens: PositiveCount = 2048
    allow_extreme: bool = False
    show_time: bool = False
    show_names: bool = False
    whole_past: bool = False

    def prune_from(self, input_budget: int) -> float:
        """Input tokens from which on something leaves: where shares are given out, nothing while the whole fits."""
        return self.prune_trigger_ratio * input_budget if self.allocation is None else input_budget + 1

    def summary_from(self, input_budget: int) -> float | None:
        """Input tokens from which on a summary is due by the ratio or the number of tokens, whichever comes first."""
        ratio, tokens = self.summary_trigger_ratio, self.summary_trigger_tokens
        due = [each for each in (None if ratio is None else ratio * input_budget, tokens) if each is not None]
        return min(due, default=None)

    def summarized_room(self, input_budget: int) -> int:
        """What the shares of summaries and of protected turns are of: of a window of a million tokens that is to be
        summarized at ten thousand, a quarter of the window would be protected turns alone."""
        return min(input_budget, self.summary_trigger_tokens or input_budget)

    def most_summary_tokens(self, input_budget: int) -> int:
        """What a summary may take of this input budget."""
        return int(self.summarized_room(input_budget) * self.summary_max_ratio)

    @property
    def summarizes(self) -> bool:
        """Whether a turn may make a summary by itself."""
        return self.auto_summarize and self.summarize_when != "never"

    @property
    def summarizes_before_calls(self) -> bool:
        """Whether its triggers are looked at before a call, and not only the prune threshold."""
        return self.auto_summarize and self.summarize_when in ("preflight", "both")

    @property
    def summarizes_after_turns(self) -> bool:
        """Whether its triggers are looked at when a turn has completed."""
        return self.auto_summarize and self.summarize_when in ("post_turn", "both")

    @property
    def summarizes_ahead(self) -> bool:
        """Whether a summary that the next turn would make before its call is made behind the answer before it."""
        return self.summarize_ahead and self.summarizes_before_calls


def with_whole_past(policy: ContextPolicy) -> ContextPolicy:
    """The policy of a turn that sends all of the past verbatim, or is refused: nothing is summarized, pruned,
    shortened or recalled, and no summary that was made before replaces what it took in."""
    return replace(
        policy, whole_past=True, summarize_when="never", allocation=None, recall=replace(policy.recall, enabled=False)
    )
