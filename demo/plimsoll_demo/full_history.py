"""What a client that resends the whole conversation would have sent: the figure the window is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from app.domain.types import ToolCall
from app.engine.messages.tokens import Estimate, message_tokens
from app.tokenizers.vocabularies import load_vocabulary
from plimsoll_demo.recording import RecordedCall

STANDING_REGIONS = ("system", "goal", "pins", "tools")
TOOL_MESSAGES_ENCODING = "o200k_base"


class FullHistory:
    """What a client that resends the whole conversation with every model call would send.

    From the service's own figures: one prompt is its standing regions (system, goal, pins, tools) + every earlier
    message + the user's message + framing. A user message is the turn's `user` region, a reply the `completion_tokens`
    of its round, and a message's framing what the first uncompressed prompt with a past has over the very first, shared
    among the messages between. Calls and tool results stand in no figure of an answer and are counted here, with the
    service's arithmetic, in `TOOL_MESSAGES_ENCODING`. Turns that the service rejected are left out, as it does itself.
    """

    DEFAULT_FRAMING_TOKENS = 4

    def __init__(self) -> None:
        self._past_tokens = 0
        self._past_messages = 0
        self._turn_tokens = 0
        self._turn_messages = 0
        self._user_tokens: int | None = None
        self._first_framing_tokens: int | None = None
        self._message_framing_tokens: float | None = None

    def prompt_tokens(self, regions: Mapping[str, int], *, compressed: bool) -> int:
        """The full-history prompt of a model call whose own prompt had these regions."""
        self._user_tokens = regions.get("user", 0)
        messages = self._past_messages + self._turn_messages
        framing_tokens = regions.get("framing", 0)
        if self._first_framing_tokens is None:
            self._first_framing_tokens = framing_tokens
        elif self._message_framing_tokens is None and messages and not compressed:
            self._message_framing_tokens = (framing_tokens - self._first_framing_tokens) / messages
        each_tokens = self._message_framing_tokens
        framing_tokens = round(messages * (self.DEFAULT_FRAMING_TOKENS if each_tokens is None else each_tokens))
        standing_tokens = sum(regions.get(name, 0) for name in STANDING_REGIONS)
        said_tokens = self._past_tokens + self._user_tokens + self._turn_tokens
        return standing_tokens + said_tokens + self._first_framing_tokens + framing_tokens

    def replied(self, reply_tokens: int) -> None:
        """Takes the running turn's reply into the history."""
        self._turn_tokens += reply_tokens
        self._turn_messages += 1

    def called(self, text: str | None, calls: Sequence[RecordedCall], results: Sequence[str]) -> None:
        """Takes a reply that calls tools into the history, with the results of its calls."""
        count = _counter()
        made = [ToolCall(call.id, call.name, call.arguments) for call in calls]
        self.replied(message_tokens(text, count, tool_calls=made))
        for call, result in zip(calls, results, strict=True):
            self.replied(message_tokens(result, count, tool_call_id=call.id))

    def turn_ended(self, *, kept: bool) -> None:
        """The running turn becomes part of the past, or, where the service keeps nothing of it, never was."""
        if kept and self._user_tokens is not None:
            self._past_tokens += self._user_tokens + self._turn_tokens
            self._past_messages += 1 + self._turn_messages
        self._user_tokens, self._turn_tokens, self._turn_messages = None, 0, 0


@cache
def _counter() -> Estimate:
    return load_vocabulary(TOOL_MESSAGES_ENCODING).count
