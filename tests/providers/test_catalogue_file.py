"""Catalogue files that are odd as TOML."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.providers.catalogue_file import CatalogueError, read_catalogue

OFFLINE = "default = 'a'\n[models.a]\nprovider = 'offline'\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"parameters = {{ x = {'[' * 5_000}{']' * 5_000} }}", "nested deeper than 100 levels"),
        (f"parameters{'.x' * 200} = 1", "nested deeper than 100 levels"),
        (f"context_window = {'9' * 5_000}", "not valid TOML"),
        (f"parameters.seed = 0x{'f' * 5_000}", r"models\.a\.parameters: must be JSON"),
        ("parameters = { top_p = nan }", r"models\.a\.parameters: must be JSON.*no NaN"),
        ("parameters = { logit_bias = { 50256 = -inf } }", r"models\.a\.parameters: must be JSON.*no infinity"),
        ("parameters = { metadata = { since = [2026-11-29] } }", r"models\.a\.parameters: must be JSON.*no dates"),
        ('fallbacks = ["b\\u0000"]', r"models\.a\.fallbacks\.0: has a NUL character"),
        ('[instructions]\nglobal = "Be \\u0000 brief."', r"instructions\.global: has a NUL character"),
        ('[instructions.modes]\nsupport = "Be \\u0000 brief."', r"instructions\.modes\.support: has a NUL character"),
    ],
    ids=[
        "brackets",
        "dotted keys",
        "a number of 5,000 digits",
        "a parameter of 5,000 digits",
        "NaN",
        "infinity",
        "a date",
        "NUL in an alias",
        "NUL in a text",
        "NUL in a mode",
    ],
)
def test_a_file_that_can_not_be_used_is_refused_in_words(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(OFFLINE + line)
    with pytest.raises(CatalogueError, match=words):
        read_catalogue(path, {})


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(OFFLINE, encoding="utf-8-sig")
    assert read_catalogue(path, {}).default == "a"
