"""Metrics of turns, summaries, model calls and the database, and the text that Prometheus scrapes.

They are correct with one worker process or several. With several, `PROMETHEUS_MULTIPROC_DIR` names a folder before the
workers start; prometheus_client then stores every worker's values in files there, and a scrape of any worker adds them
up. A worker that replaces an ended one goes on with its files. Labels come from closed sets only.
"""

from __future__ import annotations

import fcntl
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import IO, Any, Literal, TypeAlias, TypeVar, cast, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    values,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from app.domain.audit import LEAST_COUNTED_TOKENS, Audit, CacheBreak
from app.domain.errors import ProviderError, ProviderFault
from app.domain.figures import OpenTurnCount
from app.domain.types import OPEN_STATUSES, Purpose, TurnRecord, TurnStatus, Usage
from app.telemetry.files import OTHER, reserve_disk

SummaryOutcome: TypeAlias = Literal["used", "fallback", "stale", "failed"]
"""The model's summary was used, or the deterministic one; or another process was faster; or none could be made."""

_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)

disable_created_metrics()

_WHEN = ("preflight", "post_turn", "requested")
_PURPOSES = frozenset({*get_args(Purpose), "count"})
_KINDS = frozenset(get_args(ProviderFault))
_STORED = frozenset({"used", "fallback"})
"""The outcomes that stored a summary."""
_POOL_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_TURN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_PROVIDER_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 1048576)
_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.5, 2.0)
_RATIOS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0)


class Telemetry:
    """What the service measures. `aliases` are the catalogue's, `problem_codes` those of all problems; any other alias
    or code is counted as `other`."""

    def __init__(
        self, aliases: Iterable[str], multiprocess_dir: Path | None = None, problem_codes: Iterable[str] = ()
    ) -> None:
        self._aliases, self._problem_codes = frozenset(aliases), frozenset(problem_codes)
        own, self._registry = _Registry(), CollectorRegistry()
        self._place = None if multiprocess_dir is None else _take_place(multiprocess_dir, self._aliases)
        self._turns = _TurnMetrics(own)
        self.turns_lost = self._turns.lost.inc
        self._summaries = _SummaryMetrics(own)
        self._calls = _CallMetrics(own)
        self.database = DatabaseMetrics(own)
        self.event_loop_lag = own.gauge(
            "event_loop_lag_seconds",
            "Longest time, in the last half to whole minute, for which one piece of work kept a worker's event loop.",
            mode="max",
        ).set
        self.session_cache_size = own.gauge(
            "session_cache_bytes", "Memory of the session caches of all workers.", mode="sum"
        ).set
        self._hits = own.counter("session_cache_hits", "Lookups of sessions that were in the cache.")
        self._misses = own.counter("session_cache_misses", "Lookups of sessions that were not in the cache.")
        self._problems = own.counter(
            "problems", "Requests that got a problem, or whose stream ended with one, by code.", "code"
        )
        for code in self._problem_codes:
            self._problems.labels(code)
        stored: Collector = own
        if self._place is not None:
            self.session_cache_size(0)
            stored = MultiProcessCollector(None, str(multiprocess_dir))
        self._registry.register(_Scrape(stored, self.database))

    def turn_finished(self, turn: TurnRecord, audits: Sequence[Audit], seconds: float) -> None:
        """Counts a turn, or a round that ends with calls for the client, once it is recorded. `audits` are those of the
        calls since the request, `seconds` run from the request to the record.
        """
        self._turns.seconds.labels(turn.status.value).observe(seconds)
        if turn.status is TurnStatus.REJECTED:
            self._turns.rejects.inc()
        if turn.status is TurnStatus.COMPLETED and turn.prompt_tokens is not None:
            self._turns.prompt_tokens.observe(turn.prompt_tokens)
        if not audits:
            return
        last_call = audits[-1]
        alias = self._alias(turn.model_alias)
        if last_call.budget_use is not None:
            self._turns.budget_use.labels(alias).observe(last_call.budget_use)
        self._calls.calibration.labels(alias).set(last_call.calibration_ratio)
        if any(audit.summary_triggered for audit in audits):
            self._summaries.turns.inc()
        # A prompt only grows from round to round: what one round prunes, the last one prunes too.
        if last_call.prune_triggered and turn.status is not TurnStatus.AWAITING_TOOLS:
            self._turns.prunes.inc()
        if last_call.estimate_ratio is not None:
            self._calls.estimate_ratio.labels(alias).observe(last_call.estimate_ratio)

    def summary_finished(self, *, when: str, outcome: SummaryOutcome, seconds: float) -> None:
        """Counts an attempt to summarize; one in the background counts for the turn that started it."""
        self._summaries.outcomes.labels(when, outcome).inc()
        self._summaries.seconds.labels(when).observe(seconds)
        if when == "post_turn" and outcome in _STORED:
            self._summaries.turns.inc()

    def model_usage(self, *, alias: str, purpose: Purpose, usage: Usage, cost_usd: Decimal | None) -> None:
        """Adds up one call's tokens and, where prices are known, its cost."""
        for kind, tokens in (
            ("prompt", usage.prompt_tokens),
            ("cached_prompt", usage.cached_prompt_tokens),
            ("completion", usage.completion_tokens),
        ):
            self._calls.tokens.labels(self._alias(alias), purpose, kind).inc(max(0, tokens))
        if cost_usd is not None:
            self._calls.cost.labels(self._alias(alias), purpose).inc(float(cost_usd))

    @contextmanager
    def measured_call(self, alias: str, purpose: str) -> Generator[None]:
        """Counts the block as one call to a model, with its retries; and a `ProviderError` that leaves it."""
        started = perf_counter()
        try:
            yield
        except ProviderError as error:
            self._calls.errors.labels(error.kind if error.kind in _KINDS else "other").inc()
            raise
        finally:
            purpose = purpose if purpose in _PURPOSES else "other"
            self._calls.seconds.labels(self._alias(alias), purpose).observe(perf_counter() - started)

    def problem_answered(self, code: str) -> None:
        """Counts a request that got a problem instead of an answer, or at the end of its stream."""
        self._problems.labels(code if code in self._problem_codes else OTHER).inc()

    def prompt_cache_broken(self, cause: CacheBreak) -> None:
        """Counts a prompt that does not continue the one before it."""
        self._calls.cache_breaks.labels(cause).inc()

    def session_looked_up(self, *, hit: bool) -> None:
        """Counts a lookup of a session in the cache; one that is cached in part is a hit."""
        (self._hits if hit else self._misses).inc()

    def render(self) -> tuple[bytes, str]:
        """The Prometheus text of all workers, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def _alias(self, alias: str) -> str:
        return alias if alias in self._aliases else OTHER


class _Registry(CollectorRegistry):
    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return _with_children_kept(Counter(name, text, labels, registry=self))

    def gauge(
        self, name: str, text: str, *labels: str, mode: Literal["mostrecent", "sum", "max"] = "mostrecent"
    ) -> Gauge:
        """A gauge. `mode` says which of several workers' values counts."""
        return _with_children_kept(Gauge(name, text, labels, registry=self, multiprocess_mode=mode))

    def histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return _with_children_kept(Histogram(name, text, labels, buckets=buckets, registry=self))


