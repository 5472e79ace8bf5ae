"""`make demo`: a long technical conversation through a 16,384-token window, on a real service of its own.

    python -m plimsoll_demo.demo [--picture docs/images/window.svg]

The model's replies are the recorded ones; the summaries come from the built-in offline summarizer, which is no language
model. Everything else is the service as deployed: HTTP, assembly, Postgres.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from plimsoll_demo.audit_view import audit_panel, refusal_panel
from plimsoll_demo.cli import EXIT_BROKEN_PROMISE, EXIT_UNUSABLE, print_table, replay_all
from plimsoll_demo.client import Service, ServiceUnavailableError
from plimsoll_demo.driver import ReplayOptions
from plimsoll_demo.figures import ReplayedSession, ReplayedTurn, totals
from plimsoll_demo.own_process import ServerDidNotStartError
from plimsoll_demo.own_service import own_service
from plimsoll_demo.picture import window_svg
from plimsoll_demo.reader import read_conversations
from plimsoll_demo.recording import RecordedConversation
from plimsoll_demo.turn_replay import unanswered_figures

WINDOW_TOKENS = 16_384
GOAL = "Prove every night, before 06:30 UTC, that what the ledger booked is what the processors paid."
PASTED_BREAKS = 900
"""Lines of the message that cannot fit: about 35 tokens each, more than twice the input budget."""


def shipped_conversation() -> RecordedConversation:
    """The conversation that comes with Plimsoll: a team designs, breaks and repairs a payment reconciliation."""
    with as_file(files("plimsoll_demo.conversations") / "reconciliation.jsonl") as path:
        return read_conversations(path, session_per_line=False)[0]


def message_that_cannot_fit() -> str:
    """An export pasted whole into the chat, as people do."""
    tokens = (f"tok_{row * 2654435761 % 2**32:08x}{row:06d}" for row in range(PASTED_BREAKS))
    rows = (
        f"{7120000 + row};paid_duplicate;corvid;{token};EUR;{row * 37 % 48000};2024-03-18"
        for row, token in enumerate(tokens)
    )
    return "Here is the whole export of the 19th, please classify every line:\n" + "\n".join(rows)


def turn_of_interest(session: ReplayedSession) -> ReplayedTurn | None:
    """The turn whose window was relieved of most tokens, a pruned one before a summarized one."""

    def relief(turn: ReplayedTurn) -> tuple[bool, bool, int]:
        window = turn.window
        removed_tokens = window.input_before_tokens - window.input_tokens if window else 0
        return turn.prune, turn.summary, removed_tokens

    return max((turn for turn in session.turns if turn.outcome == "completed"), key=relief, default=None)


def demo(
    picture: Annotated[Path | None, typer.Option(help="Write the window over the turns as SVG.")] = None,
    window: Annotated[int, typer.Option(min=1, help="Cap of the model's window, in tokens.")] = WINDOW_TOKENS,
) -> None:
    """Replays the shipped conversation on a service of its own, then shows one audit and one refusal."""
    console = Console(highlight=False)
    started = time.monotonic()
    conversation = shipped_conversation()
    console.print(_opening(conversation, window))
    try:
        with own_service() as url, Service(url) as service:
            console.print(f"  a Plimsoll of its own listens on {url}\n", style="dim")
            options = ReplayOptions(window_tokens=window, room_goal=GOAL)
            sessions = replay_all(service, [conversation], options, console, bars=True)
            print_table(console, sessions)
            _show_audit(console, service, sessions[0])
            refused = service.post_turn(sessions[0].session_id, {"content": message_that_cannot_fit()})
            console.print(refusal_panel(refused.status_code, refused.body))
            refusal = ReplayedTurn(len(sessions[0].turns) + 1, "refused", (unanswered_figures(1, refused),))
    except (ServerDidNotStartError, ServiceUnavailableError) as error:
        Console(stderr=True, highlight=False).print(str(error), style="red", markup=False)
        raise typer.Exit(EXIT_UNUSABLE) from error
    if picture is not None:
        shown = replace(sessions[0], turns=[*sessions[0].turns, refusal])
        picture.write_text(window_svg(shown, title=_picture_title(conversation, window)), encoding="utf-8")
    console.print(f"  done in {time.monotonic() - started:.0f} s; service stopped, its data deleted", style="dim")
    if totals("demo", sessions).failed or refused.code != "context_budget_exceeded":
        raise typer.Exit(EXIT_BROKEN_PROMISE)


def _show_audit(console: Console, service: Service, session: ReplayedSession) -> None:
    turn = turn_of_interest(session)
    if turn is None or turn.turn_id is None:
        return
    audit: Mapping[str, Any] = service.audit(session.session_id, turn.turn_id)
    if audit:
        console.print(audit_panel(audit, turn_number=turn.number))


def _opening(conversation: RecordedConversation, window_tokens: int) -> Text:
    text = Text("\n  Plimsoll ", "bold")
    text.append(f"a conversation of {len(conversation.turns)} turns through a window of {window_tokens:,} tokens\n")
    text.append("  replies are recorded; summaries come from the offline summarizer, no model", "dim")
    return text


def _picture_title(conversation: RecordedConversation, window_tokens: int) -> str:
    return f"{len(conversation.turns)} turns of a technical conversation in a window of {window_tokens:,} tokens"


def main() -> None:
    typer.run(demo)


if __name__ == "__main__":
    main()
