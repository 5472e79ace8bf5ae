"""The fields of a policy that a client can set: what each does, its JSON form, and which values contradict each other.
The types and bounds of the values are annotations of `ContextPolicy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from app.domain.errors import InvalidRequest
from app.engine.policy.policy import PRIORITY_REGIONS, Allocation, ContextPolicy

MEANINGS: Mapping[str, str] = {
    "preset": "The design that the values of all other fields come from, unless they are set.",
    "summary_trigger_ratio": "Share of the input budget at which a summary is made.",
    "summary_trigger_tokens": (
        "Input tokens at which a summary is made, in any window. If the input budget is larger, summary_max_ratio and "
        "protected_share are shares of these tokens instead."
    ),
    "prune_trigger_ratio": "Share of the input budget at which messages are pruned, after a summary was tried.",
    "mandatory_summary_turn": "Completed turns since the last summary at which a summary is made.",
    "usage_threshold": "Share of the model's window at which a summary is made; never above the prune threshold.",
    "max_messages": "Messages that are not summarized at which a summary is made.",
    "protected_turns": "Newest turns that are not summarized, if they fit protected_share; null: as many as fit.",
    "protected_share": "Largest share of the input budget for protected turns; null: no limit.",
    "prune_protected": "Whether protected turns are pruned too if a prompt is over its budget.",
    "prune_unit": "What is pruned: low-signal messages, or whole turns.",
    "prune_order": (
        "What is pruned first: the oldest, or what has the least value per token, long answers before short ones."
    ),
    "prune_block_share": (
        "Share of the input budget that is pruned in addition to what is needed, so that the next turns need no prune."
    ),
    "summarize_when": (
        "When summaries are made: before the call, in the background after the turn, both, or only when requested."
    ),
    "auto_summarize": "Whether any summaries are made except requested ones.",
    "summarize_ahead": "Whether a summary that the next turn would make is made in the background before it.",
    "incremental": (
        "Whether the summarizer only adds the new messages to the summary. If the prompt is still too large, it does "
        "so once more at half the size."
    ),
    "summary_model": "Alias of the summarizer; empty: the turn's own model.",
    "summary_call": (
        "How the summarizer is called. separate: with the messages to summarize as a document. cached: the session's "
        "model continues its last prompt, if the provider caches prompts. auto: whichever is cheaper."
    ),
    "summary_max_ratio": "Largest share of the input budget for a summary, which may have 96 tokens in any case.",
    "summary_role": "Role of the message that carries the summary.",
    "focus": "What summaries keep in most detail, as free text; empty: nothing in particular.",
    "allocation": "Shares of the window by region, in percent.",
    "context_priority": "Order in which regions get space if the policy has an allocation.",
    "max_context_tokens": "A cap on the model's window, in tokens.",
    "recall": "Whether older messages that match the user's message are recalled, and how many.",
    "look_back": (
        "Whether the model gets a tool to read messages that left the window: auto (once some have left), on, off."
    ),
    "clear_tool_results": ("When older tool results are replaced by a marker, before any other step; null: never."),
    "emergency_drop_ratio": (
        "Share of the past turns, oldest first, that is dropped at once when the provider rejects a prompt as too "
        "long; null: as many turns as needed."
    ),
    "unknown_window_tokens": "Window of a model whose window is unknown, in tokens; null: by unknown_window_outputs.",
    "unknown_window_outputs": (
        "Window of a model whose window is unknown, in multiples of max_output_tokens; null: CONTEXT_FALLBACK_LIMIT."
    ),
    "estimator": "How tokens are counted; heuristic: characters x 2 / 5.",
    "max_output_tokens": "Largest output reserve, in tokens; at most a fifth of the window. Unused with an allocation.",
    "show_time": (
        "Whether a prompt shows on which days its messages were sent. A large recalled block shows days in any case."
    ),
    "show_names": (
        "Whether `Anna:` precedes the text of a named message for every model. If false, only for providers without a "
        "field for names."
    ),
    "allow_extreme": "Whether shares under 1 percent, and fewer than 64 tokens for the answer, are accepted.",
}
"""What each field does, in the order in which fields are listed."""
_ALL = 100.0
SUM_ROUNDING: Final = 1e-9
"""Shares with decimals that sum to a whole may exceed it by this in floating point: 26.1 + 12 + 50.7 + 11.2."""


def policy_values(policy: ContextPolicy) -> dict[str, Any]:
    """The policy's fields and values as JSON. Given as overrides, they resolve to the same policy."""
    values = asdict(policy)
    return {name: values[name] for name in MEANINGS} | {"context_priority": list(policy.context_priority)}


def check_allocation(allocation: Allocation | None) -> Allocation | None:
    """Raise `ValueError` if the shares sum to more than 100 percent, or the output's share is not between 0 and 100."""
    if allocation is not None:
        if sum(asdict(allocation).values()) > _ALL + SUM_ROUNDING:
            raise ValueError("shares out more than 100 percent")
        if not 0 < allocation.reserved_for_output_pct < _ALL:
            raise ValueError("must leave the output a share, and not all")
    return allocation


def check_priority(regions: tuple[str, ...]) -> tuple[str, ...]:
    """Raise `ValueError` unless every region is named once, the goal first."""
    if regions[0] != "goal" or sorted(regions) != sorted(PRIORITY_REGIONS):
        raise ValueError(f"must name {', '.join(PRIORITY_REGIONS)} once each, the goal first: it is never trimmed")
    return regions


def check_combination(policy: ContextPolicy) -> None:
    """Raise `InvalidRequest` for values that are valid alone but not together."""
    trigger = policy.summary_trigger_ratio
    if trigger is not None and policy.prune_trigger_ratio < trigger:
        raise InvalidRequest(
            f"prune_trigger_ratio ({policy.prune_trigger_ratio}) below summary_trigger_ratio ({trigger}) would prune "
            "what a summary was about to keep.",
            ("policy", "prune_trigger_ratio"),
        )
    if policy.prune_block_share >= policy.prune_trigger_ratio:
        raise InvalidRequest(
            f"prune_block_share ({policy.prune_block_share}) of prune_trigger_ratio ({policy.prune_trigger_ratio}) or "
            "more would leave nothing.",
            ("policy", "prune_block_share"),
        )
    if policy.protected_turns is None and policy.protected_share is None:
        raise InvalidRequest(
            "protected_turns and protected_share are both null: no turn could ever be summarized.",
            ("policy", "protected_share"),
        )
