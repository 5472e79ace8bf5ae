"""The configuration of the published designs: every name and unit becomes one of our fields, or is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.errors import InvalidRequest
from app.engine.policy.design_names import DESIGN_NAMES, in_our_names
from app.engine.policy.fields import MEANINGS
from app.engine.policy.policy import PRESETS, ContextPolicy
from app.services.policies import read_given, resolve_policy

_OURS = {"goal_pct": 15, "pinned_files_pct": 50, "map_pct": 25, "reserved_for_output_pct": 10}


def _published(design: str, spelling: int) -> dict[str, Any]:
    names = [name for name in DESIGN_NAMES if name.design == design and name.published is not None]
    return {name.spellings[min(spelling, len(name.spellings) - 1)]: name.published for name in names}


@pytest.mark.parametrize("spelling", [0, 1])
@pytest.mark.parametrize("design", PRESETS)
def test_what_a_design_publishes_is_its_preset_in_either_spelling(design: str, spelling: int) -> None:
    given = read_given({"preset": design, **_published(design, spelling)})
    policy = resolve_policy(ContextPolicy(), given)
    preset = PRESETS[design].policy
    own = {"max_context_tokens", "max_output_tokens", "unknown_window_tokens", "summary_model"}
    assert {name for name in MEANINGS if getattr(policy, name) != getattr(preset, name)} <= own


def test_every_design_name_maps_to_existing_fields_and_one_setting() -> None:
    spellings = [spelling for name in DESIGN_NAMES for spelling in name.spellings]
    assert len(spellings) == len(set(spellings))
    assert {field for name in DESIGN_NAMES for field in name.fields} <= set(MEANINGS)
    assert {name.design for name in DESIGN_NAMES} == set(PRESETS)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"goal_pct": 0.15, "pinned_files_pct": 0.50, "map_pct": 0.25, "reserved_for_output_pct": 0.10}, _OURS),
        (_OURS, _OURS),
        ({"goal_pct": 0.1, "pinned_files_pct": 0.2, "map_pct": 0.3, "reserved_for_output_pct": 0.4},
         {"goal_pct": 10, "pinned_files_pct": 20, "map_pct": 30, "reserved_for_output_pct": 40}),
        ({"goal_pct": 0.07}, {"goal_pct": 7}),
        ({"goal_pct": 1.5}, {"goal_pct": 1.5}),
        # Above 1 together, so percents, although each is below it.
        ({"goal_pct": 0.5, "pinned_files_pct": 0.6}, {"goal_pct": 0.5, "pinned_files_pct": 0.6}),
    ],
)  # fmt: skip
def test_shares_that_sum_to_at_most_one_are_fractions_and_others_percents(given: Any, read: Any) -> None:
    assert in_our_names({"allocation": given}) == {"allocation": read}


@pytest.mark.parametrize(
    ("given", "fractions", "percents"),
    [({"goal_pct": 60, "pinned_files_pct": 50, "map_pct": 25, "reserved_for_output_pct": 10}, "14500", "145"),
     ({"goal_pct": 1}, "185", "86")],
)  # fmt: skip
def test_shares_of_more_than_all_are_refused_with_both_readings(given: Any, fractions: str, percents: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        in_our_names({"allocation": given})
    assert refused.value.where == ("policy", "allocation")
    assert f"{fractions} percent if they are fractions, {percents} percent if they are percents" in refused.value.detail


@pytest.mark.parametrize(
    "value", [None, [], "all", {"goal": 1}, {"goal_pct": "a"}, {"goal_pct": -1}, {"goal_pct": True}]
)
def test_an_invalid_allocation_is_passed_unchanged_to_field_validation(value: Any) -> None:
    assert in_our_names({"allocation": value}) == {"allocation": value}


def test_priorities_are_taken_by_either_name() -> None:
    order = ["goal", "pinned_files_by_relevance", "map_summary", "history"]
    assert in_our_names({"context_priority": order}) == {"context_priority": ["goal", "pins", "summary", "history"]}
    assert in_our_names({"context_priority": ["goal", 5]}) == {"context_priority": ["goal", 5]}


@pytest.mark.parametrize(
    ("given", "both"),
    [
        ({"usage_threshold": 0.7, "summarization_threshold": 0.8}, ("usage_threshold", "summarization_threshold")),
        ({"MaxTokens": 4096, "max_tokens": 8192}, ("MaxTokens", "max_tokens")),
        ({"context_window": 9000, "max_context_tokens": 8000}, ("context_window", "max_context_tokens")),
        ({"summarize_token_percent": 75, "usage_threshold": 0.8}, ("summarize_token_percent", "usage_threshold")),
    ],
)  # fmt: skip
def test_names_of_one_field_that_say_different_things_are_refused_by_name(given: Any, both: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        in_our_names(given)
    assert refused.value.where == ("policy", list(given)[-1])
    assert all(name in refused.value.detail for name in both)


def test_names_of_one_field_that_say_the_same_are_taken() -> None:
    given = {"usage_threshold": 0.75, "summarize_token_percent": 75, "SummarizeTokenPercent": 75}
    assert in_our_names(given) == {"usage_threshold": 0.75}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"summarization_provider": "cerebras", "summarization_model": "llama3.1-8b"}, "cerebras/llama3.1-8b"),
        ({"summarization_provider": "", "summarization_model": "fast"}, "fast"),
    ],
)
def test_a_summarizers_provider_stands_before_its_model(given: Any, read: str) -> None:
    assert in_our_names(given) == {"summary_model": read}


@pytest.mark.parametrize(
    "given", [{"summarization_provider": "x"}, {"summarization_provider": 5, "summarization_model": "m"}]
)
def test_a_provider_without_a_model_is_refused_by_name(given: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        in_our_names(given)
    assert refused.value.where == ("policy", "summarization_provider")


_EXTREMES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"allocation": {"pinned_files_pct": 0.5, "goal_pct": 1.5}}, "allocation"),
    ({"allocation": {"goal_pct": 0}}, "allocation"),
    ({"summarize_token_percent": 0.75}, "summarize_token_percent"),
    ({"protected_share": 0.001}, "protected_share"),
    ({"MaxTokens": 63}, "MaxTokens"),
    ({"preset": "allocated", "max_context_tokens": 1600}, "max_context_tokens"),
)


@pytest.mark.parametrize(("given", "field"), _EXTREMES)
def test_a_value_of_absurd_effect_is_refused_unless_it_is_allowed(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_given(given)
    assert refused.value.where == ("policy", field)
    assert "allow_extreme" in refused.value.detail
    read_given({**given, "allow_extreme": True})


def test_switching_something_off_is_no_extreme() -> None:
    read_given({"prune_block_share": 0, "recall": {"max_share": 0}, "protected_turns": 0})


@pytest.mark.parametrize(
    "given",
    [
        {"protected_share": 0.5},
        {"preset": "allocated", "max_context_tokens": 8192},
        {"max_context_tokens": 1600},
        {"preset": "allocated"},
    ],
)
def test_values_that_leave_prompt_and_answer_a_part_are_no_extremes(given: dict[str, Any]) -> None:
    read_given(given)
    read_given({**given, "max_output_tokens": 64})


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("summarization_threshold", 80, "usage_threshold"),
        ("summarize_token_percent", "75", "usage_threshold"),
        ("CONTEXT_MANDATORY_SUMMARY_TURN", "8", "mandatory_summary_turn"),
        ("ContextWindow", 0, "max_context_tokens"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_the_name_it_was_given_by(name: str, value: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_given({name: value})
    assert refused.value.where == ("policy", name)
    assert field in refused.value.detail


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"CONTEXT_PROTECTED_TURNS": 4, "CONTEXT_SUMMARY_TRIGGER_RATIO": 70}, "CONTEXT_SUMMARY_TRIGGER_RATIO"),
        ({"protected_turns": -1, "CONTEXT_PROTECTED_TURNS": -1}, "protected_turns"),
    ],
)
def test_of_several_names_the_refused_one_is_named(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_given(given)
    assert refused.value.where == ("policy", name)
