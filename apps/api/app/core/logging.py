"""Logs: one JSON line per event on standard error, or a line for people. Configured once, by the composition root.

Nothing a client or a provider wrote can forge a line: everything outside printable ASCII is escaped. Errors are logged
by type and location, never by message, because messages of drivers quote their values.

Lines are written by a thread of their own: while their reader stops, or the disk does, requests are served. Lines are
lost then, as they are when they cannot be written, and the log says how many.
"""

from __future__ import annotations

import atexit
import io
import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial
from itertools import groupby
from operator import itemgetter
from queue import SimpleQueue
from time import sleep
from types import TracebackType
from typing import Any, Literal, TextIO, cast

import orjson
import structlog

EventDict = MutableMapping[str, Any]

logger = logging.getLogger(__name__)

request_fields: ContextVar[dict[str, Any] | None] = ContextVar("request_fields", default=None)
"""Fields of every line that a request logs: its id, and the session, turn and tenant once they are known."""

_SECRETS = re.compile(r"""(?i)(postgres(?:ql)?(?:\+\w+)?://)[^\s"'\\]+|\b(plk_|sk-|bearer\s+)[\w\-.~+/=]+""")
_SECRET_MARKS = ("://", "plk_", "sk-", "bearer")
_UNSAFE = re.compile(r"[^\x20-\x7e]")
_ADDRESS = re.compile(r"url: \S+")
_MOST_FRAMES = 30
_GATHERED_S = 0.05  # waking the writer for each line takes about 50 µs more of CPU
_LAST_LINES_S = 1.0
_MOST_UNWRITTEN = 4096
_unwritten: SimpleQueue[tuple[Callable[[str], object], str]] = SimpleQueue()


def configure_logging(
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO",
    form: Literal["json", "console"] = "json",
    stream: TextIO | None = None,
) -> None:
    """Sends structlog's and the standard library's records to `stream` (standard error) in one form.

    Libraries log from WARNING up: at lower levels, HTTP clients and drivers log addresses and statements.
    """
    out = cast(TextIO, _Output(stream or _standard_error()))
    shared: list[Any] = [
        _add_request_fields,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _errors_by_place,
    ]
    render = _render_json if form == "json" else _render_console
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_without_quotes_of_libraries, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level]))
    logging.getLogger("app").setLevel(logging.getLevelNamesMapping()[level])
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = name != "uvicorn.access"  # the edge logs one line per request, with its ids


class _Output:
    """Passes lines to the thread that writes them, as long as it is not too far behind."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = 0
        _start_writer()

    def write(self, text: str) -> None:
        if _unwritten.qsize() >= _MOST_UNWRITTEN:
            self._lost += 1
            return
        _unwritten.put((self._write, text))
        if self._lost:
            lost, self._lost = self._lost, 0
            logger.warning("%d lines of this log were lost: it was not read, or not written, as fast", lost)

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a full disk, a reader that is gone, a closed file
            self._stream.write(text)
            self._stream.flush()

    def flush(self) -> None: ...


def _standard_error() -> TextIO:
    """Standard error without a buffer: Python cannot end while a thread holds the lock of one."""
    try:
        return io.TextIOWrapper(io.FileIO(sys.stderr.fileno(), "w", closefd=False), write_through=True)
    except OSError:  # replaced by a stream in memory
        return sys.stderr


@cache
def _start_writer() -> None:
    def write_lines() -> None:
        while True:
            waiting = [_unwritten.get()]
            sleep(_GATHERED_S)
            waiting += [_unwritten.get() for _ in range(_unwritten.qsize())]
            for write, lines in groupby(waiting, key=itemgetter(0)):
                write("".join(text for _, text in lines))

    threading.Thread(target=write_lines, name="log", daemon=True).start()
    atexit.register(wait_for_lines)


def wait_for_lines(within_s: float = _LAST_LINES_S) -> bool:
    """Waits until the lines so far are written; returns whether they are."""
    written = threading.Event()
    _unwritten.put((lambda _: written.set(), ""))
    return written.wait(within_s)


def log_unhandled_errors() -> None:
    """Logs errors that end a thread or cannot be raised (of a `__del__`), where Python prints them with messages."""
    threading.excepthook = partial(_log_unhandled, "an error ended a thread")
    sys.unraisablehook = partial(_log_unhandled, "an error could not be raised")


def _log_unhandled(event: str, given: threading.ExceptHookArgs | sys.UnraisableHookArgs) -> None:
    if given.exc_type is not SystemExit:  # as Python does, a thread may end with it
        logger.error(event, exc_info=given.exc_value)


def _add_request_fields(_logger: object, _method: str, event: EventDict) -> EventDict:
    for name, value in (request_fields.get() or {}).items():
        event.setdefault(name, value)
    return event


def _without_quotes_of_libraries(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Of what asyncio logs, the first line: further ones are reprs, of tasks for example, which quote their errors.
    What OpenTelemetry logs is without the collector's address, which may hold a token."""
    record: logging.LogRecord = event["_record"]
    if record.name == "asyncio":
        event["event"] = event["event"].partition("\n")[0]
    elif record.name.startswith("opentelemetry."):
        event["event"] = _ADDRESS.sub("url: ***", event["event"])
    return event


def _errors_by_place(_logger: object, _method: str, event: EventDict) -> EventDict:
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    elif isinstance(info, BaseException):
        info = (type(info), info, info.__traceback__)
    if isinstance(info, tuple) and info[0] is not None:
        kind, error, trace = cast("tuple[type[BaseException], BaseException, TracebackType | None]", info)
        event["error_type"] = f"{kind.__module__}.{kind.__qualname__}"
        event["trace"] = _places(trace)
        cause = error.__cause__ or error.__context__
        if cause is not None:
            event["cause_type"] = f"{type(cause).__module__}.{type(cause).__qualname__}"
            event["cause_trace"] = _places(cause.__traceback__)
    event.pop("exc_text", None)
    event.pop("stack_info", None)
    return event


def _places(trace: TracebackType | None) -> list[str]:
    frames = traceback.extract_tb(trace)[-_MOST_FRAMES:]
    return [f"{frame.filename.rsplit('/site-packages/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames]


def add_request_fields(**fields: str) -> None:
    """Adds ids to every further log line of the current task and of tasks that it starts."""
    request_fields.set({**(request_fields.get() or {}), **fields})


def without_secrets(line: str) -> str:
    """The line with API keys, and what follows the scheme of a database URL, replaced by asterisks."""
    lowered = line.lower()
    if not any(mark in lowered for mark in _SECRET_MARKS):
        return line
    return _SECRETS.sub(lambda found: (found[1] or found[2]) + "***", line)


def _render_json(_logger: object, _method: str, event: EventDict) -> str:
    try:
        line = orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError):  # half a surrogate pair, an integer beyond 64 bits
        line = "\x7f"
    if line.isascii() and "\x7f" not in line:
        return without_secrets(line)
    line = json.dumps(event, default=repr, ensure_ascii=True, separators=(",", ":")).replace("\x7f", "\\u007f")
    return without_secrets(line)


def _render_console(_logger: object, _method: str, event: EventDict) -> str:
    moment = str(event.pop("timestamp", ""))[11:23]
    level = str(event.pop("level", "info")).upper()
    name = _plain(event.pop("event", ""))
    details = " ".join(f"{_plain(key)}={_plain(value)}" for key, value in event.items())
    return without_secrets(f"{moment} {level:<7} {name} {details}".rstrip())


def _plain(value: object) -> str:
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], str(value))
