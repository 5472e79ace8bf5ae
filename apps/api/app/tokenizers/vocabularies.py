"""The vocabularies, read from an installed wheel: nothing is ever downloaded.

tiktoken defines the encodings (pattern, special tokens, the SHA-256 of the vocabulary) but fetches the vocabularies on
first use. The wheel `bpe-openai` contains the same bytes gzipped. Only its data files are read: it is never imported,
because its native library is 74 MB.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from binascii import a2b_base64
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import FunctionType
from typing import Any, Final, cast

import tiktoken
from tiktoken_ext import openai_public  # pyright: ignore[reportMissingTypeStubs] - a namespace package, untyped

ENCODINGS: Final = ("o200k_base", "cl100k_base")
"""The encodings that are available without a network."""

_WHEEL: Final = "bpe-openai"
_LONGEST_RUN_CHARS: Final = 500_000
"""Longest run of blanks for tiktoken's pattern engine: its stack overflows from 1,000,000 on (0.14); half is safe."""
_LONG_CHARS: Final = 16_384
_BLANK_RUN: Final = re.compile("[\t\v\f \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]{8,}")


class VocabularyError(Exception):
    """The vocabulary of an encoding is not installed, or is not the one tiktoken expects."""


class Vocabulary:
    """One encoding. `count` is exact: the length of tiktoken's `encode_ordinary`, so special-token text is plain text.
    It releases the GIL while it works, and may be called from several threads."""

    def __init__(self, encoding: tiktoken.Encoding, ranks: dict[bytes, int]) -> None:
        self._encoding = encoding
        self._ranks = ranks

    def count(self, text: str) -> int:
        """Tokens of `text`. Linear in its length, about 0.7 s for a megabyte at worst.

        Very long runs of blanks are counted separately from the text between them, cut only where the pattern does.
        Both patterns make such a run one piece, except that its last blank belongs to what follows: they match "blanks
        not followed by text" as a whole, have no look-behind, and no piece before the run ends in a blank. So the cuts
        at its start and before its last blank change no piece, and the sum is exact.
        """
        if len(text) < _LONGEST_RUN_CHARS:
            return _length(self._encoding, text)
        total, done = 0, 0
        for run in _BLANK_RUN.finditer(text):
            end = run.end() if run.end() == len(text) else run.end() - 1
            if end - run.start() < _LONGEST_RUN_CHARS:
                continue
            total += _length(self._encoding, text[done : run.start()])
            total += _length(self._whole, text[run.start() : end])
            done = end
        return total + _length(self._encoding, text[done:])

    @cached_property
    def _whole(self) -> tiktoken.Encoding:
        """The same merges with a pattern that takes any run of blanks as one piece, without backtracking."""
        return tiktoken.Encoding(
            f"{self._encoding.name}_blanks", pat_str=r"\s+", mergeable_ranks=self._ranks, special_tokens={}
        )


def _length(encoding: tiktoken.Encoding, text: str) -> int:
    """Tokens of `text`; those of a long text not as a Python list, which would hold the GIL for up to 0.1 s."""
    if len(text) >= _LONG_CHARS:
        with suppress(UnicodeEncodeError):  # a lone surrogate, which `encode_ordinary` replaces
            return len(encoding.encode_to_numpy(text, disallowed_special=()))
    return len(encoding.encode_ordinary(text))


@cache
def load_vocabulary(encoding: str) -> Vocabulary:
    """Builds one of `ENCODINGS` from the installed wheel, in about 0.35 s of CPU time, once per process. Raises
    `VocabularyError` when the wheel is missing or its bytes are not those whose SHA-256 tiktoken states."""
    if encoding not in ENCODINGS:
        raise VocabularyError(f"There is no vocabulary named {encoding!r}.")
    define = cast("FunctionType", openai_public.ENCODING_CONSTRUCTORS[encoding])
    # tiktoken's own definition, run with our reader in place of its downloading one.
    with_our_reader = FunctionType(define.__code__, {**define.__globals__, "load_tiktoken_bpe": _read_ranks})
    definition = cast("Callable[[], dict[str, Any]]", with_our_reader)()
    return Vocabulary(tiktoken.Encoding(**definition), definition["mergeable_ranks"])


def _read_ranks(address: str, expected_hash: str) -> dict[bytes, int]:
    """Replaces tiktoken's loader: same arguments, same result, from the wheel's file of the same name."""
    name = address.rsplit("/", 1)[-1]
    try:
        packed = Path(str(distribution(_WHEEL).locate_file(f"bpe_openai/data/{name}.gz"))).read_bytes()
    except (PackageNotFoundError, OSError) as error:
        raise VocabularyError(f"{name} of the package {_WHEEL} is not installed.") from error
    data = gzip.decompress(packed)
    if hashlib.sha256(data).hexdigest() != expected_hash:
        raise VocabularyError(f"{name} in {_WHEEL} is not the vocabulary that tiktoken expects.")
    fields = data.split()  # base64 token, rank, base64 token, rank …
    return dict(zip(map(a2b_base64, fields[0::2]), map(int, fields[1::2]), strict=True))
