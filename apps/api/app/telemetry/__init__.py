"""What operators see of a running service beside its logs.

Prometheus metrics, right with one worker process or several: with several, `PROMETHEUS_MULTIPROC_DIR` names a folder
before the workers start; prometheus_client then keeps every process's values in files there, and a scrape of any worker
adds them up. Labels come from closed sets only. And where the deployment asks for them, traces.
"""

from app.telemetry.service import SummaryOutcome, Telemetry
from app.telemetry.tracing import NO_TRACES, Attribute, Span, Tracer, traces_can_be_made

__all__ = ["NO_TRACES", "Attribute", "Span", "SummaryOutcome", "Telemetry", "Tracer", "traces_can_be_made"]
