"""A TCP proxy before the service that breaks connections at a point of our choice, and says that it did."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Fault:
    """Break the answers to the next `times` requests whose first line has `line`, after `after_bytes` of them."""

    line: bytes
    after_bytes: int = 0
    times: int = 1
    fired: int = 0


@dataclass
class Proxy:
    """Where it listens, what it is to break, and the first lines of the requests that came."""

    url: str
    faults: list[Fault] = field(default_factory=list[Fault])
    requests: list[bytes] = field(default_factory=list[bytes])

    def breaks(self, line: str, *, after_bytes: int = 0, times: int = 1) -> Fault:
        """Arms a fault."""
        fault = Fault(line.encode(), after_bytes, times)
        self.faults.append(fault)
        return fault

    def count(self, line: str) -> int:
        """How many requests had this in their first line."""
        return sum(line.encode() in request for request in self.requests)


@contextmanager
def proxied(upstream: str) -> Generator[Proxy]:
    """A proxy for the service at `upstream`."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}")
    at = (urlsplit(upstream).hostname or "", urlsplit(upstream).port or 0)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=_serve, args=(proxy, client, at), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield proxy
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _serve(proxy: Proxy, client: socket.socket, at: tuple[str, int]) -> None:
    with client, socket.create_connection(at) as service:
        current: list[Fault | None] = [None]
        threading.Thread(target=_upwards, args=(proxy, client, service, current), daemon=True).start()
        passed = 0
        with suppress(OSError):
            while data := service.recv(65_536):
                fault = current[0]
                if fault is None:
                    client.sendall(data)
                    continue
                client.sendall(data[: max(0, fault.after_bytes - passed)])
                passed += len(data)
                if passed >= fault.after_bytes:
                    fault.fired += 1
                    break
            client.shutdown(socket.SHUT_RDWR)


def _upwards(proxy: Proxy, client: socket.socket, service: socket.socket, current: list[Fault | None]) -> None:
    """Requests come whole in one piece here, or their heads do: the client writes a head before its body."""
    with suppress(OSError):
        while data := client.recv(65_536):
            line, _, rest = data.partition(b"\r\n")
            if rest and line.endswith(b"HTTP/1.1"):
                proxy.requests.append(line)
                current[0] = next((fault for fault in proxy.faults if fault.times > 0 and fault.line in line), None)
                if current[0] is not None:
                    current[0].times -= 1
            service.sendall(data)
        service.shutdown(socket.SHUT_WR)
