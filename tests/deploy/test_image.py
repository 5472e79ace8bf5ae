"""The image as far as it goes without an engine: what it copies is there, and enough to build what it installs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.docs.pages import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COPIED = [
    source.replace("${LOCK}", lock)
    for lock in ("requirements.lock", "requirements-otel.lock")
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    for source in line.split()[:-1]
]


def test_what_the_image_copies_is_there_and_reaches_the_engine() -> None:
    admitted = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {"requirements.lock", "requirements-otel.lock", "requirements-tools.lock", "LICENSE"} <= set(COPIED)
    for source in COPIED:
        assert (ROOT / source).exists(), source
        assert source in admitted, source


def test_the_wheel_is_built_of_what_is_copied_alone(tmp_path: Path) -> None:
    """The step of the build stage, in a folder without the repository: no list of ignored files, no version control."""
    assert "pip wheel --no-deps --no-build-isolation --wheel-dir /wheel ." in DOCKERFILE
    build = tmp_path / "build"
    build.mkdir()
    for source in set(COPIED):
        if (ROOT / source).is_file():
            shutil.copy(ROOT / source, build)
        else:
            shutil.copytree(ROOT / source, build / source, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, "."]
    subprocess.run(command, cwd=build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"app/cli.py", "app/_ui/index.html", "plimsoll_demo/conversations/demo.json.gz"} <= set(names)
    assert any(name.startswith("app/_migrations/versions/") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
