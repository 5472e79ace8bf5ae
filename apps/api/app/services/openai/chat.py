"""Chat completions and responses: a client's list of messages becomes the next step of its session. Past messages that
the session does not have are stored first. Then one turn is taken, continued or tried again, or answered from storage
if the list repeats an answered one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from app.db import turns as store
from app.db.claims import RequestKey
from app.db.database import Transaction
from app.db.messages import messages_of_turn
from app.db.turns import Newest
from app.domain.errors import TurnInProgress, existing, located
from app.domain.frozen import frozen, replace
from app.domain.incoming import Compaction, IncomingMessage
from app.domain.responses import Lifetime
from app.domain.types import FAILED_STATUSES, OPEN_STATUSES, Message, SessionRef, TurnId, TurnStatus
from app.openai.known_lists import KnownList
from app.openai.new_messages import (
    BEGIN,
    CONTINUE,
    Anchor,
    Comparison,
    NextStep,
    answerable_list,
    compared,
    next_step,
    past_step,
)
from app.services.archive.transfer import draft_history
from app.services.runtime import Runtime, retried
from app.services.turn.additions import Additions, Keeping, add, draft_outputs, keep_session
from app.services.turn.outcome import answer_again, stored_outcome
from app.services.turn.planning import computed
from app.services.turn.take import continue_turn, retry_turn, take_turn
from app.services.turn.types import Listener, OutputsRequest, TurnOptions, TurnOutcome, TurnRequest
from app.services.views.context import window_now
from app.services.views.preview import count_tokens, preview_turn

T = TypeVar("T")

_MOST_TRIES = 5
_LONG_LIST = 1_000
"""Most messages of a request that are processed on the event loop (about a millisecond)."""
_MOST_COMPARED_BYTES = 32 * 1024 * 1024
"""Eight times the largest body of a request, by default: the stored messages may be others than those of the list."""
_NOTHING_STORED = Newest(0, 0, 0, None, None, None)
_IN_PROGRESS = "The session already runs a turn."


@frozen
class ChatRequest:
    """A chat client's request. `is_retry` is true when the client marks it as a retry, or another one has overtaken it,
    after it was found not to repeat the turn `after_turn_id`.

    With `all_new`, all `messages` are new, whatever the session holds, except what a turn got before it failed.
    `directions` are added to the session's instructions. With `after_message_seq`, the session's last message must have
    this number, unless the list repeats it and has no key. `within` is the field of the body that has the list. If the
    client names no session, `known` recognizes it, by the list up to the `anchor`, and one that is made for the request
    has this `lifetime`: `keeping` is given once it is made. It has the `cache_key`, as one that is made for a name. The
    `messages` may follow a `compaction`. With `all_past`, nothing is answered: everything new is stored.
    """

    messages: tuple[IncomingMessage, ...]
    options: TurnOptions
    model_alias: str
    request_sha256: str
    idempotency_key: str | None = None
    is_retry: bool = False
    after_turn_id: TurnId | None = None
    all_new: bool = False
    directions: tuple[str, ...] = ()
    after_message_seq: int | None = None
    within: str = "messages"
    known: KnownList | None = None
    anchor: Anchor | None = None
    compaction: Compaction | None = None
    all_past: bool = False
    lifetime: Lifetime = Lifetime.UNTIL_DELETED
    cache_key: str | None = None
    keeping: Keeping | None = None

    @property
    def is_kept(self) -> bool:
        """Whether a session that is made for the request is kept after the answer."""
        return self.lifetime is not Lifetime.FOR_ANSWER

    @property
    def session_key(self) -> str | None:
        """The key by which a session that was made for the request is found again."""
        return self.idempotency_key if self.is_kept else None

    def repeats(self, newest: Newest) -> bool:
        """Whether it is a retry of the request that came last."""
        is_other = newest.turn_id is None or newest.turn_id != self.after_turn_id
        return self.is_retry and is_other and newest.request_sha256 == self.request_sha256


def answerable(request: ChatRequest, *, begins: bool = True) -> ChatRequest:
    """The request with a list that ends with something to answer; `known` still describes the client's own list.
    `begins` is false if it follows a stored response."""
    is_directed = request.options.instructions or request.directions
    alone = (BEGIN if begins else CONTINUE) if is_directed else None
    return replace(request, messages=answerable_list(request.messages, alone))


async def complete_chat(
    rt: Runtime, session: SessionRef, request: ChatRequest, listen: Listener | None = None
) -> TurnOutcome:
    """Answers a list of messages and records the turn.

    What the list has beyond the session (contract.md, decision 18) is stored as past turns. A turn that waits for tools
    continues with their outputs. It is completed if a user message follows the outputs, and cancelled if there is one
    instead of them. Messages of failed and cancelled turns that the list no longer has are withdrawn. If the list ends
    with the messages of the newest turn, that turn is run again if it failed or was cancelled, else its stored answer
    is returned. Raises as `take_turn` and `continue_turn`.
    """
    for _ in range(_MOST_TRIES):
        newest, step = await _read_step(rt, session, request)
        try:
            if isinstance(step, NextStep):
                return await _answer_next(rt, session, request, newest, step, listen)
            outcome = step or await _answer_again(rt, session, newest, request, listen)
        except TurnInProgress:  # another request changed the session: read it again
            if isinstance(step, NextStep) and (request.idempotency_key is None or step.message is None):
                # What overtook an equal request is a retry of it. A turn of a request with a key is found by the key.
                request = replace(request, is_retry=True, after_turn_id=newest.turn_id)
            continue
        if outcome is not None:
            await keep_session(rt, session, request.keeping)
            return outcome
        request = replace(request, is_retry=False)  # the turn's messages were removed, so the request is new
    raise TurnInProgress(_IN_PROGRESS)


async def _answer_next(
    rt: Runtime, session: SessionRef, request: ChatRequest, newest: Newest, step: NextStep, listen: Listener | None
) -> TurnOutcome:
    """Takes the turn of the step, or continues the one that waits for its outputs, with the past of the step and the
    request's directions. Raises as these, and `TurnInProgress` if the session is no longer as in `newest`."""
    options = _noted(request.options, newest.last_message_seq + 1)
    additions = await _additions(rt, request, newest, step, ends_waiting=not step.goes_on)
    if step.message is not None:
        after_seq = newest.last_turn_seq + len(step.past)
        turn = turn_of(step.message, request, options, after_seq)
        # What is added compares the session itself, and may change its past.
        turn = replace(turn, additions=additions, past_version=None if additions else newest.past_version)
        return await take_turn(rt, session, turn, request.idempotency_key, listen)
    history = additions.history if additions else ()
    turn_id = history[-1].last_turn_id if history else newest.turn_id
    assert turn_id is not None
    outputs = step.last_outputs or step.outputs
    answers = OutputsRequest(outputs, options=options, model_alias=request.model_alias, additions=additions)
    return await continue_turn(rt, session, turn_id, answers, listen)


