"""Every code block of the README and the documentation is run. One that nobody knows how to run fails."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.api.conftest import PATIENCE_S, serving, settings_for
from tests.docs.checkout import make_checkout
from tests.docs.fences import BLOCKS, Block, pages, unfenced
from tests.docs.held import HELD_ELSEWHERE, PLACES, Place, is_at, is_held, is_never_run
from tests.docs.pages import ROOT
from tests.docs.running import BlockFailed, Reader, UnknownBlock, lint

OWN_MODELS = 'default = "offline"\n' + "".join(
    f'[models.{alias}]\nprovider = "offline"\ncontext_window = 16384\n' for alias in ("offline", "mini")
)
NEEDS_A_SERVICE = {"sh", "python", "json", "sql"}


def of_page(page: Path) -> list[Block]:
    """The page's blocks that are run here: all but those of the two lists, and what is shown of their output."""
    kept: list[Block] = []
    held = False
    for block in (block for block in BLOCKS if block.page == str(page.relative_to(ROOT))):
        if not block.is_output:
            held = is_held(block)
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
        if any("SESSION" in block.text for block in found if block.language == "sh"):
            reading.placeholders = {word: session(address) for word in ("SESSION", "OTHER-SESSION")}
        for block in found:
            reading.read(block)


def session(address: str) -> str:
    """A session with two turns."""
    with httpx.Client(base_url=address, timeout=PATIENCE_S) as client:
        made = client.post("/v1/sessions", json={}).json()["id"]
        for content in ("What is due?", "And paid?"):
            assert client.post(f"/v1/sessions/{made}/turns", json={"content": content}).status_code == 201
    return made


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_fence_of_the_page_is_left_open(page: Path) -> None:
    assert unfenced(page) == []


@pytest.mark.parametrize("place", PLACES, ids=" ".join)
def test_the_lists_name_blocks_that_are_there_each_once(place: Place) -> None:
    there = [block for block in BLOCKS if is_at(block, place)]
    assert there
    assert len(there) == 1 or not place[1]


@pytest.mark.parametrize("test", HELD_ELSEWHERE)
def test_the_tests_that_run_blocks_elsewhere_exist(test: str) -> None:
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text()
    assert not name or re.search(rf"^(async )?def {name}\(", text, re.MULTILINE)


@pytest.mark.parametrize("block", [block for block in BLOCKS if is_never_run(block)], ids=str)
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
