"""Draws a replay in a terminal: one bar of the window per turn, and the table at the end. Legible without colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from app.domain.types import REGIONS
from plimsoll_demo.figures import (
    MARK_MEANINGS,
    PRUNE_RATIO,
    PromptFault,
    PromptFigures,
    ReplayedRound,
    ReplayedSession,
    ReplayedTurn,
    Totals,
    totals,
)
from plimsoll_demo.full_history import TOOL_MESSAGES_ENCODING

BAR_CELLS = 34
RESERVE_CELLS = 4
SUMMARY_RATIO = 0.70
MOST_REASONS = 5

REGION_LETTERS = {
    "system": "s", "goal": "g", "pins": "p", "summary": "m", "history": "h",
    "recall": "r", "user": "u", "tools": "t", "framing": "f",
}  # fmt: skip
REGION_STYLES = {
    "system": "white on #475569",
    "goal": "black on #2dd4bf",
    "pins": "black on #fbbf24",
    "summary": "white on #7c3aed",
    "history": "white on #2563eb",
    "recall": "black on #67e8f9",
    "user": "black on #4ade80",
    "tools": "white on #b45309",
    "framing": "white on #6b7280",
}
MARK_STYLES = {
    "S": "bold #a78bfa",
    "P": "bold #f59e0b",
    "X": "bold #ef4444",
    "C": "bold #38bdf8",
    "!": "bold white on #b91c1c",
}
NAME_CHARACTERS = 10
FAULT_HEADINGS: dict[PromptFault, str] = {
    "orphaned_results": "orphans",
    "unanswered_calls": "open calls",
    "no_user_message": "no user",
    "not_verbatim": "hash",
}
"""A prompt over its budget has its column before them: it is known without reading it back."""


def legend() -> Text:
    """What the letters, ticks and marks mean."""
    text = Text("  ")
    for name in REGIONS:
        text.append(REGION_LETTERS[name], REGION_STYLES[name]).append(f" {name} ")
    text.append("\n  ")
    for mark, style in MARK_STYLES.items():
        text.append(mark, style).append(f" {MARK_MEANINGS[mark]}  ")
    text.append("┊ 70, 90 %", "dim")
    text.append("\n  turn   counted in the input budget", "dim")
    return text.append("overhead  tokens / budget  fill".rjust(BAR_CELLS + 8), "dim")


def turn_lines(turn: ReplayedTurn) -> list[Text]:
    """One turn, a line of at most 80 columns for each of its model calls: `7`, then `7.2`, `7.3` for tool rounds."""
    lines = [_round_line(turn.number, round_) for round_ in turn.rounds]
    if turn.outcome == "cancelled":
        lines[-1].append(" C", MARK_STYLES["C"])
    return lines


def _round_line(turn_number: int, round_: ReplayedRound) -> Text:
    label = f"{turn_number}" if round_.number == 1 else f"{turn_number}.{round_.number}"
    line = Text(f"{label:>6}  ", "dim", end="")
    if round_.window is None:
        line.append(f"{round_.status_code} {round_.code or 'no window in the answer'}", "bold red")
    else:
        line.append_text(_bar(round_.window))
        line.append_text(_reserve(round_.window))
        line.append(f" {round_.window.input_tokens:>7,} / {round_.window.input_budget_tokens:<7,}")
        line.append(f"{_percent(round_.window):>4} %", "bold red" if round_.over_budget else "dim")
    for mark in _marks(round_):
        line.append(f" {mark}", MARK_STYLES[mark])
    return line


def totals_table(sessions: Sequence[ReplayedSession]) -> Table:
    """A row a session, and one for all when there are several."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("session", no_wrap=True)
    headings = ("turns", "calls", "sum.", "prun.", "422", "4xx", "5xx", "sent", "resent", "saved")
    for heading in (*headings, "most"):
        table.add_column(heading, justify="right", no_wrap=True)
    for session in sessions:
        table.add_row(*_row(totals(session.name, [session])))
    if len(sessions) > 1:
        table.add_section()
        table.add_row(*_row(totals("total", sessions)), style="bold")
    return table