async def new_turn(rt: Runtime, session: SessionRef, request: ChatRequest) -> tuple[Newest, TurnRequest] | None:
    """Stores the past of a request that would be a new turn; returns the session's state then, and that turn. None if
    the request continues a turn or repeats an answered one, or a turn is open. Raises `NotFound`, `InvalidRequest`, and
    as `answer_again`."""
    for _ in range(_MOST_TRIES):
        try:
            newest, step = await _read_step(rt, session, request)
        except TurnInProgress:
            return None
        is_known = newest.status in OPEN_STATUSES or newest.request_sha256 == request.request_sha256
        if not isinstance(step, NextStep) or step.message is None or is_known:
            return None
        with suppress(TurnInProgress):
            newest = await _store(rt, session, request, newest, step)
            return newest, turn_of(step.message, request, request.options, newest.last_turn_seq)
    return None


async def store_list(rt: Runtime, session: SessionRef, request: ChatRequest) -> Newest:
    """Stores what the list of an `all_past` request has beyond the session; returns the session's newest state. Raises
    `NotFound`, `InvalidRequest`, and `TurnInProgress` while a turn runs."""
    for _ in range(_MOST_TRIES):
        newest, step = await _read_step(rt, session, request)
        with suppress(TurnInProgress):
            new = step if isinstance(step, NextStep) else NextStep((), ())
            return await _store(rt, session, request, newest, new)
    raise TurnInProgress(_IN_PROGRESS)


