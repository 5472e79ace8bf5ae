"""The client for programs on an event loop, of asyncio or trio."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import anyio
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


class AsyncTurnStream:
    """The events of a turn as they come: `TurnStream` for event loops."""

    def __init__(self, client: AsyncPlimsoll, call: Call[TurnAnswer]) -> None:
        self._progress = Progress(client.patience.max_retries)
        self._events = self._run(client, call, self._progress)

    def __aiter__(self) -> AsyncIterator[TurnEvent]:
        return self._events

    async def __aenter__(self) -> AsyncTurnStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._progress.text

    async def aclose(self) -> None:
        """Ends the stream. The turn goes on, unless the deployment says otherwise."""
        await self._events.aclose()

    async def answer(self) -> TurnAnswer:
        """Reads to the end, and gives what posting without a stream would have: raises the problem of a failed turn."""
        async for _ in self._events:
            pass
        return self._progress.answer()

    @staticmethod
    async def _run(client: AsyncPlimsoll, call: Call[TurnAnswer], progress: Progress) -> AsyncGenerator[TurnEvent]:
        # It does not know its stream: one that is left is closed at once, and not when garbage is collected.
        ends_at = time.monotonic() + client.patience.deadline_s
        while progress.ended is None:
            why, until = "the connection was closed", ends_at
            response: httpx.Response = (await client.exchanged(call, ends_at)).stream
            try:
                async with aclosing(cast("AsyncGenerator[bytes]", response.aiter_bytes())) as pieces:
                    while (data := await _piece(pieces, until)) is not None:
                        for event in progress.take(data):
                            yield event
                        if progress.ended is not None and until == ends_at:
                            until = min(ends_at, time.monotonic() + CLOSING_S)
            except httpx.RequestError as error:
                why = type(error).__name__
            except TimeoutError:
                if progress.ended is None:
                    raise DeadlinePassed(client.patience.deadline_s) from None
            finally:
                with anyio.CancelScope(shield=True):
                    await response.aclose()
            if progress.ended is None and not progress.may_resume():
                raise progress.broken(why)


async def _piece(pieces: AsyncIterator[bytes], ends_at: float) -> bytes | None:
    """The next bytes, None at the end. Raises `TimeoutError`."""
    with anyio.fail_after(ends_at - time.monotonic()):
        return await anext(pieces, None)


def _method(build: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncPlimsoll, P], Awaitable[T]]:
    @wraps(build)
    async def method(self: AsyncPlimsoll, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(*args, **kwargs))

    return method


def _pages(build: Callable[P, Call[Page[T]]]) -> Callable[Concatenate[AsyncPlimsoll, P], AsyncIterator[T]]:
    @wraps(build)
    async def method(self: AsyncPlimsoll, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T]:
        call = build(*args, **kwargs)
        while True:
            page = await self.send(call)
            for item in page.items:
                yield item
            if page.next_cursor is None:
                return
            call = call.at(page.next_cursor)

    return method


def _stream(build: Callable[P, Call[TurnAnswer]]) -> Callable[Concatenate[AsyncPlimsoll, P], AsyncTurnStream]:
    @wraps(build)
    def method(self: AsyncPlimsoll, *args: P.args, **kwargs: P.kwargs) -> AsyncTurnStream:
        return AsyncTurnStream(self, build(*args, **kwargs).streaming())

    return method


def _tool_loop(
    loop: Callable[P, Generator[ToolStep, Any, T]],
) -> Callable[Concatenate[AsyncPlimsoll, P], Awaitable[T]]:
    @wraps(loop)
    async def method(self: AsyncPlimsoll, *args: P.args, **kwargs: P.kwargs) -> T:
        steps = loop(*args, **kwargs)
        step = next(steps)
        while True:
            try:
                done = await self.perform(step)
            except Exception as error:
                resume: Callable[[], ToolStep] = partial(steps.throw, error)
            else:
                resume = partial(steps.send, done)
            try:
                step = resume()
            except StopIteration as end:
                return end.value

    return method


class AsyncPlimsoll:
    """A Plimsoll at `url`: as `Plimsoll`, with every method awaited, and every list and stream an asynchronous one.

    The functions that `run_turn` calls may be coroutines'; others run on the loop, and hold it up while they do.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        deadline_s: float = 300.0,
        max_retries: int = 5,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._options = options_of(url, deadline_s, max_retries)
        self._http = httpx.AsyncClient(
            headers=default_headers(api_key), transport=transport, limits=POOL_LIMITS, trust_env=False
        )

    def __repr__(self) -> str:
        return f"AsyncPlimsoll({self._options!r})"

    async def __aenter__(self) -> AsyncPlimsoll:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def patience(self) -> Patience:
        """How long a call may take, and how often it is sent again."""
        return self._options.patience

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    def with_patience(self, *, deadline_s: float | None = None, max_retries: int | None = None) -> AsyncPlimsoll:
        """The same client over the same connections, more or less patient."""
        other = object.__new__(AsyncPlimsoll)
        other._options = options_of(
            self._options.url,
            self.patience.deadline_s if deadline_s is None else deadline_s,
            self.patience.max_retries if max_retries is None else max_retries,
        )
        other._http = self._http
        return other

    async def send(self, call: Call[T]) -> T:
        """Sends a call of `operations`, again where that makes sense, and reads its answer."""
        return call.request.read(await self.exchanged(call, time.monotonic() + self.patience.deadline_s))

    async def perform(self, step: ToolStep) -> Any:
        """Does what a loop of tools asks for next."""
        match step:
            case Ask():
                return await self.send(step.call)
            case Invoke():
                value = step.function(**step.arguments)
                return await value if inspect.isawaitable(value) else value

    async def exchanged(self, call: Call[Any], ends_at: float) -> Reply:
        """The call's answer, by `time.monotonic()` at the latest; of a call that streams, its open stream."""
        steps = exchange(call, self.patience, ends_at, time.monotonic)
        came: Came = None
        while True:
            try:
                step = steps.send(came)
            except StopIteration as end:
                return end.value
            if isinstance(step, Sleep):
                await anyio.sleep(step.seconds)
                came = None
            else:
                came = await self._sent(step)

    async def _sent(self, step: Send) -> Came:
        try:
            with anyio.fail_after(step.timeout_s):
                return await self._sent_once(step)
        except TimeoutError:
            return OutOfTime()

    async def _sent_once(self, step: Send) -> Came:
        ends_at = time.monotonic() + step.timeout_s
        request = request_of(self._http, self._options.url, step.call, step.timeout_s)
        try:
            response = await self._http.send(request, stream=True)
            opened = Reply(response.status_code, response.headers, b"", response)
            if step.call.request.streamed and opened.has_events:
                return opened
            try:
                body = await response.aread()
            finally:
                with anyio.CancelScope(shield=True):
                    await response.aclose()
        except httpx.RequestError as error:
            return came_of(error, time.monotonic() >= ends_at)
        return Reply(response.status_code, response.headers, body)

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
