"""The spans of the service. Without the extra `otel`, or with traces off, all are one object that does nothing.

Attributes are ids, names and figures, never content, error messages or request URLs: readers of traces may not be
allowed to read conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, Protocol, TypeAlias

Attribute: TypeAlias = str | bool | int | float | Sequence[str] | None
P = ParamSpec("P")


class Span(Protocol):
    """A step while it runs."""

    @property
    def trace_id(self) -> str | None:
        """The id of the trace, in 32 hexadecimal digits."""
        ...

    def set(self, attributes: Callable[P, Mapping[str, Attribute]], *of: P.args, **how: P.kwargs) -> None:
        """Adds the attributes of this, if the span is kept; one that is None is left out."""
        ...

    def fail(self, kind: str) -> None:
        """Marks the span as failed, for a failure that raises no error out of its block."""
        ...


class Tracer(Protocol):
    """Makes spans. What a `with` block runs is inside its span, including tasks that it starts.

    An error that leaves a block is recorded by its code or its type, and never by its message.
    """

    def span(self, name: str, *, calls_out: bool = False) -> AbstractContextManager[Span]:
        """A step inside the one that runs; `calls_out` marks one that waits for another server."""
        ...

    def request(self, method: str, route: str, headers: Mapping[bytes, bytes]) -> AbstractContextManager[Span]:
        """An incoming request. It continues the trace of its headers (W3C Trace Context), if any."""
        ...

    def outgoing(self) -> Mapping[str, str]:
        """Headers for a call to a provider: none, unless the deployment enables them."""
        ...


class _NoSpan:
    trace_id = None

    def set(self, attributes: Callable[P, Mapping[str, Attribute]], *of: P.args, **how: P.kwargs) -> None: ...

    def fail(self, kind: str) -> None: ...


class _NoTraces:
    _nothing = nullcontext(_NoSpan())

    def span(self, name: str, *, calls_out: bool = False) -> nullcontext[_NoSpan]:  # noqa: ARG002 - the protocol's
        return self._nothing

    def request(self, method: str, route: str, headers: Mapping[bytes, bytes]) -> nullcontext[_NoSpan]:  # noqa: ARG002 - as above
        return self._nothing

    def outgoing(self) -> Mapping[str, str]:
        return {}


NO_TRACES: Tracer = _NoTraces()
