"""What is brought into a prompt that fits, in room that is left below the prune threshold: the lines of days, then the
recalled block, just before the user's message; and what of that block gives way to the result of a look-back.

The line of a day stands before its first message. One before a turn depends on that turn and the one before it alone,
so that it stays where it is, and the prompt's beginning stays in a provider's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

import orjson

from app.domain.content import content_text, named
from app.domain.recalled import Recalled
from app.domain.types import Message, Region
from app.engine.messages.tokens import MESSAGE_FRAMING_TOKENS, Estimate
from app.engine.messages.turns import Unit
from app.engine.recall.dates import day_said, day_text
from app.engine.recall.ranking import Candidate, choose, most_recalled_tokens, nobodys_day, spoken_text
from app.engine.window.past import parts_of
from app.engine.window.prompt import PromptItem, Run, block_item
from app.engine.window.window import Window

RECALL_NOTE: Final = "[Earlier messages of this conversation that may matter now. The newest message comes last.]"
"""What stands before the block, as the user's: without it an old request would read as a current one."""
_CALL_TOKENS: Final = 48
"""Of a call of a look-back without its words, and the framing of the two messages."""


def show_days(window: Window) -> Window:
    """The window with a line before the first of its turns, and before each that begins on another day than the one
    before it; as it is where these lines have no room."""
    days: list[tuple[int, PromptItem]] = []
    turn_seq: int | None = None
    day: int | None = None
    for at, piece in enumerate(window.past):
        if piece.turn_seq != turn_seq:
            turn_seq, began = piece.turn_seq, piece.day
            if began is not None and began != day:
                day = began
                days.append((at, day_item(day, "history", window.estimate)))
    today = today_item(window) if day != day_said(window.snapshot.current.messages[0]) else None
    shown = window.with_days(days, today)
    return window if shown.at_prune_trigger else shown


def today_item(window: Window) -> PromptItem | None:
    """The line before the running turn; None where nobody knows when it began."""
    today = day_said(window.snapshot.current.messages[0])
    return None if today is None else day_item(today, "history", window.estimate)


def day_item(day: int, region: Region, estimate: Estimate) -> PromptItem:
    """The line of a day."""
    text = f"[{day_text(day)}]"
    return block_item(region, f"day:{day_text(day)}", "user", text, estimate)


def bring_back(window: Window) -> Window:
    """The window with what comes back: within the block's share, below what fires a prune.

    Summary and prune were decided without it, and the next turn begins without it: so it causes neither.
    """
    note = block_item("recall", "recall", "user", RECALL_NOTE, window.estimate)
    day = day_said if window.snapshot.policy.show_time else nobodys_day
    chosen = _chosen(window, note.tokens, day)
    if not chosen:
        return window
    items: list[PromptItem] = [note]
    rows: list[Recalled] = []
    lines = _lines(window, {day(unit.messages[0]) for unit, _ in chosen})
    today = lines.pop(None, None)
    for unit, found in chosen:
        items += [line] if (line := lines.pop(day(unit.messages[0]), None)) else []
        matched = dict(zip(found.seqs, found.matched, strict=True))
        for message in unit.messages:
            items.append(PromptItem("recall", message.tokens, message=message))
            tokens = message.tokens + MESSAGE_FRAMING_TOKENS
            words = matched.get(message.seq, ())
            rows.append(
                Recalled(message.seq, message.id, message.reasoning_sent, round(100 * found.score), tokens, words)
            )
    return window.with_recalled(items, tuple(rows), today)


def _lines(window: Window, days: Collection[int | None]) -> dict[int | None, PromptItem]:
    """A line for each of the days but that of the running turn; and where there are any, that turn's own by None, if it
    has none yet."""
    today = day_said(window.snapshot.current.messages[0])
    lines: dict[int | None, PromptItem] = {
        day: day_item(day, "recall", window.estimate) for day in days if day is not None and day != today
    }
    if lines and window.today is None and (line := today_item(window)):
        lines[None] = line
    return lines


def _chosen(
    window: Window, note_tokens: int, day: Callable[[Message], int | None]
) -> tuple[tuple[Unit, Candidate], ...]:
    policy, evicted = window.snapshot.policy, window.snapshot.evicted
    assert evicted is not None
    text = content_text(window.snapshot.current.messages[0].content)
    most_tokens = most_recalled_tokens(text, policy.recall, window.budget.input_budget)
    below = policy.prune_from(window.budget.input_budget)
    if any(piece.kind == "look_back" for piece in window.current):
        # What came back before a look-back stays beside what was read, as far as the whole budget has room for both.
        below = max(below, window.budget.input_budget + 1)

    def has_room(tokens: int, messages: int, days: Collection[int | None]) -> bool:
        lines = [line.tokens for line in _lines(window, days).values()]
        more = tokens + note_tokens + sum(lines)
        return more <= most_tokens and window.input_tokens_without(-more, -messages - 1 - len(lines)) < below

    if not has_room(1, 1, ()):
        return ()
    return choose(evicted, sent=set(_sent_texts(window)), fits=has_room, day=day)


def _sent_texts(window: Window) -> Iterator[str]:
    """Of the messages before the user's; those of a run are read from its JSON."""
    for part in (*parts_of(window.past), *parts_of(window.current)):
        if isinstance(part, Run):
            for message in orjson.loads(b"[%b]" % part.json()[1:]):
                yield named(message.get("name"), content_text(message["content"]))
        elif part.message and part.region != "user":
            yield spoken_text(part.message)


def looked_back_tokens(window: Window) -> int:
    """What a window has of look-backs."""
    return sum([piece.tokens for piece in window.current if piece.kind == "look_back"])


def room_for_result(window: Window, tokens: int) -> int:
    """Wire tokens that a result of a look-back may have beside all but what was recalled, which gives way to it, where
    others of the same round and the words of the call have so many."""
    return sum(item.wire_tokens for item in window.recalled) - window.excess_tokens - tokens - _CALL_TOKENS


def seqs_beside_result(window: Window, tokens: int) -> frozenset[int]:
    """The numbers of the messages that stay as they are stored beside a result of a look-back of so many tokens: what
    was recalled gives way to it, the least first."""
    rows = sorted(window.log.recalled, key=lambda row: (-row.score, -row.seq))
    lines = sum(item.wire_tokens for item in window.recalled) - sum(row.tokens for row in rows)
    room, leaving = room_for_result(window, tokens) - lines, set[int]()
    for row in rows:
        if row.tokens <= room:
            room -= row.tokens
        else:
            leaving.add(row.seq)
    return window.prompt.seqs_as_stored() - leaving
