"""A session's policy: what it may say, and that a refusal names the field."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from itertools import pairwise
from time import process_time
from typing import Any, cast

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.domain.errors import InvalidRequest
from app.domain.types import MOST_EXCLUDED_TOOLS
from app.engine.policy.fields import MEANINGS
from app.engine.policy.policy import PRESETS, Allocation, ContextPolicy, Recall
from app.services.policies import read_fields, read_given, resolve_policy
from app.services.views.deployment import value_schemas

_VALID: dict[str, tuple[object, ...]] = {
    "preset": ("guarded", "post_turn", "rolling", "allocated", "turn_atomic"),
    "summary_trigger_ratio": (0.01, 0.9, None),
    "prune_trigger_ratio": (0.7, 1, 1.0),
    "mandatory_summary_turn": (1, 2**31 - 1, None),
    "usage_threshold": (0.01, 1, None),
    "max_messages": (2, 2**31 - 1, None),
    "protected_turns": (0, 2**31 - 1),
    "protected_share": (0.01, 1, None),
    "prune_protected": (True, False),
    "prune_unit": ("message", "turn"),
    "prune_order": ("oldest", "value"),
    "prune_block_share": (0, 0.3),
    "summarize_when": ("preflight", "post_turn", "both", "never"),
    "look_back": ("auto", "on", "off"),
    "auto_summarize": (True, False),
    "summarize_ahead": (True, False),
    "incremental": (True, False),
    "summary_model": ("", "fast"),
    "summary_call": ("auto", "separate", "cached"),
    "summary_max_ratio": (0.01, 1),
    "summary_role": ("system", "user"),
    "focus": ("", "prices and dates", "x" * 500),
    "summary_trigger_tokens": (1000, 2**31 - 1, None),
    "max_context_tokens": (1, 2**31 - 1, None),
    "emergency_drop_ratio": (0.01, 1, None),
    "unknown_window_outputs": (1, 2**31 - 1, None),
    "unknown_window_tokens": (1, 2**31 - 1, None),
    "estimator": ("tiktoken", "heuristic"),
    "max_output_tokens": (1, 2**31 - 1),
    "allow_extreme": (True, False),
    "show_time": (True, False),
    "show_names": (True, False),
}
_RATIO_NOT: tuple[object, ...] = (0, -0.1, 1.01, float("nan"), float("inf"), "0.5", True, [], {})
_CHOICE_NOT: tuple[object, ...] = ("other", "", None, 1, [], {})
_FLAG_NOT: tuple[object, ...] = (0, 1, "true", None)
_INVALID: dict[str, tuple[object, ...]] = {
    "preset": _CHOICE_NOT,
    "summary_trigger_ratio": _RATIO_NOT,
    "summary_trigger_tokens": (0, 999, 1000.5, "5000", True, 2**31),
    "prune_trigger_ratio": (*_RATIO_NOT, None),
    "mandatory_summary_turn": (0, -1, 1.5, 8.0, "8", True, 2**31),
    "usage_threshold": _RATIO_NOT,
    "max_messages": (0, 1, -1, 20.0, "20", True, 2**31),
    "protected_turns": (-1, 1.5, 4.0, "4", False, 2**31),
    "protected_share": _RATIO_NOT,
    "prune_protected": _FLAG_NOT,
    "prune_unit": _CHOICE_NOT,
    "prune_order": _CHOICE_NOT,
    "prune_block_share": (-0.1, 0.9, 1.01, float("nan"), "0.5", True, None),
    "summarize_when": _CHOICE_NOT,
    "look_back": _CHOICE_NOT,
    "auto_summarize": _FLAG_NOT,
    "summarize_ahead": _FLAG_NOT,
    "incremental": _FLAG_NOT,
    "summary_model": (1, None, [], {}),
    "summary_call": _CHOICE_NOT,
    "summary_max_ratio": (*_RATIO_NOT, None),
    "summary_role": (*_CHOICE_NOT, "assistant"),
    "focus": (None, 1, [], {}, "x" * 501),
    "allocation": (
        1,
        "goal",
        [],
        {"goal": 15},
        {"goal_pct": -1},
        {"goal_pct": "15"},
        {"goal_pct": 26},
        {"goal_pct": float("nan")},
        {"reserved_for_output_pct": 0},
    ),
    "context_priority": (None, "goal", [], ["goal"], ["pins", "goal", "summary", "history"], ["goal"] * 4, {}),
    "max_context_tokens": (0, -1, 1.5, "1000", True, 2**31),
    "recall": (None, True, [], {"on": True}, {"enabled": 1}, {"max_share": 1.1}, {"min_score_ratio": float("nan")}),
    "clear_tool_results": (
        1,
        [],
        {"on": True},
        {"trigger_tokens": 0},
        {"trigger_uses": 0},
        {"keep": -1},
        {"at_least_tokens": 0.5},
        {"exclude_tools": "look_up"},
        {"exclude_tools": [""]},
        {"clear_inputs": 1},
    ),
    "emergency_drop_ratio": _RATIO_NOT,
    "unknown_window_outputs": (0, -1, 4.0, "4", True, 2**31),
    "unknown_window_tokens": (0, -1, 4.0, "4", True, 2**31),
    "estimator": _CHOICE_NOT,
    "max_output_tokens": (0, -1, 64.0, "64", True, None),
    "allow_extreme": _FLAG_NOT,
    "show_time": _FLAG_NOT,
    "show_names": _FLAG_NOT,
}


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


@given(st.lists(st.integers(1, 999), min_size=3, max_size=3, unique=True).map(sorted))
@example([261, 381, 888])
def test_shares_in_tenths_of_a_percent_that_sum_to_the_whole_are_taken(cuts: list[int]) -> None:
    tenths = [after - before for before, after in pairwise((0, *cuts, 1000))]
    names = ("goal_pct", "pinned_files_pct", "map_pct", "reserved_for_output_pct")
    shares = {name: tenth / 10 for name, tenth in zip(names, tenths, strict=True)}
    assert resolve_policy(ContextPolicy(), read_given({"allocation": shares, "allow_extreme": True})).allocation
    fractions = {name: tenth / 1000 for name, tenth in zip(names, tenths, strict=True)}
    assert resolve_policy(ContextPolicy(), read_given({"allocation": fractions, "allow_extreme": True})).allocation


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in _INVALID for value in _INVALID[field]])
def test_every_field_refuses_other_values_and_says_which_field_it_is(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        resolve_policy(ContextPolicy(), {field: value})
    assert refused.value.where == ("policy", field)
    assert field in refused.value.detail


@pytest.mark.parametrize("field", ["unheard_of", "whole_past", "is_single", ""])
def test_a_field_that_is_unknown_is_refused_by_name(field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        resolve_policy(ContextPolicy(), {field: 1})
    assert refused.value.where == ("policy", field)
    assert field in refused.value.detail


def test_many_unknown_fields_are_refused_by_the_first_without_quoting_long_names() -> None:
    started = process_time()
    with pytest.raises(InvalidRequest, match="There is no policy field 'k0'"):
        read_fields({f"k{at}": 1 for at in range(30_000)})
    assert process_time() - started < 2, "the time grows with the number of fields, not with its square"
    for overrides in ({"k" * 100_000: 1}, {"recall": {"k" * 100_000: 1}}):
        with pytest.raises(InvalidRequest) as refused:
            read_fields(overrides)
        assert len(refused.value.detail) < 300


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


def test_every_field_of_a_policy_can_be_set_but_those_of_one_request() -> None:
    assert set(MEANINGS) == {field.name for field in fields(ContextPolicy)} - {"whole_past", "is_single"}
    assert set(_INVALID) == set(MEANINGS)


_BEYOND_JSON_SCHEMA = ("allocation", "context_priority")
"""Shares that sum up to too much and an order that does not begin with the goal are refused by reading alone."""


@pytest.mark.parametrize("field", MEANINGS)
def test_the_schema_of_a_field_takes_what_reading_takes(field: str) -> None:
    schema = value_schemas()[field]
    jsonschema.Draft202012Validator.check_schema(schema)
    validator: Any = jsonschema.Draft202012Validator(schema)
    for value in (getattr(preset.policy, field) for preset in PRESETS.values()):
        assert validator.is_valid(json_of(value)), value
    for value in _VALID.get(field, ()):
        assert validator.is_valid(value), value
    passed = [value for value in _INVALID[field] if is_distinct_json(value) and validator.is_valid(value)]
    assert field in _BEYOND_JSON_SCHEMA or all(can_be_read(field, value) for value in passed), passed


def can_be_read(field: str, value: object) -> bool:
    """By itself: combinations are no field's own."""
    try:
        read_fields({field: value})
    except InvalidRequest:
        return False
    return True


