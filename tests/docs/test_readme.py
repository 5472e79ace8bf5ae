"""What a newcomer types first: the README's commands, those of the first steps, and those that lead into production."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.api.conftest import PATIENCE_S
from tests.docs.checkout import environment, make_checkout
from tests.docs.pages import README, ROOT, blocks

(RUN,) = blocks("sh")
START = (ROOT / "docs" / "start.md").read_text()
REAL_MODEL = blocks("sh", START)[-1]
(CATALOGUE,) = blocks("toml", START)
PRODUCTION = blocks("sh", (ROOT / "docs" / "operations.md").read_text())[0]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder in which the README's commands do what they do in a fresh clone."""
    return make_checkout(tmp_path)


@contextmanager
def serving(checkout: Path, commands: str, **settings: str) -> Generator[str]:
    """Runs a block that ends in a service on a free port, until Ctrl-C; yields what it printed up to its curl line."""
    with (checkout / "log").open("w") as log:
        process = subprocess.Popen(
            ["sh", "-ec", commands],
            cwd=checkout,
            env=environment(checkout, PLIMSOLL_PORT="0", **settings),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        printed: list[str] = []
        for line in process.stdout:
            printed.append(line)
            if line.startswith("curl"):
                break
        else:
            raise AssertionError((printed, (checkout / "log").read_text()))
        yield "".join(printed)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)


def address(printed: str) -> str:
    found = re.search(r"listens on (http://\S+)", printed)
    assert found is not None
    return found[1]


def shell(checkout: Path, commands: str, **settings: str) -> str:
    return subprocess.run(
        ["sh", "-ec", commands],
        cwd=checkout,
        env=environment(checkout, **settings),
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    ).stdout


def test_make_run_prints_three_lines_and_the_one_to_copy_is_answered(checkout: Path) -> None:
    with serving(checkout, RUN) as printed:
        where, pages, turn = printed.splitlines()
        assert where == f"Plimsoll listens on {address(printed)} (data: {checkout / 'plimsoll'})"
        assert f"{address(printed)}/ui" in pages
        assert "$(" not in turn
        answer = json.loads(shell(checkout, turn))
        assert "Hello, what do you keep?" in answer["choices"][0]["message"]["content"]
    assert (checkout / "plimsoll" / "postgres").is_dir()


def test_make_demo_draws_the_picture_of_the_documentation(checkout: Path) -> None:
    printed = shell(checkout, "make demo", TMPDIR=str(checkout), COLUMNS="80")
    assert "422 context_budget_exceeded" in printed
    drawn = checkout / "window.svg"
    shell(checkout, f"python -m plimsoll_demo.demo --picture {drawn}", TMPDIR=str(checkout))
    assert drawn.read_text() == (ROOT / "docs" / "images" / "window.svg").read_text()
    assert "(images/window.svg)" in (ROOT / "docs" / "index.md").read_text()


def test_the_catalogue_of_the_first_steps_is_what_is_served(checkout: Path) -> None:
    (checkout / "models.toml").write_text(CATALOGUE)
    with serving(checkout, REAL_MODEL) as printed:
        models = httpx.get(address(printed) + "/v1/models", timeout=PATIENCE_S).json()
    assert models["default"] == "main"
    assert [(model["alias"], model["context_window"]) for model in models["items"]] == [("main", 32768)]


def test_the_production_commands_end_in_a_service_that_wants_the_key_they_made(
    checkout: Path, empty_database_url: str
) -> None:
    shown_database = re.search(r"^export DATABASE_URL=(.*)$", PRODUCTION, re.MULTILINE)
    assert shown_database is not None
    commands = PRODUCTION.replace(shown_database[1], f"'{empty_database_url}'")
    commands = commands.replace("\nPLIMSOLL_HOST", '\necho "$KEY" >key\nPLIMSOLL_HOST').replace(
        "WORKERS=4", "WORKERS=2"
    )
    with serving(checkout, commands) as printed, httpx.Client(base_url=address(printed), timeout=PATIENCE_S) as client:
        assert client.get("/v1/sessions").status_code == 401
        assert client.get("/readyz").status_code == 200
        assert "context_summary_count_total" in client.get("/metrics").text
        key = (checkout / "key").read_text().strip()
        assert client.get("/v1/sessions", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    assert not (checkout / "plimsoll" / "postgres").exists()


def test_make_fidelity_asks_for_its_folder_before_it_installs_anything(checkout: Path) -> None:
    refused = subprocess.run(
        ["make", "fidelity"], cwd=checkout, env=environment(checkout), capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "make fidelity DATA=folder" in refused.stdout
    assert not (checkout / "var").exists()


def test_every_make_target_it_names_is_there() -> None:
    pages = README + (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b", "\n".join(re.findall(r"`[^`\n]+`|^make .*$", pages, re.MULTILINE))))
    assert {"run", "demo", "test", "test-real-model", "check", "bench"} <= named <= targets
