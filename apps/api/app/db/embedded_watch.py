"""Keeps the embedded Postgres running: whoever serves with it starts it again when it has ended unasked."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Generator
from time import monotonic

from app.db.embedded import EmbeddedPostgres, EmbeddedPostgresError

logger = logging.getLogger(__name__)

_LOOK_S = 0.25
_LONGEST_PAUSE_S = 10.0
_STEADY_S = 5.0
"""A server that ran for so long after a restart has recovered; one that ended sooner was not started again."""


@contextlib.contextmanager
def kept_running(server: EmbeddedPostgres, *, give_up_after_s: float) -> Generator[None]:
    """While the block runs, starts the server again whenever it has ended. Several processes may do so at once.

    The first try is immediate; pauses between the next ones double up to ten seconds. Where none brings it back for
    `give_up_after_s`, this process is sent SIGTERM, and the end of the block raises `EmbeddedPostgresError`.
    """
    over = threading.Event()
    given_up: list[EmbeddedPostgresError] = []
    watch = threading.Thread(
        target=_watch, args=(server, give_up_after_s, over, given_up), name="embedded-postgres", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()
        if given_up:
            raise given_up[0]


def _watch(
    server: EmbeddedPostgres, give_up_after_s: float, over: threading.Event, given_up: list[EmbeddedPostgresError]
) -> None:
    tries, ended_at, tried_at, pause_s, problem = 0, 0.0, 0.0, _LOOK_S, ""
    while not over.wait(pause_s):
        if server.runs():
            pause_s = _LOOK_S
            tries = 0 if monotonic() - tried_at > _STEADY_S else tries
            continue
        if tries == 0:
            ended_at = monotonic()
            logger.warning("embedded_database_ended: it is started again")
        elif monotonic() - ended_at > give_up_after_s:
            given_up.append(EmbeddedPostgresError(_given_up(tries, monotonic() - ended_at, problem)))
            os.kill(os.getpid(), signal.SIGTERM)
            return
        tries += 1
        pause_s = min(_LOOK_S * 2 ** (tries - 1), _LONGEST_PAUSE_S)
        problem = _try(server, tries)
        tried_at = monotonic()


def _try(server: EmbeddedPostgres, tries: int) -> str:
    """What is wrong, or would be if the server ended again at once."""
    try:
        if server.start_again():
            logger.warning("embedded_database_restarted: at try %d", tries)
    except EmbeddedPostgresError as error:
        logger.error("embedded_database_down: try %d failed: %s", tries, error)  # noqa: TRY400 - the sentence says it
        return str(error)
    return "it ends whenever it was started"


def _given_up(tries: int, seconds: float, problem: str) -> str:
    return f"The embedded Postgres ended and could not be started again, {tries} tries in {seconds:.0f} s: {problem}"
