"""A folder in which the documentation's commands do what they do in a fresh clone, with the set-up done."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import app
from tests.docs.pages import ROOT

OURS = ("PLIMSOLL_", "CONTEXT_", "DATABASE_URL", "MODELS_FILE", "PROMETHEUS_", "OPENAI_")

OF_AN_OUTER_MAKE = ("MAKELEVEL", "MFLAGS")
"""`make` names the folders it enters where another `make` started it, as `make test` does with these tests."""

STAMPS = ("TOOLS", "READY", "INSTALLED")
"""Of the Makefile: each stands for a part of the environment that is there."""


def make_checkout(folder: Path) -> Path:
    """A folder in which the README's commands do what they do in a fresh clone, with the set-up done."""
    (folder / "bin").mkdir()
    python = "exec '" + sys.executable + "'"
    for name, command in {
        "plimsoll": f"{python} -c 'from app.cli import main; main()' \"$@\"",
        "python": f'{python} "$@"',
    }.items():
        script = folder / "bin" / name
        script.write_text(f"#!/bin/sh\n{command}\n")
        script.chmod(0o755)
    for name in ("requirements-tools.lock", "requirements.lock", "requirements-dev.lock", "pyproject.toml", "clients"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "installed").touch()
    return folder


def environment(checkout: Path, **settings: str) -> dict[str, str]:
    """Nothing of a developer's settings, and `make` that takes the environment of this test for the installed one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS + OF_AN_OUTER_MAKE)}
    installed = checkout / "installed"
    paths = {
        "PYTHONPATH": os.pathsep.join([str(Path(app.__file__).parents[1]), str(ROOT)]),
        "PATH": os.pathsep.join([str(checkout / "bin"), kept["PATH"]]),
        "MAKEFLAGS": f"BIN={checkout / 'bin'} {' '.join(f'{stamp}={installed}' for stamp in STAMPS)} UI=",
        "XDG_DATA_HOME": str(checkout),
    }
    return kept | paths | settings
