"""The settings of each published design, in its own names and units, and the policy fields that they become."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import floor, isfinite
from typing import Any, TypeAlias, TypeGuard, cast

from app.domain.errors import InvalidRequest
from app.domain.frozen import frozen
from app.domain.types import JsonObject
from app.engine.policy.budget import LEAST_OUTPUT_TOKENS, budget_for, part_of
from app.engine.policy.fields import SUM_ROUNDING
from app.engine.policy.policy import PRESETS, Allocation

Convert: TypeAlias = Callable[[object], object]
"""Converts a value in the design's unit to our field's. Raises `ValueError`. A value that the design does not allow
either is returned unchanged, because the field then rejects it by name."""

LEAST_SHARE = 0.01
"""Least share, as a fraction. A smaller one is taken for a mistake in its unit, unless `allow_extreme` is set."""
_REGIONS = {"pinned_files_by_relevance": "pins", "map_summary": "summary"}


@frozen
class DesignName:
    """A setting of a design: its spellings there, the value that the design publishes, and our fields for it."""

    design: str
    spellings: tuple[str, ...]
    fields: tuple[str, ...]
    published: object
    unit: str = "as ours"
    convert: Convert | None = None


def _whole_percent(value: object) -> object:
    return value / 100 if _is_number(value) else value


def _regions(value: object) -> object:
    if not isinstance(value, list):
        return value
    named = cast("list[object]", value)
    return [_REGIONS.get(region, region) if isinstance(region, str) else region for region in named]


def _percents(value: object) -> object:
    """Shares in percent; given ones that sum to at most 1 are fractions. Raises `ValueError` if all sum to over 100."""
    defaults: dict[str, float] = asdict(Allocation())
    shares = cast("dict[str, Any]", value)
    if not isinstance(value, dict):
        return value
    if not shares.keys() <= defaults.keys() or not all(_is_number(share) and share >= 0 for share in shares.values()):
        return shares
    as_fractions = {name: round(share * 100, 9) for name, share in shares.items()}
    read = as_fractions if sum(shares.values()) <= 1 + SUM_ROUNDING else shares
    if sum((defaults | read).values()) > 100 + SUM_ROUNDING:
        of_fractions, of_percents = (sum((defaults | each).values()) for each in (as_fractions, shares))
        raise ValueError(
            f"shares out more than 100 percent: {of_fractions:g} percent if they are fractions, {of_percents:g} "
            "percent if they are percents, each with the defaults of what is left out"
        )
    return read


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


DESIGN_NAMES: tuple[DesignName, ...] = (
    DesignName("guarded", ("CONTEXT_MAX_OUTPUT_TOKENS",), ("max_output_tokens",), 2048),
    DesignName("guarded", ("CONTEXT_SUMMARY_TRIGGER_RATIO",), ("summary_trigger_ratio",), 0.70),
    DesignName("guarded", ("CONTEXT_PRUNE_TRIGGER_RATIO",), ("prune_trigger_ratio",), 0.90),
    DesignName("guarded", ("CONTEXT_MANDATORY_SUMMARY_TURN",), ("mandatory_summary_turn",), 8),
    DesignName("guarded", ("CONTEXT_RECENT_TURNS_TO_KEEP", "CONTEXT_PROTECTED_TURNS"), ("protected_turns",), 4),
    DesignName("guarded", ("CONTEXT_DEFAULT_MODEL_LIMIT", "CONTEXT_FALLBACK_LIMIT"), ("unknown_window_tokens",), 8192),
    DesignName("guarded", ("CONTEXT_SUMMARY_MODEL",), ("summary_model",), ""),
    DesignName("post_turn", ("summarization_threshold",), ("usage_threshold",), 0.80),
    DesignName("post_turn", ("summarization_preserve_turns",), ("protected_turns",), 5),
    DesignName("post_turn", ("summarization_provider",), (), "cerebras", "only together with summarization_model"),
    DesignName(
        "post_turn",
        ("summarization_model",),
        ("summary_model",),
        "llama3.1-8b",
        "an alias `provider/model` or `model`, or the model's name where one alias has it",
    ),
    DesignName("rolling", ("context_usage_threshold",), ("usage_threshold",), 0.8),
    DesignName("rolling", ("context_summary_model",), ("summary_model",), ""),
    DesignName("allocated", ("max_context_tokens",), ("max_context_tokens",), 120_000),
    DesignName(
        "allocated",
        ("allocation",),
        ("allocation",),
        {"goal_pct": 0.15, "pinned_files_pct": 0.50, "map_pct": 0.25, "reserved_for_output_pct": 0.10},
        "fractions that sum to at most 1, or percents that sum to more than 1 and at most 100",
        _percents,
    ),
    DesignName(
        "allocated",
        ("context_priority",),
        ("context_priority",),
        ["goal", "pinned_files_by_relevance", "map_summary", "history"],
        "pinned_files_by_relevance is pins, map_summary is summary",
        _regions,
    ),
    DesignName(
        "turn_atomic",
        ("context_window", "ContextWindow"),
        ("max_context_tokens", "unknown_window_tokens"),
        None,
        "caps a known window, and is the window of a model whose window is unknown",
    ),
    DesignName("turn_atomic", ("max_tokens", "MaxTokens"), ("max_output_tokens",), 32_768),
    DesignName("turn_atomic", ("summarize_message_threshold", "SummarizeMessageThreshold"), ("max_messages",), 20),
    DesignName(
        "turn_atomic",
        ("summarize_token_percent", "SummarizeTokenPercent"),
        ("usage_threshold",),
        75,
        "whole percents of the window",
        _whole_percent,
    ),
)
_BY_SPELLING = {spelling: name for name in DESIGN_NAMES for spelling in name.spellings}


def in_our_names(given: Mapping[str, object]) -> JsonObject:
    """The overrides with a design's names and units converted to ours. Raises `InvalidRequest` with the given name if a
    value cannot be converted, or if two names disagree on a field."""
    read: JsonObject = {}
    given_by: dict[str, str] = {}
    for name, value in _with_provider(given).items():
        design = _BY_SPELLING.get(name)
        try:
            converted = value if design is None or design.convert is None else design.convert(value)
        except ValueError as error:
            raise InvalidRequest(f"The policy field {name} {error}.", ("policy", name)) from error
        for field in (name,) if design is None else design.fields:
            if field in read and read[field] != converted:
                raise InvalidRequest(
                    f"{given_by[field]} and {name} are names of the same field, {field}, and say different things: "
                    f"{read[field]!r} and {converted!r}.",
                    ("policy", name),
                )
            read[field] = converted
            given_by.setdefault(field, name)
    return read


def by_given_name(error: InvalidRequest, given: Mapping[str, object]) -> InvalidRequest:
    """The error about a field, with the design's name for the field if the client used that name."""
    field = error.where[-1]
    name = next((name for name in given if name in _BY_SPELLING and field in _BY_SPELLING[name].fields), field)
    if name not in given or field in given:
        return error
    return InvalidRequest(f"{name} is the policy field {field}. {error.detail}", ("policy", name))


