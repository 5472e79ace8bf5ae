"""How a session's context is kept: one value, `ContextPolicy`; the presets are such values (contract.md, sections 9 and
10)."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Annotated, Final, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Len

from app.domain.frozen import frozen, replace
from app.domain.types import MOST_EXCLUDED_TOOLS, MOST_FOCUS_CHARS, Name
from app.engine.policy.budget import part_of

PruneUnit: TypeAlias = Literal["message", "turn"]
PruneOrder: TypeAlias = Literal["oldest", "value"]
PriorityRegion: TypeAlias = Literal["goal", "pins", "summary", "history"]

PRIORITY_REGIONS: tuple[PriorityRegion, ...] = ("goal", "pins", "summary", "history")

LARGEST_INTEGER: Final = 2**31 - 1
Ratio: TypeAlias = Annotated[float, Gt(0), Le(1)]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]
Percent: TypeAlias = Annotated[float, Ge(0), Le(100.0)]
PositiveCount: TypeAlias = Annotated[int, Ge(1), Le(LARGEST_INTEGER)]
MIN_SUMMARY_TOKENS: Final = 96
"""Smallest useful cap of a summary: the fence and one or two sentences."""


@frozen
class Allocation:
    """Shares in percent of what system text, the user's message and tools leave of the window; at most 100 together."""

    goal_pct: Percent = 15
    pinned_files_pct: Percent = 50
    map_pct: Percent = 25
    reserved_for_output_pct: Percent = 10


@frozen
class Recall:
    """Whether older messages that match the user's are recalled, their largest share of the input budget, and the least
    ratio of their score to that of the best match."""

    enabled: bool = True
    max_share: Share = 0.7
    min_score_ratio: Share = 0.05


@frozen
class ClearToolResults:
    """When older tool results are replaced by a marker: at `trigger_tokens` input tokens or, if `trigger_uses` is set,
    at more results than that instead, but not while that would save less than `at_least_tokens`. The newest `keep`
    results and those of `exclude_tools` stay. With `clear_inputs` the arguments of the calls are cleared as well."""

    trigger_tokens: PositiveCount = 100_000
    trigger_uses: PositiveCount | None = None
    keep: Annotated[int, Ge(0), Le(LARGEST_INTEGER)] = 3
    at_least_tokens: Annotated[int, Ge(0), Le(LARGEST_INTEGER)] = 0
    exclude_tools: Annotated[tuple[Name, ...], Len(0, MOST_EXCLUDED_TOOLS)] = ()
    clear_inputs: bool = False


@frozen
class ContextPolicy:
    """What triggers compression, when, what is protected from it, and what is removed first.

    `MEANINGS` (`fields.py`) describes each field, and the annotations state the allowed values. A trigger that is None
    is off. Whatever the triggers, every policy that summarizes tries a summary at `prune_trigger_ratio`, before
    anything is pruned. `protected_turns` and `protected_share` both bound the protected turns; one of them may be None.
    `whole_past` and `is_single` are not fields of a session's policy (`with_whole_past`, `of_single_request`).
    """

    preset: Literal["guarded", "post_turn", "rolling", "allocated", "turn_atomic"] = "guarded"
    summary_trigger_ratio: Ratio | None = 0.70
    summary_trigger_tokens: Annotated[int, Ge(1000), Le(LARGEST_INTEGER)] | None = None
    prune_trigger_ratio: Ratio = 0.90
    mandatory_summary_turn: PositiveCount | None = 8
    usage_threshold: Ratio | None = None
    max_messages: Annotated[int, Ge(2), Le(LARGEST_INTEGER)] | None = None
    protected_turns: Annotated[int, Ge(0), Le(LARGEST_INTEGER)] | None = 4
    protected_share: Ratio | None = 0.25
    prune_protected: bool = True
    prune_unit: PruneUnit = "message"
    prune_order: PruneOrder = "oldest"
    prune_block_share: Share = 0.1
    summarize_when: Literal["preflight", "post_turn", "both", "never"] = "preflight"
    auto_summarize: bool = True
    summarize_ahead: bool = True
    incremental: bool = False
    summary_model: str = ""
    summary_call: Literal["auto", "separate", "cached"] = "auto"
    summary_max_ratio: Ratio = 0.15
    summary_role: Literal["system", "user"] = "system"
    focus: Annotated[str, Len(0, MOST_FOCUS_CHARS)] = ""
    allocation: Allocation | None = None
    context_priority: Annotated[tuple[PriorityRegion, ...], Len(4, 4)] = PRIORITY_REGIONS
    max_context_tokens: PositiveCount | None = None
    recall: Recall = Recall()
    look_back: Literal["auto", "on", "off"] = "auto"
    clear_tool_results: ClearToolResults | None = None
    emergency_drop_ratio: Ratio | None = None
    unknown_window_tokens: PositiveCount | None = None
    unknown_window_outputs: PositiveCount | None = None
    estimator: Literal["tiktoken", "heuristic"] = "tiktoken"
    max_output_tokens: PositiveCount = 2048
    allow_extreme: bool = False
    show_time: bool = False
    show_names: bool = False
    whole_past: bool = False
    is_single: bool = False

    def prune_from(self, input_budget: int) -> int:
        """Input tokens from which on something is removed. With an allocation, nothing is while the window fits."""
        return ceil(part_of(self.prune_trigger_ratio, input_budget)) if self.allocation is None else input_budget + 1

    def summary_from(self, input_budget: int) -> int | None:
        """Input tokens from which on a summary is due: the lower of the ratio and the token trigger, or None."""
        ratio, tokens = self.summary_trigger_ratio, self.summary_trigger_tokens
        if ratio is None:
            return tokens
        by_share = ceil(part_of(ratio, input_budget))
        return by_share if tokens is None else min(by_share, tokens)

    def usage_from(self, limit_tokens: int, input_budget: int) -> int | None:
        """Input tokens from which on a summary is due by the usage of the window, or None. At most the share that is
        pruned from, so that it precedes a refusal (contract.md, decision 1)."""
        share, most = self.usage_threshold, self.prune_trigger_ratio
        return None if share is None else ceil(min(part_of(share, limit_tokens), part_of(most, input_budget)))

    def summarized_room(self, input_budget: int) -> int:
        """The tokens to which the shares of summaries and of protected turns apply: at most `summary_trigger_tokens`.
        In a window of a million with a trigger at ten thousand, a quarter of the window would exceed the trigger."""
        return min(input_budget, self.summary_trigger_tokens or input_budget)

    def most_summary_tokens(self, input_budget: int) -> int:
        """The largest cap of a summary. The share applies if it leaves room for a useful one."""
        return max(MIN_SUMMARY_TOKENS, int(part_of(self.summary_max_ratio, self.summarized_room(input_budget))))

    @property
    def summarizes(self) -> bool:
        """Whether turns make summaries without a request."""
        return self.auto_summarize and self.summarize_when != "never"

    @property
    def summarizes_before_calls(self) -> bool:
        """Whether all its triggers are checked before a call, not only the prune threshold."""
        return self.auto_summarize and self.summarize_when in ("preflight", "both")

    @property
    def summarizes_after_turns(self) -> bool:
        return self.auto_summarize and self.summarize_when in ("post_turn", "both")

    @property
    def summarizes_ahead(self) -> bool:
        """Whether a summary that the next turn would make before its call is made after the previous turn's answer."""
        return self.summarize_ahead and self.summarizes_before_calls


