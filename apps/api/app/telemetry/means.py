"""Means over all workers, at the moment of a scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

STORED = frozenset({"used", "fallback"})
"""The outcomes of a summary that left one behind."""


class Means(Collector):
    """Quotients at the moment of the scrape, over every worker that ever wrote to this registry's files."""

    def __init__(self, source: CollectorRegistry) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        prompt_tokens, turns, summaries = 0.0, 0.0, 0.0
        for family in self._source.collect():
            for sample in family.samples:
                if sample.name == "prompt_tokens_per_turn_sum":
                    prompt_tokens += sample.value
                elif sample.name == "prompt_tokens_per_turn_count":
                    turns += sample.value
                elif sample.name == "context_summary_outcome_total" and sample.labels["outcome"] in STORED:
                    summaries += sample.value
        yield GaugeMetricFamily(
            "avg_prompt_tokens_per_turn",
            "Mean of provider-reported prompt tokens per completed turn.",
            value=prompt_tokens / turns if turns else 0.0,
        )
        yield GaugeMetricFamily(
            "context_summaries_per_hundred_turns",
            "Summaries made for a hundred completed turns, in the background and on request ones too.",
            value=100 * summaries / turns if turns else 0.0,
        )
