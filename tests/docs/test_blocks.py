"""Every code block of the README and the documentation is run. One that nobody knows how to run fails."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.api.conftest import serving, settings_for
from tests.docs.checkout import make_checkout
from tests.docs.fences import BLOCKS, Block, pages, unfenced
from tests.docs.pages import ROOT
from tests.docs.running import BlockFailed, Reader, UnknownBlock, lint

_README = "tests/docs/test_readme.py"
HELD_ELSEWHERE = {
    ("README.md", "make run"): f"{_README}::test_make_run_prints_the_readmes_curl_line_and_both_answers_are_as_shown",
    ("README.md", "curl -s -H"): f"{_README}::test_make_run_prints_the_readmes_curl_line_and_both_answers_are_as_shown",
    ("README.md", "URL=http"): f"{_README}::test_make_run_prints_the_readmes_curl_line_and_both_answers_are_as_shown",
    ("README.md", "make demo"): f"{_README}::test_make_demo_draws_the_readmes_picture",
    ("README.md", "export OPENAI_API_KEY"): f"{_README}::test_the_readmes_catalogue_is_what_is_served",
    (
        "README.md",
        "export PATH",
    ): f"{_README}::test_the_production_commands_end_in_a_service_that_wants_the_key_they_made",
    (
        "docs/chat-completions.md",
        "from openai",
    ): "tests/docs/test_chat_page.py::test_its_program_is_answered_out_of_the_session",
    (
        "docs/responses.md",
        "from openai",
    ): "tests/docs/test_responses_page.py::test_its_program_is_answered_out_of_the_conversation",
    (
        "docs/start.md",
        "make run",
    ): f"{_README}::test_make_run_prints_the_readmes_curl_line_and_both_answers_are_as_shown",
    (
        "docs/budget.md",
        "limit ",
    ): "tests/engine/test_budget_doc.py::test_the_window_is_divided_as_the_document_says",
    ("docs/budget.md", "rest "): "tests/engine/test_sharing_properties.py",
}
"""Blocks that a test of their own runs, with what is shown of their output: by page and how they begin."""

NEVER_RUN = {
    ("docs/operations.md", "kubectl create secret"): "needs a Kubernetes cluster",
    ("docs/performance.md", "make bench"): "takes minutes, and the machine for itself",
    ("docs/fidelity.md", "make fidelity"): "wants recorded conversations of yours, and an environment of its own",
    ("docs/real-model.md", "make test-real-model"): "compiles a model server and takes minutes",
    ("docs/reliability.md", ".venv/bin/python -m torture"): "kills and freezes processes for minutes",
}
"""Commands that no test runs, one by one, and why. They are still parsed, and what they name must be there."""

OWN_MODELS = 'default = "offline"\n[models.offline]\nprovider = "offline"\n[models.mini]\nprovider = "offline"\n'
NEEDS_A_SERVICE = {"sh", "python", "json", "sql"}


def named(block: Block, listed: dict[tuple[str, str], str]) -> str | None:
    """What the list says of this block."""
    return next(
        (said for (page, start), said in listed.items() if block.page == page and block.text.startswith(start)), None
    )


def of_page(page: Path) -> list[Block]:
    """The page's blocks that are run here: all but those of the two lists, and what is shown of their output."""
    kept: list[Block] = []
    held = False
    for block in (block for block in BLOCKS if block.page == str(page.relative_to(ROOT))):
        if not block.is_output:
            held = named(block, HELD_ELSEWHERE) is not None or named(block, NEVER_RUN) is not None
        if not held:
            kept.append(block)
    return kept


def reader(folder: Path, address: str = "", database_url: str = "") -> Reader:
    (folder / "own-models.toml").write_text(OWN_MODELS)
    return Reader(make_checkout(folder), address, database_url)


@pytest.mark.parametrize(
    "page", [page for page in pages() if of_page(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_block_of_the_page_does_what_it_says(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found = of_page(page)
    if not any(block.language in NEEDS_A_SERVICE for block in found):
        reading = reader(tmp_path)
        for block in found:
            reading.read(block)
        return
    database_url: str = request.getfixturevalue("database_url")
    reading = reader(tmp_path, database_url=database_url)
    with serving(settings_for(database_url, models_file=tmp_path / "own-models.toml")) as address:
        reading.address = address
        reading.placeholders = {word: session(address) for word in ("SESSION", "OTHER-SESSION")}
        for block in found:
            reading.read(block)


def session(address: str) -> str:
    """A session with two turns."""
    with httpx.Client(base_url=address, timeout=30) as client:
        made = client.post("/v1/sessions", json={}).json()["id"]
        for content in ("What is due?", "And paid?"):
            assert client.post(f"/v1/sessions/{made}/turns", json={"content": content}).status_code == 201
    return made


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_fence_of_the_page_is_left_open(page: Path) -> None:
    assert unfenced(page) == []


@pytest.mark.parametrize("listed", [HELD_ELSEWHERE, NEVER_RUN], ids=["held elsewhere", "never run"])
def test_the_lists_name_blocks_that_are_there_each_once(listed: dict[tuple[str, str], str]) -> None:
    for page, start in listed:
        there = [block for block in BLOCKS if block.page == page and block.text.startswith(start)]
        assert len(there) == 1, (page, start)


def test_the_tests_that_hold_blocks_elsewhere_are_there() -> None:
    for test in set(HELD_ELSEWHERE.values()):
        path, _, name = test.partition("::")
        text = (ROOT / path).read_text()
        assert not name or re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), test


@pytest.mark.parametrize("block", [block for block in BLOCKS if named(block, NEVER_RUN)], ids=str)
def test_commands_that_are_not_run_are_sound_as_far_as_can_be_seen(block: Block) -> None:
    assert block.language == "sh"
    lint(block)


def shown_as(*info: str, text: str) -> Block:
    return Block("page.md", 1, info, text)


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        (shown_as("haskell", text="main = pure ()"), UnknownBlock),
        (shown_as(text="make run"), UnknownBlock),
        (shown_as("json", text="{}"), UnknownBlock),
        (shown_as("json", "output", text="{}"), BlockFailed),
        (shown_as("sh", text="false | true"), BlockFailed),
        (shown_as("python", text="assert False"), BlockFailed),
        (shown_as("json", "problem", text='{"code": "no_such_code"}'), BlockFailed),
        (shown_as("env", text="PLIMSOLL_WORKER=2"), BlockFailed),
        (shown_as("yaml", "values", text="drain: {turnSeconds: 20}"), BlockFailed),
        (shown_as("promql", text="rate(turns_lost[5m])"), BlockFailed),
    ],
    ids=lambda value: " ".join(value.info) if isinstance(value, Block) else "",
)
def test_a_block_that_is_wrong_is_seen(block: Block, fault: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(fault):
        reader(tmp_path).read(block)


def test_a_shown_output_that_differs_is_seen(tmp_path: Path) -> None:
    reading = reader(tmp_path)
    for info, text, good in ((("text", "output"), "3 t…s\n", True), (("text", "output"), "4 t…s", False)):
        reading.read(shown_as("sh", text="TURNS=3"))
        reading.read(shown_as("sh", text="echo $TURNS turns"))
        if good:
            reading.read(shown_as(*info, text=text))
        else:
            with pytest.raises(BlockFailed):
                reading.read(shown_as(*info, text=text))


def test_a_command_that_can_not_be_is_seen_without_running_it() -> None:
    for text in (
        "if true; then",
        "make no-such-target",
        "python -m app.nothing",
        "kubectl apply -f deploy/nothing.yml",
    ):
        with pytest.raises(BlockFailed):
            lint(shown_as("sh", text=text))
