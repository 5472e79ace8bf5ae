"""Reads the rows of a window and makes the snapshot that the engine decides on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise, takewhile
from sys import getsizeof

from app.db.database import Transaction
from app.db.messages import UNCOUNTED, window_turns
from app.db.settled import settled_texts, settled_through
from app.db.summaries import PromptContext, prompt_context
from app.domain.frozen import replace
from app.domain.stored import StoredTexts
from app.domain.types import (
    OPEN_STATUSES,
    Message,
    Pin,
    SessionId,
    SessionRef,
    SessionState,
    ToolDefinition,
    Turn,
    TurnStatus,
)
from app.engine.messages.image_rules import image_rule_for
from app.engine.messages.turns import with_reasoning
from app.engine.policy.budget import Budget, budget_for
from app.engine.policy.policy import ContextPolicy
from app.engine.window.columns import Columns
from app.engine.window.past import past_of_columns
from app.engine.window.prompt import goal_text
from app.engine.window.shares import with_shared_budget
from app.engine.window.snapshot import Snapshot
from app.providers.registry import Model
from app.services.pasts import extended_columns
from app.services.policies import session_policy
from app.services.process_state import WindowBytes
from app.services.runtime import Runtime
from app.services.sessions import session_state
from app.services.turn.planning import computed, count_long_texts, planned
from app.services.turn.recall import look_up, meaning_of_pins
from app.services.turn.window_rows import WindowRows, as_sent, counting_of, have_many_messages, with_all_counts

_FEW_MESSAGES = 64
"""Messages up to which an uncached window is read row by row: that is faster than two more statements."""
_SLICE_TEXTS = 2048


async def read_window(
    tx: Transaction,
    rt: Runtime,
    session: SessionState,
    policy: ContextPolicy,
    model_alias: str,
    *,
    turn_seq: int | None = None,
    query: Message | None = None,
) -> WindowRows:
    """Reads the window of the running turn `turn_seq`, or without it the one that the next turn would find, in two
    statements: its summary and pins, and the turns that are not cached. With recall, another reads the older messages
    that match the message of the running turn, or else `query`, and one reads the part of their index that is not
    cached. Raises `InvalidRequest` for an unknown alias and for more bytes than a tenant may hold, and the errors of
    `Allowance.take`."""
    before_seq = session.last_turn_seq + 1 if turn_seq is None else turn_seq
    model = rt.catalogue.model(model_alias, session.tenant_id)
    context = await _context(tx, rt, session.id, before_seq)
    summary = None if policy.whole_past else context.summary
    after_seq = summary.to_message_seq if summary else 0
    counting = counting_of(session, model, policy)
    held = WindowBytes(rt.windows, session.tenant_id)
    held.take(_head_bytes(session, context.pins))
    kept = rt.pasts.kept(session.id, counting, after_seq, session.last_message_seq)
    open_turn = rt.pasts.open_turn(session.id, counting, kept.last_seq)
    are_many = session.last_message_seq - after_seq > _FEW_MESSAGES
    if are_many and rt.pasts.keeps_any and not kept.turn_count and open_turn is None:
        through_seq = await settled_through(tx, session.id, before_seq)
        sent = partial(as_sent, image_rule_for(model.model), model.reasoning_rule)
        columns = await settled_columns(tx, session.id, after_seq, through_seq, counting.encoding, sent, held.take)
        kept = await rt.pasts.keep(session.id, counting, past_of_columns(columns, 0, columns.turns), ())

    turns_after = partial(
        window_turns,
        tx,
        session.id,
        last_seq=session.last_message_seq,
        encoding=counting.encoding,
        step_failed=context.step_failed,
        take_bytes=held.take,
    )
    turns = await _turns_after(kept.last_seq, open_turn, turns_after)
    is_newest_kept = kept.turn_count and all(turn.status in OPEN_STATUSES for turn in turns)
    if is_newest_kept and (context.step_failed or not turns):
        # Of the turn that ended last the rows are needed if it is not followed, or became unresolved after it was kept.
        kept = past_of_columns(Columns(after_seq))
        turns = await turns_after(after_seq)
    estimate = rt.tokenizers.estimator(counting.encoding)
    rows = WindowRows(session, policy, model, estimate, before_seq, summary, context.pins, kept, tuple(turns), held)
    return await _with_evicted(tx, rt, rows, query, for_turn=turn_seq is not None)


async def settled_columns(
    tx: Transaction,
    session_id: SessionId,
    after_seq: int,
    through_seq: int,
    encoding: str,
    as_sent: Callable[[Turn], Turn],
    take_bytes: Callable[[int], None],
    slice_messages: int = _SLICE_TEXTS,
) -> Columns:
    """The turns of a range of messages as columns, up to the first turn with a message that has no count. The range
    holds whole turns, all of them settled. `as_sent` counts and marks a turn as it is sent to the model.

    Turns that are nothing but text never become `Message` objects, except between turns that do. One statement reads
    `slice_messages` messages, or more if a single turn has more. `take_bytes` is called as by `window_turns`.
    """
    columns, size = Columns(after_seq), slice_messages
    while after_seq < through_seq:
        texts = await settled_texts(tx, session_id, after_seq, through_seq, encoding, size)
        last_seq = through_seq
        if len(texts.seqs) == size:
            if len(texts.turn_seqs) < 2:
                size *= 2
                continue
            texts = texts.part(0, len(texts.turn_seqs) - 1)  # the last one may continue in the next slice
            last_seq = texts.seqs[-1]
        take_bytes(sum([len(text) for text in texts.contents if text]))
        first, end = _more_than_text(texts)
        await _add_texts(columns, texts.part(0, first))
        if first < end:
            begins = texts.part(0, first).seqs[-1] if first else after_seq
            ends = texts.part(first, end).seqs[-1]
            turns = await window_turns(tx, session_id, begins, ends, encoding, step_failed=False, take_bytes=take_bytes)
            counted = list(takewhile(lambda turn: all(each.tokens != UNCOUNTED for each in turn.messages), turns))
            columns = await extended_columns(columns, counted, as_sent)
            if len(counted) < len(turns):
                break
            await _add_texts(columns, texts.part(end, len(texts.turn_seqs)))
        after_seq = last_seq
    return columns


async def _add_texts(columns: Columns, texts: StoredTexts) -> None:
    """Adds turns to columns that no other task uses yet. Those of a single long turn are added on a thread."""
    await computed(columns.extend_texts, texts, is_long=len(texts.seqs) > 2 * _SLICE_TEXTS)


def _more_than_text(texts: StoredTexts) -> tuple[int, int]:
    """The index of the first turn that has more than text or was not completed, and the index after the last one."""
    ends = [*accumulate(texts.turn_messages, initial=0)]
    places = [
        at
        for at, (first, end) in enumerate(pairwise(ends))
        if not texts.turn_completed[at] or "-" in texts.roles[first:end]
    ]
    return (places[0], places[-1] + 1) if places else (len(texts.turn_seqs), len(texts.turn_seqs))


async def _turns_after(seq: int, cached: Turn | None, read: Callable[[int], Awaitable[list[Turn]]]) -> list[Turn]:
    """The turns with messages after `seq`. Of a turn that is cached, only the messages that are not are read."""
    if cached is None:
        return await read(seq)
    newer = await read(cached.messages[-1].seq)
    if newer and newer[0].id == cached.id:
        return [replace(newer[0], messages=cached.messages + newer[0].messages), *newer[1:]]
    return await read(seq)  # nothing was added to the turn, whose row is then not among those that were read


def _head_bytes(session: SessionState, pins: Sequence[Pin]) -> int:
    """The memory of what a prompt has before its messages, as large as clients made it."""
    texts = (session.instructions, session.room_goal, *[pin.content for pin in pins])
    return sum([getsizeof(text) for text in texts if text])  # encoding megabytes of pins takes milliseconds


async def _context(tx: Transaction, rt: Runtime, session_id: SessionId, before_seq: int) -> PromptContext:
    """What a prompt needs besides messages. Removes what is cached of the session if the database has lost it."""
    cached_seq, cached_id = rt.pasts.last_message(session_id)
    context = await prompt_context(tx, session_id, before_seq, cached_seq, rt.pasts.summary(session_id))
    if cached_id != context.cached_id:  # the database was set back: the number is free, or has another message
        rt.pasts.forget(session_id)
        if rt.embeddings:
            rt.embeddings.forget_through(session_id)
    if context.summary is not None:
        rt.pasts.keep_summary(session_id, context.summary)
    return context


async def session_window(rt: Runtime, session: SessionRef) -> WindowRows:
    """The window without a running turn, for the session's own model, with all messages counted. Raises `NotFound`."""
    async with rt.database.autocommit() as tx:
        state = await session_state(tx, session)
        rows = await read_window(tx, rt, state, session_policy(rt, state.policy), state.model_alias)
    return await with_all_counts(rt, rows)


