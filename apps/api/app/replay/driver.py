"""Drives one recorded conversation through the service, turn by turn, and takes down the figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from app.replay.client import Answer, Service, ServiceUnavailableError
from app.replay.figures import FullHistory, Outcome, SessionFigures, TurnFigures, window_of_context, window_of_refusal
from app.replay.recording import Conversation, RecordedTurn


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a conversation is driven.

    `window_tokens` caps the model's window (None: the model's own). With `recorded` the recording's replies stand in
    for the model; without it, and where the recording has no reply, the model answers.
    """

    window_tokens: int | None = None
    recorded: bool = True
    model_alias: str | None = None
    room_goal: str | None = None
    max_turns: int | None = None


def replay_conversation(
    service: Service,
    conversation: Conversation,
    options: ReplayOptions,
    on_turn: Callable[[TurnFigures], None],
) -> SessionFigures:
    """Makes a session, posts every turn of the conversation, and calls `on_turn` after each.

    A refusal, a rejected request and a server error are figures, and the replay goes on. Raises
    `ServiceUnavailableError` when no session can be had or nothing answers any more.
    """
    session_id = service.create_session(session_body(conversation, options))
    full_history = FullHistory()
    figures: list[TurnFigures] = []
    skipped = Counter(conversation.skipped or {})
    for number, turn in enumerate(conversation.turns[: options.max_turns], start=1):
        answer = service.post_turn(session_id, turn_body(turn, options))
        if answer.status_code in {401, 403, 404}:
            raise ServiceUnavailableError(
                f"{service.url} turns the replay away: {answer.status_code} {answer.code or ''}"
            )
        skipped.update(turn.flattened())
        figures.append(turn_figures(number, answer, full_history))
        on_turn(figures[-1])
    return SessionFigures(
        name=conversation.name,
        session_id=session_id,
        turns=figures,
        skipped={str(kind): count for kind, count in skipped.items()},
        summarizer_tokens=service.summarizer_tokens(session_id) if any(turn.summary for turn in figures) else 0,
    )


def session_body(conversation: Conversation, options: ReplayOptions) -> dict[str, Any]:
    """The body of `POST /v1/sessions` for a conversation."""
    body: dict[str, Any] = {"metadata": {"replay_of": conversation.name}}
    if options.window_tokens is not None:
        body["policy"] = {"max_context_tokens": options.window_tokens}
    optional = {
        "instructions": conversation.instructions,
        "room_goal": options.room_goal,
        "model_alias": options.model_alias,
    }
    return body | {name: value for name, value in optional.items() if value}


def turn_body(turn: RecordedTurn, options: ReplayOptions) -> dict[str, Any]:
    """The body of `POST …/turns` for a recorded turn, its tool rounds flattened into the last text."""
    if options.recorded and turn.reply is not None:
        return {"content": turn.prompt, "recorded_reply": {"content": turn.reply}}
    return {"content": turn.prompt}


def turn_figures(number: int, answer: Answer, full_history: FullHistory) -> TurnFigures:
    """Takes down one answer to `POST …/turns`; a completed turn enters `full_history`."""
    if answer.status_code == 201:
        return _completed(number, answer, full_history)
    outcome: Outcome = "rejected_request"
    if answer.status_code >= 500:
        outcome = "server_error"
    elif answer.status_code == 422 and answer.code == "context_budget_exceeded":
        outcome = "refused"
    return TurnFigures(
        number=number,
        outcome=outcome,
        status_code=answer.status_code,
        code=answer.code,
        turn_id=_optional_text(answer.body.get("turn_id")),
        window=window_of_refusal(answer.body) if outcome == "refused" else None,
        elapsed_s=answer.elapsed_s,
    )


def _completed(number: int, answer: Answer, full_history: FullHistory) -> TurnFigures:
    turn = cast("Mapping[str, Any]", answer.body["turn"])
    context = cast("Mapping[str, Any]", answer.body["context"])
    window = window_of_context(context)
    summary, prune = bool(context["summary_triggered"]), bool(context["prune_triggered"])
    full_history_tokens = full_history.prompt_tokens(window.regions, compressed=summary or prune)
    full_history.answered(window.regions.get("user", 0), _reply_tokens(turn))
    return TurnFigures(
        number=number,
        outcome="completed",
        status_code=answer.status_code,
        turn_id=str(turn["id"]),
        window=window,
        summary=summary,
        prune=prune,
        reported_prompt_tokens=_optional_tokens(turn.get("prompt_tokens")),
        full_history_tokens=full_history_tokens,
        elapsed_s=answer.elapsed_s,
    )


def _reply_tokens(turn: Mapping[str, Any]) -> int:
    """What the provider reported for the reply; a provider that reports none is put at four characters a token."""
    reported = _optional_tokens(turn.get("completion_tokens"))
    return math.ceil(len(str(turn.get("assistant_output") or "")) / 4) if reported is None else reported


def _optional_tokens(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _optional_text(value: object) -> str | None:
    return value if isinstance(value, str) else None
