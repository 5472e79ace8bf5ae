"""Shortening single messages, by leaving out the middle of a long text or the media, and fitting the summary and pins
into their caps.

The stored message is never changed: a block replaces its content in this prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.domain.audit import ShorteningKind
from app.domain.content import canonical_json
from app.domain.frozen import frozen, replace
from app.domain.types import Content, Message, Pin
from app.engine.messages.media import has_media, marked_parts, marked_text
from app.engine.messages.tokens import Estimate
from app.engine.messages.turns import sent_tokens
from app.engine.policy.policy import MIN_SUMMARY_TOKENS
from app.engine.recall.look_back_pages import handle_of
from app.engine.recall.relevance import question_of, relevances
from app.engine.summary.block import fit_summary
from app.engine.window.look_back import NAME
from app.engine.window.pieces import Piece
from app.engine.window.prompt import Block, PromptItem, block_item, pin_text
from app.engine.window.snapshot import Removal
from app.engine.window.window import Window, summary_item

NEWEST_TOO_LARGE = "newest_result_too_large"
NEWEST_RESULT_FLOOR_TOKENS = 200
"""A newest result is never cut below this: with less the model would only call the tool again."""
_HEAD_SHARE = 0.75
KEPT_CHARS: Final = 640
"""Characters that a prune keeps of a long text."""
_LETTERS: Final = {(KEPT_CHARS, False): "k", (KEPT_CHARS, True): "h", (0, False): "e", (0, True): "l"}
"""The letter of prompt references (`prompt_refs.py`) to texts of which so many characters are kept, without and with a
handle."""
_KEPT: Final = {letter: kept for kept, letter in _LETTERS.items()}
_MARKED: Final = "p"
"""The letter of references to messages with markers in place of their media."""
REMADE: Final = frozenset({*_KEPT, _MARKED})
"""The letters of references to messages that are shortened again when a prompt is rebuilt."""
_SEARCH_STEPS = 64
"""The search for the longest text that fits stops within one part in this many of its length."""
_LEAST_PIN_CHARS = 240
"""Least characters of a shortened pin's text. With less it would be of no use, and the pin is dropped instead."""
_LOW_RELEVANCE = "low_relevance"
_PIN_TRIES = 4


@frozen
class Shortening:
    """An item and its replacement; `now` has fewer tokens than `was`."""

    kind: ShorteningKind
    was: PromptItem
    now: PromptItem

    @property
    def tokens_removed(self) -> int:
        return self.was.tokens - self.now.tokens

    def action(self, reason: str, first_seq: int = 0, last_seq: int = 0) -> Removal:
        """The log entry for it. The numbers are those of the first and last message of its piece."""
        return Removal(self.kind, self.was.label, reason, self.tokens_removed, first_seq, last_seq)


def shorten_summary(window: Window) -> Window:
    """Shorten a summary that was made for a larger window to the cap of this one."""
    return with_fitted_summary(window, window.snapshot.policy.most_summary_tokens(window.budget.input_budget))


def with_fitted_summary(window: Window, cap_tokens: int) -> Window:
    """The window with its summary shortened to `cap_tokens`, or `MIN_SUMMARY_TOKENS`, if it can be. It stays."""
    item, summary = window.summary, window.snapshot.summary
    if item is None or summary is None:
        return window
    body = fit_summary(summary.body, max(cap_tokens, MIN_SUMMARY_TOKENS), window.estimate)
    if body is None or body == summary.body:
        return window
    shorter = summary_item(replace(summary, body=body), window.snapshot.policy, window.estimate)
    action = Removal("summary_shortened", item.label, "over_budget", item.tokens - shorter.tokens)
    return window.with_items("summary", (shorter,)).logged((action,))