async def count_behind(rt: Runtime, session: SessionRef, request: ChatRequest, noun: str) -> int:
    """The estimated tokens of the prompt for a list that follows what a session has now: of a preview of the next turn,
    or, if the list is no new turn or has past that the session lacks, of its window plus the new messages. `noun` is
    what named the session. Raises `NotFound`, `InvalidRequest` as the request would."""
    async with rt.database.autocommit() as tx:
        newest = existing(await store.newest_of(tx, session), noun)
        stored = await _repeatable(tx, session, newest, request)
    comparison = await _comparison(request, stored)
    new = (comparison.new if comparison else request.messages) or ()
    is_waiting = newest.status is TurnStatus.AWAITING_TOOLS
    step = await divided(request, new, waiting=is_waiting) if new else None
    if step is not None and step.message is not None and not step.past and not is_waiting:
        preview = await preview_turn(rt, session, turn_of(step.message, request, request.options, newest.last_turn_seq))
        return preview.context["estimated_wire_tokens"]
    window = await window_now(rt, session)
    return window.estimated_wire_tokens + await count_tokens(
        rt, session.tenant_id, request.model_alias, new, request.options, is_new=False
    )


async def compared_messages(tx: Transaction, session: SessionRef, request: ChatRequest) -> list[Message]:
    """The stored messages with which a list is compared: the newest ones, twice its length and some for turns that are
    not resent, within `_MOST_COMPARED_BYTES`. The caller has checked that the session is the tenant's."""
    return await store.newest_messages(tx, session.id, 2 * len(request.messages) + 32, _MOST_COMPARED_BYTES)


async def _comparison(request: ChatRequest, stored: Sequence[Message]) -> Comparison | None:
    """The request's list beside the newest messages of its session; None for an `all_new` list if there are none."""
    if request.all_new and not stored:
        return None
    return await _aside(request, partial(compared, request.messages, stored, request.anchor))


async def _repeatable(tx: Transaction, session: SessionRef, newest: Newest, request: ChatRequest) -> list[Message]:
    """The stored messages that the list may repeat: if it is all new, those of a turn that failed or was cancelled and
    whose request is sent again. Outputs may have ended the turn before that."""
    if request.all_new and (request.all_past or newest.status not in FAILED_STATUSES):
        return []
    stored = await compared_messages(tx, session, request)
    if not request.all_new or (request.messages and request.messages[0].role == "tool"):
        return stored
    return [message for message in stored if message.turn_id == newest.turn_id]


async def divided(request: ChatRequest, messages: Sequence[IncomingMessage], *, waiting: bool) -> NextStep:
    """Which of the request's messages are stored and which are answered; `waiting` is as in `next_step`. Raises
    `InvalidRequest` with the index of a message that is not allowed in its place."""
    divide = past_step if request.all_past else next_step
    with located("body", request.within):
        return await _aside(request, partial(divide, messages, waiting=waiting))


async def _aside(request: ChatRequest, work: Callable[[], T]) -> T:
    """The result of the work, which runs on a thread if the list is long, or has speakers, for whose names each line is
    searched, so that the event loop is not blocked."""
    is_long = len(request.messages) > _LONG_LIST or any(message.name for message in request.messages)
    return await computed(work, is_long=is_long)


def turn_of(message: IncomingMessage, request: ChatRequest, options: TurnOptions, after_seq: int) -> TurnRequest:
    """The turn of the user's message that ends the list. It must directly follow the session's turn `after_seq`."""
    seq, sha256 = after_seq + 1, request.request_sha256
    return TurnRequest(message.content, sha256, options, request.model_alias, seq, message.name, message.said_at)


