"""The shipped conversation under every preset, side by side: the table and the pictures of `docs/policies.md`.

    python -m plimsoll_demo.presets [--pictures docs/images]

Replies are the recorded ones, summaries the offline summarizer's; everything else is a service of its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from app.engine.policy.policy import PRESETS
from plimsoll_demo.client import Service
from plimsoll_demo.demo import GOAL, WINDOW_TOKENS, shipped_conversation
from plimsoll_demo.driver import ReplayOptions, replay_conversation
from plimsoll_demo.figures import ReplayedSession, ReplayedTurn, Totals, totals
from plimsoll_demo.own_service import own_service
from plimsoll_demo.picture import window_svg
from plimsoll_demo.recording import RecordedConversation

HEADINGS = (
    "preset",
    "summaries",
    "… after the answer",
    "prompts pruned",
    "turns and messages dropped",
    "refused",
    "tokens sent",
    "to and from the summarizer",
    "largest prompt",
)
BACKGROUND_WITHIN_S = 2.0
_DROPPED = ("assistant_dropped", "tool_group_dropped", "turn_dropped", "history_drop")


@dataclass(frozen=True, slots=True)
class PresetRun:
    """A conversation under a preset."""

    preset: str
    session: ReplayedSession
    dropped: int
    summarize_ratio: float

    @property
    def figures(self) -> Totals:
        return totals(self.preset, [self.session])

    def row(self) -> tuple[str, ...]:
        """The cells under `HEADINGS`."""
        figures = self.figures
        after = sum(turn.summary_after for turn in self.session.turns)
        return (
            f"`{self.preset}`",
            f"{figures.summaries + after}",
            f"{after}",
            f"{figures.prunes}",
            f"{self.dropped}",
            f"{figures.refusals}",
            f"{figures.sent_tokens:,}",
            f"{figures.summarizer_tokens:,}",
            f"{figures.largest_prompt_tokens:,}",
        )


def play_preset(service: Service, preset: str, conversation: RecordedConversation) -> PresetRun:
    """Plays the conversation. What a turn leaves to the background is waited for, as a person who reads would."""
    after: set[int] = set()
    dropped: set[str] = set()
    session_id = ""
    seen_summary: str | None = None

    def look() -> dict[str, Any]:
        return dict(service.request("GET", f"/v1/sessions/{session_id}/context").body)

    def on_turn(turn: ReplayedTurn) -> None:
        nonlocal session_id, seen_summary
        if not session_id:
            session_id = newest_session(service)
        actions = service.audit(session_id, str(turn.turn_id), expand="actions")["context_trim_log"]["actions"]
        dropped.update(action["target"] for action in actions if action["kind"] in _DROPPED)
        window = look()
        if turn.summary:
            seen_summary = _summary_of_turn(service, session_id, str(turn.turn_id))
        if PRESETS[preset].policy.summarizes_after_turns:
            window = _settled(look, window, seen_summary, PRESETS[preset].policy.max_messages)
            if window["active_summary_id"] != seen_summary:
                after.add(turn.number)
        seen_summary = window["active_summary_id"]

    options = ReplayOptions(window_tokens=WINDOW_TOKENS, room_goal=GOAL, check_prompts=False, preset=preset)
    played = replay_conversation(service, conversation, options, on_turn)
    turns = [replace(turn, summary_after=turn.number in after) for turn in played.turns]
    session = replace(played, turns=turns, summarizer_tokens=service.summarizer_tokens(session_id))
    window = look()
    return PresetRun(preset, session, len(dropped), window["summary_trigger_tokens"] / window["input_budget"])


def newest_session(service: Service) -> str:
    """The session that was made last."""
    return str(service.request("GET", "/v1/sessions", limit=1).body["items"][0]["id"])


def _summary_of_turn(service: Service, session_id: str, turn_id: str) -> str | None:
    """The newest summary that was made before this turn's call."""
    listed = service.request("GET", f"/v1/sessions/{session_id}/summaries", limit=5).body["items"]
    return next((str(summary["id"]) for summary in listed if summary["created_by_turn_id"] == turn_id), None)


def _settled(look: Any, window: dict[str, Any], seen_summary: str | None, most_messages: int | None) -> dict[str, Any]:
    """The window when the summary that looks due has been made, or has had its time."""
    deadline = time.monotonic() + BACKGROUND_WITHIN_S
    due = window["estimated_input_tokens"] >= window["summary_trigger_tokens"]
    due = due or (most_messages is not None and 2 * window["raw_turns"] >= most_messages)
    while due and window["active_summary_id"] == seen_summary and time.monotonic() < deadline:
        time.sleep(0.02)
        window = look()
    return window


def draw(run: PresetRun, folder: Path) -> None:
    """Writes the picture of a run as `window-PRESET.svg`."""
    title = f"{run.preset}: {len(run.session.turns)} turns in a window of {WINDOW_TOKENS:,} tokens"
    picture = window_svg(run.session, title=title, summarize_ratio=run.summarize_ratio)
    (folder / f"window-{run.preset.replace('_', '-')}.svg").write_text(picture, encoding="utf-8")


def compare(
    pictures: Annotated[Path | None, typer.Option(help="Write a picture of every run into this folder.")] = None,
) -> None:
    """Prints the table, in Markdown."""
    typer.echo(f"| {' | '.join(HEADINGS)} |\n| --- |{' ---: |' * (len(HEADINGS) - 1)}")
    conversation = shipped_conversation()
    with own_service() as url, Service(url) as service:
        for preset in PRESETS:
            run = play_preset(service, preset, conversation)
            typer.echo(f"| {' | '.join(run.row())} |")
            if pictures is not None:
                draw(run, pictures)


def main() -> None:
    typer.run(compare)


if __name__ == "__main__":
    main()