def _with_children_kept(metric: _Metric) -> _Metric:
    """The metric, which finds the children of labels that it has seen at once: the library checks the labels at each
    call, which takes longer than counting."""
    vars(metric)["labels"] = cache(metric.labels)
    return metric


class _TurnMetrics:
    def __init__(self, own: _Registry) -> None:
        self.prunes = own.counter("context_prune_count", "Turns in which messages were removed or shortened to fit.")
        self.rejects = own.counter("context_overflow_reject_count", "Turns refused because they did not fit.")
        self.lost = own.counter("turns_lost", "Turns that were ended because the worker that ran them went silent.")
        self.prompt_tokens = own.histogram(
            "prompt_tokens_per_turn", "Prompt tokens of a completed turn, as the provider reported them.", _TOKENS
        )
        self.seconds = own.histogram(
            "turn_latency_seconds", "From request to record, by how the turn ended.", _TURN_SECONDS, "status"
        )
        self.budget_use = own.histogram(
            "input_budget_use_ratio",
            "Tokens counted against the input budget, as finally decided, over the input budget; above 1 is a refusal.",
            _SHARES,
            "model_alias",
        )
        # A rate sees the first event only if the series existed before, at 0.
        for status in set(TurnStatus) - {TurnStatus.RUNNING}:
            self.seconds.labels(status.value)


class _SummaryMetrics:
    def __init__(self, own: _Registry) -> None:
        self.turns = own.counter(
            "context_summary_count", "Turns for which a summary was made, before the call or after."
        )
        self.outcomes = own.counter(
            "context_summary_outcome",
            "Summaries by when they were made (preflight, post_turn, requested) and what came of it.",
            "when",
            "outcome",
        )
        self.seconds = own.histogram(
            "context_summary_seconds",
            "From the decision for a summary to its record, by when it was made.",
            _PROVIDER_SECONDS,
            "when",
        )
        for when in _WHEN:
            for outcome in get_args(SummaryOutcome):
                self.outcomes.labels(when, outcome)