@retried
async def _read_step(
    rt: Runtime, session: SessionRef, request: ChatRequest
) -> tuple[Newest, NextStep | TurnOutcome | None]:
    """The session's state, and how what is new in the list is processed; or the stored outcome of its key, or None if
    the list requests the newest turn again. Raises `NotFound`, `InvalidRequest`, and `TurnInProgress` while a turn runs
    or if the session got other messages since the request was resolved."""
    if request.keeping is not None and request.keeping.fields is not None:
        return _NOTHING_STORED, await divided(request, request.messages, waiting=False)
    stored, answered = list[Message](), None
    async with rt.database.begin() as tx:
        # Locked, so that the turn and the messages are read at the same moment.
        newest = existing(await store.newest_of(tx, session, lock=True), "session")
        lost = await store.fail_lost_turns(tx, session.id) if newest.status is TurnStatus.RUNNING else 0
        if lost:
            newest = existing(await store.newest_of(tx, session), "session")
        key = request.idempotency_key
        if key is not None and (found := await store.turn_by_key(tx, session, key)):
            answered = await answer_again(tx, session, *found, request.request_sha256)
        else:
            stored = await _repeatable(tx, session, newest, request)
    rt.telemetry.turns_lost(lost)
    if answered is not None:
        return newest, answered
    if newest.status is TurnStatus.RUNNING:
        raise TurnInProgress(_IN_PROGRESS)
    comparison = await _comparison(request, stored)
    new = comparison.new if comparison else request.messages
    is_overtaken = request.after_message_seq not in (None, newest.last_message_seq)
    if is_overtaken and key is not None:  # by another key's turn, which answers it as little as if it had come before
        raise TurnInProgress(_IN_PROGRESS)
    if newest.turn_id is not None and (new is None or request.repeats(newest)):
        return newest, None
    if is_overtaken:
        raise TurnInProgress(_IN_PROGRESS)
    step = await divided(request, new or (), waiting=newest.status is TurnStatus.AWAITING_TOOLS)
    if comparison and newest.status in FAILED_STATUSES and not request.all_new:
        step = replace(step, lacking=comparison.lacking)
    return newest, step


async def _additions(
    rt: Runtime, request: ChatRequest, newest: Newest, step: NextStep, *, ends_waiting: bool
) -> Additions | None:
    """What is stored besides what the model answers, or None. With `ends_waiting` a turn that waits for tools is ended:
    completed if the list has its outputs, else cancelled."""
    ends = ends_waiting and newest.status is TurnStatus.AWAITING_TOOLS
    # While another turn ran in the session that was found for it, a request with the same key may have got a fork.
    key = None if request.after_message_seq is None else request.session_key
    if not (ends or step.past or step.lacking or request.directions or request.keeping or key):
        return None
    history = await draft_history(rt, request.model_alias, step.past) if step.past else ()
    outputs = await draft_outputs(rt, step.outputs) if ends else None
    return Additions(newest, outputs, history, request.directions, request.keeping, key, step.lacking)


@retried
async def _store(rt: Runtime, session: SessionRef, request: ChatRequest, newest: Newest, step: NextStep) -> Newest:
    """Stores the past of a step of which nothing is answered; returns the session's state after that. Raises
    `TurnInProgress` and stores nothing if the session has changed since `newest` was read."""
    additions = await _additions(rt, request, newest, step, ends_waiting=bool(step.outputs or step.past))
    if additions is None:
        return newest
    async with rt.database.begin(locking=session.id) as tx:
        await add(rt, tx, session, additions)
        return existing(await store.newest_of(tx, session), "session")


async def _answer_again(
    rt: Runtime, session: SessionRef, newest: Newest, request: ChatRequest, listen: Listener | None
) -> TurnOutcome | None:
    """The newest turn as the answer: run again if it failed, was cancelled or has no answer (the outputs of its tools
    came with a user message that did not become a turn), else as it is stored. None if it has no message left."""
    turn_id = newest.turn_id
    assert turn_id is not None
    async with rt.database.autocommit() as tx:
        turn = existing(await store.get_turn(tx, session, turn_id), "session")
        messages = await messages_of_turn(tx, session.id, turn_id)
        is_unanswered = turn.status is TurnStatus.COMPLETED and bool(messages) and messages[-1].role == "tool"
        if not is_unanswered and turn.status not in FAILED_STATUSES:
            return await stored_outcome(tx, session, turn)
    if not messages:
        return None
    call_id = request.messages[0].tool_call_id if request.all_new else None
    of_input = [message.seq for message in messages if call_id is None or message.tool_call_id == call_id]
    options = _noted(request.options, of_input[-1 if call_id else 0] if of_input else 0)
    given = request.idempotency_key
    key = None if given is None else RequestKey(given, request.request_sha256)
    version = newest.past_version
    return await retry_turn(rt, session, turn_id, options, request.model_alias, listen, key=key, past_version=version)


def _noted(options: TurnOptions, first_seq: int) -> TurnOptions:
    """The options with the number of the input's first message in their note, if they have a note."""
    return options if options.note is None else replace(options, note=replace(options.note, first_seq=first_seq))
