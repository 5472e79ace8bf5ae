"""The programs of a run, each a process of its own: the mock provider, the bare handler, the service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

import aiohttp
import orjson

from bench.conversation import INSTRUCTIONS

ROOT = Path(__file__).resolve().parents[1]
READY_WITHIN_S = 240.0  # a machine that is busy with something else takes its time
STOPPED_WITHIN_S = 15.0
MODEL_ALIAS = "bench"
LARGE_MODEL_ALIAS = "bench-large"
CONTEXT_WINDOWS = {MODEL_ALIAS: 128_000, LARGE_MODEL_ALIAS: 1_000_000}
PLIMSOLL = [sys.executable, "-c", "from app.cli import main; main()"]


class ProgramFailed(Exception):
    """A program of the run ended or never became ready; the message has the end of its output."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def running(name: str, command: list[str], environment: Mapping[str, str], logs: Path) -> AsyncGenerator[int]:
    """Yields the pid of the program; ends it afterwards, politely first.

    It runs in the folder of its logs, where no `.env` of a developer is found.
    """
    with (logs / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 one fork before any load runs
            command, env=_environment(environment), cwd=logs, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield process.pid
        finally:
            process.terminate()
            try:
                # In a thread: the program may need our event loop (the counting proxy) to say goodbye to Postgres.
                await asyncio.to_thread(process.wait, STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.asynccontextmanager
async def mock_provider(
    port: int, latency_ms: float, logs: Path, summary_latency_ms: float = 0.0, recorded: Path | None = None
) -> AsyncGenerator[int]:
    command = [sys.executable, "-m", "bench.mock_provider", str(port), str(latency_ms), str(summary_latency_ms)]
    command += [str(recorded)] if recorded else []
    async with running("provider", command, {}, logs) as pid:
        yield pid


@contextlib.asynccontextmanager
async def bare_handler(
    port: int,
    database_url: str,
    provider_port: int,
    logs: Path,
    name: str = "bare",
    under: Sequence[str] = (),
    *,
    remembers: bool = False,
) -> AsyncGenerator[int]:
    """The bare handler; `under` is a command that runs another, as a profiler does."""
    environment = {
        "BENCH_PORT": str(port),
        "DATABASE_URL": database_url,
        "BENCH_MODEL_URL": f"http://127.0.0.1:{provider_port}/v1/",
        "BENCH_INSTRUCTIONS": INSTRUCTIONS,
        "BENCH_REMEMBERS": "yes" if remembers else "",
    }
    async with running(name, [*under, sys.executable, "-m", "bench.bare_handler"], environment, logs) as pid:
        yield pid


@contextlib.asynccontextmanager
async def service(
    port: int, database_url: str, models_file: Path, logs: Path, name: str = "service", under: Sequence[str] = ()
) -> AsyncGenerator[int]:
    """`plimsoll serve` with its defaults: one worker, and whatever it logs goes to a file; `under` as above."""
    environment = service_environment(database_url, models_file) | {"PLIMSOLL_PORT": str(port)}
    async with running(name, [*under, *PLIMSOLL, "serve"], environment, logs) as pid:
        yield pid


def migrate(database_url: str, models_file: Path) -> None:
    """Runs `plimsoll migrate` on an empty database."""
    finished = subprocess.run(
        [*PLIMSOLL, "migrate"],
        env=_environment(service_environment(database_url, models_file)),
        cwd=models_file.parent,
        capture_output=True,
        check=False,
    )
    if finished.returncode:
        raise ProgramFailed(f"plimsoll migrate: {(finished.stdout + finished.stderr)[-2000:].decode(errors='replace')}")


def service_environment(database_url: str, models_file: Path) -> dict[str, str]:
    return {"DATABASE_URL": database_url, "MODELS_FILE": str(models_file), "PLIMSOLL_HOST": "127.0.0.1"}


def write_models_file(path: Path, provider_port: int) -> None:
    """A catalogue whose aliases are the mock, with a usual window and with one that holds whatever the bench sends."""
    models = "\n".join(
        f"""[models.{alias}]
provider = "openai"
model = "bench-model"
base_url = "http://127.0.0.1:{provider_port}/v1"
context_window = {window}
encoding = "o200k_base"
"""
        for alias, window in CONTEXT_WINDOWS.items()
    )
    path.write_text(
        f"""default = "{MODEL_ALIAS}"

{models}
[instructions]
global = {orjson.dumps(INSTRUCTIONS).decode()}
""",
        encoding="utf-8",
    )


async def until_ready(name: str, port: int, logs: Path) -> None:
    """Returns once `/readyz` answers 200; raises `ProgramFailed` when it does not in time."""
    deadline = asyncio.get_running_loop().time() + READY_WITHIN_S
    async with aiohttp.ClientSession() as client:
        while asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(aiohttp.ClientError):
                async with client.get(f"http://127.0.0.1:{port}/readyz") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)
    raise ProgramFailed(f"{name} is not ready: {(logs / f'{name}.log').read_bytes()[-2000:].decode(errors='replace')}")


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Ours without any setting of the service, so that a shell's `CONTEXT_*` or keys do not leak into the figures."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PLIMSOLL_", "CONTEXT_", "DATABASE_URL"))
    }
    python_path = os.pathsep.join(filter(None, [str(ROOT / "apps/api"), str(ROOT), kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": python_path, **own}