class _CallMetrics:
    def __init__(self, own: _Registry) -> None:
        self.seconds = own.histogram(
            "provider_latency_seconds",
            "One call to a model with its retries, by alias and purpose.",
            _PROVIDER_SECONDS,
            "model_alias",
            "purpose",
        )
        self.errors = own.counter("provider_errors", "Calls to a model that failed after the retries, by kind.", "kind")
        self.estimate_ratio = own.histogram(
            "estimate_to_actual_ratio",
            f"Estimated wire tokens over the provider's, of prompts of {LEAST_COUNTED_TOKENS} or more, by alias.",
            _RATIOS,
            "model_alias",
        )
        self.calibration = own.gauge(
            "estimate_calibration_ratio",
            "The factor last applied to the wire estimate before it was counted against the budget, by alias.",
            "model_alias",
        )
        self.tokens = own.counter(
            "model_tokens",
            "Tokens as providers reported them, by alias, purpose and kind (prompt, cached_prompt, completion).",
            "model_alias",
            "purpose",
            "kind",
        )
        self.cost = own.counter(
            "model_cost_usd",
            "US dollars of model calls at published prices, by alias and purpose; calls without a price are not in it.",
            "model_alias",
            "purpose",
        )
        self.cache_breaks = own.counter(
            "prompt_cache_breaks", "Prompts that did not go on from the session's prompt before, by cause.", "cause"
        )
        for kind in _KINDS:
            self.errors.labels(kind)
        for cause in get_args(CacheBreak):
            self.cache_breaks.labels(cause)


class DatabaseMetrics:
    """Metrics of the database that all workers and replicas share. Of values that all see alike, the newest counts."""

    def __init__(self, own: _Registry) -> None:
        self.count_restarts: Callable[[], int] = lambda: 0
        """Counts the restarts of an embedded database, at every scrape."""
        self._up = own.gauge("database_up", "1 when the database answered the last probe and takes writes, else 0.")
        self._open = own.gauge("open_turns", "Turns in the database that are open, by status.", "status")
        self._oldest = own.gauge(
            "oldest_open_turn_seconds",
            "Age of the oldest open turn, by status; of a running one, of its newest message. 0 where there is none.",
            "status",
        )
        self.connection_waited_for = own.histogram(
            "db_pool_wait_seconds",
            "Waits for a database connection, including new connections and waits that timed out.",
            _POOL_SECONDS,
        ).observe
        self.connection_used = own.counter(
            "db_connection_use_seconds",
            "Seconds for which database connections were in use; its rate is how many are in use.",
        ).inc
        self.pool_of = own.gauge(
            "db_pool_connections", "Database connections that all workers may have together.", mode="max"
        ).set

    def probed(self, open_turns: Mapping[TurnStatus, OpenTurnCount] | None) -> None:
        """Records what a probe of the database found; None if it did not answer, or is read-only."""
        self._up.set(0 if open_turns is None else 1)
        if open_turns is None:
            return
        for status in OPEN_STATUSES:
            found = open_turns.get(status, OpenTurnCount(0, 0.0))
            self._open.labels(status.value).set(found.turns)
            self._oldest.labels(status.value).set(found.oldest_s)


class _Scrape(Collector):
    """What the workers stored, and what is computed from it at the scrape: ratios, and restarts of the database."""

    def __init__(self, stored: Collector, database: DatabaseMetrics) -> None:
        self._stored = stored
        self._database = database

    def collect(self) -> Iterator[Metric]:
        sums: dict[tuple[str, str | None], float] = defaultdict(float)
        for family in self._stored.collect():
            yield family
            for sample in family.samples:
                sums[sample.name, sample.labels.get("status") or sample.labels.get("outcome")] += sample.value
        counted, completed = sums["prompt_tokens_per_turn_count", None], sums["turn_latency_seconds_count", "completed"]
        summaries = sum(sums["context_summary_outcome_total", outcome] for outcome in _STORED)
        yield GaugeMetricFamily(
            "avg_prompt_tokens_per_turn",
            "Mean of provider-reported prompt tokens per completed turn.",
            value=sums["prompt_tokens_per_turn_sum", None] / counted if counted else 0.0,
        )
        yield GaugeMetricFamily(
            "context_summaries_per_hundred_turns",
            "Summaries for every hundred completed turns, including those in the background and on request.",
            value=100 * summaries / completed if completed else 0.0,
        )
        yield CounterMetricFamily(
            "embedded_database_restarts",
            "Starts of the embedded database after it ended unexpectedly, since its folder was made.",
            value=self._database.count_restarts(),
        )


def _take_place(folder: Path, aliases: Iterable[str]) -> IO[bytes]:
    """The file `N.worker` of the lowest N that no living worker has, locked for as long as this process lives. Metrics
    that are made afterwards are stored under this number, in files that are whole on the disk."""
    number = 0
    while True:
        place = (folder / f"{number}.worker").open("wb")
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            place.close()
            number += 1
        else:
            reserve_disk(folder, number, aliases)
            values.ValueClass = cast(Any, values).MultiProcessValue(lambda number=number: number)
            return place
