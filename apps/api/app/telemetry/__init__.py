"""What operators see of a running service beside its logs: Prometheus metrics, and where it is asked for, traces."""

from app.telemetry.metrics import SummaryOutcome, Telemetry
from app.telemetry.tracing import NO_TRACES, Attribute, Span, Tracer, traces_can_be_made

__all__ = ["NO_TRACES", "Attribute", "Span", "SummaryOutcome", "Telemetry", "Tracer", "traces_can_be_made"]
