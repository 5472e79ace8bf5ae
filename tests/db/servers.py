"""Servers of a test's own: a data folder with a stopped cluster, and what is asked of one that runs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from app.db import embedded

APPLICATION = Path(embedded.__file__).parents[2]


@pytest.fixture(scope="module")
def stopped_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a cluster in it, made once; tests copy it."""
    folder = tmp_path_factory.mktemp("stopped")
    embedded.start(folder).stop()
    return folder


@pytest.fixture
def data_dir(stopped_server: Path, tmp_path: Path) -> Generator[Path]:
    folder = tmp_path / "var"
    shutil.copytree(stopped_server, folder, copy_function=shutil.copy2)
    for path in folder.rglob("*"):  # where the server runs as another account, a copy by root would be root's
        original = stopped_server / path.relative_to(folder)
        os.chown(path, original.stat().st_uid, original.stat().st_gid)
    os.chown(folder / "postgres", *_owner(stopped_server / "postgres"))
    yield folder
    _kill_what_is_left(folder)


def _owner(path: Path) -> tuple[int, int]:
    return path.stat().st_uid, path.stat().st_gid


def _kill_what_is_left(folder: Path) -> None:
    if folder.exists() and runs(folder):
        os.kill(postmaster_id(folder), signal.SIGQUIT)
        wait_until_stopped(folder)


def runs(folder: Path) -> bool:
    with (folder / "postgres" / "alive").open("rb") as alive:
        try:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def wait_until_stopped(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while runs(folder):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def postmaster_id(folder: Path) -> int:
    return int((folder / "postgres" / "data" / "postmaster.pid").read_text().split()[0])


async def _query(dsn: str, *statements: str) -> Any:
    connection = await cast(Any, asyncpg).connect(dsn)
    try:
        for statement in statements[:-1]:
            await connection.execute(statement)
        return await connection.fetchval(statements[-1])
    finally:
        await connection.close()


def query(dsn: str, *statements: str) -> Any:
    """Runs the statements; the first column of the last one's first row."""
    return asyncio.run(_query(dsn, *statements))


def holder(folder: Path, then: str = "input()") -> subprocess.Popen[str]:
    """Another process that starts or joins the server, says so, and then does `then`."""
    program = f"""
        from pathlib import Path
        from app.db import embedded
        server = embedded.start(Path({str(folder)!r}))
        print(server.dsn, flush=True)
        {then}
        server.stop()
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | {"PYTHONPATH": str(APPLICATION)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def finish(process: subprocess.Popen[str]) -> int:
    process.communicate("\n", timeout=30)
    return process.returncode
