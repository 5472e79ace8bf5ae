"""What the statements look at in a recording, by name."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from app.domain.types import JsonObject
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS
from app.engine.window.recalled import RECALL_NOTE
from tests.presets.recordings import PlayedTurn, Recording, Sent


def raw_part(sent: Sent) -> list[JsonObject]:
    """The raw window of a prompt and its running turn, without the block of what was recalled."""
    raw = [message for message in sent.messages if message["role"] != "system"]
    recalled = sent.audit["context_trim_log"].get("recalled", ())
    if not recalled:
        return raw
    note = next(at for at, message in enumerate(raw) if message["content"] == RECALL_NOTE)
    return raw[:note] + raw[note + 1 + len(recalled) :]


def words_of_users(sent: Sent) -> list[str]:
    return [message["content"] for message in raw_part(sent) if message["role"] == "user"]


def sent_form(stored: JsonObject) -> tuple[str, object, object]:
    return stored["role"], stored["content"], stored.get("tool_call_id")


def raw_turns(recording: Recording, turn: PlayedTurn, sent: Sent) -> list[PlayedTurn] | None:
    """The past turns that stand in a prompt, each whole and in time order; None when something else stands there."""
    so_far = turn.stored[: _messages_before(turn, sent)]
    raw = [sent_form(message) for message in raw_part(sent)]
    current = [sent_form(message) for message in so_far]
    if raw[len(raw) - len(current) :] != current:
        return None
    past, at = raw[: len(raw) - len(current)], turn.number - 1
    turns: list[PlayedTurn] = []
    while past and at:
        earlier = recording.turns[at - 1]
        whole = [sent_form(message) for message in earlier.stored]
        if past[-len(whole) :] != whole:
            return None
        past, at = past[: -len(whole)], at - 1
        turns.insert(0, earlier)
    return None if past else turns


def _messages_before(turn: PlayedTurn, sent: Sent) -> int:
    """How many of the turn's messages were there when its model was called for the round."""
    replies = [at for at, message in enumerate(turn.stored) if message["role"] == "assistant"]
    return replies[sent.round - 1]


def wire_tokens(turns: Sequence[PlayedTurn]) -> int:
    return sum(message["token_estimate"] + MESSAGE_FRAMING_TOKENS for turn in turns for message in turn.stored)


def usage_threshold(sent: Sent, share: float) -> int:
    """A share of the window, but never above 90 % of the input budget (contract.md, decision 1)."""
    return ceil(min(share * sent.audit["model_context_limit"], 0.90 * sent.budget))


def after_turn_tokens(turn: PlayedTurn) -> int:
    """Input tokens of the window with the turn's answer in it; what was pruned of its prompt is there again."""
    return turn.sent[-1].audit["estimated_input_tokens_after_summary"] + turn.stored[-1]["token_estimate"]


def made_in_background(recording: Recording) -> list[PlayedTurn]:
    """The turns that left a summary to be made after their answer."""
    made: list[PlayedTurn] = []
    before = 0
    for turn in recording.turns:
        at_once = sum(sent.audit["summary_triggered"] for sent in turn.sent)
        if turn.summaries_after - before > at_once:
            made.append(turn)
        before = turn.summaries_after
    return made


def summarized(recording: Recording) -> list[tuple[PlayedTurn, Sent]]:
    """The calls before which a summary was made; at least one."""
    found = [(turn, sent) for turn, sent in recording.sent if sent.audit["summary_triggered"]]
    assert found, "no call of this recording waited for a summary"
    return found


def pruned(recording: Recording) -> list[tuple[PlayedTurn, Sent]]:
    """The calls whose prompt was pruned; at least one."""
    found = [(turn, sent) for turn, sent in recording.sent if sent.audit["prune_triggered"]]
    assert found, "no prompt of this recording was pruned"
    return found


def kinds(recording: Recording) -> set[str]:
    return {action["kind"] for _, sent in recording.sent for action in sent.actions}
