"""What is added to a prompt that fits, in the space left below the prune threshold: day lines, if the policy shows
days, then the recalled block, just before the user's message. The block is reduced when the result of a look-back needs
its space.

A day line precedes the first message of its day. Whether a turn has one depends only on that turn and the turn before
it, so the line keeps its place, and the beginning of the prompt stays in a provider's cache. The recalled block has day
lines of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, partial
from typing import Final

from app.domain.audit import CLEARED
from app.domain.content import content_text
from app.domain.frozen import replace
from app.domain.recalled import Recalled
from app.domain.types import Message, Region
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, Estimate
from app.engine.messages.turns import Unit
from app.engine.recall.dates import day_said, day_text
from app.engine.recall.look_back_pages import shows_whole
from app.engine.recall.ranking import Candidate, Evicted, choose, most_recalled_tokens, nobodys_day, text_key
from app.engine.window.past import parts_of
from app.engine.window.prompt import PromptItem, Run, block_item
from app.engine.window.window import Window

RECALL_NOTE: Final = "[Earlier messages of this conversation that may matter now. The newest message comes last.]"
"""Precedes the block, in the role of the user. Without it an old request would look like a current one."""
_OF_ROUNDS: Final = frozenset({"assistant", "tool_group"})
_LEAST_DATED_TOKENS: Final = 1_200
"""Smallest room for a block that has day lines although the policy does not show days: in a smaller one they would
displace messages that answer."""


def show_days(window: Window) -> Window:
    """The window with a day line before its first turn, and before each turn that begins on another day than the turn
    before it. The window is returned unchanged if the lines do not fit."""
    days: list[tuple[int, PromptItem]] = []
    turn_seq: int | None = None
    day: int | None = None
    for at, piece in enumerate(window.past):
        if piece.turn_seq != turn_seq:
            turn_seq, began = piece.turn_seq, piece.day
            if began is not None and began != day:
                day = began
                days.append((at, day_item(day, "history", window.estimate)))
    today = day_said(window.snapshot.current.messages[0])
    if today is not None and today != day:
        days.append((len(window.past), day_item(today, "history", window.estimate)))
    shown = window.with_added(days)
    return window if shown.at_prune_trigger else shown


def day_item(day: int, region: Region, estimate: Estimate) -> PromptItem:
    return block_item(region, _label(day), "user", f"[{day_text(day)}]", estimate)


def _label(day: int | None) -> str:
    return "" if day is None else f"day:{day_text(day)}"


def bring_back(window: Window) -> Window:
    """The window with recalled messages, within the share of the block and below the prune threshold. Summaries and
    prunes are decided without them, and the next turn begins without them.

    They precede all tool rounds of the turn, which a change would take out of a provider's cache. So a later call has
    those of the first one, as long as the rounds leave room for all of them and nothing is pruned, and then none."""
    note = block_item("recall", "recall", "user", RECALL_NOTE, window.estimate)
    text, recall = content_text(window.snapshot.current.messages[0].content), window.snapshot.policy.recall
    most_tokens = most_recalled_tokens(text, recall, window.budget.input_budget)
    is_dated = window.snapshot.policy.show_time or most_tokens >= _LEAST_DATED_TOKENS
    day = day_said if is_dated else nobodys_day
    line_of = cache(partial(day_item, region="recall", estimate=window.estimate))  # asked for with every unit
    first = _before_rounds(window)
    is_pruned = first is not window and any(action.reason != CLEARED for action in window.log.actions)
    chosen = () if is_pruned else _chosen(first, note.tokens, most_tokens, day, line_of)
    if not chosen:
        return window
    items: list[PromptItem] = [note]
    rows: list[Recalled] = []
    lines = _lines(window, {day(unit.messages[0]) for unit, _ in chosen}, line_of)
    end = len(window.past)
    days = [each for each in window.added if each[0] < end]
    today = [(end, lines.pop(None))] if None in lines else window.added[len(days) :]
    for unit, found in chosen:
        items += [line] if (line := lines.pop(day(unit.messages[0]), None)) else []
        matched, score = dict(zip(found.seqs, found.matched, strict=True)), round(100 * found.score)
        for message in unit.messages:
            item, words = PromptItem("recall", message.tokens, None, message), matched.get(message.seq, ())
            items.append(item)
            rows.append(Recalled(message.seq, message.id, message.reasoning_sent, score, item.wire_tokens, words))
    shown = window.with_added([*days, *[(end, item) for item in items], *today], tuple(rows))
    return window if first is not window and shown.input_tokens_without(steadily=True) >= shown.prune_from else shown


def _before_rounds(window: Window) -> Window:
    """The window of the running turn's first call, but with its look-backs. Without tool rounds it is the window."""
    rounds = [piece for piece in window.current if piece.kind in _OF_ROUNDS]
    if not rounds:
        return window
    return replace(
        window,
        current=tuple([piece for piece in window.current if piece.kind not in _OF_ROUNDS]),
        tokens=window.tokens - sum([piece.tokens for piece in rounds]),
        messages=window.messages - sum([piece.messages for piece in rounds]),
    )


