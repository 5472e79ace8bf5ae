"""The process in which heavy pure work runs: one job at a time, whose steps are called one by one over the socket that
is its standard input. Messages are pickles, which is safe because both ends are this program."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from io import BufferedRWPair
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from app.core.memory import collect_seldom
from app.domain.frozen import frozen

if TYPE_CHECKING:
    from app.tokenizers.counters import Tokenizers

_LESS_URGENT: Final = 5
"""Added to the niceness, because turns are more urgent."""


@frozen
class Tools:
    """What a job is made with, in whichever process it runs."""

    tokenizers: Tokenizers
    new_id: Callable[[], UUID]


Step: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...] | None]
"""A method of the job and its arguments; with None, what makes a new job from `Tools` in place of the one before."""
StepResult: TypeAlias = tuple[Any, Exception | None]


class JobFailed(Exception):
    """A job raised an unexpected error; the child's log says where."""


RELEASE: Final = pickle.dumps(None)
"""The message that releases the job. It is not answered."""

GONE: Final = (ConnectionError, EOFError, pickle.UnpicklingError)
"""What `send` and `receive` raise when the other end is closed, between two messages or within one."""


def send(stream: BufferedRWPair, message: Step | StepResult) -> None:
    """Sends a message. Large `bytes` are written without a copy."""
    pickle.dump(message, stream)
    stream.flush()


def receive(stream: BufferedRWPair) -> Any:
    return pickle.load(stream)  # noqa: S301 - from the other end, which is this program


def main(log_level: Any, log_format: Any) -> None:
    """Serves the socket that is the standard input, until its other end is closed."""
    os.nice(_LESS_URGENT)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with its parent, which lets running requests end first
    connection = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    try:
        tools = _tools(log_level, log_format)
    except Exception as error:
        sys.stderr.write(f"plimsoll: the process for heavy work cannot start: {type(error).__name__}: {error}\n")
        sys.exit(1)
    with suppress(*GONE):
        stream = connection.makefile("rwb")
        send(stream, (None, None))
        collect_seldom()
        _serve(stream, tools)


def _tools(log_level: Any, log_format: Any) -> Tools:
    from uuid_utils.compat import uuid7  # noqa: PLC0415 - late, when the parent's end is watched already

    from app.core.logging import configure_logging, log_unhandled_errors  # noqa: PLC0415
    from app.tokenizers.counters import Tokenizers  # noqa: PLC0415

    configure_logging(log_level, log_format)
    log_unhandled_errors()
    return Tools(Tokenizers(), uuid7)


def _end_with_parent(connection: socket.socket) -> None:
    watch = select.poll()
    watch.register(connection, 0)  # poll reports a closed peer even if no event is requested
    watch.poll()
    os._exit(0)


def _serve(stream: BufferedRWPair, tools: Tools) -> None:
    job: object = None
    while True:
        message = receive(stream)
        if message is None:
            job = None
            continue
        method, arguments = message
        try:
            if arguments is None:
                job = None  # freed before the next one is made
                job = method(tools)
                answer = (None, None)
            else:
                answer = (method(job, *arguments), None)
        except Exception as error:
            answer = (None, _sendable(error))
        del message, method, arguments
        send(stream, answer)


def _sendable(error: Exception) -> Exception:
    from app.domain.errors import PlimsollError  # noqa: PLC0415 - late, as in `main`

    if isinstance(error, PlimsollError):
        return error.with_traceback(None)
    import structlog  # noqa: PLC0415

    structlog.get_logger().error("heavy_job_failed", exc_info=error)
    return JobFailed(type(error).__name__)
