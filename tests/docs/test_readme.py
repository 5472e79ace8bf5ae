"""The README is true: its commands run, its answers are what is answered, its tables are what the code has."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi.routing import APIRoute
from pydantic import AliasChoices

from app.core.config import Settings
from app.main import create_app
from tests.docs.answers import agrees, shown
from tests.docs.checkout import environment, make_checkout
from tests.docs.pages import README, ROOT, blocks, table

RUN, CURL, DEMO, REAL_MODEL, REFUSED, PRODUCTION = blocks("sh")
ANSWER, REFUSAL = blocks("json")
(CATALOGUE,) = blocks("toml")
SHOWN_ADDRESS = "http://127.0.0.1:8000"


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
        process.communicate(timeout=45)


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
        timeout=60,
        check=True,
    ).stdout


def test_make_run_prints_the_readmes_curl_line_and_both_answers_are_as_shown(checkout: Path) -> None:
    with serving(checkout, RUN) as printed:
        here = address(printed)
        assert CURL.replace(SHOWN_ADDRESS, here).strip() in printed.splitlines()
        answer = json.loads(shell(checkout, CURL.replace(SHOWN_ADDRESS, here)))
        assert agrees(shown(ANSWER), answer), answer
        assert set(shown(ANSWER)["context"]) == set(answer["context"])
        refusal = json.loads(shell(checkout, REFUSED.replace(SHOWN_ADDRESS, here)))
        assert agrees(shown(REFUSAL), refusal), refusal
        assert set(shown(REFUSAL)) == set(refusal)
    assert (checkout / "var" / "postgres").is_dir()


def test_a_shown_answer_that_differs_is_seen() -> None:
    answer = shown(ANSWER)
    assert agrees(answer, answer)
    for path, value in {
        ("turn", "seq"): 2,
        ("context", "input_budget"): 13311,
        ("turn", "user_input"): "Hello",
    }.items():
        changed = json.loads(json.dumps(answer))
        changed[path[0]][path[1]] = value
        assert not agrees(answer, changed), path


def test_make_demo_draws_the_readmes_picture(checkout: Path) -> None:
    said = shell(checkout, DEMO, TMPDIR=str(checkout), COLUMNS="100")
    assert "422 context_budget_exceeded" in said
    drawn = checkout / "window.svg"
    shell(checkout, f"python -m plimsoll_demo.demo --picture {drawn}", TMPDIR=str(checkout))
    assert drawn.read_text() == (ROOT / "docs" / "images" / "window.svg").read_text()
    assert "(docs/images/window.svg)" in README


def test_the_readmes_catalogue_is_what_is_served(checkout: Path) -> None:
    (checkout / "models.toml").write_text(CATALOGUE)
    with serving(checkout, REAL_MODEL) as printed:
        models = httpx.get(address(printed) + "/v1/models").json()
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
    with serving(checkout, commands) as printed, httpx.Client(base_url=address(printed), timeout=30) as client:
        assert client.get("/v1/sessions").status_code == 401
        assert client.get("/readyz").status_code == 200
        assert "context_summary_count_total" in client.get("/metrics").text
        key = (checkout / "key").read_text().strip()
        assert client.get("/v1/sessions", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    assert not (checkout / "var" / "postgres").exists()


def variables() -> Mapping[str, object]:
    """Every variable that Settings reads, with its default."""
    found: dict[str, object] = {}
    for name, field in Settings.model_fields.items():
        alias = field.validation_alias
        found[str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"PLIMSOLL_{name.upper()}"] = field.default
    return found


def test_the_settings_table_has_every_setting_with_its_default() -> None:
    listed = {variable.strip("`"): default for variable, default, _ in table("variable")}
    assert listed.keys() == variables().keys()
    for variable, default in variables().items():
        cell = listed[variable]
        if default is None:
            assert cell.startswith("unset: "), variable
        elif default == "":
            assert cell.startswith("empty: "), variable
        elif isinstance(default, bool):
            assert cell == f"`{default}`".lower(), variable
        else:
            assert cast(Any, type(default))(cell.strip("`")) == default, variable


def test_the_routes_table_has_every_route() -> None:
    listed: set[tuple[str, str]] = set()
    for cell, _ in table("route"):
        for route in re.findall(r"`([^`]+)`", cell):
            *methods, path = route.split()
            listed |= {
                (method, path.replace("{sid}", "{session_id}").replace("{tid}", "{turn_id}")) for method in methods
            }
    served = {
        (method, route.path.replace(":path}", "}"))
        for route in create_app(Settings(_env_file=None)).routes  # type: ignore[call-arg] # known to pydantic-settings
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    assert listed == served


def test_every_make_target_it_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b", "\n".join(re.findall(r"`[^`\n]+`|^make .*$", README, re.MULTILINE))))
    assert {"run", "demo", "test", "test-real-model", "check", "bench"} <= named <= targets