def is_distinct_json(value: object) -> bool:
    """NaN and infinity are no JSON, and to JSON Schema 8.0 is a whole number."""
    written = repr(value)
    return "nan" not in written and "inf" not in written and not (isinstance(value, float) and value.is_integer())


def json_of(value: object) -> Any:
    if isinstance(value, (Allocation, Recall)):
        return asdict(value)
    return list(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value


def test_an_allocation_may_name_some_shares_and_keeps_the_others() -> None:
    policy = resolve_policy(ContextPolicy(), {"preset": "allocated", "allocation": {"goal_pct": 5, "map_pct": 35}})
    assert policy.allocation == Allocation(goal_pct=5, pinned_files_pct=50, map_pct=35, reserved_for_output_pct=10)
    assert resolve_policy(ContextPolicy(), {"preset": "allocated", "allocation": None}).allocation is None


def test_recall_may_be_switched_alone() -> None:
    policy = resolve_policy(ContextPolicy(), {"recall": {"enabled": True}})
    assert policy.recall == replace(ContextPolicy().recall, enabled=True)


def test_the_order_of_regions_is_the_sessions_as_long_as_the_goal_comes_first() -> None:
    order = ["goal", "history", "summary", "pins"]
    assert resolve_policy(ContextPolicy(), {"context_priority": order}).context_priority == tuple(order)


def test_turns_protected_by_neither_number_nor_share_are_an_impossible_combination() -> None:
    with pytest.raises(InvalidRequest) as refused:
        resolve_policy(ContextPolicy(), {"protected_turns": None, "protected_share": None})
    assert refused.value.where == ("policy", "protected_share")
    assert resolve_policy(ContextPolicy(), {"protected_turns": None, "protected_share": 0.4}).protected_turns is None


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_brings_its_values_and_a_session_may_change_any_of_them(name: str) -> None:
    guarded = ContextPolicy(max_output_tokens=512, protected_turns=7)
    policy = resolve_policy(guarded, {"preset": name})
    assert policy == (guarded if name == "guarded" else replace(PRESETS[name].policy, max_output_tokens=512))
    assert resolve_policy(guarded, {"protected_turns": 2, "preset": name}) == replace(policy, protected_turns=2)


def test_the_presets_are_the_published_designs() -> None:
    values = {name: preset.policy for name, preset in PRESETS.items()}
    assert list(values) == ["guarded", "post_turn", "rolling", "allocated", "turn_atomic"]
    assert all(policy.preset == name for name, policy in values.items())
    post_turn, rolling, atomic = values["post_turn"], values["rolling"], values["turn_atomic"]
    assert (post_turn.usage_threshold, post_turn.protected_turns) == (0.80, 5)
    assert (post_turn.summarizes_after_turns, post_turn.summarizes_before_calls) == (True, False)
    assert (rolling.usage_threshold, rolling.incremental, rolling.protected_turns) == (0.80, True, None)
    assert (atomic.max_messages, atomic.usage_threshold, atomic.emergency_drop_ratio) == (20, 0.75, 0.5)
    assert (atomic.prune_unit, atomic.unknown_window_outputs) == ("turn", 4)
    assert (atomic.summarizes_after_turns, atomic.summarizes_before_calls) == (True, True)
    assert values["allocated"].allocation == Allocation(15, 50, 25, 10)


@pytest.mark.parametrize(
    ("when", "before", "ahead", "after"),
    [
        ("preflight", True, True, False),
        ("post_turn", False, False, True),
        ("both", True, True, True),
        ("never", False, False, False),
    ],
)
def test_summaries_are_made_when_the_policy_says_and_never_without_auto_summarize(
    when: str, before: bool, ahead: bool, after: bool
) -> None:
    policy = resolve_policy(ContextPolicy(), {"summarize_when": when})
    assert (policy.summarizes_before_calls, policy.summarizes_ahead, policy.summarizes_after_turns) == (
        before,
        ahead,
        after,
    )
    off = replace(policy, auto_summarize=False)
    assert not any((off.summarizes, off.summarizes_before_calls, off.summarizes_ahead, off.summarizes_after_turns))


@pytest.mark.parametrize(
    "given",
    [
        {f"field_{number}": 1 for number in range(40_000)},
        {"context_priority": [f"{at}" for at in range(40_000)]},
        {"clear_tool_results": {"exclude_tools": [0] * 40_000}},
    ],
)
def test_a_policy_of_very_many_values_is_refused_unread(given: dict[str, Any]) -> None:
    """Reading 40,000 and describing what is wrong with them took 70 ms of the event loop."""
    with pytest.raises(InvalidRequest, match="at most 1000 values"):
        read_given(given)


def test_as_many_tools_as_a_policy_may_name_are_not_too_many() -> None:
    tools = [f"{number}".rjust(200, "t") for number in range(MOST_EXCLUDED_TOOLS)]
    assert read_given({"clear_tool_results": {"trigger_tokens": 1, "exclude_tools": tools}})