def _lines(
    window: Window, days: Collection[int | None], line_of: Callable[[int], PromptItem]
) -> dict[int | None, PromptItem]:
    """A day line for each of the days but the running turn's. If there are any, the running turn's own line is added
    with the key None, unless the window has it already."""
    today = day_said(window.snapshot.current.messages[0])
    lines: dict[int | None, PromptItem] = {day: line_of(day) for day in days if day is not None and day != today}
    if lines and today is not None and not any(at == len(window.past) for at, _ in window.added):
        lines[None] = line_of(today)
    return lines


def _chosen(
    window: Window,
    note_tokens: int,
    most_tokens: int,
    day: Callable[[Message], int | None],
    line_of: Callable[[int], PromptItem],
) -> tuple[tuple[Unit, Candidate], ...]:
    evicted = window.snapshot.evicted

    def has_room(tokens: int, messages: int, days: Collection[int | None]) -> bool:
        lines = [line.tokens for line in _lines(window, days, line_of).values()]
        more, more_messages = tokens + note_tokens + sum(lines), messages + 1 + len(lines)
        if more > most_tokens:
            return False
        return window.input_tokens_without(-more, -more_messages, steadily=True) < window.prune_from

    if not has_room(1, 1, ()):
        return ()
    return choose(evicted, sent=_sent_texts(window, evicted), fits=has_room, day=day)


def _sent_texts(window: Window, evicted: Evicted) -> set[int]:
    """The keys of the texts of the messages, and of the messages on pages of look-backs."""
    keys = set[int]()
    for part in (*parts_of(window.past), *parts_of(window.current)):
        if isinstance(part, Run):
            keys.update(part.past.text_keys_of_run(part.first, part.end))
        elif part.message:
            keys.add(text_key(part.message))
    read = [item for piece in window.current if piece.kind == "look_back" for item in piece.items]
    for page in [content_text(item.as_sent()["content"]) for item in read]:
        shown = [each for turn in evicted.turns for each in turn.messages if shows_whole(page, each)]
        keys.update(map(text_key, shown))
    return keys


def looked_back_tokens(window: Window) -> int:
    return sum([piece.tokens for piece in window.current if piece.kind == "look_back"])


def room_for_result(window: Window, tokens: int, messages: int) -> int:
    """Tokens that a result of a look-back may have if all recalled messages are removed for it. `tokens` are the wire
    tokens of the round without this result's text, in so many `messages`."""
    recalled = window.recalled
    overhead_tokens = window.overhead_tokens + MESSAGE_FRAMING_TOKENS * (messages - len(recalled))
    return (
        window.wire_room(overhead_tokens) - (window.wire_tokens - sum(item.wire_tokens for item in recalled)) - tokens
    )


def seqs_beside_result(window: Window, tokens: int, messages: int) -> frozenset[int]:
    """The numbers of the messages that are sent as stored together with a look-back round of this many wire tokens in
    so many messages, after recalled messages are removed for it, lowest score first."""
    rows = sorted(window.log.recalled, key=lambda row: (-row.score, -row.seq))
    if not rows:
        return window.prompt.seqs_as_stored()
    leaving = set[int]()
    note, *others = window.recalled
    lines = {item.label: item for item in others if item.message is None}
    label_of = {item.message.seq: _label(day_said(item.message)) for item in others if item.message}
    today = _label(day_said(window.snapshot.current.messages[0]))
    tokens, messages = tokens + note.wire_tokens, messages + 1
    for row in rows:
        of_its_day = {label_of[row.seq], today} if label_of[row.seq] != today else set[str]()
        new = [lines[label] for label in of_its_day & lines.keys()]
        more_tokens = tokens + row.tokens + sum(line.wire_tokens for line in new)
        if room_for_result(window, more_tokens, messages + 1 + len(new)) >= 0:
            tokens, messages = more_tokens, messages + 1 + len(new)
            lines = {label: line for label, line in lines.items() if line not in new}
        else:
            leaving.add(row.seq)
    return window.prompt.seqs_as_stored() - leaving
