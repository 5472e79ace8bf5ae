"""A session's policy: what it may say, and that a refusal names the field."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.domain.errors import InvalidRequest
from app.engine.policy import ContextPolicy, resolve_policy

_VALID: dict[str, tuple[object, ...]] = {
    "preset": ("guarded",),
    "summary_trigger_ratio": (0.01, 0.9),
    "prune_trigger_ratio": (0.7, 1, 1.0),
    "mandatory_summary_turn": (1, 2**31 - 1),
    "protected_turns": (0, 2**31 - 1),
    "prune_protected": (True, False),
    "summarize_when": ("preflight", "never"),
    "auto_summarize": (True, False),
    "summary_model": ("", "fast"),
    "summary_max_ratio": (0.01, 1),
    "summary_role": ("system", "user"),
    "max_context_tokens": (1, 2**31 - 1),
    "estimator": ("tiktoken", "heuristic"),
}
_RATIO_NOT: tuple[object, ...] = (0, -0.1, 1.01, float("nan"), float("inf"), "0.5", True, None, [], {})
_CHOICE_NOT: tuple[object, ...] = ("other", "", None, 1, [], {})
_INVALID: dict[str, tuple[object, ...]] = {
    "preset": (*_CHOICE_NOT, "post_turn", "rolling", "allocated", "turn_atomic"),
    "summary_trigger_ratio": _RATIO_NOT,
    "prune_trigger_ratio": _RATIO_NOT,
    "mandatory_summary_turn": (0, -1, 1.5, 8.0, "8", True, None, 2**31),
    "protected_turns": (-1, 1.5, 4.0, "4", False, None, 2**31),
    "prune_protected": (0, 1, "true", None),
    "summarize_when": (*_CHOICE_NOT, "post_turn", "both"),
    "auto_summarize": (0, 1, "true", None),
    "summary_model": (1, None, [], {}),
    "summary_max_ratio": _RATIO_NOT,
    "summary_role": (*_CHOICE_NOT, "assistant"),
    "max_context_tokens": (0, -1, 1.5, "1000", True, 2**31),
    "estimator": _CHOICE_NOT,
}
_LATER = (
    "usage_threshold",
    "max_messages",
    "protected_share",
    "incremental",
    "allocation",
    "context_priority",
    "recall",
    "emergency_drop_ratio",
)


def test_the_defaults_are_the_contracts() -> None:
    policy = ContextPolicy()
    assert (policy.summary_trigger_ratio, policy.prune_trigger_ratio) == (0.70, 0.90)
    assert (policy.mandatory_summary_turn, policy.protected_turns) == (8, 4)
    assert (policy.summary_max_ratio, policy.summary_role) == (0.15, "system")
    assert policy.max_output_tokens == 2048
    assert policy.summarizes


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in _VALID for value in _VALID[field]])
def test_every_field_takes_its_values(field: str, value: object) -> None:
    defaults = ContextPolicy(summary_trigger_ratio=0.5)
    assert getattr(resolve_policy(defaults, {field: value}), field) == value


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in _INVALID for value in _INVALID[field]])
def test_every_field_refuses_other_values_and_says_which_field_it_is(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        resolve_policy(ContextPolicy(), {field: value})
    assert refused.value.where == ("policy", field)
    assert field in refused.value.detail


@pytest.mark.parametrize("field", [*_LATER, "unheard_of", "max_output_tokens", ""])
def test_a_field_that_is_unknown_or_not_served_is_refused_by_name(field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        resolve_policy(ContextPolicy(), {field: 1})
    assert refused.value.where == ("policy", field)
    assert field in refused.value.detail


@pytest.mark.parametrize(
    ("defaults", "overrides"),
    [
        (ContextPolicy(), {"summary_trigger_ratio": 0.8, "prune_trigger_ratio": 0.79}),
        # Each alone is possible; together with the deployment's other value it is not.
        (ContextPolicy(), {"summary_trigger_ratio": 0.91}),
        (ContextPolicy(), {"prune_trigger_ratio": 0.69}),
    ],
)
def test_pruning_before_summarizing_is_an_impossible_combination(
    defaults: ContextPolicy, overrides: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        resolve_policy(defaults, overrides)
    assert refused.value.where == ("policy", "prune_trigger_ratio")


def test_equal_triggers_are_possible() -> None:
    policy = resolve_policy(ContextPolicy(), {"summary_trigger_ratio": 0.9, "prune_trigger_ratio": 0.9})
    assert policy.summary_trigger_ratio == policy.prune_trigger_ratio


def test_the_deployments_defaults_stand_where_a_session_says_nothing() -> None:
    defaults = ContextPolicy(protected_turns=7, summary_trigger_ratio=0.6, max_output_tokens=512)
    assert resolve_policy(defaults, {}) == defaults
    assert resolve_policy(defaults, {"protected_turns": 2}) == replace(defaults, protected_turns=2)


@pytest.mark.parametrize(("overrides"), [{"auto_summarize": False}, {"summarize_when": "never"}])
def test_a_policy_can_do_without_summaries(overrides: dict[str, object]) -> None:
    assert not resolve_policy(ContextPolicy(), overrides).summarizes