def with_fitted_pins(window: Window, room_tokens: int) -> Window:
    """The window with its pins within `room_tokens`, without framing.

    The least relevant pin is shortened first (of equals the later one), then the next, none below a few sentences. Only
    if all at that length are too large is the least relevant dropped. The others keep their order, because a provider's
    cache works by prefix.
    """
    pins, items, estimate = window.snapshot.pins, window.items_of("pins"), window.estimate
    if sum(item.tokens for item in items) <= room_tokens:
        return window
    question = question_of(window.snapshot.goal, window.snapshot.current)
    relevance_of = relevances(pins, question, window.snapshot.pin_meaning)
    first_to_go = sorted(range(len(pins)), key=lambda at: (relevance_of[at].value, -at))
    least = [_shorter_pin(pin, item, _LEAST_PIN_CHARS, estimate) for pin, item in zip(pins, items, strict=True)]
    now: dict[int, PromptItem] = dict(enumerate(items))
    actions: list[Removal] = []
    least_tokens = sum(item.tokens for item in least)
    for at in first_to_go:
        if least_tokens <= room_tokens:
            break
        least_tokens -= least[at].tokens
        actions.append(Removal("pinned_drop", pins[at].name, _LOW_RELEVANCE, now.pop(at).wire_tokens))
    excess = sum(item.tokens for item in now.values()) - room_tokens
    for at in first_to_go:
        if excess <= 0:
            break
        if at not in now or least[at] is items[at]:
            continue
        now[at] = _fitted_pin(pins[at], items[at], items[at].tokens - excess, least[at], estimate)
        removed = items[at].tokens - now[at].tokens
        actions.append(Removal("pinned_trim", pins[at].name, _LOW_RELEVANCE, removed))
        excess -= removed
    return window.with_items("pins", tuple(now.values())).logged(actions)


def _fitted_pin(pin: Pin, item: PromptItem, most_tokens: int, least: PromptItem, estimate: Estimate) -> PromptItem:
    """The pin with as much text as fits by its characters per token: so a long text is counted once or twice."""
    keep_chars = len(pin.content) * most_tokens // item.tokens
    for _ in range(_PIN_TRIES):
        if keep_chars <= _LEAST_PIN_CHARS:
            break
        shorter = _shorter_pin(pin, item, keep_chars, estimate)
        if shorter.tokens <= most_tokens:
            return shorter
        keep_chars = keep_chars * most_tokens * 49 // (shorter.tokens * 50)
    return least


def _shorter_pin(pin: Pin, item: PromptItem, keep_chars: int, estimate: Estimate) -> PromptItem:
    """The item with `keep_chars` of the pin's text; the item itself when it would not get smaller."""
    if len(pin.content) <= keep_chars:
        return item
    text = pin_text(replace(pin, content=without_middle(pin.content, keep_chars, "pin")))
    shorter = block_item("pins", item.label, "system", text, estimate)
    return shorter if shorter.tokens < item.tokens else item


def shorten_newest_results(window: Window) -> Window:
    """Shorten the newest results of open turns to what fits (contract.md, decision 8), those of an older turn first."""
    return with_shorter_newest(window, window.excess_tokens)


def with_shorter_newest(window: Window, excess_tokens: int) -> Window:
    """The window with the newest results of open turns shorter by `excess_tokens`, or by as much as possible."""
    pieces: list[Piece] = []
    done: list[Shortening] = []
    for piece in window.pieces:
        if window.leaves_of(piece) == "shortened" and excess_tokens > 0:
            shortened = fit_results(
                piece.items, excess_tokens, window.estimate, with_handles=window.snapshot.offers_look_back
            )
            excess_tokens -= sum(each.tokens_removed for each in shortened)
            done += shortened
            piece = piece.with_items(each.now for each in shortened)  # noqa: PLW2901 - the same piece, shorter
        pieces.append(piece)
    return window.with_pieces(pieces, [each.action(NEWEST_TOO_LARGE) for each in done]) if done else window


def shorten_text(item: PromptItem, keep_chars: int, estimate: Estimate, *, with_handle: bool) -> Shortening | None:
    """A tool result or an answer, as text, cut to its head and tail, `keep_chars` in all, with a marker of how much was
    left out and, `with_handle`, its handle for a look-back. None when the item is neither a result nor an answer, is
    not longer than `keep_chars`, or would not get smaller."""
    message = item.message
    if message is None or message.role == "user":
        return None
    if len(marked_text(message.content)) <= keep_chars:
        return None
    shorter = _shorter_text(message, keep_chars, with_handle=with_handle)
    kind: ShorteningKind = "tool_result_shortened" if message.role == "tool" else "assistant_shortened"
    block = Block(message.role, shorter, made_by=_LETTERS.get((keep_chars, with_handle)))
    return _replaced(kind, item, message, block, estimate)


