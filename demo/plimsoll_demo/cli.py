"""`plimsoll replay`: recorded conversations through the running service, turn by turn."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from plimsoll_demo.client import Service, ServiceUnavailableError
from plimsoll_demo.driver import ReplayOptions, replay_conversation
from plimsoll_demo.figures import ReplayedSession, ReplayedTurn, totals
from plimsoll_demo.picture import window_svg
from plimsoll_demo.reader import UnreadableRecordingError, read_conversations
from plimsoll_demo.recording import RecordedConversation
from plimsoll_demo.render import legend, notes, prompts_table, totals_table, turn_lines

EXIT_BROKEN_PROMISE = 1
EXIT_UNUSABLE = 2


commands = typer.Typer()


@commands.command("replay")
def replay(
    file: Annotated[Path, typer.Argument(help="JSON lines of messages or of conversations; .gz is read too.")],
    window: Annotated[int | None, typer.Option(min=1, help="Cap of the model's window, in tokens.")] = None,
    session_per_line: Annotated[bool, typer.Option(help="A session of each line instead of one for the file.")] = False,
    url: Annotated[
        str, typer.Option(envvar="PLIMSOLL_URL", help="Where the service listens.", show_envvar=True)
    ] = "http://127.0.0.1:8000",
    key: Annotated[str | None, typer.Option(envvar="PLIMSOLL_API_KEY", help="API key.", show_envvar=True)] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded/--live", help="Recorded replies stand in for the model, or the model answers.")
    ] = True,
    model: Annotated[str | None, typer.Option(help="Model alias; else the service's default.")] = None,
    goal: Annotated[str | None, typer.Option(help="Room goal of every session.")] = None,
    turns: Annotated[int | None, typer.Option(min=1, help="At most so many turns of a session.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the table.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as one JSON object instead.")] = False,
    check_prompts: Annotated[
        bool, typer.Option(help="Read every sent prompt back and look for what a provider would refuse.")
    ] = True,
    picture: Annotated[Path | None, typer.Option(help="Write the window over the turns as SVG.")] = None,
) -> None:
    """Drives recorded conversations through the running service and shows what the window did.

    Exits with 1 when a prompt was over its budget or broken, or the service answered 5xx, with 2 when it could not be
    run.
    """
    console = Console(stderr=as_json, highlight=False, markup=False, emoji=False)  # names are shown as they are
    options = ReplayOptions(
        window_tokens=window,
        recorded=recorded,
        model_alias=model,
        room_goal=goal,
        max_turns=turns,
        check_prompts=check_prompts,
    )
    try:
        conversations = read_conversations(file, session_per_line=session_per_line)
        if picture is not None:
            picture.open("a").close()  # that it can be written is known before the first turn
        with Service(url, key=key) as service:
            sessions = replay_all(service, conversations, options, console, bars=not (quiet or as_json))
    except (UnreadableRecordingError, ServiceUnavailableError, OSError) as error:
        Console(stderr=True, highlight=False).print(
            f"plimsoll replay: {error}", style="red", markup=False, soft_wrap=True
        )
        raise typer.Exit(EXIT_UNUSABLE) from error
    if picture is not None:
        longest = max(sessions, key=lambda session: len(session.turns))
        picture.write_text(window_svg(longest), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(report(sessions), ensure_ascii=False, indent=2))
    else:
        print_table(console, sessions)
    if totals("total", sessions).failed:
        raise typer.Exit(EXIT_BROKEN_PROMISE)


def replay_all(
    service: Service,
    conversations: list[RecordedConversation],
    options: ReplayOptions,
    console: Console,
    *,
    bars: bool,
) -> list[ReplayedSession]:
    """Replays one conversation after the other under a progress bar; with `bars` a line for every model call."""
    planned = sum(len(conversation.turns[: options.max_turns]) for conversation in conversations)
    columns = (
        TextColumn("  {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("turns"),
        TimeRemainingColumn(),
    )
    sessions: list[ReplayedSession] = []
    if bars:
        console.print(legend())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("replaying", total=planned)

        def on_turn(turn: ReplayedTurn) -> None:
            if bars:
                for line in turn_lines(turn):
                    progress.console.print(line, overflow="crop", no_wrap=True)
            progress.advance(task)

        for conversation in conversations:
            progress.update(task, description=conversation.name)
            if bars and len(conversations) > 1:
                progress.console.print(f"\n  {conversation.name}", style="bold")
            sessions.append(replay_conversation(service, conversation, options, on_turn))
    return sessions


def print_table(console: Console, sessions: list[ReplayedSession]) -> None:
    """The tables and what their figures stand for."""
    console.print(totals_table(sessions))
    console.print(prompts_table(sessions))
    for note in notes(sessions):
        console.print(Padding(Text(note, "dim"), (0, 0, 0, 2)))


def report(sessions: list[ReplayedSession]) -> dict[str, Any]:
    """The whole replay for machines: sessions with their turns and totals, and the grand total."""
    return {
        "sessions": [
            {
                "name": session.name,
                "session_id": session.session_id,
                "left_out": dict(session.left_out),
                "mended": dict(session.mended),
                "totals": _totals(session.name, [session]),
                "turns": [_turn(turn) for turn in session.turns],
            }
            for session in sessions
        ],
        "total": _totals("total", sessions),
    }


def _turn(turn: ReplayedTurn) -> dict[str, Any]:
    rounds = [asdict(round_) | {"over_budget": round_.over_budget} for round_ in turn.rounds]
    return {"number": turn.number, "outcome": turn.outcome, "turn_id": turn.turn_id, "rounds": rounds}


def _totals(name: str, sessions: list[ReplayedSession]) -> dict[str, Any]:
    summed = totals(name, sessions)
    return asdict(summed) | {"saved_ratio": summed.saved_ratio}
