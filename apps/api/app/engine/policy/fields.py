"""The fields of a policy that a client can set: what each does, its JSON form, and which values contradict each other.
The types and bounds of the values are annotations of `ContextPolicy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from app.domain.errors import InvalidRequest
from app.engine.policy.policy import PRIORITY_REGIONS, Allocation, ClearToolResults, ContextPolicy, Recall

MEANINGS: Mapping[str, str] = {
    "preset": "The design whose values the rest has.",
    "summary_trigger_ratio": "Share of the input budget at which a summary is made.",
    "summary_trigger_tokens": (
        "Input tokens at which a summary is made, in any window; what a summary and protected turns may take is then a "
        "share of them."
    ),
    "prune_trigger_ratio": "Share of the input budget at which messages are pruned after a summary was tried.",
    "mandatory_summary_turn": "Completed turns after which a summary is made.",
    "usage_threshold": "Share of the model's window at which a summary is made; never above the prune threshold.",
    "max_messages": "Messages in the raw window at which a summary is made.",
    "protected_turns": "Newest turns that stay raw; null: as many as their share has.",
    "protected_share": "Share of the input budget that the protected turns may take.",
    "prune_protected": "Whether a prompt over its budget may lose parts of protected turns.",
    "prune_unit": "What a prune takes: low-signal messages, or whole turns.",
    "prune_order": (
        "What a prune takes first: the oldest, or what is worth the least per token, long answers before short ones."
    ),
    "prune_block_share": (
        "Share of the input budget that a prune takes beyond what it must, so that the next turns need none."
    ),
    "summarize_when": "Before the call, after the turn in the background, both, or not by itself.",
    "auto_summarize": "The switch that turns all summaries but the requested ones off.",
    "summarize_ahead": "Whether a summary that falls due at the next turn is made behind the answer before it.",
    "incremental": (
        "Whether the summarizer extends the summary by the new messages alone, and does so once more at half the "
        "cap when the prompt is still too large."
    ),
    "summary_model": "Who summarizes; empty: the turn's own model.",
    "summary_call": (
        "How the summarizer is called: separate, with a document of what leaves; cached, by the session's model behind "
        "a repetition of its last prompt, where the provider caches that; auto, by what costs less."
    ),
    "summary_max_ratio": "Share of the input budget that a summary may take.",
    "summary_role": "The role the summary is sent in.",
    "focus": "What summaries keep in most detail, in words; empty: nothing in particular.",
    "allocation": "Shares of the window by region, in percent.",
    "context_priority": "Which region is served first where shares are held.",
    "max_context_tokens": "A cap on the model's window, in tokens.",
    "recall": "Whether evicted messages that match the user's words come back, and how many.",
    "look_back": (
        "Whether the model is offered a tool to read back what left the window: auto, once something has; on; off."
    ),
    "clear_tool_results": (
        "When older tool results give way to a line that says so, before anything else is decided; null: never."
    ),
    "emergency_drop_ratio": (
        "Share of the oldest turns that leave at once when the provider says too long; null: as many as it takes."
    ),
    "unknown_window_tokens": "The window of a model nobody knows, in tokens; null: by unknown_window_outputs.",
    "unknown_window_outputs": (
        "The window of a model nobody knows, in times of its largest output; null: CONTEXT_FALLBACK_LIMIT."
    ),
    "estimator": "How tokens are counted; heuristic: chars x 2 / 5.",
    "max_output_tokens": "The most that is reserved for the answer, and never more than a fifth of the window.",
    "show_time": "Whether a prompt says on which days its messages were sent.",
    "show_names": (
        "Whether `Anna:` stands before the text of a named message for every model; else where the provider has no "
        "field for it."
    ),
    "allow_extreme": "Whether shares under 1 percent and less than 64 tokens for the answer are taken.",
}
"""What each field does, in the order in which fields are listed."""
_ALL = 100.0


def policy_values(policy: ContextPolicy) -> dict[str, Any]:
    """The policy's fields and values as JSON. Given as overrides, they resolve to the same policy."""
    return {name: _plain(getattr(policy, name)) for name in MEANINGS}


def _plain(value: Any) -> Any:
    if isinstance(value, (Allocation, Recall, ClearToolResults)):
        return asdict(value)
    return list(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value


def check_allocation(allocation: Allocation | None) -> Allocation | None:
    """Raise `ValueError` if the shares sum to more than 100 percent, or the output's share is not between 0 and 100."""
    if allocation is not None:
        if sum(asdict(allocation).values()) > _ALL:
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
