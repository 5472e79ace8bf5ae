"""What a service that got a signal does with connections and requests, by real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.api.conftest import PATIENCE_S
from tests.commands.test_cli import address, serving
from tests.pooling import pooler_settings

_ANSWER = (
    b'{"id":"c","object":"chat.completion","model":"m","choices":[{"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"At last."}}],"usage":{"prompt_tokens":9,"completion_tokens":3}}'
)


@contextmanager
def slow_model(folder: Path) -> Generator[socket.socket]:
    """A model that a test answers for, on connections that it accepts; named in the catalogue `models.toml`."""
    with socket.create_server(("127.0.0.1", 0)) as model:
        model.settimeout(PATIENCE_S)
        (folder / "models.toml").write_text(
            'default = "main"\n[models.main]\nprovider = "openai"\nmodel = "m"\n'
            f'base_url = "http://127.0.0.1:{model.getsockname()[1]}/v1"\n'
        )
        yield model


def refuses_connections(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


@contextmanager
def clients_of_one_worker(pid: int, workers: int, url: str) -> Generator[tuple[httpx.Client, httpx.Client]]:
    """Two clients with open connections to one worker: of one client more than there are workers, two have that."""
    with ExitStack() as opened:
        of_worker: dict[int, httpx.Client] = {}
        for _ in range(workers + 1):
            client = opened.enter_context(httpx.Client(base_url=url, timeout=PATIENCE_S))
            stream = client.get("/healthz").extensions["network_stream"]
            worker = worker_of(pid, stream.get_extra_info("client_addr")[1])
            if worker in of_worker:
                yield of_worker[worker], client
                return
            of_worker[worker] = client
    raise AssertionError("no worker has two of the connections")


def worker_of(pid: int, client_port: int) -> int:
    """The process of the service that has the connection from this port."""
    parent = psutil.Process(pid)
    for process in (parent, *parent.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            if any(each.raddr and each.raddr.port == client_port for each in process.net_connections("tcp")):
                return process.pid
    raise AssertionError(f"no process has a connection from port {client_port}")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_while_a_request_ends_connections_are_refused_and_requests_on_open_ones_are_told_to_try_again(
    tmp_path: Path, database_url: str, workers: str
) -> None:
    """A worker that has nothing to end is gone at once, so the turn and the open connection are of one worker."""
    settings = {"DATABASE_URL": database_url, "MODELS_FILE": "models.toml"}
    with (
        slow_model(tmp_path) as model,
        serving(tmp_path, "--workers", workers, **settings) as (process, printed),
        clients_of_one_worker(process.pid, int(workers), address(printed)) as (client, busy),
        ThreadPoolExecutor(1) as other,
    ):
        session = busy.post("/v1/sessions", json={}).json()["id"]
        turn = other.submit(busy.post, f"/v1/sessions/{session}/turns", json={"content": "hello"})
        asked, _ = model.accept()
        with asked:
            process.send_signal(signal.SIGTERM)
            port, deadline = client.base_url.port, time.monotonic() + PATIENCE_S
            assert port is not None
            while not refuses_connections(port):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert not turn.done()
            refused = client.get("/v1/sessions")
            assert (refused.status_code, refused.json()["code"]) == (503, "shutting_down")
            assert refused.headers["Connection"] == "close"
            asked.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
            asked.sendall(b"content-length: %d\r\n\r\n%s" % (len(_ANSWER), _ANSWER))
            assert turn.result(PATIENCE_S).json()["turn"]["assistant_output"] == "At last."
            assert process.wait(timeout=PATIENCE_S) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_request_that_takes_longer_than_it_may_after_the_signal_is_told_so(tmp_path: Path, database_url: str) -> None:
    settings = {"DATABASE_URL": database_url, "MODELS_FILE": "models.toml", "PLIMSOLL_DRAIN_S": "0"}
    with (
        slow_model(tmp_path) as model,
        serving(tmp_path, **settings) as (process, printed),
        ThreadPoolExecutor(1) as other,
    ):
        turn = {"model": "main", "messages": [{"role": "user", "content": "hello"}]}
        answer = other.submit(httpx.post, address(printed) + "/v1/chat/completions", json=turn, timeout=PATIENCE_S)
        asked, _ = model.accept()
        process.send_signal(signal.SIGTERM)
        port = httpx.URL(address(printed)).port
        assert port is not None
        while not refuses_connections(port):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)  # the second one does not wait for the rest of the time
        response = answer.result(PATIENCE_S)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "interrupted")
        assert response.headers["x-should-retry"] == "false"
        assert process.wait(timeout=PATIENCE_S) == 0
        asked.close()
    assert "Exception in ASGI application" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_it_serves_with_standard_streams_that_were_closed_before(
    tmp_path: Path, database_url: str, closed: str, workers: int
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = f"exec {sys.executable} -c 'from app.cli import main; main()' serve --port {port} {closed}"
    settings = {
        "DATABASE_URL": database_url,
        "PLIMSOLL_WORKERS": str(workers),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = subprocess.Popen(["/bin/sh", "-c", command], cwd=tmp_path, env=os.environ | settings | pooler_settings())
    try:
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
                break
            time.sleep(0.05)
        assert process.poll() is None
    finally:
        process.terminate()
    assert process.wait(PATIENCE_S) == 0
