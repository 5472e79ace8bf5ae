"""Plays a scene through a preset on the real service, and takes down all that was sent and decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.domain.frozen import values_of
from app.domain.types import JsonObject, RecordedReply, SessionId, ToolCall, TurnId
from app.services.sessions import put_pin
from app.services.turn.types import TurnOutcome
from app.services.views.turns import get_expanded_audit, get_prompt
from plimsoll_demo.recording import RecordedTurn, Round
from tests.presets.conversations import GOAL_OF_ALL, Scene
from tests.services.service import Service, ref_of, service


@dataclass(frozen=True, slots=True)
class Sent:
    """One model call: its audit and its prompt, both read back when the whole conversation was over."""

    round: int
    audit: JsonObject
    prompt: JsonObject

    @property
    def messages(self) -> Sequence[JsonObject]:
        return self.prompt["messages"]

    @property
    def before(self) -> int:
        """Charged tokens as the prompt was found."""
        return self.audit["estimated_input_tokens_before"]

    @property
    def input_tokens(self) -> int:
        return self.audit["estimated_input_tokens_after_prune"]

    @property
    def budget(self) -> int:
        return self.audit["input_budget"]

    @property
    def actions(self) -> Sequence[JsonObject]:
        return self.audit["context_trim_log"]["actions"]

    def targets(self, kind: str) -> list[str]:
        """Whom the actions of this kind took something from, in their order."""
        return [action["target"] for action in self.actions if action["kind"] == kind]


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A turn as it was stored, its calls, and how many summaries there were once its chores were done."""

    number: int
    id: str
    status: str
    said: str
    answer_at_once: JsonObject
    sent: Sequence[Sent]
    stored: Sequence[JsonObject]
    summary_reasons: Sequence[str]
    summaries_after: int

    @property
    def first(self) -> Sent:
        return self.sent[0]


@dataclass(frozen=True, slots=True)
class Recording:
    """A scene under a preset. `summaries` are in the order they were made."""

    preset: str
    scene: Scene
    turns: Sequence[PlayedTurn]
    summaries: Sequence[JsonObject]

    @property
    def sent(self) -> list[tuple[PlayedTurn, Sent]]:
        return [(turn, sent) for turn in self.turns for sent in turn.sent]

    def turn(self, target: str) -> PlayedTurn:
        """The turn that an action's target names."""
        return next(turn for turn in self.turns if f"turn:{turn.id}" == target)


async def record(database_url: str, preset: str, scene: Scene) -> Recording:
    """The whole conversation, turn by turn, with what each leaves to the background done before the next."""
    async with service(database_url) as at:
        session = await at.session(
            policy={"preset": preset, "max_context_tokens": scene.window_tokens, **scene.policy},
            room_goal=GOAL_OF_ALL,
            instructions=scene.conversation.instructions,
        )
        for pin in scene.pins:
            await put_pin(at.rt, ref_of(session.id), pin)
        played: list[tuple[RecordedTurn, TurnOutcome, int, int]] = []
        for recorded in scene.conversation.turns:
            outcome, rounds = await _play(at, session.id, recorded, scene.conversation.tools)
            await at.rt.chores.settle()
            made = await at.rows("SELECT count(*) AS n FROM session_summaries")
            played.append((recorded, outcome, rounds, made[0]["n"]))
        turns = [await _read_back(at, session.id, number, *each) for number, each in enumerate(played, start=1)]
        summaries = await at.rows(
            "SELECT s.*, m.seq AS from_message_seq FROM session_summaries s "
            "JOIN messages m ON m.id = s.from_message_id ORDER BY s.created_at, s.id"
        )
        return Recording(preset, scene, turns, summaries)


async def _play(
    at: Service, session_id: SessionId, recorded: RecordedTurn, tools: Sequence[Any]
) -> tuple[TurnOutcome, int]:
    first, *later = recorded.rounds
    outcome = await at.turn(session_id, recorded.prompt, tools=tuple(tools), recorded_reply=_reply(first))
    calls = first.calls
    for following in later:
        results = [str(call.result) for call in calls]
        outputs = {call.id: result for call, result in zip(outcome.turn.tool_calls, results, strict=True)}
        outcome = await at.outputs(session_id, outcome.turn.id, outputs, _reply(following))
        calls = following.calls
    return outcome, len(recorded.rounds)


def _reply(round_: Round) -> RecordedReply:
    return RecordedReply(round_.text, tuple(ToolCall(call.id, call.name, call.arguments) for call in round_.calls))


async def _read_back(
    at: Service,
    session_id: SessionId,
    number: int,
    recorded: RecordedTurn,
    outcome: TurnOutcome,
    rounds: int,
    summaries_after: int,
) -> PlayedTurn:
    turn_id: TurnId = outcome.turn.id
    sent = [
        Sent(
            round_number,
            values_of(await get_expanded_audit(at.rt, ref_of(session_id), turn_id, round_number)),
            values_of(await get_prompt(at.rt, ref_of(session_id), turn_id, round_number)),
        )
        for round_number in range(1, rounds + 1)
    ]
    stored = await at.rows(
        "SELECT seq, role, content, tool_call_id, token_estimate FROM messages WHERE turn_id = :id ORDER BY seq",
        id=turn_id,
    )
    steps = await at.rows(
        "SELECT detail FROM turn_steps WHERE turn_id = :id AND kind = 'summarize' ORDER BY seq", id=turn_id
    )
    return PlayedTurn(
        number,
        str(turn_id),
        outcome.turn.status.value,
        recorded.prompt,
        outcome.context,
        sent,
        stored,
        [step["detail"]["reason"] for step in steps],
        summaries_after,
    )
