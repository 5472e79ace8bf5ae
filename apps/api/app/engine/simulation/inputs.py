"""What a simulation is given: its settings, with what its calls cost, and stored turns counted for its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

from app.domain.extractive import READING, Reading
from app.domain.frozen import frozen, replace
from app.domain.prices import Prices, call_cost, total_usd
from app.domain.types import Message, Pin, ReasoningRule, ToolDefinition, Turn, TurnStatus, Usage
from app.engine.messages.tokens import Estimate, tools_tokens
from app.engine.messages.turns import framed_tokens, sendable_messages, wire_tokens_of, with_reasoning
from app.engine.policy.budget import Budget
from app.engine.policy.policy import ContextPolicy
from app.engine.window.window import head_items

CountKey: TypeAlias = tuple[str, str]
"""(alias, encoding): what the token count of a message depends on, images included."""
_Seen: TypeAlias = tuple[tuple[tuple[str, str], ...], tuple[Pin, ...], tuple[ToolDefinition, ...]]
PricesOf: TypeAlias = Callable[[int], Prices]
"""The prices of a call, by the tokens of its prompt."""


@frozen
class SimulatedModel:
    """A model and the one that would make its summaries, whose largest prompt has `summarizer_ceiling` tokens.
    `wire_model` is the provider's name of the model."""

    alias: str
    wire_model: str
    encoding: str
    budget: Budget
    estimate: Estimate
    calibration_ratio: float
    prices: PricesOf
    summarizer_ceiling: int
    summarizer_prices: PricesOf
    reasoning_rule: ReasoningRule | None = None
    takes_tools: bool = False

    @property
    def key(self) -> CountKey:
        return self.alias, self.encoding


@frozen
class Setting:
    """The settings of a simulation. `models` has every alias that a turn may use. `read` may cache its results, since
    other policies summarize the same texts."""

    policy: ContextPolicy
    goal: str | None
    models: Mapping[str, SimulatedModel]
    read: Reading = READING


class Bill:
    """Tokens by the prices that apply to them."""

    def __init__(self) -> None:
        self._tokens: dict[Prices, list[int]] = {}
        self._last: tuple[Prices | None, list[int]] = (None, [])

    def add(self, prices: Prices, prompt_tokens: int, output_tokens: int) -> None:
        if prices is not self._last[0]:  # they rarely change, and looking them up is most of the work
            self._last = prices, self._tokens.setdefault(prices, [0, 0])
        tokens = self._last[1]
        tokens[0] += prompt_tokens
        tokens[1] += output_tokens

    def add_turn(self, prompts: list[int], output_tokens: int, prices: PricesOf) -> None:
        """Add a turn's calls, with the output at the prices of the largest prompt."""
        for tokens in prompts:
            self.add(prices(tokens), tokens, 0)
        self.add(prices(max(prompts, default=0)), 0, output_tokens)

    @property
    def cost_usd(self) -> Decimal | None:
        """US dollars, exact; None if a price is not known."""
        return total_usd(
            [call_cost(Usage(prompt, output), prices) for prices, (prompt, output) in self._tokens.items()]
        )


@frozen
class SimulatedCall:
    """A model call of a turn. `current` is the turn as it was at the call, `resent_tokens` its wire tokens; `tokens`
    (without framing) and `messages` count what is sent of it. `output_tokens` are None if no answer came."""

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
    """A stored turn, its messages counted for one model, with all that no policy changes.

    `head` is the size of what precedes the history, without the summary. `user_tokens` are those of users' messages. In
    later prompts the turn is `latest`, and `older` once another turn follows. `resent_tokens` are the wire tokens of
    what is then sent of it, without reasoning.
    """

    turn: Turn
    calls: tuple[SimulatedCall, ...]
    head: HeadCost
    user_tokens: int
    latest: Turn
    older: Turn
    resent_tokens: int


@frozen
class PastTurn:
    """A stored turn as it ended, and counted for each simulated model (`versions`). `model_alias` answered it, with as
    many output tokens as the provider reported. `pins` existed when it was posted. `stored_tokens` are the counts that
    its messages, by number, were stored with; a search uses these."""

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
    """For each model call of a turn, the number of the turn's messages before it. One is unanswered if the last message
    is not an assistant's."""
    ends = [at for at, message in enumerate(messages) if at and message.role == "assistant"]
    if messages and messages[-1].role != "assistant":
        ends.append(len(messages))
    return ends
