"""Why a prompt does not go on from the one before it, seen in their references alone."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.content import sha256_hex
from app.engine.window.cache_break import cache_break
from app.engine.window.recalled import RECALL_NOTE

_NOTE = ["b", sha256_hex(RECALL_NOTE), "user"]
_DAY = ["b", "day", "user"]


def refs(*items: list[Any], head: str = "", tools: str | None = None) -> dict[str, Any]:
    """References of a prompt whose history is `items`, behind a block for each region of `head`."""
    regions = head.split()
    return {
        "items": [*(["b", region, "system"] for region in regions), *items],
        "tools": tools,
        "regions": [*([region.partition(":")[0], 1] for region in regions), ["history", 1]],
    }


@pytest.mark.parametrize(
    ("before", "now", "cause"),
    [
        (refs(["m", 1, 5]), refs(["m", 1, 7]), None),
        (refs(["m", 1, 1]), refs(["u", 1, 5]), None),
        (refs(["m", 1, 3], ["m", 5, 5]), refs(["m", 1, 3], ["m", 5, 7], ["m", 9, 9]), None),
        (refs(["m", 1, 5]), refs(["m", 1, 4], ["mb", 5, 7]), None),
        (refs(["m", 1, 4], ["mb", 5, 7]), refs(["m", 1, 9]), "reasoning"),
        (refs(["m", 1, 4], _NOTE, ["r", "AA=="], ["m", 5, 5]), refs(["m", 1, 7]), "recall"),
        (refs(["m", 1, 5], ["w", "a"], ["w", "b"]), refs(["m", 1, 7]), "look_back"),
        (refs(_DAY, ["m", 1, 5]), refs(_DAY, ["m", 1, 7]), None),
        (refs(_DAY, ["m", 1, 5]), refs(["m", 1, 7]), "days"),
        (refs(["m", 1, 5]), refs(["m", 1, 3], ["s", 4, "cut"], ["m", 5, 7]), "prune"),
        (refs(["m", 1, 5]), refs(["m", 3, 7]), "prune"),
        (refs(["m", 1, 9]), refs(["u", 1, 11]), "prune"),
        (refs(["m", 1, 3], ["m", 5, 7]), refs(["m", 1, 3]), "prune"),
        (refs(["m", 2, 2], ["mb", 3, 5]), refs(["mb", 2, 5]), "reasoning"),
        (refs(["m", 1, 9]), refs(["m", 7, 11], head="summary"), "summary"),
        (refs(["m", 7, 9], head="summary:1"), refs(["m", 9, 11], head="summary:2"), "summary"),
        (refs(["m", 1, 5], head="system goal:1"), refs(["m", 1, 7], head="system goal:2"), "goal"),
        (refs(["m", 1, 5], head="pins"), refs(["m", 1, 7], head="system pins"), "system"),
        (refs(["m", 1, 5], head="summary"), refs(["m", 1, 7], head="pins summary"), "pins"),
        (refs(["m", 1, 5]), refs(["m", 1, 7], tools="sha"), "tools"),
    ],
)
def test_the_cause_is_what_first_differs(before: dict[str, Any], now: dict[str, Any], cause: str | None) -> None:
    assert cache_break(before, now) == cause
