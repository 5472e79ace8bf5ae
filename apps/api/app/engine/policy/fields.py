"""The fields of a policy as people set them: one table of what each takes, and the checks of their combination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from app.domain.errors import InvalidRequest
from app.engine.policy.kinds import (
    ALLOCATION,
    FLAG,
    PRIORITY,
    RATIO,
    RECALL,
    SHARE,
    TEXT,
    Kind,
    choice,
    integer,
    or_none,
)
from app.engine.policy.policy import Allocation, ContextPolicy, Recall
from app.engine.policy.presets import PRESETS, preset_policy


@dataclass(frozen=True, slots=True)
class PolicyField:
    """A field: what values it has, what may be said, and what it does."""

    kind: Kind
    takes: str
    meaning: str


_RATIO = "a number above 0 and at most 1"
_FLAG = "true or false"
FIELDS: Mapping[str, PolicyField] = {
    "preset": PolicyField(choice(*PRESETS), f"one of {', '.join(PRESETS)}", "The design whose values the rest has."),
    "summary_trigger_ratio": PolicyField(
        or_none(RATIO), f"{_RATIO}, or null", "Share of the input budget at which a summary is made."
    ),
    "prune_trigger_ratio": PolicyField(
        RATIO, _RATIO, "Share of the input budget at which messages are pruned after a summary was tried."
    ),
    "mandatory_summary_turn": PolicyField(
        or_none(integer(1)), "a whole number of at least 1, or null", "Completed turns after which a summary is made."
    ),
    "usage_threshold": PolicyField(
        or_none(RATIO),
        f"{_RATIO}, or null",
        "Share of the model's window at which a summary is made; never above the prune threshold.",
    ),
    "max_messages": PolicyField(
        or_none(integer(2)),
        "a whole number of at least 2, or null",
        "Messages in the raw window at which a summary is made.",
    ),
    "protected_turns": PolicyField(
        or_none(integer(0)),
        "a whole number, or null",
        "Newest turns that stay raw; null: as many as their share has.",
    ),
    "protected_share": PolicyField(
        or_none(RATIO), f"{_RATIO}, or null", "Share of the input budget that the protected turns may take."
    ),
    "prune_protected": PolicyField(FLAG, _FLAG, "Whether a prompt over its budget may lose parts of protected turns."),
    "prune_unit": PolicyField(
        choice("message", "turn"), "message or turn", "What a prune takes: low-signal messages, or whole turns."
    ),
    "prune_order": PolicyField(
        choice("oldest", "value"),
        "oldest or value",
        "What a prune takes first: the oldest, or what is worth the least per token, long answers before short ones.",
    ),
    "prune_block_share": PolicyField(
        SHARE,
        "a number of 0 to 1",
        "Share of the input budget that a prune takes beyond what it must, so that the next turns need none.",
    ),
    "summarize_when": PolicyField(
        choice("preflight", "post_turn", "both", "never"),
        "one of preflight, post_turn, both, never",
        "Before the call, after the turn in the background, both, or not by itself.",
    ),
    "auto_summarize": PolicyField(FLAG, _FLAG, "The switch that turns all summaries but the requested ones off."),
    "incremental": PolicyField(
        FLAG,
        _FLAG,
        "Whether the summarizer extends the summary by the new messages alone, and does so once more at half the cap "
        "when the prompt is still too large.",
    ),
    "summary_model": PolicyField(TEXT, "an alias, or empty", "Who summarizes; empty: the turn's own model."),
    "summary_max_ratio": PolicyField(RATIO, _RATIO, "Share of the input budget that a summary may take."),
    "summary_role": PolicyField(choice("system", "user"), "system or user", "The role the summary is sent in."),
    "allocation": PolicyField(
        or_none(ALLOCATION),
        "an object of goal_pct, pinned_files_pct, map_pct, reserved_for_output_pct, or null",
        "Shares of the window by region, in percent.",
    ),
    "context_priority": PolicyField(
        PRIORITY, "goal, pins, summary, history in an order", "Which region is served first where shares are held."
    ),
    "max_context_tokens": PolicyField(
        or_none(integer(1)), "a whole number of at least 1, or null", "A cap on the model's window, in tokens."
    ),
    "recall": PolicyField(
        RECALL,
        "an object of enabled, max_share, min_score_ratio",
        "Whether evicted messages that match the user's words come back, and how many.",
    ),
    "emergency_drop_ratio": PolicyField(
        or_none(RATIO),
        f"{_RATIO}, or null",
        "Share of the oldest turns that leave at once when the provider says too long; null: as many as it takes.",
    ),
    "unknown_window_tokens": PolicyField(
        or_none(integer(1)),
        "a whole number of at least 1, or null",
        "The window of a model nobody knows, in tokens; null: by unknown_window_outputs.",
    ),
    "unknown_window_outputs": PolicyField(
        or_none(integer(1)),
        "a whole number of at least 1, or null",
        "The window of a model nobody knows, in times of its largest output; null: CONTEXT_FALLBACK_LIMIT.",
    ),
    "estimator": PolicyField(
        choice("tiktoken", "heuristic"), "tiktoken or heuristic", "How tokens are counted; heuristic: chars x 2 / 5."
    ),
    "max_output_tokens": PolicyField(
        integer(1),
        "a whole number of at least 1",
        "The most that is reserved for the answer, and never more than a fifth of the window.",
    ),
    "allow_extreme": PolicyField(
        FLAG, _FLAG, "Whether shares under 1 percent and less than 64 tokens for the answer are taken."
    ),
}


def resolve_policy(guarded: ContextPolicy, overrides: Mapping[str, object]) -> ContextPolicy:
    """The named preset's values, or those of `guarded`, the deployment's defaults, with a session's overrides in them.

    Raises `InvalidRequest` naming the field for an unknown field, an impossible value or an impossible combination.
    """
    values = read_fields(overrides)
    policy = replace(preset_policy(values.get("preset", guarded.preset), guarded), **values)
    _check_combination(policy)
    return policy


def read_fields(overrides: Mapping[str, object]) -> dict[str, Any]:
    """Each value by itself, as the policy has it. Raises `InvalidRequest` as `resolve_policy`, but for combinations."""
    values: dict[str, Any] = {}
    for name, value in overrides.items():
        field = FIELDS.get(name)
        if field is None:
            raise InvalidRequest(f"There is no policy field {name!r}.", ("policy", name))
        try:
            values[name] = field.kind.parse(value)
        except ValueError as error:
            raise InvalidRequest(f"The policy field {name} {error}.", ("policy", name)) from error
    return values


def policy_values(policy: ContextPolicy) -> dict[str, Any]:
    """The policy's fields with their values, as JSON: what `resolve_policy` reads back to the same policy."""
    return {name: _plain(getattr(policy, name)) for name in FIELDS}


def _plain(value: Any) -> Any:
    if isinstance(value, (Allocation, Recall)):
        return asdict(value)
    return list(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value


def _check_combination(policy: ContextPolicy) -> None:
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