def _with_provider(given: Mapping[str, object]) -> Mapping[str, object]:
    """The same overrides with the summarizer's provider put before its model."""
    provider, model = given.get("summarization_provider", ""), given.get("summarization_model")
    if provider == "":
        return given
    if not isinstance(provider, str) or not isinstance(model, str):
        raise InvalidRequest(
            "summarization_provider is the name of a provider, and goes with a summarization_model.",
            ("policy", "summarization_provider"),
        )
    return {**given, "summarization_model": f"{provider}/{model}"}


def refuse_extremes(values: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` for an override with an absurd effect by itself, unless `allow_extreme` is set too."""
    if values.get("allow_extreme"):
        return
    preset = PRESETS.get(values.get("preset", ""))
    allocation: Allocation | None = values.get("allocation") or (preset.policy.allocation if preset else None)
    shares = {name: value for name, value in values.items() if _is_number(value) and value > 0}
    if allocation is not None:
        shares |= {f"allocation.{name}": percent / 100 for name, percent in asdict(allocation).items()}
    for name, share in shares.items():
        if share < LEAST_SHARE:
            raise _extreme(name, f"is a share of {share * 100:g} percent, which is under 1")
    if values.get("max_output_tokens", LEAST_OUTPUT_TOKENS) < LEAST_OUTPUT_TOKENS:
        raise _extreme("max_output_tokens", f"leaves the answer less than {LEAST_OUTPUT_TOKENS} tokens")
    cap: int | None = values.get("max_context_tokens")
    if allocation is not None and cap is not None:
        room = cap - budget_for(cap, "policy", 0).overhead_reserve
        reserve = floor(part_of(allocation.reserved_for_output_pct, room) / 100)
        if reserve < LEAST_OUTPUT_TOKENS:
            raise _extreme("max_context_tokens", f"of {cap} leaves the answer {reserve} tokens by its share")


def _extreme(name: str, what: str) -> InvalidRequest:
    field = name.partition(".")[0]
    return InvalidRequest(f"The policy field {name} {what}; with allow_extreme: true it is taken.", ("policy", field))
