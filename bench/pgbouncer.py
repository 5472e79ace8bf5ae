"""A PgBouncer in transaction mode with few server connections, for as long as a block runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bench.wire import Tally, counting_proxy

SERVER_CONNECTIONS = 3
_PATIENCE_S = 10.0


def find_pgbouncer() -> str | None:
    """The program, where it is installed; Debian puts it where users do not look."""
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


@asynccontextmanager
async def pgbouncer(program: str, server_dsn: str) -> AsyncGenerator[str]:
    """The connection string of the same server, behind a pooler that sees it by a port of its own.

    PgBouncer refuses to run as root, whose the embedded server's socket may be: it goes through a relay.
    """
    async with counting_proxy(server_dsn, Tally()) as by_port:
        server = urlsplit(by_port)
        user = unquote(server.username or "postgres")
        password = f" password={unquote(server.password)}" if server.password else ""
        with tempfile.TemporaryDirectory() as name, socket.socket() as free:
            os.chmod(name, 0o755)  # noqa: PTH101, S103 - of a folder that is there, in no time
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
            free.close()
            configuration = Path(name) / "pgbouncer.ini"
            configuration.write_text(
                f"[databases]\n* = host=127.0.0.1 port={server.port} user={user}{password}\n"
                f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
                f"pool_mode = transaction\ndefault_pool_size = {SERVER_CONNECTIONS}\nmax_client_conn = 500\n"
            )
            configuration.chmod(0o644)
            command = [program, str(configuration), *(["-u", "nobody"] if os.geteuid() == 0 else [])]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220 - it is started once
            try:
                await _answers(process, port)
                yield f"postgresql://{user}@127.0.0.1:{port}{server.path}"
            finally:
                process.terminate()
                await asyncio.to_thread(process.wait, _PATIENCE_S)


async def _answers(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = asyncio.get_running_loop().time() + _PATIENCE_S
    while process.poll() is None and asyncio.get_running_loop().time() < deadline:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return
    raise RuntimeError("PgBouncer did not start.")
