"""How a session's context is to be kept: one value, `ContextPolicy`; a preset is such a value (contract, section 9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

from app.domain.errors import InvalidRequest

SummaryRole: TypeAlias = Literal["system", "user"]
SummarizeWhen: TypeAlias = Literal["preflight", "never"]
EstimatorKind: TypeAlias = Literal["tiktoken", "heuristic"]

_LATER_PRESETS = ("post_turn", "rolling", "allocated", "turn_atomic")
_LATER_FIELDS = frozenset(
    {
        "usage_threshold",
        "max_messages",
        "protected_share",
        "incremental",
        "allocation",
        "context_priority",
        "recall",
        "emergency_drop_ratio",
    }
)


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """What fires compression, what is protected from it, and how large a summary may grow.

    Ratios are of the turn's input budget. `max_context_tokens` caps the model's window from above, so that a model
    with a window of a million tokens still compacts at a size somebody chose. `max_output_tokens` is the deployment's
    ceiling of the output reserve and no field of a session's policy.
    """

    preset: str = "guarded"
    summary_trigger_ratio: float = 0.70
    prune_trigger_ratio: float = 0.90
    mandatory_summary_turn: int = 8
    protected_turns: int = 4
    prune_protected: bool = True
    summarize_when: SummarizeWhen = "preflight"
    auto_summarize: bool = True
    summary_model: str = ""
    summary_max_ratio: float = 0.15
    summary_role: SummaryRole = "system"
    max_context_tokens: int | None = None
    estimator: EstimatorKind = "tiktoken"
    max_output_tokens: int = 2048

    @property
    def summarizes(self) -> bool:
        """Whether a turn may make a summary by itself."""
        return self.auto_summarize and self.summarize_when != "never"


def _ratio(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError("must be a number above 0 and at most 1")
    return float(value)


def _integer(least: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**31 - 1:
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


_FIELDS: Mapping[str, Callable[[object], Any]] = {
    "preset": _choice("guarded"),
    "summary_trigger_ratio": _ratio,
    "prune_trigger_ratio": _ratio,
    "mandatory_summary_turn": _integer(1),
    "protected_turns": _integer(0),
    "prune_protected": _flag,
    "summarize_when": _choice("preflight", "never"),
    "auto_summarize": _flag,
    "summary_model": _text,
    "summary_max_ratio": _ratio,
    "summary_role": _choice("system", "user"),
    "max_context_tokens": _integer(1),
    "estimator": _choice("tiktoken", "heuristic"),
}


def resolve_policy(defaults: ContextPolicy, overrides: Mapping[str, object]) -> ContextPolicy:
    """The deployment's defaults with a session's overrides in them.

    Raises `InvalidRequest` naming the field for an unknown field, an impossible value or an impossible combination.
    """
    values: dict[str, Any] = {}
    for field, value in overrides.items():
        parse = _FIELDS.get(field)
        if field in _LATER_FIELDS or (field == "preset" and value in _LATER_PRESETS):
            raise InvalidRequest(
                f"This version serves the preset guarded alone; {field} is not available.", ("policy", field)
            )
        if parse is None:
            raise InvalidRequest(f"There is no policy field {field!r}.", ("policy", field))
        try:
            values[field] = parse(value)
        except ValueError as error:
            raise InvalidRequest(f"The policy field {field} {error}.", ("policy", field)) from error
    policy = replace(defaults, **values)
    if policy.prune_trigger_ratio < policy.summary_trigger_ratio:
        raise InvalidRequest(
            f"prune_trigger_ratio ({policy.prune_trigger_ratio}) below summary_trigger_ratio "
            f"({policy.summary_trigger_ratio}) would prune what a summary was about to keep.",
            ("policy", "prune_trigger_ratio"),
        )
    return policy
