"""Traces through the OpenTelemetry SDK. Imported only if traces are enabled: it is an optional extra.

The SDK reads its own variables from the environment (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`,
`OTEL_TRACES_SAMPLER` …), as in every program that uses it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.domain.errors import PlimsollError
from app.telemetry.tracing import Attribute, P, Span, Tracer

_W3C = TraceContextTextMapPropagator()
_CARRIED = ("traceparent", "tracestate")
LAST_EXPORT_S = 3.0
_LONGEST_ATTRIBUTE = 256
"""Longest text of an attribute, in characters. Some names are chosen by providers."""


class OtelTraces(Tracer):
    """Spans with their own OpenTelemetry provider; no global of OpenTelemetry is changed.

    With `to_providers`, calls to models carry `traceparent`. `give_up` ends an export that takes too long at shutdown.
    """

    def __init__(
        self,
        version: str,
        processor: SpanProcessor,
        *,
        to_providers: bool = False,
        give_up: Callable[[], object] = lambda: None,
    ) -> None:
        self._give_up = give_up
        named = Resource({"service.name": "plimsoll", "service.version": version})
        self._provider = TracerProvider(
            resource=Resource.create().merge(named).merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("plimsoll", version)
        self._to_providers = to_providers

    def span(self, name: str, *, calls_out: bool = False) -> AbstractContextManager[_Span]:
        return self._running(name, SpanKind.CLIENT if calls_out else SpanKind.INTERNAL)

    def request(self, method: str, route: str, headers: Mapping[bytes, bytes]) -> AbstractContextManager[_Span]:
        carried = {name: headers[name.encode()].decode("latin-1") for name in _CARRIED if name.encode() in headers}
        # A new context: what ran before on this connection is not part of the request.
        caller = _W3C.extract(carried, Context())
        first = {"http.request.method": method, "http.route": route}
        return self._running(f"{method} {route}", SpanKind.SERVER, caller, first)

    @contextmanager
    def _running(
        self, name: str, kind: SpanKind, parent: Context | None = None, first: Mapping[str, str] | None = None
    ) -> Generator[_Span]:
        otel = self._tracer.start_span(name, parent, kind, first)
        token = attach(set_span_in_context(otel, parent or get_current()))
        span = _Span(otel)
        try:
            yield span
        except BaseException as error:
            span.fail(error.code if isinstance(error, PlimsollError) else type(error).__name__)
            raise
        finally:
            detach(token)
            otel.end()

    def outgoing(self) -> Mapping[str, str]:
        carried: dict[str, str] = {}
        if self._to_providers:
            _W3C.inject(carried)
        # Providers must not see what other vendors added about the trace (`tracestate`).
        return {name: value for name, value in carried.items() if name == "traceparent"}

    async def aclose(self) -> None:
        """Sends the remaining spans, for at most `LAST_EXPORT_S`."""
        await asyncio.to_thread(self._send_the_rest)

    def _send_the_rest(self) -> None:
        # The SDK alone would wait 30 s for a collector that does not answer: longer than a process has to end.
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(LAST_EXPORT_S)
        if sending.is_alive():
            self._give_up()


def traces_over_http(version: str, *, to_providers: bool) -> OtelTraces:
    """Sends traces in batches to a collector over OTLP/HTTP, on a separate thread: no request waits for that."""
    exporter = OTLPSpanExporter()
    return OtelTraces(version, BatchSpanProcessor(exporter), to_providers=to_providers, give_up=exporter.shutdown)


class _Span(Span):
    def __init__(self, span: OtelSpan) -> None:
        self._span = span
        self.trace_id = format_trace_id(span.get_span_context().trace_id)

    def fail(self, kind: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR))

    def set(self, attributes: Callable[P, Mapping[str, Attribute]], *of: P.args, **how: P.kwargs) -> None:
        for name, value in attributes(*of, **how).items() if self._span.is_recording() else ():
            if isinstance(value, str):
                self._span.set_attribute(name, value[:_LONGEST_ATTRIBUTE])
            elif value is not None:
                self._span.set_attribute(name, value)
