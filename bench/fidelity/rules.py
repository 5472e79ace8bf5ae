"""The rules that are compared, by name: presets, presets with a field changed, and the peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TypeAlias

from app.domain.prices import Prices
from app.engine.messages.tokens import Estimate
from app.engine.policy.policy import PRESETS, ContextPolicy, Recall
from bench.fidelity.engine_rule import EngineRule
from bench.fidelity.measure import CACHED_PRICE_SHARE, OUTPUT_PRICE, Rule
from bench.fidelity.plain_rules import KeepLast

MakeRule: TypeAlias = Callable[[int, Estimate], Rule]
KEPT_MESSAGES = 20
TIGHT_SHARE = 0.15
"""`protected_share` of the variant for budgets in which four long turns leave no room."""
PEERS: Mapping[str, str] = {
    "LangChain trim_messages": "langchain:bench.fidelity.langchain_rules:TrimMessages",
    "LangChain SummarizationMiddleware": "langchain:bench.fidelity.langchain_rules:LangChainSummaries",
    "LangMem summarize_messages": "langmem:bench.fidelity.langmem_rule:LangMemSummaries",
    "LlamaIndex ChatSummaryMemoryBuffer": "llama_index:bench.fidelity.llama_index_rule:LlamaIndexSummaries",
}
"""The package that a peer needs, and where its rule is."""
CACHING = Prices(input_usd=1.0, output_usd=float(OUTPUT_PRICE), cached_input_usd=CACHED_PRICE_SHARE)
"""Prices in the ratios of effective tokens."""
BLOCK_SHARE = 0.3
"""`prune_block_share` of the variants that prune in blocks."""


def rules() -> Mapping[str, MakeRule]:
    """Every rule that can be measured here; the peers where they are installed."""
    guarded = PRESETS["guarded"].policy
    made: dict[str, MakeRule] = {
        "guarded": partial(_engine, guarded),
        "guarded, provider that caches": partial(_engine, guarded, prices=CACHING),
        "guarded, protected_share 0.15": partial(_engine, replace(guarded, protected_share=TIGHT_SHARE)),
        "guarded, room for recall": partial(_engine, _roomy(guarded)),
        "guarded without recall": partial(_engine, replace(guarded, recall=Recall(enabled=False))),
        **prune_rules(),
        **{name: partial(_engine, preset.policy) for name, preset in PRESETS.items() if name != "guarded"},
        f"keep last {KEPT_MESSAGES} messages": _keep_last,
    }
    return made | {name: partial(_peer, path) for name, path in PEERS.items() if find_spec(path.split(":")[0])}


def drawn_rules() -> tuple[str, ...]:
    """Those of the picture: the default, and what else there is in its place."""
    return ("guarded", "guarded without recall", "rolling", f"keep last {KEPT_MESSAGES} messages", *PEERS)


def prune_rules() -> Mapping[str, MakeRule]:
    """What is compared for what a prune takes: of no interest to what comes back, so not drawn."""
    guarded = PRESETS["guarded"].policy
    whole_turns = replace(
        guarded,
        auto_summarize=False,
        prune_unit="turn",
        prune_block_share=0.0,
        protected_share=TIGHT_SHARE,
        recall=Recall(enabled=False),
    )
    by_value = replace(guarded, prune_order="value", prune_block_share=BLOCK_SHARE)
    return {
        "guarded, no block": partial(_engine, replace(guarded, prune_block_share=0.0)),
        "guarded, larger blocks": partial(_engine, replace(guarded, prune_block_share=BLOCK_SHARE)),
        "guarded, by value in blocks": partial(_engine, by_value),
        "whole turns leave, oldest first": partial(_engine, whole_turns),
        "whole turns leave, in blocks": partial(_engine, replace(whole_turns, prune_block_share=BLOCK_SHARE)),
        "whole turns leave, by value in blocks": partial(
            _engine, replace(whole_turns, prune_order="value", prune_block_share=BLOCK_SHARE)
        ),
    }


def _roomy(guarded: ContextPolicy) -> ContextPolicy:
    """Small raw window and summary, a late trigger: what is asked finds most of the budget free for what it recalls."""
    return replace(
        guarded,
        summary_trigger_ratio=0.9,
        mandatory_summary_turn=4,
        protected_share=TIGHT_SHARE,
        summary_max_ratio=0.1,
        recall=Recall(max_share=0.9),
    )


def _engine(policy: ContextPolicy, input_budget: int, estimate: Estimate, prices: Prices | None = None) -> Rule:
    return EngineRule(policy, input_budget, estimate, prices=prices)


def _keep_last(_input_budget: int, estimate: Estimate) -> Rule:
    return KeepLast(KEPT_MESSAGES, estimate)


def _peer(path: str, input_budget: int, estimate: Estimate) -> Rule:
    _, module, name = path.split(":")
    return getattr(import_module(module), name)(input_budget, estimate)
