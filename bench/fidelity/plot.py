"""EV over the input budget, a line a rule, a panel a dataset: an SVG without any library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log2
from pathlib import Path

_COLOURS = (
    "#0b6e99",
    "#d1495b",
    "#66a182",
    "#edae49",
    "#7d5ba6",
    "#8d99ae",
    "#2f4858",
    "#c77dff",
    "#f26419",
    "#444444",
    "#8a5a44",
)
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 380, 260, 50, 40, 60

Lines = Mapping[str, Mapping[int, float]]
"""EV by budget, by rule."""


def write_plot(path: Path, panels: Mapping[str, Lines]) -> None:
    """Writes one picture with a panel for each dataset."""
    rules = list(dict.fromkeys(rule for lines in panels.values() for rule in lines))
    width = _LEFT + len(panels) * (_WIDTH + _GAP)
    height = _TOP + _HEIGHT + 50 + 18 * ((len(rules) + 2) // 3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for at, (name, lines) in enumerate(panels.items()):
        parts += _panel(_LEFT + at * (_WIDTH + _GAP), name, lines, rules)
    for at, rule in enumerate(rules):
        x, y = _LEFT + (at % 3) * (width - _LEFT) // 3, _TOP + _HEIGHT + 50 + 18 * (at // 3)
        colour = _COLOURS[at % len(_COLOURS)]
        parts.append(f'<rect x="{x}" y="{y - 8}" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="{y - 3}">{escape(rule)}</text>')
    path.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


def _panel(left: int, name: str, lines: Lines, rules: Sequence[str]) -> list[str]:
    budgets = sorted({budget for points in lines.values() for budget in points})
    low, high = log2(budgets[0]), log2(budgets[-1])

    def place(budget: int, ev: float) -> tuple[float, float]:
        across = (log2(budget) - low) / (high - low) if high > low else 0.5
        return round(left + across * _WIDTH, 1), round(_TOP + (1 - ev) * _HEIGHT, 1)

    parts = [f'<text x="{left}" y="{_TOP - 16}" font-weight="bold">{escape(name)}: EV by input budget</text>']
    for tenth in range(0, 11, 2):
        y = _TOP + (1 - tenth / 10) * _HEIGHT
        parts.append(f'<line x1="{left}" x2="{left + _WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{tenth / 10:.1f}</text>')
    for budget in budgets:
        x, _ = place(budget, 0)
        parts.append(f'<text x="{x}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">{budget:,}</text>')
    for rule, points in lines.items():
        colour = _COLOURS[rules.index(rule) % len(_COLOURS)]
        placed = [place(budget, points[budget]) for budget in sorted(points)]
        joined = " ".join(f"{x},{y}" for x, y in placed)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in placed]
    return parts
