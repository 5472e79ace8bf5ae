"""The fields of a policy as people set them: one table of what each takes, and the checks of their combination."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any, cast

from app.domain.errors import InvalidRequest
from app.engine.policy import PRIORITY_REGIONS, Allocation, ContextPolicy, Recall
from app.engine.presets import PRESETS, preset_policy

_LARGEST_INTEGER = 2**31 - 1
_MOST_PERCENT = 100.0


@dataclass(frozen=True, slots=True)
class PolicyField:
    """A field: how a value is read, what may be said, and what it does. `parse` raises `ValueError` with a reason."""

    parse: Callable[[object], Any]
    takes: str
    meaning: str


def _ratio(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError("must be a number above 0 and at most 1")
    return float(value)


def _integer(least: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST_INTEGER:
            raise ValueError(f"must be a whole number of at least {least}")
        return value

    return parse


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")  # noqa: TRY004 - the caller turns it into a 422
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004 - the caller turns it into a 422
    return value


def _choice(*allowed: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return cast(str, value)

    return parse


def _or_none(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    def parse_or_none(value: object) -> Any:
        return None if value is None else parse(value)

    return parse_or_none


def _percent(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST_PERCENT:
        raise ValueError("must be a number of 0 to 100")
    return float(value)


def _record(of: type[Any], parts: Mapping[str, Callable[[object], Any]], value: object) -> Any:
    """An object whose missing parts keep their defaults."""
    if not isinstance(value, Mapping):
        raise ValueError(f"must be an object of {', '.join(parts)}")  # noqa: TRY004 - the caller turns it into a 422
    given = cast("Mapping[object, object]", value)
    read: dict[str, Any] = {}
    for name, part in given.items():
        parse = parts.get(name) if isinstance(name, str) else None
        if parse is None:
            raise ValueError(f"has no part {name!r}, only {', '.join(parts)}")
        try:
            read[cast(str, name)] = parse(part)
        except ValueError as error:
            raise ValueError(f"has a {name} that {error}") from error
    return of(**read)


def _allocation(value: object) -> Allocation:
    names = ("goal_pct", "pinned_files_pct", "map_pct", "reserved_for_output_pct")
    allocation: Allocation = _record(Allocation, dict.fromkeys(names, _percent), value)
    if sum(getattr(allocation, name) for name in names) > _MOST_PERCENT:
        raise ValueError("shares out more than 100 percent")
    if not 0 < allocation.reserved_for_output_pct < _MOST_PERCENT:
        raise ValueError("must leave the output a share, and not all")
    return allocation


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or not 0 <= value <= 1:
        raise ValueError("must be a number of 0 to 1")
    return float(value)


def _recall(value: object) -> Recall:
    return _record(Recall, {"enabled": _flag, "max_share": _share, "min_score_ratio": _share}, value)


def _priority(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError("must be a list of regions")  # noqa: TRY004 - the caller turns it into a 422
    named = list(cast("Sequence[object]", value))
    if named[:1] != ["goal"] or sorted(map(str, named)) != sorted(PRIORITY_REGIONS):
        raise ValueError(f"must name {', '.join(PRIORITY_REGIONS)} once each, the goal first: it is never trimmed")
    return tuple(cast("list[str]", named))


_RATIO = "a number above 0 and at most 1"
_FLAG = "true or false"
FIELDS: Mapping[str, PolicyField] = {
    "preset": PolicyField(_choice(*PRESETS), f"one of {', '.join(PRESETS)}", "The design whose values the rest has."),
    "summary_trigger_ratio": PolicyField(
        _or_none(_ratio), f"{_RATIO}, or null", "Share of the input budget at which a summary is made."
    ),
    "prune_trigger_ratio": PolicyField(
        _ratio, _RATIO, "Share of the input budget at which messages are pruned after a summary was tried."
    ),
    "mandatory_summary_turn": PolicyField(
        _or_none(_integer(1)), "a whole number of at least 1, or null", "Completed turns after which a summary is made."
    ),
    "usage_threshold": PolicyField(
        _or_none(_ratio),
        f"{_RATIO}, or null",
        "Share of the model's window at which a summary is made; never above the prune threshold.",
    ),
    "max_messages": PolicyField(
        _or_none(_integer(2)),
        "a whole number of at least 2, or null",
        "Messages in the raw window at which a summary is made.",
    ),
    "protected_turns": PolicyField(
        _or_none(_integer(0)),
        "a whole number, or null",
        "Newest turns that stay raw; null: as many as their share has.",
    ),
    "protected_share": PolicyField(
        _or_none(_ratio), f"{_RATIO}, or null", "Share of the input budget that the protected turns may take."
    ),
    "prune_protected": PolicyField(_flag, _FLAG, "Whether a prompt over its budget may lose parts of protected turns."),
    "prune_unit": PolicyField(
        _choice("message", "turn"), "message or turn", "What a prune takes: low-signal messages, or whole turns."
    ),
    "prune_order": PolicyField(
        _choice("oldest", "value"),
        "oldest or value",
        "What a prune takes first: the oldest, or what is worth the least per token, long answers before short ones.",
    ),
    "prune_block_share": PolicyField(
        _share,
        "a number of 0 to 1",
        "Share of the input budget that a prune takes beyond what it must, so that the next turns need none.",
    ),
    "summarize_when": PolicyField(
        _choice("preflight", "post_turn", "both", "never"),
        "one of preflight, post_turn, both, never",
        "Before the call, after the turn in the background, both, or not by itself.",
    ),
    "auto_summarize": PolicyField(_flag, _FLAG, "The switch that turns all summaries but the requested ones off."),
    "incremental": PolicyField(
        _flag,
        _FLAG,
        "Whether the summarizer extends the summary by the new messages alone, and does so once more at half the cap "
        "when the prompt is still too large.",
    ),
    "summary_model": PolicyField(_text, "an alias, or empty", "Who summarizes; empty: the turn's own model."),
    "summary_max_ratio": PolicyField(_ratio, _RATIO, "Share of the input budget that a summary may take."),
    "summary_role": PolicyField(_choice("system", "user"), "system or user", "The role the summary is sent in."),
    "allocation": PolicyField(
        _or_none(_allocation),
        "an object of goal_pct, pinned_files_pct, map_pct, reserved_for_output_pct, or null",
        "Shares of the window by region, in percent.",
    ),
    "context_priority": PolicyField(
        _priority, "goal, pins, summary, history in an order", "Which region is served first where shares are held."
    ),
    "max_context_tokens": PolicyField(
        _or_none(_integer(1)), "a whole number of at least 1, or null", "A cap on the model's window, in tokens."
    ),
    "recall": PolicyField(
        _recall,
        "an object of enabled, max_share, min_score_ratio",
        "Whether evicted messages that match the user's words come back, and how many.",
    ),
    "emergency_drop_ratio": PolicyField(
        _or_none(_ratio),
        f"{_RATIO}, or null",
        "Share of the oldest turns that leave at once when the provider says too long; null: as many as it takes.",
    ),
    "unknown_window_outputs": PolicyField(
        _or_none(_integer(1)),
        "a whole number of at least 1, or null",
        "The window of a model nobody knows, in times of its largest output; null: CONTEXT_FALLBACK_LIMIT.",
    ),
    "estimator": PolicyField(
        _choice("tiktoken", "heuristic"), "tiktoken or heuristic", "How tokens are counted; heuristic: chars x 2 / 5."
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
            values[name] = field.parse(value)
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
