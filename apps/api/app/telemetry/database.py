"""What is measured of the database: whether it answers, what is open in it, and the wait for its connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.domain.types import OPEN_STATUSES, OpenTurnCount, TurnStatus

_POOL_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class DatabaseTelemetry(Collector):
    """One database, shared by all workers and replicas: of what all of them see alike the newest look stands.

    `own` has what this process measures; what is asked for at the scrape goes into `at_scrape`.
    """

    def __init__(self, own: CollectorRegistry, at_scrape: CollectorRegistry) -> None:
        self._count_restarts: Callable[[], int] = lambda: 0
        at_scrape.register(self)
        self._up = Gauge(
            "database_up",
            "1 when the database answered the last look and takes writes, else 0.",
            registry=own,
            multiprocess_mode="mostrecent",
        )
        self._open = Gauge(
            "open_turns",
            "Turns in the database that are open, by status.",
            ["status"],
            registry=own,
            multiprocess_mode="mostrecent",
        )
        self._oldest = Gauge(
            "oldest_open_turn_seconds",
            "For how long the oldest turn that is open now has been so, by status; 0 where there is none.",
            ["status"],
            registry=own,
            multiprocess_mode="mostrecent",
        )
        self._wait = Histogram(
            "db_pool_wait_seconds",
            "Waits for a database connection, new connections and waits in vain included.",
            buckets=_POOL_SECONDS,
            registry=own,
        )
        self._use = Counter(
            "db_connection_use_seconds",
            "Seconds for which database connections were lent; its rate is how many are in use.",
            registry=own,
        )
        self._pool_size = Gauge(
            "db_pool_connections",
            "Database connections that all workers may have together.",
            registry=own,
            multiprocess_mode="max",
        )

    def probed(self, open_turns: Mapping[TurnStatus, OpenTurnCount] | None) -> None:
        """What a probe of the database found; None when it did not answer, or is read-only."""
        self._up.set(0 if open_turns is None else 1)
        if open_turns is None:
            return
        for status in OPEN_STATUSES:
            found = open_turns.get(status, OpenTurnCount(0, 0.0))
            self._open.labels(status.value).set(found.turns)
            self._oldest.labels(status.value).set(found.oldest_s)

    def pool_of(self, connections: int) -> None:
        """States how many connections all workers may have together."""
        self._pool_size.set(connections)

    def restarts_from(self, count: Callable[[], int]) -> None:
        """Has the restarts of an embedded database counted by `count`, at every scrape."""
        self._count_restarts = count

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "embedded_database_restarts",
            "Starts of the embedded database because it had ended unasked, since its folder was made.",
            value=self._count_restarts(),
        )

    def connection_waited_for(self, seconds: float) -> None:
        """Adds a wait for a connection."""
        self._wait.observe(seconds)

    def connection_used(self, seconds: float) -> None:
        """Adds the time for which a connection was lent."""
        self._use.inc(seconds)
