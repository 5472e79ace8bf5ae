"""Prometheus metrics, right with one worker process or several.

With several, `PROMETHEUS_MULTIPROC_DIR` names a folder before the workers start; prometheus_client then keeps every
process's values in files there, and a scrape of any worker adds them up. Labels come from closed sets only.
"""

from app.telemetry.service import SummaryOutcome, Telemetry

__all__ = ["SummaryOutcome", "Telemetry"]
