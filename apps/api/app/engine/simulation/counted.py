"""A stored turn counted for a model, with all that no policy changes. It is built once for all simulations of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

from app.domain.frozen import frozen, replace
from app.domain.types import Message, Pin, ReasoningRule, ToolDefinition, Turn, TurnStatus
from app.engine.messages.tokens import Estimate, tools_tokens
from app.engine.messages.turns import framed_tokens, sendable_messages, wire_tokens_of, with_reasoning
from app.engine.window.pieces import Piece, pieces_of
from app.engine.window.window import head_items

CountKey: TypeAlias = tuple[str, str]
"""(alias, encoding): what the token count of a message depends on, images included."""
_Seen: TypeAlias = tuple[tuple[tuple[str, str], ...], tuple[Pin, ...], tuple[ToolDefinition, ...]]


@frozen
class SimulatedCall:
    """A model call of a turn.

    `current` is the turn as it was at the call, and `resent_tokens` are the wire tokens of all of it. `tokens` (without
    framing) and `messages` count what is sent of it. `output_tokens` are those of the answer; None if none came.
    """

    current: Turn
    tokens: int
    messages: int
    resent_tokens: int
    output_tokens: int | None


class HeadCost(NamedTuple):
    """The size of what precedes the summary: tokens without framing, messages, and the tokens of tools."""

    tokens: int
    messages: int
    tools_tokens: int


@frozen
class CountedTurn:
    """A stored turn, its messages counted for one model.

    `head` is the size of what precedes the history, without the summary. `user_tokens` are those of all its users'
    messages. In later prompts the turn is `latest`, and `older` once another turn follows. `resent_tokens` are the wire
    tokens of what is then sent of it, without reasoning.
    """

    turn: Turn
    calls: tuple[SimulatedCall, ...]
    head: HeadCost
    user_tokens: int
    latest: Turn
    older: Turn
    older_pieces: Sequence[Piece]
    resent_tokens: int


@frozen
class PastTurn:
    """A stored turn as it ended; `versions` has it counted for each simulated model.

    `model_alias` answered it. `completion_tokens` are the output tokens that the provider reported for its calls.
    `pins` are those that existed when it was posted. `stored_tokens` are the token counts that its messages, by number,
    were stored with; a search uses these.
    """

    model_alias: str
    layers: tuple[tuple[str, str], ...]
    tools: tuple[ToolDefinition, ...]
    pins: tuple[Pin, ...]
    completion_tokens: int | None
    versions: Mapping[CountKey, CountedTurn]
    stored_tokens: Mapping[int, int]
    tool_choice: object = None
    provider_options: Mapping[str, Any] = field(default_factory=dict[str, Any])


class TurnCounter:
    """Makes the versions of turns for one model. What precedes the history is counted again only when it changes."""

    def __init__(self, estimate: Estimate, goal: str | None, reasoning_rule: ReasoningRule | None) -> None:
        self.estimate = estimate
        self._goal = goal
        self._rule = reasoning_rule
        self._head: tuple[_Seen | None, HeadCost] = (None, HeadCost(0, 0, 0))

    def version(
        self,
        turn: Turn,
        layers: tuple[tuple[str, str], ...] = (),
        pins: tuple[Pin, ...] = (),
        tools: tuple[ToolDefinition, ...] = (),
    ) -> CountedTurn:
        """The version of a turn whose messages are counted already, with these system layers, pins and tools."""
        if self._head[0] != (layers, pins, tools):
            items = head_items(layers, self._goal, pins, self.estimate)
            tokens, of_tools = sum([item.tokens for item in items]), tools_tokens(tools, self.estimate)
            self._head = (layers, pins, tools), HeadCost(tokens, len(items), of_tools)
        # A rejected turn that fits now has no reply to continue with, so it is treated like a failed turn.
        rejected = turn.status is TurnStatus.REJECTED
        settled = replace(turn, status=TurnStatus.FAILED, unresolved=True) if rejected else turn
        latest = with_reasoning(settled, self._rule)
        older = replace(latest, unresolved=False) if latest.unresolved else latest
        return CountedTurn(
            turn=turn,
            calls=tuple(self._call(turn, end) for end in _call_ends(turn.messages)),
            head=self._head[1],
            user_tokens=tokens_of_users(turn),
            latest=latest,
            older=older,
            older_pieces=pieces_of(older, "settled"),
            resent_tokens=wire_tokens_of((settled,)),
        )

    def _call(self, turn: Turn, end: int) -> SimulatedCall:
        running = replace(turn, status=TurnStatus.RUNNING, unresolved=True, messages=turn.messages[:end])
        current = with_reasoning(running, self._rule)
        sent = sendable_messages((current,))
        answer = turn.messages[end] if end < len(turn.messages) else None
        return SimulatedCall(
            current,
            sum([message.tokens for message in sent]),
            len(sent),
            framed_tokens(running.messages),
            answer.tokens + answer.reasoning_tokens if answer else None,
        )


def tokens_of_users(turn: Turn) -> int:
    return sum([message.tokens for message in turn.messages if message.role == "user"])


def _call_ends(messages: Sequence[Message]) -> list[int]:
    """For each model call of a turn, the number of the turn's messages before it. There is a call for each assistant
    message, and an unanswered one if the last message is not an assistant's."""
    ends = [at for at, message in enumerate(messages) if at and message.role == "assistant"]
    if messages and messages[-1].role != "assistant":
        ends.append(len(messages))
    return ends
