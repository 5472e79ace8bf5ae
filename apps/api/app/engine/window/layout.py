"""A prompt listed message by message, and its removals listed one by one, to show users what filled the window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from app.domain.audit import CLEARED, TrimAction
from app.domain.content import tool_calls_from_json
from app.domain.figures import LaidOut
from app.domain.frozen import replace
from app.domain.types import JsonObject, Message, Region, Turn, TurnId, TurnStatus
from app.engine.messages.media import ImageTokens
from app.engine.messages.tokens import Estimate, message_tokens, with_images_by_rule
from app.engine.messages.turns import sent_tokens
from app.engine.window.clearing import cleared_items
from app.engine.window.past import past_of
from app.engine.window.pieces import Piece
from app.engine.window.prompt import Prompt, Run
from app.engine.window.prompt_refs import HowSent, RebuiltPart, how_sent_of
from app.engine.window.pruning import dropped_kind, marked_media, shortened_texts
from app.engine.window.shortening import NEWEST_TOO_LARGE

_DROPPED_KINDS: Final = frozenset({"assistant_dropped", "tool_group_dropped"})
_MOST_RANGES: Final = 32
"""More ranges than a log of ours has, which has one per kind and reason. An imported log may have any number of them,
each with every message of the session."""


def layout_of(prompt: Prompt) -> list[LaidOut]:
    """One row per message of a prompt that was just decided, in order."""
    rows: list[LaidOut] = []
    for part in prompt.parts:
        if isinstance(part, Run):
            of_run = part.past.ids_of_run(part.first, part.end)
            rows += (
                LaidOut(part.region, tokens, message_id, turn_id, shortened=False)
                for tokens, message_id, turn_id in of_run
            )
        else:
            rows.append(_row(part.region, part.tokens, part.message, shortened=part.is_shortened))
    return rows


def rebuilt_row(part: RebuiltPart, region: Region | None, estimate: Estimate, image_tokens: ImageTokens) -> LaidOut:
    """The row of a rebuilt message, counted again, because counts of single messages are not stored with a prompt."""
    message = part.message
    if message is None:
        calls = tool_calls_from_json(part.sent.get("tool_calls"))
        call_id = part.sent.get("tool_call_id")
        return _row(
            region, message_tokens(part.sent["content"], estimate, tool_calls=calls, tool_call_id=call_id), None
        )
    sent = replace(message, content=part.sent["content"])
    return _row(region, _counted(sent, estimate, image_tokens).tokens, message, shortened=part.shortened)


def counted_turn(turn: Turn, estimate: Estimate, image_tokens: ImageTokens) -> Turn:
    """The turn with its messages counted again, with the reasoning that they are marked to be sent with."""
    return replace(turn, messages=tuple([_counted(message, estimate, image_tokens) for message in turn.messages]))


def _counted(message: Message, estimate: Estimate, image_tokens: ImageTokens) -> Message:
    return with_images_by_rule(replace(message, tokens=sent_tokens(message, estimate)), image_tokens)


def _row(region: Region | None, tokens: int, message: Message | None, *, shortened: bool = False) -> LaidOut:
    message_id, turn_id = (None, None) if message is None else (message.id, message.turn_id)
    return LaidOut(region, tokens, message_id, turn_id, shortened=shortened)


def singly(
    actions: Iterable[TrimAction],
    turns: Sequence[Turn],
    refs: JsonObject | None,
    input_budget: int,
    estimate: Estimate,
    *,
    with_handles: bool = False,
) -> list[TrimAction]:
    """The actions with each range split into its single actions, in time order.

    `turns` are the turns of the ranges with their messages, counted again. `refs` are the prompt's references, which
    show what was sent of a range; without them (the prompt was not sent) ranges are not split, nor are more than
    `_MOST_RANGES`. `with_handles` says whether the prompt offered the look-back tool.
    """
    actions = tuple(actions)
    ranges = [action for action in actions if action.seqs]
    pieces, how_sent = past_of(turns).pieces, how_sent_of(refs) if refs and len(ranges) <= _MOST_RANGES else None
    by_themselves = {(action.kind, action.target) for action in actions if action.seqs is None}
    newest = {action.target for action in actions if action.reason == NEWEST_TOO_LARGE}
    removed_tokens: Counter[str] = Counter()
    singles: dict[int, list[TrimAction]] = {}
    # In this order: what was removed of a message was no longer there when it was dropped, or its turn was.
    for at, action in sorted(enumerate(actions), key=lambda each: _extent(each[1])):
        seqs = action.seqs
        if seqs is None or how_sent is None:
            found = [action]
        elif seqs[0] == "turns":
            within_range = [turn for turn in turns if seqs[1] <= turn.seq <= seqs[2]]
            found = [*_turns_singly(action, within_range, pieces, how_sent, removed_tokens)]
        else:
            within = [piece for piece in pieces if seqs[1] <= piece.seq and piece.last_seq <= seqs[2]]
            if _extent(action):
                listed = _dropped_singly(action, within, how_sent, removed_tokens)
            else:
                listed = _shortened_singly(action, within, how_sent, input_budget, estimate, with_handles=with_handles)
            # A range may contain items that have an action of their own, for another reason, and newest results, from
            # which a prune removes nothing.
            others = (each for each in listed if each.target not in newest)
            found = [each for each in others if (each.kind, each.target) not in by_themselves]
        for each in found:
            removed_tokens[each.target] += each.tokens_removed_est
        singles[at] = found
    return [each for at in range(len(actions)) for each in singles[at]]


def _extent(action: TrimAction) -> int:
    """How much an action removes: parts of messages (0), whole messages (1), or turns (2)."""
    return 2 if action.target.startswith("turns:") else int(action.kind in _DROPPED_KINDS)


def _turns_singly(
    action: TrimAction,
    turns: Sequence[Turn],
    pieces: Sequence[Piece],
    how_sent: HowSent,
    removed_tokens: Mapping[str, int],
) -> Iterator[TrimAction]:
    """`removed_tokens` are those that other actions removed, by their targets."""
    wire_tokens: dict[TurnId, int] = {}
    stayed: set[TurnId] = set()
    for piece in pieces:
        wire_tokens[piece.turn_id] = wire_tokens.get(piece.turn_id, 0) + _left_of(piece, removed_tokens)
        if how_sent(piece.stored_messages[0]):
            stayed.add(piece.turn_id)
    gone = [turn for turn in turns if turn.id in wire_tokens and turn.id not in stayed]
    # A summary folds all turns of its range but rejected ones, whether anything of them could be sent or not.
    folded = [turn for turn in turns if turn.status is not TurnStatus.REJECTED]
    for turn in gone if len(gone) == action.count else folded:
        yield TrimAction(action.kind, f"turn:{turn.id}", action.reason, wire_tokens.get(turn.id, 0))


def _dropped_singly(
    action: TrimAction, pieces: Sequence[Piece], how_sent: HowSent, removed_tokens: Mapping[str, int]
) -> Iterator[TrimAction]:
    for piece in pieces:
        if dropped_kind(piece.kind) == action.kind and not how_sent(piece.stored_messages[0]):
            yield TrimAction(action.kind, piece.label, action.reason, _left_of(piece, removed_tokens))


def _left_of(piece: Piece, removed_tokens: Mapping[str, int]) -> int:
    """The wire tokens of the piece without those that actions on its messages removed."""
    return piece.wire_tokens - sum(removed_tokens.get(item.label, 0) for item in piece.items)


def _shortened_singly(
    action: TrimAction,
    pieces: Sequence[Piece],
    how_sent: HowSent,
    input_budget: int,
    estimate: Estimate,
    *,
    with_handles: bool,
) -> Iterator[TrimAction]:
    """Messages that were dropped had been shortened before, if they are long: a prune shortens them first."""
    for piece in pieces:
        if action.reason == CLEARED:
            texts = cleared_items(piece, estimate, with_handles=with_handles)
        else:
            texts = shortened_texts(piece, input_budget, estimate, with_handles=with_handles)
        texts = [each for each in texts if each.was.message and how_sent(each.was.message) != "marked"]
        media = marked_media(piece.with_items(each.now for each in texts), estimate) if piece.has_media else []
        for each in (*texts, *media):
            if each.kind == action.kind and each.was.message and how_sent(each.was.message) != "whole":
                yield TrimAction(action.kind, each.was.label, action.reason, each.tokens_removed)
