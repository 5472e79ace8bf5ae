"""Runs commands in processes of their own, which share the imports of one: most of what a command does is to import.

That each can be imported by an interpreter that begins with it is seen where a test types it into a shell, or serves.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from app.cli import main

_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__, "app.serving", "app.commands.administration", "app.commands.simulate"])


def run_command(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], *, timeout_s: float = 300
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end. Its process is forked from one that has done nothing but the imports."""
    with TemporaryDirectory() as printed:
        out, err = Path(printed, "out"), Path(printed, "err")
        process = _PROCESSES.Process(target=_be_command, args=(arguments, folder, environment, out, err))
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(list(arguments), timeout_s)
        return subprocess.CompletedProcess(list(arguments), process.exitcode, out.read_text(), err.read_text())


def _be_command(arguments: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path) -> None:
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["plimsoll", *arguments]
    main()
