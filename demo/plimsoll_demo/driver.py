"""Drives one recorded conversation through the service, turn by turn, and takes down the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll_demo.client import Service
from plimsoll_demo.figures import ReplayedSession, ReplayedTurn
from plimsoll_demo.full_history import FullHistory
from plimsoll_demo.recording import LeftOut, RecordedConversation, RecordedTurn
from plimsoll_demo.turn_replay import Playing, TurnPlay


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a conversation is driven.

    `window_tokens` caps the model's window (None: the model's own). With `recorded` the recording's replies and tool
    results stand in for model and tools. Without it only the users' words are sent, and no tools: the recorded results
    answer the recorded calls, not those another model would make. Where the recording has no reply the model answers.
    `preset` is the session's, `policy` what is set over it. `check_prompts` reads every sent prompt back.
    """

    window_tokens: int | None = None
    recorded: bool = True
    model_alias: str | None = None
    room_goal: str | None = None
    max_turns: int | None = None
    check_prompts: bool = True
    preset: str | None = None
    policy: Mapping[str, Any] = field(default_factory=dict[str, Any])


def replay_conversation(
    service: Service,
    conversation: RecordedConversation,
    options: ReplayOptions,
    on_turn: Callable[[ReplayedTurn], None],
) -> ReplayedSession:
    """Makes a session, plays every turn of the conversation, and calls `on_turn` after each.

    A refusal, a rejected request and a server error are figures, and the replay goes on with the next user message.
    Raises `ServiceUnavailableError` when no session can be had or nothing answers any more.
    """
    playing = Playing(
        service=service,
        session_id=service.create_session(session_body(conversation, options)),
        tools=conversation.tools if options.recorded else (),
        recorded=options.recorded,
        check_prompts=options.check_prompts,
        full_history=FullHistory(),
        left_out=Counter(conversation.left_out or {}),
        mended=Counter(conversation.mended or {}),
    )
    turns: list[ReplayedTurn] = []
    for number, turn in enumerate(conversation.turns[: options.max_turns], start=1):
        played = turn if options.recorded else users_words(turn, playing.left_out)
        turns.append(TurnPlay(playing, number, played).play())
        on_turn(turns[-1])
    return ReplayedSession(
        name=conversation.name,
        session_id=playing.session_id,
        turns=turns,
        left_out={str(kind): count for kind, count in (+playing.left_out).items()},
        mended={str(kind): count for kind, count in (+playing.mended).items()},
        summarizer_tokens=service.summarizer_tokens(playing.session_id) if any(turn.summary for turn in turns) else 0,
    )


def session_body(conversation: RecordedConversation, options: ReplayOptions) -> dict[str, Any]:
    """The body of `POST /v1/sessions` for a conversation."""
    body: dict[str, Any] = {"metadata": {"replay_of": conversation.name}}
    named = {"preset": options.preset, "max_context_tokens": options.window_tokens}
    if policy := {name: value for name, value in named.items() if value is not None} | dict(options.policy):
        body["policy"] = policy
    optional = {
        "instructions": conversation.instructions,
        "room_goal": options.room_goal,
        "model_alias": options.model_alias,
    }
    return body | {name: value for name, value in optional.items() if value}


def users_words(turn: RecordedTurn, left_out: Counter[LeftOut]) -> RecordedTurn:
    """The turn as a live model gets it."""
    calls = [call for round_ in turn.rounds for call in round_.calls]
    left_out["tool_calls"] += len(calls)
    left_out["tool_results"] += sum(call.result is not None for call in calls)
    return RecordedTurn(turn.prompt)
