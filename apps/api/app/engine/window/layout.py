"""A prompt listed message by message, and its removals listed one by one, to show users what filled the window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from app.domain.audit import CLEARED, TrimAction
from app.domain.figures import LaidOut
from app.domain.frozen import replace
from app.domain.types import JsonObject, Message, Region, Turn, TurnId, TurnStatus
from app.engine.messages.media import ImageTokens
from app.engine.messages.tokens import Estimate, with_images_by_rule
from app.engine.messages.turns import no_turn, sent_tokens
from app.engine.window.clearing import cleared_items
from app.engine.window.look_back import of_sent
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
            for tokens, message_id, turn_id in part.past.ids_of_run(part.first, part.end):
                rows.append(LaidOut(part.region, tokens, message_id, turn_id, shortened=False))
        else:
            rows.append(_row(part.region, part.tokens, part.message, shortened=part.is_shortened))
    return rows


def rebuilt_row(part: RebuiltPart, region: Region | None, estimate: Estimate, image_tokens: ImageTokens) -> LaidOut:
    """The row of a rebuilt message, counted again, because counts of single messages are not stored with a prompt."""
    form = "text" if "reasoning_content" in part.sent else "blocks"
    message = part.message or replace(of_sent(no_turn(0).id, 0, part.sent), reasoning_sent=form)
    sent = replace(message, content=part.sent["content"])
    return _row(region, _counted(sent, estimate, image_tokens).tokens, part.message, shortened=part.shortened)


def counted_turn(turn: Turn, estimate: Estimate, image_tokens: ImageTokens) -> Turn:
    """The turn with its messages counted again, with the reasoning that they are marked to be sent with."""
    return replace(turn, messages=tuple([_counted(message, estimate, image_tokens) for message in turn.messages]))


def _counted(message: Message, estimate: Estimate, image_tokens: ImageTokens) -> Message:
    return with_images_by_rule(replace(message, tokens=sent_tokens(message, estimate)), image_tokens)


def _row(region: Region | None, tokens: int, message: Message | None, *, shortened: bool) -> LaidOut:
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

    `turns` are the turns of the ranges, counted again; `refs` are the prompt's references, which show what was sent of
    a range; `with_handles` says whether the prompt offered the look-back tool. Ranges of a prompt that was not sent are
    not split, nor more than `_MOST_RANGES`, nor a range whose turns have other tokens now, nor one whose messages
    cannot be distinguished from those that left with their turns; ranges of larger extent then stay whole too.
    """
    actions = tuple(actions)
    ranges = [action for action in actions if action.seqs]
    how_sent = how_sent_of(refs) if refs and len(ranges) <= _MOST_RANGES else None
    if how_sent is None:
        return list(actions)
    pieces = past_of(turns).pieces
    stayed = {piece.turn_id for piece in pieces if how_sent(piece.stored_messages[0])}
    sent = _SentTurns(pieces, how_sent, stayed, input_budget, estimate, with_handles)
    by_themselves = {(action.kind, action.target) for action in actions if action.seqs is None}
    newest = {action.target for action in actions if action.reason == NEWEST_TOO_LARGE}
    singles: dict[int, list[TrimAction]] = {}
    all_split = True
    # In this order: what was removed of a message was no longer there when it was dropped, or its turn was.
    for at, action in sorted(enumerate(actions), key=lambda each: _extent(each[1])):
        found, seqs = [action], action.seqs
        if seqs is None or not all_split:
            pass  # what others removed of the messages of the range is not known
        elif seqs[0] == "turns":
            found = sent.without_turns(action, [turn for turn in turns if seqs[1] <= turn.seq <= seqs[2]])
        else:
            within = [piece for piece in pieces if seqs[1] <= piece.seq and piece.last_seq <= seqs[2]]
            # A range may contain items that have an action of their own, for another reason, newest results, from which
            # a prune removes nothing, and what left together with its turn.
            removed = sent.dropped if _extent(action) else sent.shortened
            for among in (within, [piece for piece in within if piece.turn_id in stayed]):
                listed = [each for each in removed(action, among) if each.target not in newest]
                listed = [each for each in listed if (each.kind, each.target) not in by_themselves]
                if len(listed) == action.count:
                    found = listed
                    break
            all_split = found != [action]
        sent.note(found)
        singles[at] = found
    return [each for at in range(len(actions)) for each in singles[at]]


def _extent(action: TrimAction) -> int:
    """How much an action removes: parts of messages (0), whole messages (1), or turns (2)."""
    return 2 if action.target.startswith("turns:") else int(action.kind in _DROPPED_KINDS)


@dataclass(slots=True)
class _SentTurns:
    """What was sent of the turns of a log's ranges. `turn_ids` are those of which something was sent."""

    pieces: Sequence[Piece]
    how_sent: HowSent
    turn_ids: Set[TurnId]
    input_budget: int
    estimate: Estimate
    with_handles: bool
    removed_tokens: Counter[str] = field(default_factory=Counter[str], init=False)

    def note(self, actions: Iterable[TrimAction]) -> None:
        """Actions of larger extent remove what these have left."""
        for each in actions:
            self.removed_tokens[each.target] += each.tokens_removed_est

    def without_turns(self, action: TrimAction, turns: Sequence[Turn]) -> list[TrimAction]:
        """The single actions of a range of turns."""
        wire_tokens: Counter[TurnId] = Counter()
        for piece in self.pieces:
            wire_tokens[piece.turn_id] += self._left_of(piece)
        gone = [turn for turn in turns if turn.id in wire_tokens and turn.id not in self.turn_ids]
        # A summary folds all turns of its range but rejected ones, whether anything of them could be sent or not.
        folded = [turn for turn in turns if turn.status is not TurnStatus.REJECTED]
        left = gone if len(gone) == action.count else folded
        if sum([wire_tokens[turn.id] for turn in left]) != action.tokens_removed_est:
            return [action]  # not as they were sent: messages were removed since, or their model changed
        return [TrimAction(action.kind, f"turn:{turn.id}", action.reason, wire_tokens[turn.id]) for turn in left]

    def dropped(self, action: TrimAction, pieces: Sequence[Piece]) -> Iterator[TrimAction]:
        """The single actions of this kind that may have removed some of the pieces."""
        for piece in pieces:
            if dropped_kind(piece.kind) == action.kind and not self.how_sent(piece.stored_messages[0]):
                yield TrimAction(action.kind, piece.label, action.reason, self._left_of(piece))

    def _left_of(self, piece: Piece) -> int:
        """The wire tokens of the piece without those that actions on its messages removed."""
        return piece.wire_tokens - sum(self.removed_tokens[item.label] for item in piece.items)

    def shortened(self, action: TrimAction, pieces: Sequence[Piece]) -> Iterator[TrimAction]:
        """The same of parts of them. Messages that were dropped had been shortened before, if they are long: a prune
        shortens them first."""
        shortened = cleared_items
        if action.reason != CLEARED:
            shortened = partial(shortened_texts, input_budget=self.input_budget)
        for piece in pieces:
            texts = shortened(piece, estimate=self.estimate, with_handles=self.with_handles)
            texts = [each for each in texts if each.was.message and self.how_sent(each.was.message) != "marked"]
            media = marked_media(piece.with_items(each.now for each in texts), self.estimate) if piece.has_media else []
            for each in (*texts, *media):
                if each.kind == action.kind and each.was.message and self.how_sent(each.was.message) != "whole":
                    yield TrimAction(action.kind, each.was.label, action.reason, each.tokens_removed)
