"""What only the TypeScript client has: abort signals, and loops over streams that are left."""

from __future__ import annotations

import socket
import subprocess

from tests.client.typescript import CLIENT, NODE


def test_loops_are_left_calls_are_aborted_and_nothing_shows_the_key(address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections are made, and never answered
        nobody = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = subprocess.run(
            [NODE, CLIENT / "test" / "leaving.mjs", address, nobody],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