def remade_content(message: Message, letter: str) -> Content:
    """What `shorten_text` or `mark_media` made of this message, from the letter of its reference. Stored prompts are
    rebuilt with it: a change of what it returns needs new letters."""
    if letter == _MARKED:
        return marked_parts(message.content)
    keep_chars, with_handle = _KEPT[letter]
    return _shorter_text(message, keep_chars, with_handle=with_handle)


def _shorter_text(message: Message, keep_chars: int, *, with_handle: bool) -> str:
    noun = "tool result" if message.role == "tool" else "answer"
    handle = handle_of(message.seq) if with_handle else None
    return without_middle(marked_text(message.content), keep_chars, noun, handle)


def without_middle(text: str, keep_chars: int, noun: str, handle: str | None = None) -> str:
    """Head and tail of the text, `keep_chars` in all, and between them a marker of how much of the `noun` is left out,
    and of the handle to read it back."""
    left_out = len(text) - keep_chars
    head = int(keep_chars * _HEAD_SHARE)
    how = f"; {NAME} handle {handle}" if handle else ""
    return f"{text[:head]}\n[… {left_out} characters of this {noun} left out{how} …]\n{text[head + left_out :]}"


def mark_media(item: PromptItem, estimate: Estimate) -> Shortening | None:
    """The message with a text marker in the place of each image, audio and file. None when it has no media, or when the
    markers would have as many tokens or more."""
    message = item.message
    if message is None or item.block is not None or not has_media(message.content):
        return None
    parts = canonical_json(marked_parts(message.content))
    return _replaced("media_marked", item, message, Block(message.role, parts, is_json=True, made_by=_MARKED), estimate)


def fit_results(
    items: Sequence[PromptItem], excess_tokens: int, estimate: Estimate, *, with_handles: bool = False
) -> list[Shortening]:
    """Shorten tool results, the longest first, each to what would fit, until `excess_tokens` are removed, media before
    text. No result is cut below the floor, so fewer may be removed."""
    done: list[Shortening] = []
    for item in sorted(items, key=lambda item: -item.tokens):
        if excess_tokens <= 0:
            break
        if shortening := _fit_result(item, excess_tokens, estimate, with_handle=with_handles):
            done.append(shortening)
            excess_tokens -= shortening.tokens_removed
    return done


def _fit_result(item: PromptItem, excess_tokens: int, estimate: Estimate, *, with_handle: bool) -> Shortening | None:
    message = item.message
    if message is None or message.role != "tool":
        return None
    least = NEWEST_RESULT_FLOOR_TOKENS + (estimate(message.tool_call_id) if message.tool_call_id else 0)
    most = max(least, item.tokens - excess_tokens)
    if item.tokens <= most:
        return None
    without_media = mark_media(item, estimate)
    if without_media is not None and without_media.now.tokens <= most:
        return without_media
    return _longest_that_fits(item, message, most, estimate, with_handle=with_handle) or without_media


def _longest_that_fits(
    item: PromptItem, result: Message, most_tokens: int, estimate: Estimate, *, with_handle: bool
) -> Shortening | None:
    """The search starts from the text's own characters per token, so that a long text is not counted many times."""
    text = marked_text(result.content)
    text_tokens = estimate(text) if has_media(result.content) else item.tokens
    low, high = 0, min(len(text) - 1, 2 * most_tokens * len(text) // max(1, text_tokens))
    found = shorten_text(item, low, estimate, with_handle=with_handle)
    if found is None or found.now.tokens > most_tokens:
        return None
    while high - low > high // _SEARCH_STEPS:
        middle = (low + high + 1) // 2
        candidate = shorten_text(item, middle, estimate, with_handle=with_handle)
        if candidate is not None and candidate.now.tokens <= most_tokens:
            found, low = candidate, middle
        else:
            high = middle - 1
    return found


def _replaced(
    kind: ShorteningKind, item: PromptItem, message: Message, block: Block, estimate: Estimate
) -> Shortening | None:
    if item.inputs_cleared:
        return None
    tokens = sent_tokens(replace(message, content=block.content), estimate)
    return Shortening(kind, item, replace(item, tokens=tokens, block=block)) if tokens < item.tokens else None
