"""What is counted of turns, summaries and model calls, and the scrape."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector

from app.domain.types import Purpose, Usage
from app.telemetry.database import DatabaseTelemetry
from app.telemetry.means import STORED, Means

SummaryOutcome: TypeAlias = Literal["used", "fallback", "stale", "failed"]
"""A model's summary was used, the deterministic one was, another process was faster, or none could be made."""

disable_created_metrics()

_STATUSES = frozenset({"completed", "awaiting_tools", "failed", "rejected", "cancelled"})
_WHEN = ("preflight", "post_turn", "requested")
_PURPOSES = frozenset({"turn", "summary", "count"})
_KINDS = frozenset({"error", "refused", "overflow", "rate_limited", "down", "timeout"})
_TURN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_PROVIDER_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 1048576)
_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.5, 2.0)
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
        self._budget_use = Histogram(
            "input_budget_use_ratio",
            "Tokens charged to the input, as decided in the end, over the input budget; above 1 is a refusal.",
            ["model_alias"],
            buckets=_SHARES,
            registry=own,
        )
        self._turns_lost = Counter(
            "turns_lost", "Turns that were ended because the worker that ran them went silent.", registry=own
        )
        self._session_cache = Gauge(
            "session_cache_bytes",
            "What all workers keep of sessions in memory, so that a turn reads only what is new.",
            registry=own,
            multiprocess_mode="livesum",
        )
        self._session_cache_hits = Counter(
            "session_cache_hits", "Times that a session was asked for and kept in memory.", registry=own
        )
        self._session_cache_misses = Counter(
            "session_cache_misses", "Times that a session was asked for and not kept in memory.", registry=own
        )
        self._at_scrape = CollectorRegistry()
        self.database = DatabaseTelemetry(own, self._at_scrape)
        self._begin_at_zero()
        self._registry = own if multiprocess_dir is None else CollectorRegistry()
        if multiprocess_dir is not None:
            MultiProcessCollector(self._registry, str(multiprocess_dir))
        self._at_scrape.register(Means(self._registry))

    def _begin_at_zero(self) -> None:
        """Rates see a first failure only when its series was there, at 0, before it."""
        for status in _STATUSES:
            self._turn_seconds.labels(status)
        for kind in _KINDS:
            self._provider_errors.labels(kind)
        for when in _WHEN:
            for outcome in get_args(SummaryOutcome):
                self._summary_outcomes.labels(when, outcome)

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
        budget_use: float | None,
    ) -> None:
        """Counts a turn once it is recorded. `seconds` run from the request to the record.

        `prompt_tokens` are the whole turn's; estimate, actual, calibration and the used share of the input budget are
        its last model call's.
        """
        if budget_use is not None:
            self._budget_use.labels(self._alias(alias)).observe(budget_use)
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
        if when == "post_turn" and outcome in STORED:
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

    def turns_lost(self, turns: int) -> None:
        """Counts turns that were ended in the stead of a worker that went silent."""
        if turns:
            self._turns_lost.inc(turns)

    def session_cache_asked(self, *, hit: bool) -> None:
        """Counts whether what was asked for of a session was in memory, if perhaps not all of it."""
        (self._session_cache_hits if hit else self._session_cache_misses).inc()

    def session_cache_size(self, size_bytes: int) -> None:
        """States what this worker keeps of sessions in memory."""
        self._session_cache.set(size_bytes)

    def render(self) -> tuple[bytes, str]:
        """The Prometheus text of all workers, and its content type."""
        return generate_latest(self._registry) + generate_latest(self._at_scrape), CONTENT_TYPE_PLAIN_0_0_4

    def _alias(self, alias: str) -> str:
        return alias if alias in self._aliases else "other"
