"""Draws the window over the turns of a session as a self-contained SVG, legible on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from app.domain.types import REGIONS
from plimsoll_demo.figures import MARK_MEANINGS, PRUNE_RATIO, PromptFigures, ReplayedSession, ReplayedTurn

WIDTH, HEIGHT = 1000, 500
LEFT, RIGHT, TOP, BOTTOM = 66, 150, 96, 74
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
FLOOR = TOP + PLOT_HEIGHT

COLOURS = {
    "system": "#64748b", "goal": "#14b8a6", "pins": "#eab308", "summary": "#8b5cf6", "history": "#3b82f6",
    "recall": "#22d3ee", "user": "#22c55e", "tools": "#c2410c", "framing": "#9ca3af",
}  # fmt: skip
MARK_COLOURS = {"S": "#7c3aed", "B": "#0d9488", "P": "#d97706", "X": "#dc2626"}

STYLE = """
  text { font: 12px ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
  text { fill: #475569 }
  .page { fill: #ffffff; stroke: #e2e8f0 } .title { font-size: 17px; font-weight: 600; fill: #0f172a }
  .small { font-size: 11px } .end { text-anchor: end } .mid { text-anchor: middle }
  .grid { stroke: #e2e8f0 } .axis { stroke: #94a3b8 } .reserve { fill: #f1f5f9 }
  .budget { stroke: #dc2626; stroke-width: 1.8 } .trigger { stroke: #64748b; stroke-dasharray: 5 4 }
  .full { fill: none; stroke: #0f172a; stroke-width: 1.8; stroke-dasharray: 2 3 }
  .strong { font-weight: 600; fill: #0f172a }
  .over { font-weight: 600; fill: #dc2626 } .ghost { fill: none; stroke: #64748b; stroke-dasharray: 2 2 }
  .mark { font-size: 10px; font-weight: 700; fill: #ffffff; text-anchor: middle }
  @media (prefers-color-scheme: dark) {
    text { fill: #a3b1c6 } .page { fill: #0d1117; stroke: #30363d } .title, .strong { fill: #f1f5f9 }
    .grid { stroke: #21262d } .axis { stroke: #64748b } .reserve { fill: #161b22 }
    .budget { stroke: #f87171 } .trigger { stroke: #94a3b8 } .full { stroke: #f1f5f9 } .over { fill: #f87171 }
    .ghost { stroke: #94a3b8 }
  }
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """Turns and tokens to pixels. The top of the plot is the model's whole window."""

    turns: int
    top_tokens: int
    first: int = 1

    @property
    def step(self) -> float:
        return PLOT_WIDTH / max(1, self.turns)

    def x(self, number: int) -> float:
        """Left edge of turn `number`; the plot begins with turn `first`."""
        return LEFT + (number - self.first) * self.step

    def y(self, tokens: float) -> float:
        return FLOOR - min(1.0, tokens / self.top_tokens) * PLOT_HEIGHT


def window_svg(
    session: ReplayedSession, *, title: str = "The window, turn by turn", summarize_ratio: float = 0.7
) -> str:
    """The picture of a session with at least one turn that has a window; raises `ValueError` without one.

    `summarize_ratio` is the share of the input budget at which its policy summarizes.
    """
    windows = [turn.window for turn in session.turns if turn.window is not None]
    if not windows:
        raise ValueError("no turn of this session has a window to draw")
    window = windows[-1]
    first = session.turns[0].number
    scale = Scale(turns=len(session.turns), top_tokens=max(1, window.limit_tokens), first=first)
    parts = [
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>',
        f'<text class="title" x="{LEFT}" y="34">{escape(title)}</text>',
        *_legend(session),
        *_reserve(scale, window),
        *_token_axis(scale, window),
        *(part for turn in session.turns if turn.window is not None for part in _bar(scale, turn, turn.window)),
        *_levels(scale, window, summarize_ratio),
        *_full_history(scale, session.turns),
        *_turn_axis(scale),
        *_marks(scale, session.turns),
    ]
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">'
    sentence = f"<title>{escape(_sentence(session, window))}</title>"
    return "\n".join((head, sentence, f"<style>{STYLE}</style>", *parts, "</svg>")) + "\n"


def _sentence(session: ReplayedSession, window: PromptFigures) -> str:
    summaries = sum(turn.summary for turn in session.turns)
    prunes = sum(turn.prune for turn in session.turns)
    return (
        f"Tokens counted against the input budget of {window.input_budget_tokens:,} over {len(session.turns)} turns: "
        f"{summaries} turns summarized, {prunes} pruned, {session.count('refused')} refused."
    )


def _legend(session: ReplayedSession) -> Iterator[str]:
    windows = [turn.window.input_regions() for turn in session.turns if turn.window is not None]
    x = float(LEFT)
    for name in (name for name in REGIONS if any(regions[name] for regions in windows)):
        yield f'<rect x="{x:.1f}" y="52" width="11" height="11" rx="2" fill="{COLOURS[name]}"/>'
        yield f'<text x="{x + 16:.1f}" y="62">{name}</text>'
        x += 16 + 7.6 * len(name) + 12
    yield f'<rect class="ghost" x="{x:.1f}" y="52.5" width="10" height="10"/>'
    yield f'<text x="{x + 16:.1f}" y="62">before compression</text>'
    x += 150
    seen = {mark for turn in session.turns for mark in _marks_of(turn)}
    for mark, meaning in ((mark, meaning) for mark, meaning in MARK_MEANINGS.items() if mark in seen):
        yield from _badge(x + 7, 57.5, mark)
        yield f'<text x="{x + 19:.1f}" y="62">{meaning}</text>'
        x += 19 + 7.0 * len(meaning) + 12


def _reserve(scale: Scale, window: PromptFigures) -> Iterator[str]:
    budget_y = scale.y(window.input_budget_tokens)
    yield f'<rect class="reserve" x="{LEFT}" y="{TOP}" width="{PLOT_WIDTH}" height="{budget_y - TOP:.1f}"/>'


def _token_axis(scale: Scale, window: PromptFigures) -> Iterator[str]:
    step = next(
        step for step in (250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 10**9) if window.limit_tokens / step <= 8
    )
    for tokens in range(0, window.limit_tokens + 1, step):
        y = scale.y(tokens)
        look = "grid" if tokens else "axis"
        yield f'<line class="{look}" x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + PLOT_WIDTH}" y2="{y:.1f}"/>'
        yield f'<text class="small end" x="{LEFT - 8}" y="{y + 4:.1f}">{tokens:,}</text>'
    yield f'<text class="small end" x="{LEFT - 8}" y="{TOP - 10}">tokens</text>'


def _bar(scale: Scale, turn: ReplayedTurn, window: PromptFigures) -> Iterator[str]:
    gap = min(2.0, scale.step * 0.16)
    x, width = scale.x(turn.number) + gap / 2, scale.step - gap
    refused = turn.outcome == "refused"
    opacity = ' opacity="0.35"' if refused else ""
    sum_tokens = 0
    for name, tokens in window.input_regions().items():
        if not tokens or scale.y(sum_tokens) <= TOP:
            continue
        y, floor = scale.y(sum_tokens + tokens), scale.y(sum_tokens)
        sum_tokens += tokens
        box = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{floor - y:.2f}"'
        yield f'<rect {box} fill="{COLOURS[name]}"{opacity}/>'
    if window.input_before_tokens > window.input_tokens:
        y, floor = scale.y(window.input_before_tokens), scale.y(window.input_tokens)
        yield f'<rect class="ghost" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{floor - y:.2f}"/>'


def _levels(scale: Scale, window: PromptFigures, summarize_ratio: float) -> Iterator[str]:
    budget_tokens = window.input_budget_tokens
    right = LEFT + PLOT_WIDTH
    yield f'<text class="small" x="{right + 8}" y="{TOP + 4}">window {window.limit_tokens:,}</text>'
    yield f'<line class="axis" x1="{LEFT}" y1="{TOP}" x2="{right}" y2="{TOP}"/>'
    levels = [("budget", "over", 1.0, "input budget"), ("trigger", "", PRUNE_RATIO, "prune 90 %")]
    if summarize_ratio < PRUNE_RATIO - 0.01:
        levels.append(("trigger", "", summarize_ratio, f"summarize {summarize_ratio:.0%}".replace("%", " %")))
    else:
        levels[1] = ("trigger", "", PRUNE_RATIO, "summarize, prune 90 %")
    for line, text, ratio, label in levels:
        y = scale.y(budget_tokens * ratio)
        yield f'<line class="{line}" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
        figure = f" {budget_tokens:,}" if ratio == 1.0 else ""
        yield f'<text class="small {text}" x="{right + 8}" y="{y + 4:.1f}">{label}{figure}</text>'


def _full_history(scale: Scale, turns: Sequence[ReplayedTurn]) -> Iterator[str]:
    points = [(scale.x(turn.number) + scale.step / 2, turn) for turn in turns if turn.full_history_tokens]
    inside = [(x, turn) for x, turn in points if turn.full_history_tokens <= scale.top_tokens]
    left_window = next(((x, turn) for x, turn in points if turn.full_history_tokens > scale.top_tokens), None)
    line = " ".join(f"{x:.1f},{scale.y(turn.full_history_tokens):.1f}" for x, turn in inside)
    if left_window is None:
        yield f'<polyline class="full" points="{line}"/>'
        return
    if not inside:
        return  # it left before the first turn that is drawn
    x, turn = left_window
    yield f'<polyline class="full" points="{line} {x:.1f},{TOP}"/>'
    last = points[-1][1]
    says = f"the full history leaves the window at turn {turn.number}"
    says += f" and would be {last.full_history_tokens:,} tokens at turn {last.number}"
    half_width = 3.4 * len(says)
    x = min(max(x, LEFT + 60 + half_width), LEFT + PLOT_WIDTH - half_width)
    yield f'<text class="small strong mid" x="{x:.1f}" y="{TOP - 10}">{says}</text>'


def _turn_axis(scale: Scale) -> Iterator[str]:
    step = next(step for step in (1, 5, 10, 20, 50, 100, 200, 500, 10**9) if scale.turns / step <= 16)
    after = scale.first + scale.turns
    for number in sorted({scale.first, *(number for number in range(scale.first, after) if number % step == 0)}):
        yield f'<text class="small mid" x="{scale.x(number) + scale.step / 2:.1f}" y="{FLOOR + 44}">{number}</text>'
    yield f'<text class="small mid" x="{LEFT + PLOT_WIDTH / 2}" y="{FLOOR + 62}">turn</text>'


def _marks(scale: Scale, turns: Sequence[ReplayedTurn]) -> Iterator[str]:
    for turn in turns:
        for row, mark in enumerate(_marks_of(turn)):
            yield from _badge(scale.x(turn.number) + scale.step / 2, FLOOR + 10 + 14 * row, mark)


def _marks_of(turn: ReplayedTurn) -> str:
    when = ("S" if turn.summary else "") + ("B" if turn.summary_after else "")
    return when + ("P" if turn.prune else "") + ("X" if turn.outcome == "refused" else "")


def _badge(x: float, y: float, mark: str) -> Iterator[str]:
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6.5" fill="{MARK_COLOURS[mark]}"/>'
    yield f'<text class="mark" x="{x:.1f}" y="{y + 3.6:.1f}">{mark}</text>'
