"""The rows of a window, for a policy and a model: counted, as they are sent, and with what is settled cached."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from app.db.messages import UNCOUNTED, save_token_counts
from app.domain.errors import DatabaseUnavailable
from app.domain.frozen import frozen, replace
from app.domain.types import OPEN_STATUSES, Message, Pin, ReasoningRule, SessionState, Summary, Turn
from app.engine.messages.image_rules import image_rule_for
from app.engine.messages.media import ImageTokens
from app.engine.messages.tokens import with_images_by_rule
from app.engine.messages.turns import with_reasoning
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.ranking import Evicted
from app.engine.window.past import Past
from app.providers.registry import Model
from app.services.pasts import Counting
from app.services.process_state import WindowBytes
from app.services.runtime import Runtime
from app.services.turn.planning import INLINE_MESSAGES, computed, recounted
from app.tokenizers.counters import HEURISTIC, TWO_FIFTHS, Estimator

_FEW_OF_A_TURN = 8
"""Messages up to which an open turn is read in each round: caching it would cost as much."""
_MANY_PARTS = 256
"""Content parts whose image sizes are read on the event loop (a few ms). More are read in a thread."""
_SLICE = 64
"""Messages that are counted, or turns that are rebuilt, before other tasks of the event loop run."""


@frozen
class WindowRows:
    """Rows read at one moment, for a policy and a model: the session, its summary and pins, and the window's turns.

    `kept` are the turns that this process has cached, `turns` those after them. `turn_seq` is the number of the running
    turn, or the one that the next turn would get. `held` are the bytes that the process counts for what was read.
    """

    session: SessionState
    policy: ContextPolicy
    model: Model
    estimate: Estimator
    turn_seq: int
    summary: Summary | None
    pins: tuple[Pin, ...]
    kept: Past
    turns: tuple[Turn, ...]
    held: WindowBytes
    evicted: Evicted = Evicted()
    fell_back: bool = False
    """Whether a message had to be counted by the heuristic because the tokenizer failed."""

    @property
    def encoding(self) -> str:
        return encoding_of(self.model, self.policy)

    @property
    def counted_by(self) -> str:
        """What counted the messages: the encoding, or the heuristic if the tokenizer failed."""
        return HEURISTIC if self.fell_back else self.estimate.encoding

    @property
    def cache_key(self) -> str | None:
        """The key by which the provider finds the cache of the session's prompts. The only request of a session has
        none unless its client gave one: the provider then finds the cache by the beginning of the prompt."""
        return self.session.cache_key or (None if self.policy.is_single else str(self.session.id))

    @property
    def turn_count(self) -> int:
        return self.kept.turn_count + len(self.turns)

    def read_messages(self) -> list[Message]:
        """The messages that were read now: those of `turns`, and those before the window that may be recalled."""
        return [message for turn in (*self.turns, *self.evicted.turns) for message in turn.messages]


def encoding_of(model: Model, policy: ContextPolicy) -> str:
    """The model's encoding, unless the policy asks for a count by length."""
    return TWO_FIFTHS if policy.estimator == "heuristic" else model.encoding


def counting_of(session: SessionState, model: Model, policy: ContextPolicy) -> Counting:
    return Counting(session.past_version, encoding_of(model, policy), model.model, model.reasoning_rule)


async def with_all_counts(rt: Runtime, rows: WindowRows, *, store: bool = True) -> WindowRows:
    """The rows, as they were read, with every message counted for the model. Settled turns are cached, and an open one
    with many rounds, so that its next round reads only what is new. With `store` new counts are stored. A stored count
    uses the flat figure for images. The model's rule corrects it here, which must happen once: counted rows are not
    counted again."""
    missing = [message for message in rows.read_messages() if message.tokens == UNCOUNTED]
    if missing:
        rows = await _count_missing(rt, rows, missing, store=store)
    is_open = len(rows.turns) == 1 and rows.turns[0].status in OPEN_STATUSES
    if is_open and len(rows.turns[0].messages) > _FEW_OF_A_TURN and rt.pasts.keeps_any and not rows.fell_back:
        counting = counting_of(rows.session, rows.model, rows.policy)
        rt.pasts.keep_open_turn(rows.session.id, counting, rows.kept.last_seq, rows.turns[0])
    in_parts = [message for message in rows.read_messages() if isinstance(message.content, list)]
    if in_parts:
        rule = image_rule_for(rows.model.model)

        def by_rule() -> dict[int, Message]:
            return {message.seq: with_images_by_rule(message, rule) for message in in_parts}

        are_many = sum([len(message.content or ()) for message in in_parts]) > _MANY_PARTS
        rows = await _with_messages(rows, await computed(by_rule, is_long=are_many))
    return await with_settled_kept(rt, rows)


async def with_settled_kept(rt: Runtime, rows: WindowRows) -> WindowRows:
    """The counted rows with the settled turns, which another one follows, moved to the cache."""
    last_seq = rows.session.last_message_seq  # of the turn that ended last, unless another one has been claimed since
    settled = [turn for turn in rows.turns[:-1] if not turn.unresolved and turn.messages[-1].seq < last_seq]
    if rows.fell_back or not rt.pasts.keeps_any or not settled:
        return rows
    marked = map(partial(with_reasoning, rule=rows.model.reasoning_rule), settled)
    as_sent = await computed(list[Turn], marked, is_long=have_many_messages(settled))
    counting = counting_of(rows.session, rows.model, rows.policy)
    kept = await rt.pasts.keep(rows.session.id, counting, rows.kept, as_sent)
    return replace(rows, kept=kept, turns=rows.turns[len(settled) :])


def as_sent(images: ImageTokens, reasoning: ReasoningRule | None, turn: Turn) -> Turn:
    """A settled turn with images counted, and reasoning selected, by the model's rules."""
    messages = tuple([with_images_by_rule(message, images) for message in turn.messages])
    return with_reasoning(replace(turn, messages=messages), reasoning)


async def _count_missing(rt: Runtime, rows: WindowRows, missing: Sequence[Message], *, store: bool) -> WindowRows:
    new: dict[int, Message] = {}
    fell_back = False
    for at, message in enumerate(missing, 1):
        if at % _SLICE == 0:
            await asyncio.sleep(0)  # counting a short message never yields to the event loop
        new[message.seq], used = await recounted(rt, rows.encoding, message)
        fell_back = fell_back or used != rows.encoding
    if store and not fell_back:
        counts = ((message.id, message.tokens, message.reasoning_tokens) for message in new.values())
        with suppress(DatabaseUnavailable):  # on a standby or a full disk, what reads them counts them again
            await rt.database.run(save_token_counts, rows.session.id, rows.encoding, counts)
    return replace(await _with_messages(rows, new), fell_back=fell_back)


async def _with_messages(rows: WindowRows, new: Mapping[int, Message]) -> WindowRows:
    """The rows with these messages, by number, in place of their own."""

    async def changed(turns: Sequence[Turn]) -> tuple[Turn, ...]:
        found: list[Turn] = []
        for at, turn in enumerate(turns, 1):
            found.append(replace(turn, messages=tuple([new.get(message.seq, message) for message in turn.messages])))
            if at % _SLICE == 0:
                await asyncio.sleep(0)
        return tuple(found)

    evicted = replace(rows.evicted, turns=await changed(rows.evicted.turns))
    return replace(rows, turns=await changed(rows.turns), evicted=evicted)


def have_many_messages(turns: Sequence[Turn]) -> bool:
    return sum([len(turn.messages) for turn in turns]) > INLINE_MESSAGES
