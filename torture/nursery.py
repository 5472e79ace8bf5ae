"""A process that has imported the service once and forks a `plimsoll serve` for every line it reads.

    python -m torture.nursery

A line is JSON: `{"environment": {…}, "log": PATH, "folder": PATH}`; the answer is the new process's id. Starting Python
and importing the service takes seconds, a fork milliseconds, and some promises need hundreds of processes to kill.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from app.core.config import Settings
from app.serving import serve
from app.tokenizers.vocabularies import load_vocabulary

ENCODING = "cl100k_base"
"""Of every model that is asked: its vocabulary is loaded before the forks."""


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever watches our children does so by pidfd
    load_vocabulary(ENCODING)
    for line in sys.stdin.buffer:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _serve(order)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _serve(order: dict[str, Any]) -> None:
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for ours, theirs in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(ours, theirs)
        os.chdir(order["folder"])  # where no `.env` of a developer is found
        os.environ.update(order["environment"])
        serve(Settings())
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
