"""What came of trying a promise, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_FAILURES_SHOWN = 12


@dataclass(slots=True)
class Result:
    """One promise: `figures` is what was seen, `fired` how often its fault was, by name.

    A fault that fired less often than `least_fired` says is a failure: nothing was tried then.
    """

    promise: str
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    fired: dict[str, int] = field(default_factory=dict[str, int])
    least_fired: dict[str, int] = field(default_factory=dict[str, int])
    failures: list[str] = field(default_factory=list[str])
    seconds: float = 0.0

    def check(self, holds: bool, sentence: str) -> None:
        """Notes a failure unless it holds."""
        if not holds:
            self.failures.append(sentence)

    def fire(self, fault: str, times: int = 1) -> None:
        """Counts a fault that was seen."""
        self.fired[fault] = self.fired.get(fault, 0) + times

    def expect(self, fault: str, times: int) -> None:
        """Says how often a fault has to be seen."""
        self.least_fired[fault] = times

    def conclude(self) -> None:
        """Turns faults that did not fire into failures."""
        for fault, least in self.least_fired.items():
            seen = self.fired.get(fault, 0)
            self.check(seen >= least, f"the fault {fault!r} fired {seen} times, not {least}")

    @property
    def holds(self) -> bool:
        return not self.failures


def print_results(console: Console, results: Sequence[Result]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in ("promise", "figure", "fired", "s", "result"):
        table.add_column(header, overflow="fold")
    for result in results:
        table.add_row(
            result.promise,
            "\n".join(f"{name}: {value}" for name, value in result.figures.items()),
            f"{sum(result.fired.values()):,}",
            f"{result.seconds:.0f}",
            "[green]holds[/]" if result.holds else f"[red]FAILS[/] ({len(result.failures)})",
        )
    console.print(table)
    for result in results:
        for failure in result.failures[:_FAILURES_SHOWN]:
            console.print(f"{result.promise}: {failure}", markup=False)


def write_json(folder: Path, facts: Mapping[str, Any], results: Sequence[Result]) -> Path:
    """Writes everything that was seen, and answers the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    finished_at = datetime.now(UTC)
    path = folder / f"{finished_at:%Y%m%dT%H%M%SZ}.json"
    content = {"finished_at": finished_at, "machine": facts, "results": [asdict(result) for result in results]}
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    return path