async def _with_evicted(
    tx: Transaction, rt: Runtime, rows: WindowRows, query: Message | None, *, for_turn: bool
) -> WindowRows:
    """The rows with the matching messages among those that the active summary replaces. Only for a running turn
    something is written: some messages without packed terms get them."""
    summary = rows.summary
    running = [turn for turn in rows.turns if for_turn and turn.status is TurnStatus.RUNNING]
    message = running[-1].messages[0] if running else query
    if message is None or summary is None or not rows.policy.recall.enabled:
        return rows
    input_budget = budget_of(rows.model, rows.policy).input_budget
    evicted = await look_up(tx, rt, rows, message, summary.to_message_seq, input_budget, pack=bool(running))
    return replace(rows, evicted=evicted)


def budget_of(model: Model, policy: ContextPolicy) -> Budget:
    """The budget of the model's window, capped by the policy; the policy also sizes a window that is not known."""
    window, source = model.context_window, model.context_limit_source
    if source == "fallback" and policy.unknown_window_tokens is not None:
        window, source = policy.unknown_window_tokens, "policy"
    elif source == "fallback" and policy.unknown_window_outputs is not None:
        window, source = policy.unknown_window_outputs * policy.max_output_tokens, "policy"
    if policy.max_context_tokens is not None and policy.max_context_tokens < window:
        window, source = policy.max_context_tokens, "policy"
    return budget_for(window, source, policy.max_output_tokens)