def with_whole_past(policy: ContextPolicy) -> ContextPolicy:
    """The policy of a turn that sends the whole past verbatim, or is refused. Nothing is summarized, pruned, shortened
    or recalled, and existing summaries do not replace the messages that they folded."""
    return replace(
        policy,
        whole_past=True,
        summarize_when="never",
        allocation=None,
        recall=replace(policy.recall, enabled=False),
        look_back="off",
        clear_tool_results=None,
        emergency_drop_ratio=None,
    )


def of_single_request(policy: ContextPolicy) -> ContextPolicy:
    """The policy of a turn whose session may have no other. A summary would be made again for the next request, so none
    is, and at last whole turns leave rather than a refusal of this one and all later ones."""
    return replace(policy, is_single=True, summarize_when="never")


@frozen
class Preset:
    """A published design. `policy` has its values, but the output cap is the deployment's."""

    description: str
    policy: ContextPolicy


_PUBLISHED = ContextPolicy(
    summary_trigger_ratio=None,
    mandatory_summary_turn=None,
    protected_share=None,
    prune_block_share=0.0,
    summarize_ahead=False,
    recall=Recall(enabled=False),
    look_back="off",
)
"""Values common to the published designs. They have no recall and no look-back; a session can switch these on."""

_GUARDED = Preset(
    "Before the call: a summary at 70 % of the input budget or after 8 turns, then a prune at 90 %, then a refusal.",
    ContextPolicy(),
)
_POST_TURN = Preset(
    "After the answer, in the background: a summary at 80 % of the window by a separate model; the last 5 turns are "
    "not summarized.",
    replace(_PUBLISHED, preset="post_turn", usage_threshold=0.80, protected_turns=5, summarize_when="post_turn"),
)
_ROLLING = Preset(
    "Before the call, at 80 % of the window: older messages are added to the summary, and as many recent turns as fit "
    "are sent as they are.",
    replace(
        _PUBLISHED,
        preset="rolling",
        usage_threshold=0.80,
        protected_turns=None,
        protected_share=0.50,
        incremental=True,
    ),
)
_ALLOCATED = Preset(
    "Shares of the window for goal, pins, summary and output. A prompt that fits is not trimmed. Over the limit "
    "the lowest priority is trimmed first, down to its share, and content is shortened before it is dropped.",
    replace(_PUBLISHED, preset="allocated", prune_unit="turn", allocation=Allocation()),
)
_TURN_ATOMIC = Preset(
    "Whole turns only: summarized in the background and before the call; the oldest half is dropped when the provider "
    "rejects a prompt as too long.",
    replace(
        _PUBLISHED,
        preset="turn_atomic",
        usage_threshold=0.75,
        max_messages=20,
        prune_unit="turn",
        summarize_when="both",
        emergency_drop_ratio=0.5,
        unknown_window_outputs=4,
    ),
)
PRESETS: Mapping[str, Preset] = {
    preset.policy.preset: preset for preset in (_GUARDED, _POST_TURN, _ROLLING, _ALLOCATED, _TURN_ATOMIC)
}


def preset_policy(name: str, guarded: ContextPolicy) -> ContextPolicy:
    """The preset's values. `guarded` is the deployment's own policy, from which other presets take only the output cap.
    Raises `KeyError` for an unknown name."""
    if name == "guarded":
        return guarded
    return replace(PRESETS[name].policy, max_output_tokens=guarded.max_output_tokens)
