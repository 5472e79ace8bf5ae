"""The files in which each of several workers stores its metrics (`metrics.py`).

A worker maps its files. A write to a part that a full disk does not hold ends it, by SIGBUS, so they are written whole
before it starts, with all the room that they will ever need: labels come from closed sets, of which only that of the
aliases is not the same everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

OTHER: Final = "other"
"""Stands for an alias or a code that is not known."""
_BYTES = 64 * 1024
_ENTRIES_OF_AN_ALIAS: Final[Mapping[str, int]] = {
    "counter": 24,
    "gauge_max": 0,
    "gauge_mostrecent": 1,
    "gauge_sum": 0,
    "histogram": 110,
}
_ENTRY_BYTES = 256
"""More than the longest entry has beside its alias: names, help and other labels, a value and a time."""


def reserve_disk(folder: Path, worker: int, aliases: Iterable[str]) -> None:
    """Writes the files of this number of worker whole, as far as they are not. Raises `OSError`."""
    entry_of_each = sum(_ENTRY_BYTES + len(json.dumps(alias)) for alias in {*aliases, OTHER})
    for kind, entries in _ENTRIES_OF_AN_ALIAS.items():
        with (folder / f"{kind}_{worker}.db").open("ab") as file:
            file.write(bytes(max(0, _BYTES + entries * entry_of_each - file.tell())))
