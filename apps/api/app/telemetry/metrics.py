"""Prometheus metrics, right with one worker process or several.

With several, `PROMETHEUS_MULTIPROC_DIR` names a folder before the workers start; prometheus_client then keeps every
process's values in files there, and a scrape of any worker adds them up. Labels come from closed sets only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from app.domain.types import Purpose, Usage

SummaryOutcome: TypeAlias = Literal["used", "fallback", "stale", "failed"]
"""A model's summary was used, the deterministic one stands in, somebody else was faster, or none could be made."""

disable_created_metrics()

_STORED = frozenset({"used", "fallback"})
_STATUSES = frozenset({"completed", "awaiting_tools", "failed", "rejected", "cancelled"})
_PURPOSES = frozenset({"turn", "summary", "count"})
_KINDS = frozenset({"error", "refused", "overflow", "rate_limited", "down", "timeout"})
_TURN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_PROVIDER_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 1048576)
_RATIOS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0)


class Telemetry:
    """What is counted. `aliases` are the catalogue's; any other is counted as `other`."""

    def __init__(self, aliases: Iterable[str], multiprocess_dir: Path | None = None) -> None:
        self._aliases = frozenset(aliases)
        own = CollectorRegistry()
        self._summaries = Counter(
            "context_summary_count", "Turns for which a summary was made, before the call or after.", registry=own
        )
        self._summary_outcomes = Counter(
            "context_summary_outcome",
            "Summaries by when they were made (preflight, post_turn, requested) and what came of it.",
            ["when", "outcome"],
            registry=own,
        )
        self._summary_seconds = Histogram(
            "context_summary_seconds",
            "From the decision for a summary to its record, by when it was made.",
            ["when"],
            buckets=_PROVIDER_SECONDS,
            registry=own,
        )
        self._prunes = Counter(
            "context_prune_count", "Turns in which messages were removed or shortened to fit.", registry=own
        )
        self._rejects = Counter(
            "context_overflow_reject_count", "Turns refused because they did not fit.", registry=own
        )
        self._prompt_tokens = Histogram(
            "prompt_tokens_per_turn",
            "Prompt tokens of a completed turn, as the provider reported them.",
            buckets=_TOKENS,
            registry=own,
        )
        self._turn_seconds = Histogram(
            "turn_latency_seconds",
            "From request to record, by how the turn ended.",
            ["status"],
            buckets=_TURN_SECONDS,
            registry=own,
        )
        self._provider_seconds = Histogram(
            "provider_latency_seconds",
            "One call to a model with its retries, by alias and purpose.",
            ["model_alias", "purpose"],
            buckets=_PROVIDER_SECONDS,
            registry=own,
        )
        self._provider_errors = Counter(
            "provider_errors", "Calls to a model that failed after the retries, by kind.", ["kind"], registry=own
        )
        self._ratio = Histogram(
            "estimate_to_actual_ratio",
            "Estimated tokens on the wire over the provider's prompt tokens, by alias.",
            ["model_alias"],
            buckets=_RATIOS,
            registry=own,
        )
        self._tokens = Counter(
            "model_tokens",
            "Tokens as providers reported them, by alias, purpose and kind (prompt, cached_prompt, completion).",
            ["model_alias", "purpose", "kind"],
            registry=own,
        )
        self._cost = Counter(
            "model_cost_usd",
            "US dollars of model calls at published prices, by alias and purpose; calls without a price are not in it.",
            ["model_alias", "purpose"],
            registry=own,
        )
        self._calibration = Gauge(
            "estimate_calibration_ratio",
            "What the wire estimate was last multiplied with before it was charged, by alias.",
            ["model_alias"],
            registry=own,
            multiprocess_mode="mostrecent",
        )
        self._registry = own if multiprocess_dir is None else CollectorRegistry()
        if multiprocess_dir is not None:
            MultiProcessCollector(self._registry, str(multiprocess_dir))
        self._average = CollectorRegistry()
        self._average.register(_Means(self._registry))

    def turn_finished(
        self,
        *,
        status: str,
        seconds: float,
        summary: bool,
        prune: bool,
        overflow: bool,
        prompt_tokens: int | None,
        alias: str,
        estimated_wire_tokens: int | None,
        actual_prompt_tokens: int | None,
        calibration_ratio: float | None,
    ) -> None:
        """Counts a turn once it is recorded. `seconds` run from the request to the record.

        `prompt_tokens` are the whole turn's; estimate, actual and calibration are its last model call's.
        """
        if calibration_ratio is not None:
            self._calibration.labels(self._alias(alias)).set(calibration_ratio)
        self._turn_seconds.labels(status if status in _STATUSES else "other").observe(seconds)
        if summary:
            self._summaries.inc()
        if prune:
            self._prunes.inc()
        if overflow:
            self._rejects.inc()
        if status == "completed" and prompt_tokens is not None:
            self._prompt_tokens.observe(prompt_tokens)
        if estimated_wire_tokens is not None and actual_prompt_tokens:
            self._ratio.labels(self._alias(alias)).observe(estimated_wire_tokens / actual_prompt_tokens)

    def summary_finished(self, *, when: str, outcome: SummaryOutcome, seconds: float) -> None:
        """Counts a summary that was tried; in the background it counts for the turn that left it behind."""
        self._summary_outcomes.labels(when, outcome).inc()
        self._summary_seconds.labels(when).observe(seconds)
        if when == "post_turn" and outcome in _STORED:
            self._summaries.inc()

    def model_usage(self, *, alias: str, purpose: Purpose, usage: Usage, cost_usd: Decimal | None) -> None:
        """Adds up one call's tokens and, where prices are known, its cost."""
        for kind, tokens in (
            ("prompt", usage.prompt_tokens),
            ("cached_prompt", usage.cached_prompt_tokens),
            ("completion", usage.completion_tokens),
        ):
            self._tokens.labels(self._alias(alias), purpose, kind).inc(max(0, tokens))
        if cost_usd is not None:
            self._cost.labels(self._alias(alias), purpose).inc(float(cost_usd))

    def provider_call(self, *, alias: str, purpose: str, seconds: float, error_kind: str | None) -> None:
        """Counts one call to a model, with its retries; `error_kind` is None when it answered."""
        purpose = purpose if purpose in _PURPOSES else "other"
        self._provider_seconds.labels(self._alias(alias), purpose).observe(seconds)
        if error_kind is not None:
            self._provider_errors.labels(error_kind if error_kind in _KINDS else "other").inc()

    def render(self) -> tuple[bytes, str]:
        """The Prometheus text of all workers, and its content type."""
        return generate_latest(self._registry) + generate_latest(self._average), CONTENT_TYPE_PLAIN_0_0_4

    def _alias(self, alias: str) -> str:
        return alias if alias in self._aliases else "other"


class _Means(Collector):
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
                elif sample.name == "context_summary_outcome_total" and sample.labels["outcome"] in _STORED:
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
