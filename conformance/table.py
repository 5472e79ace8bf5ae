"""The table of `docs/clients.md`: written from what a run saw, read back, and compared with the run before."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_HEAD: Final = (
    "| client | version | turns | with the tool | streamed | error as the client reads it | sessions | left open |"
)
_MEASURED: Final = "| client | model calls | with the header | prompt tokens | with the header | difference |"
_BEGIN, _END = "<!-- made by `make clients` -->", "<!-- end -->"
_ROW = re.compile(r"^" + r"\| ([^|]+?) " * 8 + r"\|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """What a client did.

    `turns` and `called` are the turns that were answered, and those whose tool was called; None where it has no tools
    or no stream. `error` is how it read the refusal of a prompt that is too long, None if it did not notice. `sessions`
    is how many its conversation made, `left_open` how many of their turns did not complete.
    """

    client: str
    version: str
    turns: int
    called: int | None
    streamed: bool | None
    error: str | None
    sessions: int
    left_open: int

    @property
    def cells(self) -> tuple[str, ...]:
        streamed = "–" if self.streamed is None else "yes" if self.streamed else "no"
        called = "–" if self.called is None else str(self.called)
        error = f"`{self.error}`" if self.error else "no"
        return (
            self.client,
            self.version,
            str(self.turns),
            called,
            streamed,
            error,
            str(self.sessions),
            str(self.left_open),
        )


@dataclass(frozen=True, slots=True)
class Measure:
    """Model calls and prompt tokens of a client's long conversation, without the header and with it."""

    client: str
    calls: tuple[int, int]
    tokens: tuple[int, int]

    @property
    def difference(self) -> float:
        """The larger of both, as a share of the figure with the header."""
        return max(abs(without / named - 1) for without, named in (self.calls, self.tokens))


def worse(before: Row, now: Row) -> list[str]:
    """In what a client does less than before."""
    found = {
        "turns": now.turns < before.turns,
        "with the tool": (now.called or 0) < (before.called or 0),
        "streamed": bool(before.streamed) and not now.streamed,
        "error": before.error is not None and now.error is None,
        "sessions": now.sessions > before.sessions,
        "left open": now.left_open > before.left_open,
    }
    return [name for name, is_worse in found.items() if is_worse]


def regressions(before: Sequence[Row], now: Sequence[Row]) -> list[str]:
    """A sentence for each row that is worse, or gone."""
    rows = {row.client: row for row in now}
    gone = [f"{row.client} is no longer in the table" for row in before if row.client not in rows]
    known = [(row.client, worse(row, rows[row.client])) for row in before if row.client in rows]
    return gone + [f"{client} is worse than before: {', '.join(names)}" for client, names in known if names]


def read_rows(page: str) -> list[Row]:
    """The rows of a page that `written` made."""
    lines = page.partition(_HEAD)[2].partition("\n\n")[0]
    return [_row(cells) for cells in _ROW.findall(lines) if cells[0] != "---"]


def _row(cells: Sequence[str]) -> Row:
    client, version, turns, called, streamed, error, sessions, left_open = cells
    return Row(
        client=client,
        version=version,
        turns=int(turns),
        called=None if called == "–" else int(called),
        streamed=None if streamed == "–" else streamed == "yes",
        error=None if error == "no" else error.strip("`"),
        sessions=int(sessions),
        left_open=int(left_open),
    )


def written(page: str, rows: Sequence[Row], measures: Sequence[Measure]) -> str:
    """The page with these tables in the place of those it has."""
    before, _, rest = page.partition(_BEGIN)
    after = rest.partition(_END)[2]
    parts = [_table(_HEAD, (row.cells for row in rows))]
    if measures:
        parts += [_summary(measures), _table(_MEASURED, (_measured(measure) for measure in measures))]
    return f"{before}{_BEGIN}\n\n" + "\n\n".join(parts) + f"\n\n{_END}{after}"


def _summary(measures: Sequence[Measure]) -> str:
    calls, tokens = (
        [sum(getattr(measure, name)[at] for measure in measures) for at in (0, 1)] for name in ("calls", "tokens")
    )
    largest = max(measures, key=lambda measure: measure.difference)
    return (
        f"{len(measures)} clients: {calls[0]:,} model calls without the header and {calls[1]:,} with it; {tokens[0]:,} "
        f"prompt tokens and {tokens[1]:,}. The largest difference of a client is {largest.difference:.1%} "
        f"({largest.client})."
    )


def _measured(measure: Measure) -> tuple[str, ...]:
    figures = [f"{figure:,}" for pair in (measure.calls, measure.tokens) for figure in pair]
    return (measure.client, *figures, f"{measure.difference:.1%}")


def _table(head: str, rows: Iterable[Sequence[str]]) -> str:
    rule = "| --- " * (head.count("|") - 1) + "|"
    return "\n".join([head, rule, *(f"| {' | '.join(row)} |" for row in rows)])
