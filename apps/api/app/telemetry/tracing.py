"""The spans of the service. Without the extra `otel`, or with traces off, all are one object that does nothing.

Attributes are ids, names and figures, never content, error messages or request URLs: readers of traces may not be
allowed to read conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeAlias

Attribute: TypeAlias = str | bool | int | float | Sequence[str] | None
P = ParamSpec("P")


class Span:
    """A step while it runs. This one does nothing. `trace_id` has 32 hexadecimal digits."""

    trace_id: str | None = None

    def set(self, attributes: Callable[P, Mapping[str, Attribute]], *of: P.args, **how: P.kwargs) -> None:
        """Adds the attributes of this, if the span is kept; one that is None is left out."""

    def fail(self, kind: str) -> None:
        """Marks the span as failed, for a failure that raises no error out of its block."""


class Tracer:
    """Makes spans; this one makes none. What a `with` block runs is inside its span, including tasks that it starts.

    An error that leaves a block is recorded by its code or its type, and never by its message.
    """

    _nothing = nullcontext(Span())

    def span(self, name: str, *, calls_out: bool = False) -> AbstractContextManager[Span]:  # noqa: ARG002 - makes none
        """A step inside the one that runs; `calls_out` marks one that waits for another server."""
        return self._nothing

    def request(self, method: str, route: str, headers: Mapping[bytes, bytes]) -> AbstractContextManager[Span]:  # noqa: ARG002 - as above
        """An incoming request. It continues the trace of its headers (W3C Trace Context), if any."""
        return self._nothing

    def outgoing(self) -> Mapping[str, str]:
        """Headers for a call to a provider: none, unless the deployment enables them."""
        return {}


NO_TRACES = Tracer()
