"""No request of a client makes the service ask an address, and a provider's key goes to its own origin alone."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import PATIENCE_S, new_session, serving, settings_for
from tests.providers.playing import ThreadedServer, threaded_serving
from tests.providers.server import Answer, Play
from tests.security.routes import openai_places, operations
from tests.services.service import chat

OUTER_KEYS = {"main": "key-of-main-4711", "backup": "key-of-backup-4712"}


def spellings(port: int, file: Path) -> list[str]:
    """Forty ways to say an address that only the inside can reach."""
    hosts = (
        "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001",
        "127.0.0.1.", "localhost", "LOCALHOST", "localhost.localdomain", "0.0.0.0", "0", "127.127.127.127",
        "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::127.0.0.1]",
        "127.0.0.1%2523", "①②⑦.⓪.⓪.①", "127。0。0。1", "user@127.0.0.1", "example.com@127.0.0.1",
        "user:password@localhost", "127.0.0.1.nip.io", "localtest.me", "169.254.169.254", "[fd00:ec2::254]",
        "metadata.google.internal", "127.0.0.1#@example.com",
    )  # fmt: skip
    made = [f"http://{host}:{port}/canary" for host in hosts]
    others = (
        f"https://127.0.0.1:{port}/canary",
        f"HTTP://127.0.0.1:{port}\\canary",
        f"//127.0.0.1:{port}/canary",
        f"gopher://127.0.0.1:{port}/_GET%20/canary",
        f"ftp://127.0.0.1:{port}/canary",
        f"{file.as_uri()}",
        f"file://localhost{file}",
        f"jar:http://127.0.0.1:{port}/x!/canary",
    )
    return [*made, *others]


@dataclass
class Opened:
    """What the process opened by name while it was watched; the interpreter tells of it."""

    watched: str = ""
    names: list[str] = field(default_factory=list[str])

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.watched and event == "open" and self.watched in str(arguments[0]):
            self.names.append(str(arguments[0]))


_opened = Opened()
sys.addaudithook(_opened)


@contextmanager
def watched_service(
    database_url: str, folder: Path, script: dict[str, tuple[Play, ...]]
) -> Generator[tuple[httpx.Client, dict[str, ThreadedServer]]]:
    """A service with an alias for each script, a key each, and none of them the canary's."""
    with ExitStack() as stack:
        servers = {alias: stack.enter_context(threaded_serving(*plays)) for alias, plays in script.items()}
        models = folder / "models.toml"
        models.write_text(
            'default = "main"\n'
            + "".join(
                f'[models.{alias}]\nprovider = "openai"\nmodel = "m"\ncontext_window = 131072\ntimeout_s = 60\n'
                f'base_url = "{server.base_url}"\napi_key_env = "KEY_{alias.upper()}"\n'
                + ('fallbacks = ["backup"]\n' if alias == "main" and "backup" in script else "")
                for alias, server in servers.items()
            )
        )
        address = stack.enter_context(serving(settings_for(database_url, models_file=models)))
        client = stack.enter_context(httpx.Client(base_url=address, timeout=PATIENCE_S, trust_env=False))
        yield client, servers


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction] - pytest runs it
    for alias, key in OUTER_KEYS.items():
        monkeypatch.setenv(f"KEY_{alias.upper()}", key)