async def snapshot_of(
    rt: Runtime,
    rows: WindowRows,
    current: Turn,
    *,
    tools: tuple[ToolDefinition, ...] = (),
    instructions: str | None = None,
    may_look_back: bool = False,
) -> Snapshot:
    """The snapshot of the rows. `current` is the running turn; it need not be stored. `instructions` are a system layer
    after the session's. With `may_look_back` the model can be offered the look-back tool."""
    session = rows.session
    rule = rows.model.reasoning_rule

    newest = [turn for turn in rows.turns if turn.id != current.id]
    marked = map(partial(with_reasoning, rule=rule), newest)
    past = await computed(rows.kept.extended, marked, is_long=have_many_messages(newest)) if newest else rows.kept
    snapshot = Snapshot(
        policy=rows.policy,
        budget=budget_of(rows.model, rows.policy),
        layers=layers_of(rt, session, instructions),
        goal=goal_text(session.room_goal, session.mode),
        pins=rows.pins,
        summary=rows.summary,
        past=past,
        current=with_reasoning(current, rule),
        tools=tools,
        completed_since_summary=past.completed_after(session.summary_count_after_seq),
        calibration_ratio=rt.calibrations.ratio(session.tenant_id, rows.model.alias, rows.encoding),
        evicted=rows.evicted.with_reasoning(rule),
        pin_meaning=meaning_of_pins(rt, session.tenant_id, rows.pins, current) if rows.policy.allocation else None,
        may_look_back=may_look_back,
    )
    await count_long_texts(rt.tokenizers, rows.estimate, snapshot)
    if rows.policy.allocation is None:
        return snapshot
    return await planned(with_shared_budget, snapshot, rows.estimate)


async def with_recall_anew(rt: Runtime, rows: WindowRows, snapshot: Snapshot, *, for_turn: bool = True) -> Snapshot:
    """The snapshot after a new summary, with recall looked up again, since the summarized turns can be recalled now.
    Without `for_turn` nothing is written."""
    query = snapshot.current.messages[0]
    if not rows.policy.recall.enabled:
        return snapshot
    rows = replace(rows, summary=snapshot.summary)
    rows = await rt.database.run(_with_evicted, rt, rows, query, for_turn=for_turn)
    rows = await with_all_counts(rt, replace(rows, turns=()), store=for_turn)
    return replace(snapshot, evicted=rows.evicted.with_reasoning(rows.model.reasoning_rule))


def layers_of(rt: Runtime, session: SessionState, of_turn: str | None = None) -> tuple[tuple[str, str], ...]:
    """The active system layers, outermost first (contract.md, section 8)."""
    instructions = rt.catalogue.instructions
    layers = (
        ("system:global", instructions.global_),
        ("system:mode", instructions.modes.get(session.mode or "")),
        ("system:role", instructions.roles.get(session.agent_role or "")),
        ("system:session", session.instructions),
        ("system:turn", of_turn),
    )
    return tuple((label, text) for label, text in layers if text)
