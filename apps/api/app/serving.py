"""`plimsoll serve`: opens the port, then the database, then runs uvicorn; closes them in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import json
import multiprocessing
import os
import shlex
import shutil
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from functools import partial
from importlib import import_module
from multiprocessing.connection import wait
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import orjson
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from app.api.connections import KEEP_ALIVE_S, Connection, Connections, take_descriptors
from app.commands.resources import database_url, on_database
from app.composition import command_runtime, guarded_policy
from app.core.config import Settings, variables
from app.core.logging import configure_logging, log_unhandled_errors
from app.core.memory import collect_seldom, map_large_blocks
from app.db.database import Database, PageBounds
from app.db.schema import SchemaState, reach
from app.db.sessions import list_sessions
from app.domain.errors import OperatorError, PlimsollError
from app.providers.catalogue_file import read_catalogue
from app.providers.certificates import trusted_certificates
from app.providers.local_embeddings import is_installed
from app.services.archive.transfer import import_session
from app.services.embeddings import LOCAL
from app.services.keys import OPEN_TENANT, any_key_exists
from app.services.paging import FIRST_ID, LAST_ID
from app.services.process_state import Drain
from app.telemetry.files import reserve_disk

if TYPE_CHECKING:
    from fastapi import FastAPI

DRAIN_S = 30
"""Seconds that running requests have to end after a signal."""
_CUT_OFF_S = 1
"""Further seconds, after `DRAIN_S`, until running requests are cancelled."""
_WORKER_SILENCE_S = 30
_BACKLOG = 2048
_SWITCH_INTERVAL_S = 0.0001
"""How long a busy thread can hold the interpreter while the serving thread waits.

Python's default of 5 ms adds noticeable latency: a turn acquires the interpreter several times."""


def serve(settings: Settings, first_session: Callable[[], bytes] | None = None) -> None:
    """Serves until a signal ends it; running requests get `DRAIN_S`. An empty embedded database gets `first_session`.

    Raises `OperatorError`, `EmbeddedPostgresError`, `MigrationFailed`, `DatabaseUnreachable`, `CatalogueError` or
    `InvalidRequest` (of the policy settings) before it listens.
    """
    catalogue = read_catalogue(settings.models_file, variables())
    if settings.context_summary_model not in {"", *catalogue.models}:
        known = ", ".join(catalogue.models)
        raise OperatorError(
            f"CONTEXT_SUMMARY_MODEL: there is no model {settings.context_summary_model!r}, only {known}"
        )
    if any(entry.address.startswith("https:") for entry in catalogue.models.values()):
        trusted_certificates()
    embedding = settings.context_embedding_model
    takes_texts = {alias for alias, entry in catalogue.models.items() if entry.provider == "openai"}
    if embedding not in {"", LOCAL, *takes_texts}:
        raise OperatorError(
            f"CONTEXT_EMBEDDING_MODEL: {embedding!r} is neither {LOCAL} nor an alias of the provider openai"
        )
    if embedding == LOCAL and not is_installed():
        raise OperatorError("CONTEXT_EMBEDDING_MODEL=local: the extra embeddings of plimsoll-server is not installed")
    try:
        if settings.traces != "off":
            import_module("app.telemetry.otel")
    except ImportError as error:
        raise OperatorError(
            "PLIMSOLL_TRACES needs packages that are not installed: the extra otel of plimsoll-server"
        ) from error
    guarded_policy(settings)
    signal.signal(signal.SIGTERM, _end)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        signal.signal(signal.SIGHUP, _end)
    with _listening(settings.host, settings.port) as listener, database_url(settings, keep_running=True) as dsn:
        keys_exist = _check_database(dsn, listener, transaction_pooler=settings.db_pooler == "transaction")
        if first_session is not None and settings.demo and settings.database_url is None and not keys_exist:
            asyncio.run(on_database(dsn, partial(begin_with, settings, first_session)))
        # The workers, and the application in this process, take the database from the environment.
        os.environ["DATABASE_URL"] = dsn
        configure_logging(settings.log_level, settings.log_format)  # for the thread that watches the database
        log_unhandled_errors()
        with _workers_folder(settings, listener, (*catalogue.models, LOCAL)):
            _run(settings, listener, _welcome(settings, listener, catalogue.default, keys_exist=keys_exist))


