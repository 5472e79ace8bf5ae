"""The client for programs that wait."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial, wraps
from threading import Timer
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx

from plimsoll_sdk import operations
from plimsoll_sdk.call import Call, Reply
from plimsoll_sdk.connection import CLOSING_S, POOL_LIMITS, came_of, default_headers, options_of, request_of
from plimsoll_sdk.errors import DeadlinePassed
from plimsoll_sdk.events import TurnEvent
from plimsoll_sdk.models import Page, TurnAnswer
from plimsoll_sdk.progress import Progress
from plimsoll_sdk.retries import Came, OutOfTime, Patience, Send, Sleep, exchange
from plimsoll_sdk.tool_loop import Ask, Invoke, ToolStep, run_turn

T = TypeVar("T")
P = ParamSpec("P")


class TurnStream:
    """The events of a turn as they come. It is opened when the first is asked for, and closed after the last.

    A stream that breaks is taken up again where it broke, if its call has an idempotency key. Leaving the loop early
    leaves the turn running, and closes the connection once nothing refers to the stream: with `with`, at once.
    """

    def __init__(self, client: Plimsoll, call: Call[TurnAnswer]) -> None:
        self._progress = Progress(client.patience.max_retries)
        self._events = self._run(client, call, self._progress)

    def __iter__(self) -> Iterator[TurnEvent]:
        return self._events

    def __enter__(self) -> TurnStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._progress.text

    def close(self) -> None:
        """Ends the stream. The turn goes on, unless the deployment says otherwise."""
        self._events.close()

    def answer(self) -> TurnAnswer:
        """Reads to the end, and gives what posting without a stream would have: raises the problem of a failed turn."""
        for _ in self._events:
            pass
        return self._progress.answer()

    @staticmethod
    def _run(client: Plimsoll, call: Call[TurnAnswer], progress: Progress) -> Generator[TurnEvent]:
        # It does not know its stream: in a circle the garbage collector would close it, perhaps inside the pool's lock.
        ends_at = time.monotonic() + client.patience.deadline_s
        while progress.ended is None:
            why = "the connection was closed"
            response: httpx.Response = client.exchanged(call, ends_at).stream
            closing = Timer(CLOSING_S, _shut_down, (response,))
            closing.daemon = True
            try:
                for data in response.iter_bytes():
                    yield from progress.take(data)
                    if progress.ended is not None and closing.ident is None:
                        closing.start()
                    if progress.ended is None and time.monotonic() > ends_at:
                        break
            except httpx.RequestError as error:
                why = type(error).__name__
            finally:
                closing.cancel()
                response.close()
            if progress.ended is None and time.monotonic() >= ends_at:
                raise DeadlinePassed(client.patience.deadline_s)
            if progress.ended is None and not progress.may_resume():
                raise progress.broken(why)


def _shut_down(response: httpx.Response) -> None:
    """Ends the wait of another thread for more of the response."""
    with suppress(OSError):
        response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def _method(build: Callable[P, Call[T]]) -> Callable[Concatenate[Plimsoll, P], T]:
    @wraps(build)
    def method(self: Plimsoll, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(build(*args, **kwargs))

    return method


def _pages(build: Callable[P, Call[Page[T]]]) -> Callable[Concatenate[Plimsoll, P], Iterator[T]]:
    @wraps(build)
    def method(self: Plimsoll, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        call = build(*args, **kwargs)
        while True:
            page = self.send(call)
            yield from page.items
            if page.next_cursor is None:
                return
            call = call.at(page.next_cursor)

    return method


def _stream(build: Callable[P, Call[TurnAnswer]]) -> Callable[Concatenate[Plimsoll, P], TurnStream]:
    @wraps(build)
    def method(self: Plimsoll, *args: P.args, **kwargs: P.kwargs) -> TurnStream:
        return TurnStream(self, build(*args, **kwargs).streaming())

    return method


def _tool_loop(loop: Callable[P, Generator[ToolStep, Any, T]]) -> Callable[Concatenate[Plimsoll, P], T]:
    @wraps(loop)
    def method(self: Plimsoll, *args: P.args, **kwargs: P.kwargs) -> T:
        steps = loop(*args, **kwargs)
        step = next(steps)
        while True:
            try:
                done = self.perform(step)
            except Exception as error:
                resume: Callable[[], ToolStep] = partial(steps.throw, error)
            else:
                resume = partial(steps.send, done)
            try:
                step = resume()
            except StopIteration as end:
                return end.value

    return method


class Plimsoll:
    """A Plimsoll at `url` (else `PLIMSOLL_URL`, else this machine's port 8000).

    `api_key` is `PLIMSOLL_API_KEY` of the environment where none is given. `deadline_s` is what each call may take in
    all, retries, waits and streams included; `max_retries` how often it is sent again (`retries.py` says when).
    `transport` is httpx's, for proxies, certificates and the like; nothing of that is read from the environment.
    Safe to share between threads. Raises `ValueError` for an address or a key that can be none.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        deadline_s: float = 300.0,
        max_retries: int = 5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._options = options_of(url, deadline_s, max_retries)
        self._http = httpx.Client(
            headers=default_headers(api_key), transport=transport, limits=POOL_LIMITS, trust_env=False
        )

    def __repr__(self) -> str:
        return f"Plimsoll({self._options!r})"

    def __enter__(self) -> Plimsoll:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def patience(self) -> Patience:
        """How long a call may take, and how often it is sent again."""
        return self._options.patience

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def with_patience(self, *, deadline_s: float | None = None, max_retries: int | None = None) -> Plimsoll:
        """The same client over the same connections, more or less patient."""
        other = object.__new__(Plimsoll)
        other._options = options_of(
            self._options.url,
            self.patience.deadline_s if deadline_s is None else deadline_s,
            self.patience.max_retries if max_retries is None else max_retries,
        )
        other._http = self._http
        return other

    def send(self, call: Call[T]) -> T:
        """Sends a call of `operations`, again where that makes sense, and reads its answer."""
        return call.request.read(self.exchanged(call, time.monotonic() + self.patience.deadline_s))

    def perform(self, step: ToolStep) -> Any:
        """Does what a loop of tools asks for next."""
        match step:
            case Ask():
                return self.send(step.call)
            case Invoke():
                return step.function(**step.arguments)

    def exchanged(self, call: Call[Any], ends_at: float) -> Reply:
        """The call's answer, by `time.monotonic()` at the latest; of a call that streams, its open stream."""
        steps = exchange(call, self.patience, ends_at, time.monotonic)
        came: Came = None
        while True:
            try:
                step = steps.send(came)
            except StopIteration as end:
                return end.value
            if isinstance(step, Sleep):
                time.sleep(step.seconds)
                came = None
            else:
                came = self._sent(step)

    def _sent(self, step: Send) -> Came:
        ends_at = time.monotonic() + step.timeout_s
        request = request_of(self._http, self._options.url, step.call, step.timeout_s)
        try:
            response = self._http.send(request, stream=True)
            opened = Reply(response.status_code, response.headers, b"", response)
            if step.call.request.streamed and opened.has_events:
                return opened
            try:
                body = bytearray()
                for data in response.iter_bytes():
                    body += data
                    if time.monotonic() > ends_at:
                        return OutOfTime()
            finally:
                response.close()
        except httpx.RequestError as error:
            return came_of(error, time.monotonic() >= ends_at)
        return Reply(response.status_code, response.headers, bytes(body))

    run_turn = _tool_loop(run_turn)

    create_session = _method(operations.create_session)
    list_sessions = _method(operations.list_sessions)
    iterate_sessions = _pages(operations.list_sessions)
    get_session = _method(operations.get_session)
    change_session = _method(operations.change_session)
    delete_session = _method(operations.delete_session)
    fork_session = _method(operations.fork_session)
    export_session = _method(operations.export_session)
    import_session = _method(operations.import_session)
    import_messages = _method(operations.import_messages)

    post_turn = _method(operations.post_turn)
    stream_turn = _stream(operations.post_turn)
    list_turns = _method(operations.list_turns)
    iterate_turns = _pages(operations.list_turns)
    get_turn = _method(operations.get_turn)
    post_tool_outputs = _method(operations.post_tool_outputs)
    stream_tool_outputs = _stream(operations.post_tool_outputs)
    cancel_turn = _method(operations.cancel_turn)
    regenerate_turn = _method(operations.regenerate_turn)
    get_audit = _method(operations.get_audit)
    get_prompt = _method(operations.get_prompt)

    get_context = _method(operations.get_context)
    preview_turn = _method(operations.preview_turn)
    get_timeline = _method(operations.get_timeline)
    iterate_timeline = _pages(operations.get_timeline)
    get_overview = _method(operations.get_overview)
    list_messages = _method(operations.list_messages)
    iterate_messages = _pages(operations.list_messages)
    search_session = _method(operations.search_session)
    look_back = _method(operations.look_back)
    search_messages = _method(operations.search_messages)
    iterate_found_messages = _pages(operations.search_messages)
    list_summaries = _method(operations.list_summaries)
    iterate_summaries = _pages(operations.list_summaries)
    edit_summary = _method(operations.edit_summary)
    summarize_now = _method(operations.summarize_now)
    undo_summary = _method(operations.undo_summary)
    undo_active_summary = _method(operations.undo_active_summary)
    list_pins = _method(operations.list_pins)
    iterate_pins = _pages(operations.list_pins)
    put_pin = _method(operations.put_pin)
    get_pin = _method(operations.get_pin)
    delete_pin = _method(operations.delete_pin)

    simulate = _method(operations.simulate)
    list_open_turns = _method(operations.list_open_turns)
    get_policies = _method(operations.get_policies)
    get_models = _method(operations.get_models)
    get_model = _method(operations.get_model)
    complete_chat = _method(operations.complete_chat)
    get_root = _method(operations.get_root)
    get_health = _method(operations.get_health)
    get_readiness = _method(operations.get_readiness)
    get_metrics = _method(operations.get_metrics)
