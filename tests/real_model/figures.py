"""What a run measured: a row for each turn, as the service answered and audited it; its table and its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One answered turn, in tokens. `resent_tokens` is what a client that resends everything would have sent."""

    number: int
    attempt: int
    window_tokens: int
    window_source: str
    input_budget_tokens: int
    input_tokens: int
    wire_tokens: int
    calibration_ratio: float
    reported_tokens: int
    reply_tokens: int
    resent_tokens: int
    summary: str | None
    is_pruned: bool
    elapsed_s: float

    @property
    def ratio_before(self) -> float:
        """The model's own count over our raw estimate."""
        return self.reported_tokens / self.wire_tokens

    @property
    def ratio_after(self) -> float:
        """The model's own count over the estimate that was counted against the budget, the calibrated one."""
        return self.reported_tokens / (self.wire_tokens * self.calibration_ratio)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio_before": round(self.ratio_before, 4), "ratio_after": round(self.ratio_after, 4)}


@dataclass(slots=True)
class Figures:
    """The figures of a whole run, filled by its tests."""

    turns: list[TurnRow] = field(default_factory=list[TurnRow])
    noted: dict[str, Any] = field(default_factory=dict[str, Any])

    def write(self, path: Path) -> None:
        body = {"turns": [row.as_json() for row in self.turns], **self.noted}
        path.write_text(json.dumps(body, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def print(self) -> None:
        console = Console(width=126, highlight=False)
        console.print(_turn_table(self.turns))
        for name, value in self.noted.items():
            console.print(f"  {name}: {json.dumps(value, ensure_ascii=False)}", markup=False)


def _turn_table(turns: Sequence[TurnRow]) -> Table:
    table = Table(title="20 turns through the window of a real model, in tokens", title_justify="left")
    for heading in (
        "turn", "all resent", "counted", "budget", "estimate", "reported", "ratio", "guard", "ratio after",
        "reply", "summary", "pruned", "s",
    ):  # fmt: skip
        table.add_column(heading, justify="left" if heading in {"summary", "pruned"} else "right")
    for row in turns:
        table.add_row(
            str(row.number),
            f"{row.resent_tokens:,}",
            f"{row.input_tokens:,}",
            f"{row.input_budget_tokens:,}",
            f"{row.wire_tokens:,}",
            f"{row.reported_tokens:,}",
            f"{row.ratio_before:.3f}",
            f"{row.calibration_ratio:.3f}",
            f"{row.ratio_after:.3f}",
            str(row.reply_tokens),
            row.summary or "",
            "yes" if row.is_pruned else "",
            f"{row.elapsed_s:.1f}",
        )
    return table