def create_worker() -> FastAPI:
    """The application in a worker process, which shuts down in order if the process that started it is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()
        for of_terminal in (signal.SIGHUP, signal.SIGINT):  # which the parent process gets too, and passes on
            signal.signal(of_terminal, signal.SIG_IGN)
    collect_seldom()  # nearly all objects that an import makes stay
    from app.main import create_app  # noqa: PLC0415 - half of all imports: the parent of several workers has no use for it

    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    map_large_blocks()
    settings = Settings()
    take_descriptors(settings.max_connections)
    app = create_app(settings)
    log_unhandled_errors()
    serving = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[Mapping[str, object]]:
        hangup = signal.getsignal(signal.SIGHUP)
        async with serving(app) as state:
            collect_seldom()
            _drain_first(app.state.service.drain, settings.shutdown_delay_s)
            yield state or {}
        signal.signal(signal.SIGHUP, hangup)  # uvicorn does this for the others

    app.router.lifespan_context = lifespan
    return app


def _drain_first(drain: Drain, shutdown_delay_s: float) -> None:
    """Drains this process on a signal before uvicorn gets it, which would break off what takes longer than a second.

    A load balancer gets a 503 from `/readyz` for as long as it needs to react. Then new connections are refused, so
    that one that does not ask for `/readyz` tries another replica. A second signal is passed on at once.
    """
    loop = asyncio.get_running_loop()
    leaving: list[asyncio.Task[None]] = []
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if not isinstance(server, uvicorn.Server):
        return

    async def leave(hand_on: Callable[[], object]) -> None:
        drain.announced = True
        await asyncio.sleep(shutdown_delay_s)
        for listening in server.servers:
            listening.close()
        drain.close()
        await drain.until_idle(DRAIN_S)
        hand_on()

    def begin(hand_on: Callable[[], object]) -> None:
        if leaving:
            hand_on()
        else:
            leaving.append(asyncio.create_task(leave(hand_on)))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if callable(signal.getsignal(number)):
            # uvicorn does not handle SIGHUP, which a closed terminal sends.
            meant = signal.SIGTERM if number is signal.SIGHUP else number
            # uvicorn puts back what was there before it when it ends.
            hand_on = partial(server.handle_exit, meant, None)
            signal.signal(number, lambda _number, _frame, hand_on=hand_on: loop.call_soon_threadsafe(begin, hand_on))


def _end_after(sentinel: int) -> None:
    # Orphans would keep the port, and lose the embedded database when its last holder ends.
    wait([sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


class _Server(uvicorn.Server):
    """Prints the welcome once it serves."""

    def __init__(self, config: uvicorn.Config, welcome: str) -> None:
        super().__init__(config)
        self._welcome = welcome

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _print(self._welcome)


class _Workers(Multiprocess):
    """Prints the welcome once a worker serves. If the first worker fails before that, all end. Signals are passed on at
    once; what became of workers is looked at every `check_s` seconds."""

    check_s = 0.5

    def __init__(self, config: uvicorn.Config, listener: socket.socket, welcome: str) -> None:
        hangup = signal.getsignal(signal.SIGHUP)
        super().__init__(config, sockets=[listener])
        if hangup is signal.SIG_IGN:
            signal.signal(signal.SIGHUP, hangup)
        self._welcome = welcome
        self._signalled, wakes = socket.socketpair()
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.detach(), warn_on_full_buffer=False)
        self.failed = False

    def run(self) -> None:
        self.init_processes()
        while not self.should_exit.is_set():
            if wait([self._signalled], self.check_s):
                self._signalled.recv(signal.NSIG)  # a byte for each signal
            self.handle_signals()
            self.keep_subprocess_alive()
        self.terminate_all()
        self.join_all()

    def handle_hup(self) -> None:
        self.handle_term()  # uvicorn would start other workers, without a terminal

    def init_processes(self) -> None:
        super().init_processes()
        first = self.processes[0]
        while not self.signal_queue:  # unless a signal came first
            if first.wait_until_ready(1):
                return _print(self._welcome)
            if not first.process.is_alive():
                self.failed = True
                return self.should_exit.set()
        return None

    def keep_subprocess_alive(self) -> None:
        for worker in self.processes:
            worker.child_conn.close()  # else the check of a worker that ends meanwhile waits for `_WORKER_SILENCE_S`
        super().keep_subprocess_alive()

    def terminate_all(self) -> None:
        super().terminate_all()
        for listener in self.sockets:
            listener.close()  # else connections that no worker takes wait until the last one ends, and are reset

    def join_all(self) -> None:
        self.signal_queue.clear()
        for worker in self.processes:
            while worker.process.is_alive():
                worker.process.join(self.check_s)
                if self.signal_queue:  # a second signal, which each worker passes on at once
                    self.signal_queue.clear()
                    self.terminate_all()


def _print(welcome: str) -> None:
    with contextlib.suppress(OSError):  # on a full disk, or into a closed pipe, it is lost: what is served is not
        sys.stdout.write(welcome)
        sys.stdout.flush()


def _run(settings: Settings, listener: socket.socket, welcome: str) -> None:
    connections = Connections(settings.max_connections, settings.max_connections_per_address)  # of each process
    config = uvicorn.Config(
        "app.serving:create_worker",
        factory=True,
        workers=settings.workers,
        loop="uvloop",
        http=cast(Any, partial(Connection, connections)),
        timeout_keep_alive=KEEP_ALIVE_S,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_CUT_OFF_S,
        timeout_worker_healthcheck=_WORKER_SILENCE_S,
    )
    with contextlib.suppress(KeyboardInterrupt):
        if settings.workers > 1:
            workers = _Workers(config, listener, welcome)
            workers.run()
            # One that replaces an ended worker can fail too, which ends all.
            failed = workers.failed or any(each.exitcode == STARTUP_FAILURE for each in workers.processes)
        else:
            server = _Server(config, welcome)
            server.run(sockets=[listener])
            failed = not server.started
        if failed:
            raise OperatorError("the application did not start; its log above says why")


def _end(_number: int, _frame: FrameType | None) -> None:
    # uvicorn passes the signal on to the previous handler, this one, after it has drained.
    sys.exit(0)


@contextlib.contextmanager
def _listening(host: str, port: int) -> Generator[socket.socket]:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or "127.0.0.1", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "that is not a host name"
        raise OperatorError(f"PLIMSOLL_HOST: cannot listen on {host}: {reason}") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(_BACKLOG)  # so that a first request waits instead of being refused
        except OSError as error:
            raise OperatorError(
                f"cannot listen on {host}:{port}: {error.strerror}; {_other_address(error, port)}"
            ) from error
        yield listener


def _other_address(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return "PLIMSOLL_HOST has to be an address of this machine"
    if error.errno == errno.EACCES:
        return "PLIMSOLL_PORT=8000 (or --port 8000) needs no privileges"
    return f"is another one running? PLIMSOLL_PORT={port % 65535 + 1} (or --port {port % 65535 + 1}) takes the next"


def _check_database(dsn: str, listener: socket.socket, *, transaction_pooler: bool) -> bool:
    """Whether an API key exists. Warns or raises `OperatorError` if the database is not ready."""
    state = asyncio.run(reach(dsn, transaction_pooler=transaction_pooler))
    keys_exist = state.can_be_served and asyncio.run(on_database(dsn, any_key_exists))
    host = listener.getsockname()[0]
    if not keys_exist and not ipaddress.ip_address(host).is_loopback:
        first = "" if state.can_be_served else "plimsoll migrate && "
        raise OperatorError(
            f"{host} (PLIMSOLL_HOST) can be reached from other machines and there is no API key yet: make one with "
            f"`{first}plimsoll keys create --tenant default --name first`, or use PLIMSOLL_HOST=127.0.0.1"
        )
    if state is SchemaState.AHEAD:
        sys.stderr.write("plimsoll: the database's schema is that of a later release\n")
    elif not state.can_be_served:
        sys.stderr.write(f"plimsoll: the database's schema is {state}; /readyz stays 503 until `plimsoll migrate`\n")
    return keys_exist


@contextlib.contextmanager
def _workers_folder(settings: Settings, listener: socket.socket, aliases: Iterable[str]) -> Generator[None]:
    """With several workers, a new folder for their shared metrics, named by the address, and the catalogue as it is
    now: a worker that replaces another has the same one, whatever becomes of the file."""
    if settings.workers == 1:
        yield
        return
    folder = settings.data_folder / "metrics" / "{}:{}".format(*listener.getsockname())
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        for number in range(settings.workers):
            reserve_disk(folder, number, aliases)
        if settings.models_file is not None:
            os.environ["MODELS_FILE"] = str(shutil.copy(settings.models_file, folder / "models.toml"))
    except OSError as error:
        raise OperatorError(f"PLIMSOLL_DATA_DIR: several workers share {folder}: {error.strerror}") from error
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _welcome(settings: Settings, listener: socket.socket, model: str, *, keys_exist: bool) -> str:
    """Three lines: the address and where the data are, the pages, and a turn to copy."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "127.0.0.1"
    base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    data = "" if settings.database_url else f" (data: {settings.data_folder})"
    key = ' -H "Authorization: Bearer $PLIMSOLL_API_KEY"' if keys_exist else ""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello, what do you keep?"}]})
    turn = f"curl -s {base}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    return f"Plimsoll listens on {base}{data}\nInspector: {base}/ui, API: {base}/docs\n{turn}\n"


async def begin_with(settings: Settings, document: Callable[[], bytes], database: Database) -> None:
    """Imports the document unless a session exists; its session gets the default model. A failure prints one line."""
    async with database.begin() as tx:
        if (await list_sessions(tx, OPEN_TENANT, PageBounds(FIRST_ID, LAST_ID, 1, newest_first=True))).rows:
            return
    from app.api.schemas.imports import read_import  # noqa: PLC0415 - only at the first start, and takes long

    exported = orjson.loads(document())
    try:
        async with command_runtime(settings, database) as rt:
            exported["session"]["model_alias"] = rt.catalogue.default
            await import_session(rt, OPEN_TENANT, orjson.dumps(exported), read_import)
    except PlimsollError as error:
        sys.stderr.write(f"plimsoll: the session to begin with was not imported: {error.detail}\n")
