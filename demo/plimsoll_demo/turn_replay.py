"""Plays one recorded turn: the user's message, then round by round what the recorded tools answered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from plimsoll_demo.client import Answer, Service, ServiceUnavailableError
from plimsoll_demo.figures import (
    Outcome,
    PromptFault,
    ReplayedRound,
    ReplayedTurn,
    RoundOutcome,
    window_of_context,
    window_of_refusal,
)
from plimsoll_demo.full_history import FullHistory
from plimsoll_demo.prompt_check import prompt_faults
from plimsoll_demo.recording import MISSING_RESULT, LeftOut, Mended, RecordedTurn, Round

WAITING = "awaiting_tools"


@dataclass(frozen=True, slots=True)
class Playing:
    """The session that is played into, and what is counted on the way."""

    service: Service
    session_id: str
    tools: Sequence[Mapping[str, Any]]
    recorded: bool
    check_prompts: bool
    full_history: FullHistory
    left_out: Counter[LeftOut]
    mended: Counter[Mended]


class TurnPlay:
    """One turn. `play` posts its message and its tool outputs, and always leaves the session free for the next."""

    def __init__(self, playing: Playing, number: int, turn: RecordedTurn) -> None:
        self.playing = playing
        self.number = number
        self.turn = turn
        self.turn_id: str | None = None
        self.figures: list[ReplayedRound] = []
        self._reported_tokens = (0, 0)
        self._model_replies = False

    def play(self) -> ReplayedTurn:
        """Plays the turn to its end. Raises `ServiceUnavailableError` when the service turns the replay away."""
        rounds = self.turn.rounds
        answer = self._take(self._posted())
        for at, round_ in enumerate(rounds):
            if not _waits(answer):
                self.playing.left_out["rounds_not_reached"] += len(rounds) - at - (answer.status_code == 201)
                break
            if at + 1 == len(rounds) and round_.unanswered == len(round_.calls):
                break  # The tools of this turn never answered.
            answer = self._take(self._answered(answer, round_, rounds[at + 1] if at + 1 < len(rounds) else None))
        return self._ended(answer)

    def _posted(self) -> Answer:
        playing = self.playing
        body: dict[str, Any] = {"content": self.turn.prompt}
        if playing.tools:
            body["tools"] = playing.tools
        return playing.service.post_turn(
            playing.session_id, body | self._reply(self.turn.rounds[0] if self.turn.rounds else None)
        )

    def _answered(self, waiting: Answer, round_: Round, following: Round | None) -> Answer:
        """Posts the results of a round under the ids the service gave its calls, which may differ from the recorded."""
        playing = self.playing
        results = [MISSING_RESULT if call.result is None else call.result for call in round_.calls]
        playing.mended["results_noted_as_missing"] += round_.unanswered
        playing.full_history.called(round_.text, round_.calls, results)
        outputs = [
            {"tool_call_id": call["id"], "content": result}
            for call, result in zip(waiting.body["turn"]["tool_calls"], results, strict=True)
        ]
        body = {"outputs": outputs} | self._reply(following)
        return playing.service.post_tool_outputs(playing.session_id, str(self.turn_id), body)

    def _reply(self, round_: Round | None) -> dict[str, Any]:
        """The recorded reply of the next model call; without one the model answers."""
        if round_ is None:
            self._model_replies = self.playing.recorded
            return {}
        reply: dict[str, Any] = {"content": round_.text}
        if round_.calls:
            reply["tool_calls"] = [call.as_sent() for call in round_.calls]
        return {"recorded_reply": reply}

    def _take(self, answer: Answer) -> Answer:
        """Takes down one answer, and has the prompt behind it looked at."""
        if answer.status_code in {401, 403, 404}:
            raise ServiceUnavailableError(
                f"{self.playing.service.url} turns the replay away: {answer.status_code} {answer.code or ''}"
            )
        number = len(self.figures) + 1
        if answer.status_code == 201:
            self.turn_id = str(answer.body["turn"]["id"])
            self.playing.mended["replies_by_the_model"] += self._model_replies
            self.figures.append(self._answered_figures(number, answer))
        else:
            told_id = answer.body.get("turn_id")
            self.turn_id = self.turn_id or (told_id if isinstance(told_id, str) else None)
            self.figures.append(unanswered_figures(number, answer))
        return answer

    def _answered_figures(self, number: int, answer: Answer) -> ReplayedRound:
        turn = cast("Mapping[str, Any]", answer.body["turn"])
        context = cast("Mapping[str, Any]", answer.body["context"])
        history = self.playing.full_history
        window = window_of_context(context)
        summary, prune = bool(context["summary_triggered"]), bool(context["prune_triggered"])
        full_history_tokens = history.prompt_tokens(window.regions, compressed=summary or prune)
        prompt_tokens, completion_tokens = turn.get("prompt_tokens"), turn.get("completion_tokens")
        prompts_before, completions_before = self._reported_tokens
        if turn["status"] != WAITING:
            text = str(turn.get("assistant_output") or "")
            # A provider that reports none is put at four characters a token.
            reply_tokens = (
                math.ceil(len(text) / 4) if completion_tokens is None else completion_tokens - completions_before
            )
            history.replied(reply_tokens)
        self._reported_tokens = (prompt_tokens or prompts_before, completion_tokens or completions_before)
        return ReplayedRound(
            number=number,
            outcome="answered",
            status_code=answer.status_code,
            window=window,
            summary=summary,
            prune=prune,
            reported_prompt_tokens=None if prompt_tokens is None else prompt_tokens - prompts_before,
            full_history_tokens=full_history_tokens,
            elapsed_s=answer.elapsed_s,
            faults=self._faults(number) if self.playing.check_prompts else None,
        )

    def _faults(self, number: int) -> dict[PromptFault, int]:
        service, session_id, turn_id = self.playing.service, self.playing.session_id, str(self.turn_id)
        prompt = service.prompt(session_id, turn_id, number)
        audit = service.audit(session_id, turn_id, number)
        return prompt_faults(prompt, audit, user_message=self.turn.prompt, round_number=number)

    def _ended(self, answer: Answer) -> ReplayedTurn:
        outcome = _turn_outcome(self.figures[-1].outcome, answer)
        # Also where outputs were not taken, the turn may wait on, and the session would take no other message.
        if outcome not in {"completed", "refused"} and self.turn_id is not None:
            self.playing.service.cancel_turn(self.playing.session_id, self.turn_id)
            self.playing.mended["turns_cancelled"] += outcome == "cancelled"
        self.playing.full_history.turn_ended(kept=outcome != "refused")
        return ReplayedTurn(self.number, outcome, tuple(self.figures), self.turn_id)


def unanswered_figures(number: int, answer: Answer) -> ReplayedRound:
    """The figures of a model call that was not made or not answered."""
    outcome: RoundOutcome = "rejected_request"
    if answer.status_code >= 500:
        outcome = "server_error"
    elif answer.status_code == 422 and answer.code == "context_budget_exceeded":
        outcome = "refused"
    return ReplayedRound(
        number=number,
        outcome=outcome,
        status_code=answer.status_code,
        code=answer.code,
        detail=answer.body.get("detail"),
        window=window_of_refusal(answer.body) if outcome == "refused" else None,
        elapsed_s=answer.elapsed_s,
    )


def _waits(answer: Answer) -> bool:
    return answer.status_code == 201 and answer.body["turn"]["status"] == WAITING


def _turn_outcome(last: RoundOutcome, answer: Answer) -> Outcome:
    if last != "answered":
        return last
    return "cancelled" if _waits(answer) else "completed"
