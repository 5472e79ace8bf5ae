"""What came of trying a promise: a table on the screen, and the same as Markdown and as JSON."""

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
_HEADERS = ("promise", "figure", "measured", "faults fired", "s", "result")


@dataclass(slots=True)
class Result:
    """One promise: `figure` is what is asked of it, `measured` what was seen, `fired` how often its fault was, by name.

    A fault that fired less often than `least_fired` says is a failure: nothing was tried then. `not_tried` says why
    nothing could be.
    """

    promise: str
    figure: str
    measured: dict[str, Any] = field(default_factory=dict[str, Any])
    fired: dict[str, int] = field(default_factory=dict[str, int])
    least_fired: dict[str, int] = field(default_factory=dict[str, int])
    failures: list[str] = field(default_factory=list[str])
    seconds: float = 0.0
    not_tried: str = ""

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

    @property
    def verdict(self) -> str:
        """In a few words."""
        if self.failures:
            return f"FAILS ({len(self.failures)})"
        return "not tried" if self.not_tried else "holds"

    @property
    def complaints(self) -> list[str]:
        """The first failures, and why it was not tried."""
        found = [*self.failures[:_FAILURES_SHOWN], *filter(None, [self.not_tried])]
        return [f"{self.promise}: {sentence}" for sentence in found]

    def cells(self, line_end: str) -> tuple[str, ...]:
        """A row of the table."""
        measured = line_end.join(f"{name}: {value}" for name, value in self.measured.items())
        fired = sum(self.fired.values())
        return self.promise, self.figure, measured, f"{fired:,}", f"{self.seconds:.0f}", self.verdict


def print_results(console: Console, results: Sequence[Result]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in _HEADERS:
        table.add_column(header, overflow="fold", justify="right" if header in {"faults fired", "s"} else "left")
    for result in results:
        *cells, verdict = result.cells("\n")
        colour = "red" if result.failures else "yellow" if result.not_tried else "green"
        table.add_row(*cells, f"[{colour}]{verdict}[/]")
    console.print(table)
    for result in results:
        for complaint in result.complaints:
            console.print(complaint, markup=False)


def markdown(facts: Mapping[str, Any], results: Sequence[Result]) -> str:
    """The same table for a page, under what is known of the run."""
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", f"| {' | '.join(_HEADERS)} |", "|" + " --- |" * len(_HEADERS)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in result.cells("; ")) + " |" for result in results]
    complaints = [f"- {complaint}" for result in results for complaint in result.complaints]
    return "\n".join(lines + (["", *complaints] if complaints else [])) + "\n"


def write_results(folder: Path, facts: Mapping[str, Any], results: Sequence[Result]) -> tuple[Path, Path]:
    """Writes the table as Markdown and everything that was seen as JSON; the paths of both."""
    folder.mkdir(parents=True, exist_ok=True)
    finished_at = datetime.now(UTC)
    facts = {"finished": f"{finished_at:%Y-%m-%d %H:%M} UTC", **facts}
    page = folder / f"{finished_at:%Y%m%dT%H%M%SZ}.md"
    page.write_text(markdown(facts, results))
    content = {"finished_at": finished_at, "run": facts, "results": [asdict(result) for result in results]}
    data = page.with_suffix(".json")
    data.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    return page, data
