"""Three Postgres servers with Citus on loopback, a coordinator and two workers, for as long as a command runs.

    python -m torture.nodes COMMAND …

`PLIMSOLL_TEST_CITUS` tells the command their ports, the coordinator's first: the tests' and the torture's databases are
distributed over them then. Where no Postgres of this machine has Citus, nothing is run, and that is said.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.db import embedded_identity
from app.db.embedded_identity import Identity
from app.db.embedded_server import find_binaries
from bench.programs import free_port
from torture.databases import VARIABLE

NODES = 3
_START_WITHIN_S = 30.0
_OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",  # processes die here, machines do not
}
_CITUS_OPTIONS = _OPTIONS | {
    "shared_preload_libraries": "citus",
    "max_connections": "300",
    "max_worker_processes": "64",
    "ssl": "off",  # Citus turns it on by itself, and the proxies of the tests read what passes
    "citus.node_conninfo": "sslmode=disable",
    "wal_level": "logical",  # by which shards are moved while they are written
    # Of every table two on each node: enough to be elsewhere, and quickly made.
    "citus.shard_count": "4",
}


def find_citus() -> Path | None:
    """The folder of the programs of a Postgres that has Citus; Debian puts it where users do not look."""
    on_path = shutil.which("pg_config")
    folders = [Path(on_path).resolve().parent] if on_path else []
    for folder in [*folders, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]:
        printed = subprocess.run([folder / "pg_config", "--sharedir"], capture_output=True, text=True, check=False)  # noqa: S603 - Postgres's own
        if (folder / "postgres").exists() and (Path(printed.stdout.strip()) / "extension/citus.control").exists():
            return folder
    return None


@dataclass(frozen=True, slots=True)
class Node:
    """One server: `data` is its cluster, `port` its own on loopback."""

    programs: Path
    data: Path
    port: int
    identity: Identity
    options: Mapping[str, str]

    @property
    def url(self) -> str:
        """Of the database that every server has."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        """Makes the cluster, which trusts everybody on this machine."""
        arguments = ["-D", str(self.data), "-A", "trust", "-U", "postgres", "--no-sync"]
        command = self.identity.command("wait", self.programs / "initdb", arguments)
        subprocess.run(command, cwd=self.data.parent, capture_output=True, check=True)  # noqa: S603 - Postgres's own

    def start(self) -> None:
        """Returns once it takes connections."""
        options = [f"-c{name}={value}" for name, value in {**self.options, "port": str(self.port)}.items()]
        command = self.identity.command("detach", self.programs / "postgres", ["-D", str(self.data), *options])
        with (self.data.parent / f"{self.data.name}.log").open("ab") as log:
            subprocess.run(command, cwd=self.data.parent, stdout=log, stderr=log, check=True)  # noqa: S603 - Postgres's own
        deadline = time.monotonic() + _START_WITHIN_S
        while subprocess.run([self.programs / "pg_isready", "-qh127.0.0.1", f"-p{self.port}"], check=False).returncode:  # noqa: S603 - the same
            if time.monotonic() > deadline:
                raise RuntimeError(f"a node did not start: {log.name}")
            time.sleep(0.1)

    @property
    def pid(self) -> int | None:
        """The postmaster's; None where it does not run."""
        with contextlib.suppress(FileNotFoundError):
            return int((self.data / "postmaster.pid").read_text().split()[0])
        return None

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ends it, `SIGINT` in order and `SIGQUIT` as if it had crashed; returns once it has."""
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, how)
        while Path(f"/proc/{pid}").exists() and self.pid == pid:
            time.sleep(0.05)


@contextmanager
def nodes(folder: Path, citus: Path | None) -> Generator[list[Node]]:
    """Starts servers and ends them: three of the programs that have Citus, the coordinator first, or a plain one."""
    programs, options, count = (citus, _CITUS_OPTIONS, NODES) if citus else (find_binaries(), _OPTIONS, 1)
    identity = embedded_identity.identity_for(folder, programs / "postgres")
    found = [Node(programs, folder / f"node{number}", free_port(), identity, options) for number in range(count)]
    try:
        for node in found:
            node.make()
            node.start()
        yield found
    finally:
        for node in found:
            node.stop()


def main() -> int:
    """Runs the command; its exit code, 0 where there is no Citus to run it on."""
    programs = find_citus()
    if programs is None:
        sys.stderr.write("skipped: no Postgres on this machine has Citus (docs/operations.md says how to build it)\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="plimsoll-citus-") as name:
        Path(name).chmod(0o755)
        with nodes(Path(name) / "nodes", programs) as found:
            ports = ",".join(str(node.port) for node in found)
            return subprocess.run(sys.argv[1:], env=os.environ | {VARIABLE: ports}, check=False).returncode  # noqa: S603 - what it is for


if __name__ == "__main__":
    sys.exit(main())
