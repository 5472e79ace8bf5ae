"""`.env.example` says what the settings are: every one of them, with its default and a line about it."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import AliasChoices
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from app.core.config import Settings

EXAMPLE = Path(__file__).parents[2] / ".env.example"


def variable_of(name: str, field: FieldInfo) -> str:
    """The variable of the environment that a field of Settings is read from."""
    alias = field.validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"PLIMSOLL_{name.upper()}"


def variables() -> dict[str, object]:
    """Every variable of the environment that Settings reads, with its default."""
    assert all(field.default is not PydanticUndefined for field in Settings.model_fields.values())
    return {variable_of(name, field): field.default for name, field in Settings.model_fields.items()}


def listed() -> dict[str, str | None]:
    """The variables of the file; None for one that is commented out, which is how an unset default is shown."""
    lines = EXAMPLE.read_text().splitlines()
    found: dict[str, str | None] = {}
    for before, line in zip(["", *lines], lines, strict=False):
        if match := re.fullmatch(r"(# )?([A-Z_]+)=(.*)", line):
            assert before.startswith("# "), f"{match[2]} has no line about it"
            found[match[2]] = None if match[1] else match[3]
    return found


def test_it_lists_every_setting_and_leaves_out_only_values_that_are_unset() -> None:
    assert {name: value is None for name, value in listed().items()} == {
        name: default is None for name, default in variables().items()
    }


def test_the_values_it_shows_are_the_defaults() -> None:
    assert Settings(_env_file=EXAMPLE) == Settings(_env_file=None)  # type: ignore[call-arg] # known to pydantic-settings
