"""The rules that are compared, by name: presets, presets with a field changed, and the peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TypeAlias

from app.engine.policy import ContextPolicy, Recall
from app.engine.presets import PRESETS
from app.engine.tokens import Estimate
from bench.fidelity.engine_rule import EngineRule
from bench.fidelity.measure import Rule
from bench.fidelity.plain_rules import KeepLast

MakeRule: TypeAlias = Callable[[int, Estimate], Rule]
KEPT_MESSAGES = 20
TIGHT_SHARE = 0.15
"""`protected_share` of the variant for budgets in which four long turns leave no room."""


def rules() -> Mapping[str, MakeRule]:
    """Every rule that can be measured here; the peers where LangChain is installed."""
    guarded = PRESETS["guarded"].policy
    made: dict[str, MakeRule] = {
        "guarded": partial(_engine, guarded),
        "guarded, protected_share 0.15": partial(_engine, replace(guarded, protected_share=TIGHT_SHARE)),
        "guarded without recall": partial(_engine, replace(guarded, recall=Recall(enabled=False))),
        **{name: partial(_engine, preset.policy) for name, preset in PRESETS.items() if name != "guarded"},
        f"keep last {KEPT_MESSAGES} messages": _keep_last,
    }
    if find_spec("langchain") is not None:
        made |= {"LangChain trim_messages": _trim_messages, "LangChain SummarizationMiddleware": _middleware}
    return made


def _engine(policy: ContextPolicy, input_budget: int, estimate: Estimate) -> Rule:
    return EngineRule(policy, input_budget, estimate)


def _keep_last(_input_budget: int, estimate: Estimate) -> Rule:
    return KeepLast(KEPT_MESSAGES, estimate)


def _trim_messages(input_budget: int, estimate: Estimate) -> Rule:
    from bench.fidelity.langchain_rules import TrimMessages  # noqa: PLC0415 - an optional dependency

    return TrimMessages(input_budget, estimate)


def _middleware(input_budget: int, estimate: Estimate) -> Rule:
    from bench.fidelity.langchain_rules import LangChainSummaries  # noqa: PLC0415 - an optional dependency

    return LangChainSummaries(input_budget, estimate)
