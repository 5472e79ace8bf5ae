"""What the log promises: one line an event, whatever anyone wrote into it, and no secret."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import structlog

from app.core.logging import configure_logging, log_unhandled_errors, request_fields, wait_for_lines

FORGERIES = [
    '\r\n{"event":"forged"}',
    "\n\n",
    "\x1b[2J\x1b[1;31mred",
    "\u2028line\u2029separator",
    "\x85next line",
    "\x00nul",
    "\x7fdelete",
    "\u202eright to left",
    "\x9b31mcsi",
    "\ud800half",
    "\\n not a break",
    '}{"a":1}',
]


@pytest.fixture
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def text_of(out: io.StringIO) -> str:
    assert wait_for_lines(within_s=30)
    return out.getvalue()


def lines_of(form: Literal["json", "console"], **fields: Any) -> list[str]:
    out = io.StringIO()
    configure_logging("DEBUG", form, out)
    structlog.get_logger().warning("event", **fields)
    logging.getLogger("some.library").warning("library says %s", fields.get("text", ""))
    return text_of(out).split("\n")


@pytest.mark.parametrize("text", FORGERIES)
def test_an_event_is_one_printable_ascii_json_line_whatever_it_says(text: str, restored: None) -> None:
    first, second, rest = lines_of("json", text=text)
    assert rest == ""
    for line in (first, second):
        assert line.isascii()
        assert line.isprintable()
        assert json.loads(line)["level"] == "warning"


@pytest.mark.parametrize("text", FORGERIES)
def test_a_console_line_cannot_be_forged_either(text: str, restored: None) -> None:
    lines = lines_of("console", text=text)
    assert len(lines) == 3
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_a_line_that_cannot_be_written_is_lost_and_fails_nobody(
    restored: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full_disk:  # noqa: PTH123 - a device
        configure_logging("DEBUG", "json", full_disk)
        structlog.get_logger().info("request")
        logging.getLogger("some.library").warning("library says %s", "hunter2")
        assert wait_for_lines(within_s=30)
        with pytest.raises(OSError, match="No space left"):
            full_disk.flush()  # it still has them to write, and so will try again
        with open(os.devnull, "w") as null:  # noqa: PTH123 - a device
            os.dup2(null.fileno(), full_disk.fileno())
    assert capsys.readouterr().err == ""


_UNREAD = """
import structlog, sys, time
from app.core.logging import _unwritten, configure_logging
configure_logging("DEBUG", "json")
log = structlog.get_logger()
for number in range(10_000):
    log.info("request", number=number, more="x" * 100)
print("served", flush=True)
if sys.stdin.readline():
    while _unwritten.qsize():
        time.sleep(0.01)
    log.info("read again")
"""


@pytest.mark.parametrize("is_read_again", [True, False])
def test_a_reader_that_stops_loses_lines_and_stops_nobody(is_read_again: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", _UNREAD],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "served\n"
        if not is_read_again:
            process.stdin.close()
            assert process.wait(timeout=60) == 0
            return
        _, log = process.communicate("\n", timeout=60)
    events = [json.loads(line) for line in log.splitlines()]
    written = [event["number"] for event in events if event["event"] == "request"]
    lost = [int(event["event"].split()[0]) for event in events if " lines of this log were lost" in event["event"]]
    assert written == sorted(set(written))
    assert sum(lost) == 10_000 - len(written) > 0
    assert len(events) == len(written) + len(lost) + len(["read again"])


def test_secrets_are_hidden_in_our_lines_and_in_libraries(restored: None) -> None:
    secret = "postgresql://user:hunter2@db/x plk_abcdefgh123 Authorization: Bearer tok-999"
    text = "\n".join(lines_of("json", text=secret))
    assert "library says" in text
    assert not any(word in text for word in ("hunter2", "abcdefgh123", "tok-999"))


def test_the_address_of_a_trace_collector_is_not_logged(restored: None) -> None:
    out = io.StringIO()
    configure_logging("DEBUG", "json", out)
    exporter = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    error = OSError("Max retries exceeded with url: /v1/traces?token=hunter2")
    exporter.warning("Transient error %s encountered while exporting %s, retrying in %.2fs.", error, "spans", 1)
    assert "hunter2" not in text_of(out)
    assert "url: *** encountered while exporting spans" in json.loads(text_of(out))["event"]


def test_an_error_is_logged_by_type_and_place_and_not_by_its_message(restored: None) -> None:
    out = io.StringIO()
    configure_logging("DEBUG", "json", out)
    try:
        int("the user's own words")
    except ValueError:
        structlog.get_logger().error("failed", exc_info=True)
        logging.getLogger("some.library").exception("failed")
    assert "own words" not in text_of(out)
    for line in text_of(out).splitlines():
        event = json.loads(line)
        assert event["error_type"] == "builtins.ValueError"
        assert "test_an_error_is_logged" in event["trace"][-1]


def test_an_error_that_nobody_awaited_is_logged_by_type_and_place_too(restored: None) -> None:
    async def fail() -> None:
        raise ValueError("the user's own words")

    async def leave_it_alone() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        del task
        gc.collect()

    out = io.StringIO()
    configure_logging("INFO", "json", out)
    asyncio.run(leave_it_alone())
    assert "own words" not in text_of(out)
    event = json.loads(text_of(out))
    assert event["event"] == "Task exception was never retrieved"
    assert event["error_type"] == "builtins.ValueError"
    assert event["trace"][-1].endswith(" fail")


def test_an_error_of_a_thread_or_a_finalizer_is_logged_by_type_and_place_too(restored: None) -> None:
    def fail(_: object = None) -> None:
        raise ValueError("the user's own words")

    out = io.StringIO()
    configure_logging("INFO", "json", out)
    hooks = threading.excepthook, sys.unraisablehook
    log_unhandled_errors()
    try:
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        type("Held", (), {"__del__": fail})()
        gc.collect()
    finally:
        threading.excepthook, sys.unraisablehook = hooks
    assert "own words" not in text_of(out)
    events = [json.loads(line) for line in text_of(out).splitlines()]
    assert [event["event"] for event in events] == ["an error ended a thread", "an error could not be raised"]
    for event in events:
        assert event["error_type"] == "builtins.ValueError"
        assert event["trace"][-1].endswith(" fail")


def test_every_line_of_a_request_carries_its_ids(restored: None) -> None:
    out = io.StringIO()
    configure_logging("INFO", "json", out)
    token = request_fields.set({"request_id": "r-1", "session_id": "s-1"})
    try:
        structlog.get_logger().info("something")
    finally:
        request_fields.reset(token)
    assert json.loads(text_of(out)) | {"request_id": "r-1", "session_id": "s-1"} == json.loads(text_of(out))


def test_the_level_is_kept(restored: None) -> None:
    out = io.StringIO()
    configure_logging("ERROR", "json", out)
    structlog.get_logger().warning("quiet")
    assert text_of(out) == ""