def bodies(url: str) -> list[dict[str, Any]]:
    """Turns with the address in every place of a body that a URL could stand in."""
    schema = {"type": "object", "$ref": url, "$schema": url, "$id": url, "properties": {"a": {"$ref": url}}}
    function = {"name": "f", "description": url, "parameters": schema, "url": url, "endpoint": url}
    return [
        {"content": url},
        {
            "content": [
                {"type": "text", "text": url, "url": url},
                {"type": "image_url", "image_url": {"url": url, "detail": "high"}, "base_url": url},
                {"type": "input_audio", "input_audio": {"data": url, "format": "mp3", "url": url}},
                {"type": "file", "file": {"file_data": url, "file_url": url, "file_id": url, "filename": url}},
                {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{url}"}},
            ]
        },
        {"content": "x", "tools": [{"type": "function", "function": function, "server_url": url}]},
    ]


def test_no_spelling_of_an_address_in_any_field_is_ever_called_or_opened(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "opened-never.txt"
    secret.write_text("canary-of-a-file")
    with (
        threaded_serving(Answer({"canary": True})) as canary,
        watched_service(database_url, tmp_path, {"main": (chat("Noted."),)}) as (client, servers),
    ):
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{canary.port}")
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{canary.port}")
        _opened.watched = secret.name
        urls = spellings(canary.port, secret)
        assert len(set(urls)) >= 40
        found = operations(client)
        for url in urls:
            _say_everywhere(client, url)
        sid = new_session(client)
        for operation in found:
            for url in urls[:3]:
                places = {"session_id": sid, "turn_id": sid, "summary_id": sid, "name": "p", **openai_places(sid)}
                headers = {"x-forwarded-host": f"127.0.0.1:{canary.port}", "referer": url, "origin": url, "x-url": url}
                operation.send(client, places, headers=headers, params={"url": url, "cursor": url})
        assert servers["main"].hits >= 3 * len(urls)
        assert "canary-of-a-file" not in "".join(seen.body.decode() for seen in servers["main"].seen)
        assert (canary.connections, _opened.names) == (0, [])
        # Both would have been seen.
        assert httpx.get(f"http://127.0.0.1:{canary.port}/", trust_env=False, timeout=PATIENCE_S).status_code == 200
        assert secret.read_text()
        assert (canary.connections, len(_opened.names)) == (1, 1)
        _opened.watched = ""
        _opened.names.clear()


def _say_everywhere(client: httpx.Client, url: str) -> None:
    made = client.post("/v1/sessions", json={"room_goal": url, "instructions": url, "metadata": {"url": url, url: url}})
    path = f"/v1/sessions/{made.json()['id']}"
    assert client.put(f"{path}/pins/p", json={"content": url, "source": url}).is_success
    for body in bodies(url):
        assert client.post(f"{path}/turns", json=body).status_code == 201
        assert client.post(f"{path}/context/preview", json=body).status_code == 200
    for field_name in ("base_url", "api_base", "endpoint", "url", "proxy", "webhook", "callback_url"):
        for route in ("/v1/sessions", f"{path}/turns", f"{path}/fork", f"{path}/simulate", "/v1/chat/completions"):
            refused = client.post(route, json={"content": "x", field_name: url})
            assert refused.status_code == 422 or route == "/v1/chat/completions", route
    for policy in ({"preset": url}, {"summary_model": url}, {"base_url": url}):
        assert client.patch(path, json={"policy": policy}).status_code == 422
    for alias in (url, url[:200]):
        assert client.post(f"{path}/turns", json={"content": "x", "model_alias": alias}).status_code == 422
    listed = [{"role": "user", "content": bodies(url)[1]["content"]}]
    shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": url}}}
    chatted = {"model": "main", "messages": listed, "response_format": shape, "user": url}
    assert client.post("/v1/chat/completions", json=chatted).status_code == 200
    parts = [
        {"type": "input_text", "text": url, "url": url},
        {"type": "input_image", "image_url": url, "file_url": url, "detail": "high"},
        {"type": "input_file", "file_data": url, "file_url": url, "filename": url},
        {"type": "input_audio", "input_audio": {"data": url, "format": "mp3", "url": url}},
    ]
    said = [{"role": "user", "content": parts, "url": url}]
    named = {"type": "json_schema", "name": "s", "schema": {"$ref": url}, "url": url}
    answered = {"model": "main", "input": said, "text": {"format": named}, "user": url, "metadata": {"url": url[:500]}}
    assert client.post("/v1/responses", json=answered).status_code == 200
    assert client.post("/v1/conversations", json={"items": said, "metadata": {"url": url[:500]}}).status_code == 200
    mcp = {"type": "mcp", "server_label": "x", "server_url": url}
    assert client.post("/v1/responses", json=answered | {"tools": [mcp]}).status_code == 400
    assert client.post("/v1/sessions/import", json={"messages": listed, "metadata": {"url": url}}).status_code == 201
    exported = client.get(f"{path}/export").json()
    assert client.post("/v1/sessions/import", json=exported).status_code == 201
    assert client.post("/v1/sessions/import", json=exported | {"$schema": url}).status_code == 422


@pytest.mark.parametrize("stream", [False, True])
def test_a_providers_redirect_is_not_followed_and_no_key_goes_to_another_origin(
    stream: bool, database_url: str, tmp_path: Path
) -> None:
    with threaded_serving(chat("Stolen.")) as thief:
        there = f"http://127.0.0.1:{thief.port}/v1/chat/completions"
        redirects: list[Play] = [
            Answer(
                {}, status=status, headers={"location": location, "refresh": f"0; url={there}", "link": f"<{there}>"}
            )
            for status, location in itertools.product(
                (300, 301, 302, 303, 305, 307, 308),
                (there, there.removeprefix("http:"), f"http://127.0.0.1@127.0.0.1:{thief.port}/"),
            )
        ]
        redirects.append(Answer({}, status=401, headers={"www-authenticate": f'Bearer realm="{there}"'}))
        redirects.append(Answer({}, status=200, headers={"alt-svc": f'h2="127.0.0.1:{thief.port}"', "location": there}))
        with watched_service(database_url, tmp_path, {"main": tuple(redirects)}) as (client, servers):
            sid = new_session(client)
            for _ in redirects:
                answer = client.post(f"/v1/sessions/{sid}/turns", json={"content": "x", "stream": stream})
                assert "Stolen" not in answer.text
                assert "provider_error" in answer.text
            assert servers["main"].hits >= len(redirects)
            assert {seen.headers["authorization"] for seen in servers["main"].seen} == {f"Bearer {OUTER_KEYS['main']}"}
        assert thief.connections == 0


def test_a_fallback_is_called_with_its_own_key(database_url: str, tmp_path: Path) -> None:
    script: dict[str, tuple[Play, ...]] = {"backup": (chat("Here."),)}
    script["main"] = (Answer({"error": {"message": "down"}}, status=503, headers={"retry-after": "0"}),)
    with watched_service(database_url, tmp_path, script) as (client, servers):
        sid = new_session(client)
        answer = client.post(f"/v1/sessions/{sid}/turns", json={"content": "x"})
        assert answer.status_code == 201, answer.text
        for alias, server in servers.items():
            assert server.hits
            for seen in server.seen:
                assert [name for name, key in OUTER_KEYS.items() if key in json.dumps(dict(seen.headers))] == [alias]
                assert not any(key in seen.body.decode() + seen.path for key in OUTER_KEYS.values())