def prompts_table(sessions: Sequence[ReplayedSession]) -> Table:
    """What the prompts that were sent break: a row for every session where one does, and one for all."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("prompts sent", no_wrap=True)
    for heading in ("calls", "over", "read", *FAULT_HEADINGS.values()):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = [totals(session.name, [session]) for session in sessions]
    for row in (*(row for row in rows if (row.over_budget or row.broken) and len(rows) > 1), totals("total", sessions)):
        unread = "–" if row.prompts and not row.checked else None
        found = (unread or _alarm(row.faults.get(fault, 0)) for fault in FAULT_HEADINGS)
        table.add_row(
            _name(row.name), f"{row.prompts:,}", _alarm(row.over_budget), unread or f"{row.checked:,}", *found
        )
    return table


def notes(sessions: Sequence[ReplayedSession]) -> list[str]:
    """What the table's figures stand for, what was left out, and where the full history would have ended."""
    found = [
        (
            "sent: prompt tokens that went to the model. resent: the same calls with everything so far "
            "(standing regions + every earlier message + framing, by the service's own counts)."
        )
    ]
    if any(len(turn.rounds) > 1 for session in sessions for turn in session.turns):
        found.append(f"calls and tool results of the full history are counted here, in {TOOL_MESSAGES_ENCODING}.")
    if summarizer_tokens := sum(session.summarizer_tokens or 0 for session in sessions):
        found.append(
            f"the summarizer's calls took {summarizer_tokens:,} tokens beside that; saved counts them as sent."
        )
    if any(session.summarizer_tokens is None for session in sessions):
        found.append("the service does not report the tokens of the summarizer's calls; saved leaves them out.")
    for said, counts in (
        ("left out of the replay", [session.left_out for session in sessions]),
        ("mended or as it stood", [session.mended for session in sessions]),
    ):
        summed: Counter[str] = Counter()
        for count in counts:
            summed.update(count)
        if summed:
            listed = (f"{count:,} {kind.replace('_', ' ')}" for kind, count in summed.items())
            found.append(f"{said}: {', '.join(listed)}.")
    unanswered = Counter(
        f"{round_.status_code} {round_.code or ''}: {round_.detail or 'no reason given'}"
        for session in sessions
        for turn in session.turns
        for round_ in turn.rounds
        if round_.outcome in {"rejected_request", "server_error"}
    )
    found.extend(f"{count:,} × {why}" for why, count in unanswered.most_common(MOST_REASONS))
    for session in sessions:
        overflow = next(
            (
                turn.number
                for turn in session.turns
                if turn.window is not None and turn.full_history_tokens > turn.window.limit_tokens
            ),
            None,
        )
        if overflow is not None and len(sessions) == 1:
            found.append(
                f"the full history alone would have outgrown the window at turn {overflow} of {len(session.turns)}."
            )
    return found


def _row(row: Totals) -> tuple[str | Text, ...]:
    return (
        _name(row.name),
        f"{row.turns:,}",
        f"{row.prompts:,}",
        f"{row.summaries:,}",
        f"{row.prunes:,}",
        f"{row.refusals:,}",
        f"{row.rejected_requests:,}",
        _alarm(row.server_errors),
        f"{row.sent_tokens:,}",
        f"{row.full_history_tokens:,}",
        f"{row.saved_ratio:.1%}",
        f"{row.largest_prompt_tokens:,}",
    )


def _name(name: str) -> str:
    """The end of a long name: it distinguishes the lines of one recording."""
    return name if len(name) <= NAME_CHARACTERS else "…" + name[1 - NAME_CHARACTERS :]


def _alarm(count: int) -> Text:
    return Text(f"{count:,}", "bold red" if count else "green")


def _marks(round_: ReplayedRound) -> str:
    marks = "".join(
        mark
        for mark, holds in (("S", round_.summary), ("P", round_.prune), ("X", round_.outcome == "refused"))
        if holds
    )
    broken = round_.over_budget or bool(round_.faults) or round_.outcome in {"rejected_request", "server_error"}
    return marks + ("!" if broken else "")


def _bar(window: PromptFigures) -> Text:
    budget_tokens = max(1, window.input_budget_tokens)
    ends = _cell_ends(list(window.input_regions().values()), budget_tokens)
    bar = Text("│", "dim")
    filled = 0
    for name, end in zip(REGIONS, ends, strict=True):
        if end > filled:
            bar.append(REGION_LETTERS[name] * (end - filled), REGION_STYLES[name])
            filled = end
    ticks = {int(BAR_CELLS * SUMMARY_RATIO), int(BAR_CELLS * PRUNE_RATIO)}
    bar.append("".join("┊" if cell in ticks else " " for cell in range(filled, BAR_CELLS)), "dim")
    return bar.append("│" if window.input_tokens <= window.input_budget_tokens else "»", "dim")


def _cell_ends(tokens: list[int], budget_tokens: int) -> list[int]:
    """Where each region's cells end. A region that holds anything shows at least one cell while there is room."""
    ends: list[int] = []
    sum_tokens = 0
    previous = 0
    for region_tokens in tokens:
        sum_tokens += region_tokens
        end = round(sum_tokens / budget_tokens * BAR_CELLS)
        previous = min(BAR_CELLS, max(end, previous + 1 if region_tokens else previous))
        ends.append(previous)
    return ends


def _reserve(window: PromptFigures) -> Text:
    reserve = Text()
    share = window.reserve_used_tokens / window.overhead_reserve_tokens if window.overhead_reserve_tokens else 0
    cells = round(share * RESERVE_CELLS) or (1 if window.reserve_used_tokens else 0)
    letter = "t" if window.regions.get("tools", 0) > window.regions.get("framing", 0) else "f"
    reserve.append(letter * cells, REGION_STYLES["tools" if letter == "t" else "framing"])
    return reserve.append(" " * (RESERVE_CELLS - cells)).append("│", "dim")


def _percent(window: PromptFigures) -> int:
    return round(100 * window.input_tokens / max(1, window.input_budget_tokens))
