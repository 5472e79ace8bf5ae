"""Draws the pictures of `docs/concepts.md` out of a real session: the conversation of `make demo`.

    python -m docsite.pictures [FOLDER]      # docs/images unless you say otherwise

Two are pieces of a plot over all turns, the one of prunes from a session whose last 4 turns stay raw at any size; the
third takes one prompt apart.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from math import ceil
from pathlib import Path
from typing import NamedTuple

from docsite.pages import ROOT
from plimsoll_demo.client import Service
from plimsoll_demo.demo import GOAL, WINDOW_TOKENS, shipped_conversation
from plimsoll_demo.driver import ReplayOptions, replay_conversation
from plimsoll_demo.figures import PromptFigures, ReplayedSession, ReplayedTurn
from plimsoll_demo.own_service import own_service
from plimsoll_demo.picture import COLOURS, STYLE, window_svg

WIDTH, HEIGHT = 1000, 250
_LEFT, _PLOT_WIDTH = 40, 920
_BAR_Y, _BAR_HEIGHT = 96, 46
_SLIVER_PX = 44
"""A piece narrower than this has its name in the legend alone."""


class Played(NamedTuple):
    """The whole conversation twice: under the default policy, and with its last turns raw at any size.

    The default leaves so much room that nothing of this conversation is ever pruned.
    """

    default: ReplayedSession
    raw: ReplayedSession


def play(service: Service) -> Played:
    """Both sessions, one after the other."""
    options = ReplayOptions(window_tokens=WINDOW_TOKENS, room_goal=GOAL, check_prompts=False)
    default, raw = (
        replay_conversation(service, shipped_conversation(), each, lambda _turn: None)
        for each in (options, replace(options, policy={"protected_share": None}))
    )
    return Played(default, raw)


def pictures(played: Played) -> dict[str, str]:
    """The pictures by file name."""
    turns = played.default.turns
    summary = max((turn for turn in turns if turn.summary and not turn.prune), key=_relief_tokens).number
    prune = next(turn.number for turn in played.raw.turns if turn.prune)
    return {
        "concept-window.svg": anatomy_svg(_with_most_regions(turns)),
        "concept-summary.svg": _piece(played.default, summary - 5, summary + 6, "Summaries"),
        "concept-prune.svg": _piece(played.raw, prune - 5, prune + 6, "Prunes"),
    }


def _with_most_regions(turns: Sequence[ReplayedTurn]) -> ReplayedTurn:
    """The turn whose prompt has most regions of a visible size, the fullest of them."""

    def seen(turn: ReplayedTurn) -> tuple[int, int]:
        regions = turn.window.regions.values() if turn.window else ()
        return sum(tokens >= 100 for tokens in regions), turn.window.input_tokens if turn.window else 0

    return max(turns, key=seen)


def _relief_tokens(turn: ReplayedTurn) -> int:
    return turn.window.input_before_tokens - turn.window.input_tokens if turn.window else 0


def _piece(session: ReplayedSession, first: int, last: int, title: str) -> str:
    turns = [turn for turn in session.turns if first <= turn.number <= last]
    return window_svg(replace(session, turns=turns), title=f"{title}: turns {turns[0].number} to {turns[-1].number}")


def anatomy_svg(turn: ReplayedTurn) -> str:
    """One prompt against its window: what stands in it, what is free, and what is set aside."""
    window = turn.window
    if window is None:
        raise ValueError("a turn without a window can not be drawn")
    says = f"The prompt of turn {turn.number}: {window.input_tokens:,} of {window.input_budget_tokens:,} tokens"
    parts = [
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>',
        f'<text class="title" x="{_LEFT}" y="34">{escape(says)}</text>',
        *_legend(window),
        *_bar(window),
        *_marks(window),
    ]
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">'
    return "\n".join((head, f"<title>{says}</title>", f"<style>{STYLE}</style>", *parts, "</svg>")) + "\n"


def _x(window: PromptFigures, tokens: float) -> float:
    return _LEFT + _PLOT_WIDTH * tokens / window.limit_tokens


def _legend(window: PromptFigures) -> Iterator[str]:
    x = float(_LEFT)
    for name, tokens in window.input_regions().items():
        if tokens:
            label = f"{name} {tokens:,}"
            yield f'<rect x="{x:.1f}" y="56" width="11" height="11" rx="2" fill="{COLOURS[name]}"/>'
            yield f'<text x="{x + 16:.1f}" y="66">{label}</text>'
            x += 16 + 7.2 * len(label) + 14


def _bar(window: PromptFigures) -> Iterator[str]:
    at = 0
    for name, tokens in window.input_regions().items():
        yield _box(window, at, at + tokens, f'fill="{COLOURS[name]}"')
        at += tokens
    budget = window.input_budget_tokens
    yield _box(window, at, budget, 'class="ghost"')
    yield _label(window, at, budget, f"free {budget - at:,}")
    output = budget + window.output_reserve_tokens
    yield _box(window, budget, output, 'class="reserve"')
    yield _label(window, budget, output, f"answer {window.output_reserve_tokens:,}")
    yield _box(window, output, window.limit_tokens, 'class="reserve"')
    yield f'<rect x="{_LEFT}" y="{_BAR_Y}" width="{_PLOT_WIDTH}" height="{_BAR_HEIGHT}" fill="none" class="axis"/>'


def _box(window: PromptFigures, start: int, end: int, look: str) -> str:
    x, right = _x(window, start), _x(window, end)
    return f'<rect x="{x:.2f}" y="{_BAR_Y}" width="{right - x:.2f}" height="{_BAR_HEIGHT}" {look}/>'


def _label(window: PromptFigures, start: int, end: int, text: str) -> str:
    x, right = _x(window, start), _x(window, end)
    if right - x < _SLIVER_PX:
        return ""
    return f'<text class="small mid" x="{(x + right) / 2:.1f}" y="{_BAR_Y + 27}">{text}</text>'


def _marks(window: PromptFigures) -> Iterator[str]:
    foot = _BAR_Y + _BAR_HEIGHT
    budget = window.input_budget_tokens
    for row, (ratio, name, look) in enumerate(
        ((0.7, "summarize from 70 %", "trigger"), (0.9, "prune from 90 %", "trigger"), (1.0, "input budget", "budget"))
    ):
        x, y = _x(window, budget * ratio), foot + 22 + 20 * row
        yield f'<line class="{look}" x1="{x:.1f}" y1="{_BAR_Y - 8}" x2="{x:.1f}" y2="{y - 3}"/>'
        yield f'<text class="small end" x="{x - 6:.1f}" y="{y}">{name}: {ceil(budget * ratio):,}</text>'
    right = _LEFT + _PLOT_WIDTH
    yield f'<text class="small end" x="{right}" y="{foot + 22}">overhead {window.overhead_reserve_tokens:,}</text>'
    yield f'<text class="small end" x="{right}" y="{foot + 42}">window {window.limit_tokens:,}</text>'


def main() -> None:
    """Plays, draws and writes."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    with own_service() as url, Service(url) as service:
        drawn = pictures(play(service))
    for name, picture in drawn.items():
        (folder / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
