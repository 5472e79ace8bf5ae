"""Metrics and traces.

Prometheus metrics are correct with one worker process or several: with several, `PROMETHEUS_MULTIPROC_DIR` names a
folder before the workers start; prometheus_client then keeps every process's values in files there, and a scrape of any
worker adds them up. Labels come from closed sets only. Traces are optional (`PLIMSOLL_TRACES`).
"""

from app.telemetry.metrics import SummaryOutcome, Telemetry
from app.telemetry.tracing import NO_TRACES, Attribute, Span, Tracer, traces_can_be_made

__all__ = ["NO_TRACES", "Attribute", "Span", "SummaryOutcome", "Telemetry", "Tracer", "traces_can_be_made"]
