"""Forty ways to forge a line of the log, in every field that a client can reach: one JSON line each, and no other."""

from __future__ import annotations

import io
import json
import logging
import socket
from pathlib import Path

import httpx
import pytest
import structlog

from app.core.logging import configure_logging, request_fields, wait_for_lines
from tests.api.conftest import PATIENCE_S
from tests.api.test_auth import make_key
from tests.commands import test_cli

_LINE = '{"event":"request","level":"info","status":200,"forged":true}'
FORGERIES: tuple[str, ...] = (
    # Line ends of every kind.
    f"\n{_LINE}\n",
    f"\r{_LINE}\r",
    f"\r\n{_LINE}\r\n",
    f"\u2028{_LINE}\u2028",
    f"\u2029{_LINE}",
    f"\x85{_LINE}",
    f"\x0b{_LINE}",
    f"\x0c{_LINE}",
    f"\x1c{_LINE}",
    f"\x1d{_LINE}\x1e",
    f"\\n{_LINE}",
    f"%0a{_LINE}",
    f"%0d%0a{_LINE}",
    f"&#10;{_LINE}",
    # What ends the string, the object, or the file.
    f'"}}\n{_LINE}',
    f'","forged":true,"x":"{_LINE}',
    '"',
    "\\",
    '\\"',
    "}{",
    "]]}}",
    "\x00",
    f"\x00\n{_LINE}",
    "\x04",
    "\x1a",
    # What terminals obey.
    "\x1b[2J\x1b[1;1H",
    "\x1b[1A\x1b[2K",
    "\x1b]0;title\x07",
    "\x1b]8;;http://127.0.0.1\x1b\\click",
    "\x9b2J",
    "\x08" * 80,
    "\x7f",
    "\u202e\u2066",
    "\u200b\ufeff",
    # What encoders and formatters stumble over.
    "\ud800",
    "\U0010ffff\ufffe",
    "%s %d %(event)s {0} {event}",
    "${jndi:ldap://127.0.0.1/x}",
    "<script>alert(1)</script>",
    "x" * 20_000 + "\n" + _LINE,
)


def assert_one_line(text: str, lines: int = 1) -> list[dict[str, object]]:
    """Lines of printable ASCII, each one JSON object that says what it was written as."""
    assert text.endswith("\n")
    found = text[:-1].split("\n")
    assert len(found) == lines
    assert len(text.splitlines()) == lines
    assert all(line.isascii() and line.isprintable() for line in found)
    events = [json.loads(line) for line in found]
    assert not any("forged" in event for event in events)
    return events


def text_of(out: io.StringIO) -> str:
    assert wait_for_lines(within_s=30)
    return out.getvalue()


@pytest.mark.parametrize("payload", FORGERIES)
def test_a_forged_line_in_any_field_is_part_of_the_one_that_was_written(payload: str) -> None:
    out = io.StringIO()
    configure_logging("DEBUG", "json", out)
    fields = {"request_id": payload, "session_id": payload, "tenant": payload, "method": payload, "route": payload}
    token = request_fields.set(fields)
    try:
        structlog.get_logger().info("request", alias=payload, nested={payload: [payload, {payload: payload}]})
        assert_one_line(text_of(out))
        for write in (
            lambda: structlog.get_logger().warning(payload, **{payload: payload}),
            lambda: logging.getLogger("app.x").warning(
                "the summarizer %s gave no usable summary (%s)", payload, payload
            ),
            lambda: logging.getLogger(payload).warning(payload.replace("%", "%%")),
            lambda: logging.getLogger("asyncio").error("Task failed: %r", ValueError(payload)),
        ):
            out.seek(0)
            out.truncate()
            write()
            assert_one_line(text_of(out))
    finally:
        request_fields.reset(token)
        structlog.reset_defaults()


def test_a_service_writes_one_line_a_request_whatever_the_request_says(database_url: str, tmp_path: Path) -> None:
    _, key = make_key(database_url, "anna")
    with (
        test_cli.serving(tmp_path, DATABASE_URL=database_url, PLIMSOLL_LOG_LEVEL="DEBUG") as (_, printed),
        httpx.Client(base_url=test_cli.address(printed), timeout=PATIENCE_S, trust_env=False) as client,
    ):
        client.headers["authorization"] = f"Bearer {key}"
        sid = client.post("/v1/sessions", json={}).json()["id"]
        sent = 0
        for number, payload in enumerate(FORGERIES):
            wire = payload.encode("utf-8", "replace").replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b"")
            names = ("x-request-id", "idempotency-key", "x-session-id", "user-agent", "x-forwarded-for")
            body = json.dumps({"content": payload, "model_alias": payload, "unknown": payload, payload[:50]: 1})
            answer = client.post(
                f"/v1/sessions/{sid}/turns",
                content=body.encode(),
                headers=[
                    (b"content-type", b"application/json"),
                    *((name.encode(), wire[:4000]) for name in names if not wire[:1].isspace()),
                ],
                params={"round": payload[:500].encode("utf-8", "replace").decode(), "n": str(number)},
            )
            assert answer.status_code in {400, 422}, answer.text
            quoted = httpx.QueryParams({"p": payload[:500].encode("utf-8", "replace").decode()})
            client.get(f"/v1/sessions/{str(quoted)[2:]}/turns/{str(quoted)[2:]}")
            client.get(f"/v1/sessions/{sid}/pins/{str(quoted)[2:]}")
            sent += 3 - (answer.status_code == 400)  # that one never became a request
        sent += _raw(client, "GET /healthz\x1b[2J HTTP/1.1", "BREW\t/ HTTP/1.1", f"{'M' * 40} / HTTP/1.1")
    lines = (tmp_path / "log").read_text().splitlines()
    requests = [event for event in map(json.loads, lines) if event["event"] == "request"]
    assert len(requests) >= 1 + sent - 3  # of the session, and what HTTP knows
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert "forged" not in "".join(lines), "the content of a request is not logged at all"
    for event in requests:
        assert set(event) <= {
            "event", "level", "timestamp", "request_id", "tenant", "session_id", "turn_id", "method", "route", "status",
            "duration_ms", "code",
        }  # fmt: skip


def _raw(client: httpx.Client, *lines: str) -> int:
    for line in lines:
        with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=10) as connection:
            connection.sendall(f"{line}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            connection.recv(1000)
    return len(lines)
