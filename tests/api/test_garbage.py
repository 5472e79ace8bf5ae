"""What no client should send: the right 4xx as problem+json, nothing stored, the connection still usable."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
import time
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from tests.api.conftest import PATIENCE_S, assert_problem, new_session, serving, settings_for

JSON = {"content-type": "application/json"}
BODY_ROUTES = [
    ("POST", "/v1/sessions"),
    ("PATCH", "/v1/sessions/{sid}"),
    ("POST", "/v1/sessions/{sid}/turns"),
    ("POST", "/v1/sessions/{sid}/fork"),
    ("POST", "/v1/sessions/{sid}/turns/{tid}/regenerate"),
    ("PUT", "/v1/sessions/{sid}/pins/p"),
    ("POST", "/v1/sessions/{sid}/context/preview"),
    ("POST", "/v1/sessions/{sid}/simulate"),
]
READ_ROUTES = [
    ("GET", "/v1/sessions"),
    ("GET", "/v1/sessions/{sid}"),
    ("DELETE", "/v1/sessions/{sid}"),
    ("GET", "/v1/sessions/{sid}/turns"),
    ("GET", "/v1/sessions/{sid}/turns/{tid}"),
    ("GET", "/v1/sessions/{sid}/turns/{tid}/audit"),
    ("GET", "/v1/sessions/{sid}/turns/{tid}/prompt"),
    ("GET", "/v1/sessions/{sid}/context"),
    ("GET", "/v1/sessions/{sid}/export"),
    ("GET", "/v1/sessions/{sid}/summaries"),
    ("POST", "/v1/sessions/{sid}/summaries"),
    ("POST", "/v1/sessions/{sid}/summaries/{tid}/undo"),
    ("GET", "/v1/sessions/{sid}/pins"),
    ("GET", "/v1/sessions/{sid}/pins/p"),
    ("DELETE", "/v1/sessions/{sid}/pins/p"),
]

NOT_JSON: dict[str, bytes] = {
    "not json": b"hello",
    "truncated": b'{"content": "a',
    "two values": b"{} {}",
    "single quotes": b"{'content': 'a'}",
    "nan": b'{"content": NaN}',
    "infinity": b'{"content": -Infinity}',
    "1e999": b'{"content": "a", "max_output_tokens": 1e999, "relevance": 1e999}',
    "lone surrogate": b'{"content": "\\ud800", "room_goal": "\\ud800"}',
    "surrogate in key": b'{"\\udfff": 1}',
    "invalid utf-8": b'{"content": "\xff\xfe"}',
    "utf-16": '{"content": "a"}'.encode("utf-16"),
    "bom": b'\xef\xbb\xbf{"content": "a"}',
    "depth 100,000": b'{"content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "depth 1,000": b'{"content": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "depth 100": b'{"metadata": ' + b"[" * 100 + b"]" * 100 + b"}",
    "nul in string": b'{"content": "a\\u0000b", "room_goal": "a\\u0000b"}',
    "nul in key": b'{"metadata": {"a\\u0000": 1}}',
    "raw nul": b'{"content": "a\x00b"}',
    "huge integer": b'{"metadata": {"a": 123456789012345678901234567890}}',
    "integer of 10,000 digits": b'{"metadata": {"a": ' + b"9" * 10_000 + b"}}",
    "integer above uint64": b'{"metadata": {"a": 18446744073709551616}}',
    "negative below int64": b'{"metadata": {"a": -9223372036854775809}}',
    "many values": b'{"metadata": {"a": [' + b"0," * 300_000 + b"0]}}",
    "many members": b'{"metadata": {' + b'"":0,' * 100_000 + b'"a":0}}',
    "many objects": b'{"metadata": {"a": [' + b'{"a":1},' * 60_000 + b"0]}}",
    "array": b"[]",
    "string": b'"text"',
    "null": b"null",
    "number": b"1",
    "true": b"true",
}
WRONG_TURNS: dict[str, object] = {
    "no content": {},
    "null": {"content": None},
    "number": {"content": 5},
    "empty": {"content": ""},
    "blank": {"content": " \n\t\u2003"},
    "no parts": {"content": []},
    "blank part": {"content": [{"type": "text", "text": "  "}]},
    "part without type": {"content": [{"text": "a"}]},
    "unknown part": {"content": [{"type": "nonsense", "text": "a"}]},
    "part of number": {"content": [5]},
    "image without url": {"content": [{"type": "image_url", "image_url": {}}]},
    "unknown field": {"content": "a", "contnet": "a"},
    "text for a number": {"content": "a", "max_output_tokens": "5"},
    "zero tokens": {"content": "a", "max_output_tokens": 0},
    "too many tokens": {"content": "a", "max_output_tokens": 2**31},
    "a half token": {"content": "a", "max_output_tokens": 1.5},
    "truth for a number": {"content": "a", "max_output_tokens": True},
    "unknown alias": {"content": "a", "model_alias": "nobody"},
    "text for a truth": {"content": "a", "stream": "false"},
    "tools of text": {"content": "a", "tools": "all"},
    "tool without function": {"content": "a", "tools": [{"type": "function"}]},
    "tool with a bad name": {"content": "a", "tools": [{"type": "function", "function": {"name": "a b"}}]},
    "choice of nothing": {"content": "a", "tool_choice": {"type": "function", "function": {"name": "f"}}},
    "empty reply": {"content": "a", "recorded_reply": {}},
    "reply of text": {"content": "a", "recorded_reply": "yes"},
    "call without id": {
        "content": "a",
        "recorded_reply": {"tool_calls": [{"function": {"name": "f", "arguments": ""}}]},
    },
}
WRONG_PINS: dict[str, object] = {
    "no content": {},
    "empty": {"content": ""},
    "number": {"content": 1},
    "relevance above one": {"content": "a", "relevance": 1.01},
    "relevance below zero": {"content": "a", "relevance": -0.01},
    "relevance of text": {"content": "a", "relevance": "1"},
    "long source": {"content": "a", "source": "x" * 3000},
}


@pytest.fixture
def sid(client: httpx.Client) -> str:
    return new_session(client)


def assert_nothing_stored(client: httpx.Client, sid: str) -> None:
    """The one session is as it was made, on the connection that the garbage went over."""
    items = client.get("/v1/sessions").json()["items"]
    assert [(item["id"], item["room_goal"], item["metadata"]) for item in items] == [(sid, None, {})]
    assert client.get(f"/v1/sessions/{sid}/turns").json()["items"] == []
    assert client.get(f"/v1/sessions/{sid}/pins").json()["items"] == []


def test_no_body_that_is_not_storable_json_gets_in(client: httpx.Client, sid: str) -> None:
    for method, path in BODY_ROUTES:
        for name, body in NOT_JSON.items():
            answer = client.request(method, path.format(sid=sid, tid=sid), content=body, headers=JSON)
            problem = assert_problem(answer, 422, "invalid_request")
            assert problem["errors"], name
            assert len(answer.content) < 4000, name
    assert_nothing_stored(client, sid)


def test_a_turn_that_does_not_validate_is_refused_by_its_field(client: httpx.Client, sid: str) -> None:
    for name, body in WRONG_TURNS.items():
        for route in ("turns", "context/preview"):
            problem = assert_problem(client.post(f"/v1/sessions/{sid}/{route}", json=body), 422, "invalid_request")
            assert all(error["where"].startswith("body.") for error in problem["errors"]), (name, route)
    assert_nothing_stored(client, sid)


def test_a_pin_that_does_not_validate_is_refused(client: httpx.Client, sid: str) -> None:
    for body in WRONG_PINS.values():
        assert_problem(client.put(f"/v1/sessions/{sid}/pins/p", json=body), 422, "invalid_request")
    assert_nothing_stored(client, sid)


def test_a_problem_does_not_repeat_what_was_sent(client: httpx.Client, sid: str) -> None:
    canary = "canary-4711"
    for body in (
        {"content": [{"type": canary}]},
        {"content": "a", "model_alias": canary},
        {"content": "a", "max_output_tokens": canary},
        {"content": "a", "tool_choice": canary},
        {"content": {"x": canary}},
    ):
        answer = client.post(f"/v1/sessions/{sid}/turns", json=body)
        assert answer.status_code == 422
        assert canary not in answer.text


def test_a_body_that_does_not_say_it_is_json_is_a_415(client: httpx.Client, sid: str) -> None:
    for method, path in BODY_ROUTES:
        for content_type in (
            None,
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/json; charset=utf-16",
            "application/jsonx",
            "",
            "\xff",
        ):
            headers = [] if content_type is None else [(b"content-type", content_type.encode("latin-1"))]
            answer = client.request(method, path.format(sid=sid, tid=sid), content=b'{"content": "a"}', headers=headers)
            assert_problem(answer, 415, "unsupported_media_type")
    assert_nothing_stored(client, sid)


def test_a_compressed_body_is_a_415_that_says_so(client: httpx.Client, sid: str) -> None:
    compressed = gzip.compress(b'{"content": "a"}')
    for method, path in BODY_ROUTES:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        answer = client.request(method, path.format(sid=sid, tid=sid), content=compressed, headers=headers)
        assert "Content-Encoding" in assert_problem(answer, 415, "unsupported_media_type")["detail"]
    assert_nothing_stored(client, sid)


def test_a_content_type_of_many_spaces_is_refused_in_linear_time(client: httpx.Client, sid: str) -> None:
    for kind in ("application/json", "application/json;", "application/json; charset=utf-8"):
        started = time.process_time()
        headers = {"content-type": f"{kind}{' ' * 28_000}x"}
        answer = client.post(f"/v1/sessions/{sid}/turns", content=b'{"content": "a"}', headers=headers)
        assert_problem(answer, 415, "unsupported_media_type")
        assert time.process_time() - started < 1, "the time grows with the header's length, not with its square"


def test_a_text_of_json_with_escapes_that_nothing_can_store_can_be_summarized(client: httpx.Client, sid: str) -> None:
    for text in (r'{"title": "cut in an emoji \ud83d"}', r'{"title": "a \u0000 b"}'):
        assert client.post(f"/v1/sessions/{sid}/turns", json={"content": text}).status_code == 201
    for _ in range(4):
        assert client.post(f"/v1/sessions/{sid}/turns", json={"content": "Go on"}).status_code == 201
    summary = client.post(f"/v1/sessions/{sid}/summaries", json={})
    assert summary.status_code == 201, summary.text


def test_an_id_that_cannot_exist_is_a_404_of_its_noun(client: httpx.Client) -> None:
    unknown = str(uuid4())
    for method, path in BODY_ROUTES + READ_ROUTES:
        if "{sid}" not in path:
            continue
        for sid in (
            unknown,
            "1",
            "%00",
            "%ff",
            "null",
            "é",
            "%20",
            "0" * 400,
            unknown.replace("-", ""),
            f"{{{unknown}}}",
        ):
            content = {"PATCH": b"{}", "PUT": b'{"content": "a"}', "POST": b'{"content": "a"}'}.get(method)
            content = b"{}" if path.endswith(("/fork", "/simulate", "/summaries")) else content
            answer = client.request(
                method, path.format(sid=sid, tid=unknown), content=content, headers=JSON if content else None
            )
            assert_problem(answer, 404, "session_not_found")


def test_a_turn_id_that_cannot_exist_is_a_404_of_the_turn(client: httpx.Client, sid: str) -> None:
    for tid in (str(uuid4()), "1", "%00", "x" * 300):
        for tail in ("", "/audit", "/prompt"):
            assert_problem(client.get(f"/v1/sessions/{sid}/turns/{tid}{tail}"), 404, "turn_not_found")


def test_a_round_outside_its_range_is_a_422(client: httpx.Client, sid: str) -> None:
    for number in ("0", "-1", "x", "", "1.5", "9" * 30, "%00"):
        for tail in ("audit", "prompt"):
            answer = client.get(f"/v1/sessions/{sid}/turns/{uuid4()}/{tail}?round={number}")
            assert_problem(answer, 422, "invalid_request")


def test_an_idempotency_key_that_is_not_visible_ascii_is_a_422(client: httpx.Client, sid: str) -> None:
    for key in (b"", b"a b", b"\xe9", b"\xff\xfe", b"x" * 256, b"a\tb"):
        answer = client.post(f"/v1/sessions/{sid}/turns", json={"content": "a"}, headers=[(b"idempotency-key", key)])
        problem = assert_problem(answer, 422, "invalid_request")
        assert problem["errors"][0]["where"] == "header.Idempotency-Key"
    assert_nothing_stored(client, sid)


def test_a_name_that_no_pin_can_have_is_refused_when_put_and_not_found_when_read(
    client: httpx.Client, sid: str
) -> None:
    for name in ("%00", "a%00b", "%0a", "%ff", "x" * 256, "", "%1b%5b2J"):
        path = f"/v1/sessions/{sid}/pins/{name}"
        assert_problem(client.put(path, json={"content": "a"}), 422, "invalid_request")
        assert_problem(client.get(path), 404, "pin_not_found")
        assert_problem(client.delete(path), 404, "pin_not_found")


def test_an_unknown_address_and_a_wrong_method_are_problems_too(client: httpx.Client, sid: str) -> None:
    for path in (
        "/v1",
        f"/v1/sessions/{sid}/nonsense",
        "/v1/sessions/",
        "/%00",
        "/%ff%fe",
        "/" + "x" * 5000,
    ):
        assert_problem(client.get(path), 404, "not_found")
    for path in ("/sessions", "/v1/v1/sessions"):  # of a client whose base address lacks /v1, or has it twice
        assert "begin with one /v1" in client.post(path, json={}).text
    of_openai = client.get("/v1/nonsense")
    assert (of_openai.status_code, of_openai.json()["error"]["code"]) == (404, "not_found")
    answer = client.put(f"/v1/sessions/{sid}", json={})
    assert_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "DELETE, GET, PATCH"
    assert_problem(client.request("PROPFIND", "/v1/sessions"), 405, "method_not_allowed")


def test_garbage_in_query_and_headers_is_never_a_500(client: httpx.Client, sid: str) -> None:
    for query in (
        "%",
        "%zz",
        "a=%ff",
        "limit=%ff",
        "cursor=%00",
        "cursor=%ff%fe",
        "&&&",
        "=",
        "limit",
        "limit=1&limit=x",
    ):
        assert client.get(f"/v1/sessions?{query}").status_code in {200, 422}
    for value in (b"\xff", b"a" * 8000, b"\xc3\x28", b"'; DROP TABLE sessions; --"):
        for header in (b"x-request-id", b"authorization", b"accept", b"cookie", b"x-forwarded-for"):
            assert client.get(f"/v1/sessions/{sid}", headers=[(header, value)]).status_code == 200


def test_a_sane_request_id_is_echoed_and_another_replaced(client: httpx.Client) -> None:
    assert client.get("/healthz", headers={"x-request-id": "abc-1.2:3_4"}).headers["x-request-id"] == "abc-1.2:3_4"
    for bad in ("a b", "a" * 129, "{}", '"'):
        assert client.get("/healthz", headers={"x-request-id": bad}).headers["x-request-id"] not in {bad, ""}


def test_a_body_of_ten_megabytes_is_a_413_and_the_connection_goes_on(
    address: str, client: httpx.Client, sid: str
) -> None:
    size = 10_000_000
    with socket.create_connection(_host_port(address), timeout=20) as connection:
        for method, path in BODY_ROUTES + READ_ROUTES:
            _send(connection, _head(method, path.format(sid=sid, tid=sid), f"Content-Length: {size}"))
            connection.sendall(b"x" * size)
            status, headers, body = _read_answer(connection)
            assert (status, json.loads(body)["code"]) == (413, "body_too_large")
            assert "connection" not in headers
            _send(connection, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert _read_answer(connection)[0] == 200
    assert_nothing_stored(client, sid)


def test_an_endless_chunked_body_is_answered_at_the_cap_and_closed(
    address: str, client: httpx.Client, sid: str
) -> None:
    with socket.create_connection(_host_port(address), timeout=20) as connection:
        _send(connection, _head("POST", f"/v1/sessions/{sid}/turns", "Transfer-Encoding: chunked"))
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        sent = 0
        connection.setblocking(False)
        answered_after: int | None = None
        received = b""
        deadline = time.monotonic() + 60
        while answered_after is None and time.monotonic() < deadline:
            try:
                sent += connection.send(chunk)
            except BlockingIOError:
                time.sleep(0.005)
            except OSError:
                connection.setblocking(True)  # closed: the answer is there already
            try:
                received += connection.recv(65536)
            except BlockingIOError:
                continue
            if received:
                answered_after = sent
        assert received.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in received.lower()
    assert_nothing_stored(client, sid)


def test_a_chunked_body_under_the_cap_is_taken(client: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"room_goal": "'
        for _ in range(100):
            yield b"word "
        yield b'"}'

    answer = client.post("/v1/sessions", content=chunks(), headers=JSON)
    assert answer.status_code == 201
    assert answer.json()["room_goal"] == "word " * 100


def test_a_client_that_waits_for_a_continue_is_refused_and_closed(address: str) -> None:
    with socket.create_connection(_host_port(address), timeout=20) as connection:
        _send(connection, _head("POST", "/v1/sessions", "Expect: 100-continue", "Content-Length: 9000000"))
        status, headers, _ = _read_answer(connection)
        assert (status, headers["connection"]) == (413, "close")


def test_a_client_that_disconnects_in_the_middle_of_its_body_does_no_harm(address: str, client: httpx.Client) -> None:
    for _ in range(20):
        with socket.create_connection(_host_port(address), timeout=20) as connection:
            _send(connection, _head("POST", "/v1/sessions", "Content-Length: 500") + '{"room')
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert client.get("/v1/sessions").json()["items"] == []


def test_two_hundred_slow_bodies_hold_nobody_up(address: str, client: httpx.Client) -> None:
    async def hold() -> None:
        host, port = _host_port(address)
        writers: list[asyncio.StreamWriter] = []
        for _ in range(200):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(_head("POST", "/v1/sessions", "Content-Length: 50").encode() + b"{")
            writers.append(writer)
        started = time.monotonic()
        for _ in range(20):
            answer = await asyncio.to_thread(client.get, "/v1/sessions")
            assert answer.status_code == 200
        assert time.monotonic() - started < 20
        for writer in writers:
            writer.close()

    asyncio.run(hold())


@pytest.mark.parametrize(
    "nowhere",
    [
        "postgresql://nobody@127.0.0.1:1/nothing",
        "postgresql://nobody@no-such-host.invalid/nothing",
        "postgresql://nobody@/nothing?host=/no/such/folder",
    ],
    ids=["port", "host", "socket"],
)
def test_a_request_with_the_database_away_is_a_503_that_says_when_to_come_back(nowhere: str) -> None:
    with (
        serving(settings_for(nowhere)) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as client,
    ):
        answer = client.get("/v1/sessions")
        assert_problem(answer, 503, "database_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503


def _host_port(address: str) -> tuple[str, int]:
    url = httpx.URL(address)
    assert url.port is not None
    return url.host, url.port


def _head(method: str, path: str, *headers: str) -> str:
    lines = (f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers)
    return "\r\n".join(lines) + "\r\n\r\n"


def _send(connection: socket.socket, text: str) -> None:
    connection.sendall(text.encode())


def _read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer on this connection."""
    received = b""
    while b"\r\n\r\n" not in received:
        more = connection.recv(65536)
        assert more, "the connection was closed before an answer"
        received += more
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
    return int(lines[0].split()[1]), headers, body
