"""What a process of the service imports, and how it allocates memory."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_GROW = """
import ctypes, pathlib
from app.core.memory import map_large_blocks

SETTING
bytearray(20_000_000)  # freed at once: from now on glibc's default has its heap for blocks of this size
block = bytearray(8_000_000)
address = ctypes.addressof(ctypes.c_char.from_buffer(block))
maps = [line.split() for line in pathlib.Path("/proc/self/maps").read_text().splitlines()]
for span, *_, name in maps:
    first, last = (int(end, 16) for end in span.split("-"))
    if first <= address < last:
        print("heap" if name == "[heap]" else "mapped")
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
@pytest.mark.parametrize(("setting", "place"), [("", "heap"), ("map_large_blocks()", "mapped")])
def test_large_blocks_grow_without_a_copy(setting: str, place: str) -> None:
    program = _GROW.replace("SETTING", setting)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == place


@pytest.mark.parametrize(
    ("module", "does_without"),
    [
        ("app.__main__", ("typer", "app.core", "app.domain")),
        ("app.commands.administration", ("aiohttp", "fastapi", "genai_prices", "numpy", "prometheus_client")),
        ("app.serving", ("alembic", "fastapi", "sqlalchemy.orm", "typer")),
        ("app.main", ("alembic", "app.api.schemas.archive", "sqlalchemy.orm", "typer")),
    ],
)
def test_a_process_imports_only_what_it_uses(module: str, does_without: tuple[str, ...]) -> None:
    """The process that starts several workers answers no request, one that serves seldom migrates or imports a session,
    and a command of an operator calls no model. A worker imports what the console script does, and has no commands."""
    program = f"import sys, {module}; print(sorted(sys.modules.keys() & {does_without!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
