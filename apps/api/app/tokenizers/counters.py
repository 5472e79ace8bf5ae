"""Counts tokens: `str -> int` for the engine, and the same off the event loop for callers that can wait."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from threading import Lock
from typing import Final, Protocol, TypeVar

from tiktoken.model import encoding_name_for_model

from app.core.fairness import FairThreads
from app.tokenizers.vocabularies import ENCODINGS, load_vocabulary

logger = logging.getLogger(__name__)
T = TypeVar("T")

DEFAULT_ENCODING: Final = "o200k_base"
HEURISTIC: Final = "heuristic"
TWO_FIFTHS: Final = "chars_2_5"
_INLINE_CHARS: Final = 16_384
"""Most characters that are counted on the event loop: 1 ms for prose, 10 ms for the worst text."""
_THREADS: Final = 3
_CACHED_COUNTS: Final = 8_192
"""Most counts that are cached for each encoding: 2 MB."""


class TextCounter(Protocol):
    """Counts the tokens of a text; may raise anything."""

    def count(self, text: str) -> int: ...


def heuristic_tokens(text: str) -> int:
    """`ceil(chars / 4 * 1.25)`, which the contract prescribes for when a tokenizer fails."""
    return -(-len(text) * 5 // 16)


def two_fifths_tokens(text: str) -> int:
    """`ceil(chars * 2 / 5)`, which a policy can choose (contract.md, section 9); the same for every model."""
    return -(-len(text) * 2 // 5)


_BY_LENGTH: Final[dict[str, Callable[[str], int]]] = {HEURISTIC: heuristic_tokens, TWO_FIFTHS: two_fifths_tokens}
"""Counts that need no vocabulary, by the name they are stored under."""


def encoding_for_model(model: str) -> str:
    """The encoding of a model by tiktoken's own table (also `vendor/model`), else `o200k_base`. Downloads nothing."""
    for name in (model, model.rsplit("/", 1)[-1]):
        try:
            encoding = encoding_name_for_model(name)
        except KeyError:
            continue
        # o200k_harmony is o200k_base with more special tokens, which are plain text here.
        return encoding if encoding in ENCODINGS else DEFAULT_ENCODING
    return DEFAULT_ENCODING


class _Counter:
    """An encoding of a process: its vocabulary, loaded on first use, and a cache of the latest counts. Thread-safe."""

    def __init__(self, encoding: str, load: Callable[[str], TextCounter]) -> None:
        self.encoding = encoding
        self._load = load
        self._vocabulary: TextCounter | None = None
        self.loaded = False
        self._warned = False
        self._loading = Lock()
        self._counts: OrderedDict[int, int] = OrderedDict()
        self._lock = Lock()

    def count(self, text: str) -> int | None:
        """Tokens of `text`, or None when the tokenizer failed, which is logged once, without content."""
        if not text:
            return 0
        # The cache must not keep the text of a session that is erased. A hash has 64 bits; 2^13 of them are cached.
        key = hash(text)
        with self._lock:
            if (found := self._counts.get(key)) is not None:
                self._counts.move_to_end(key)
                return found
        vocabulary = self.vocabulary()
        if vocabulary is None:
            return None
        try:
            counted = vocabulary.count(text)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of tiktoken's native part is not an Exception
            self._warn(error, text)
            return None
        with self._lock:
            self._counts[key] = counted
            if len(self._counts) > _CACHED_COUNTS:
                self._counts.popitem(last=False)
        return counted

    def vocabulary(self) -> TextCounter | None:
        if not self.loaded:
            with self._loading:
                if not self.loaded:
                    try:
                        self._vocabulary = self._load(self.encoding)
                    except Exception as error:  # whatever the cause, turns continue with the heuristic
                        self._warn(error, "")
                    self.loaded = True
        return self._vocabulary

    def _warn(self, error: BaseException, text: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "The tokenizer of %s failed (%s, on %d characters); counting by ceil(chars / 4 * 1.25) instead.",
                self.encoding,
                type(error).__name__,
                len(text),
            )


class Estimator:
    """Counts tokens in one encoding on the calling thread, for the pure engine. Never raises. A large text that
    `Tokenizers.count` has counted before is answered from the cache."""

    def __init__(self, encoding: str, count: Callable[[str], int | None]) -> None:
        self._count = count
        self.encoding = encoding
        """`o200k_base`, `cl100k_base`, a count by length, or `heuristic` once a count had to fall back."""

    @property
    def has_vocabulary(self) -> bool:
        """Whether it has a vocabulary and made all its counts with it; other counts are by length."""
        return self.encoding in ENCODINGS

    def __call__(self, text: str) -> int:
        counted = self._count(text)
        if counted is None:
            self.encoding = HEURISTIC
            return heuristic_tokens(text)
        return counted


class Tokenizers:
    """The encodings of a process. `load` builds the vocabulary of an encoding on its first use. Of the threads for long
    counts one tenant has at most `tenant_ratio`."""

    def __init__(self, load: Callable[[str], TextCounter] = load_vocabulary, tenant_ratio: float = 1.0) -> None:
        self._counters = {encoding: _Counter(encoding, load) for encoding in ENCODINGS}
        # Separate threads: long counts must not delay other work on the loop's default ones.
        self._threads = FairThreads(_THREADS, tenant_ratio, "tokens")

    def _counter(self, encoding: str) -> _Counter:
        return self._counters.get(encoding) or self._counters[DEFAULT_ENCODING]

    def estimator(self, encoding: str) -> Estimator:
        """A new, light estimator that shares vocabulary and cache. An unknown encoding is counted as `o200k_base`."""
        if encoding in _BY_LENGTH:
            return Estimator(encoding, _BY_LENGTH[encoding])
        counter = self._counter(encoding)
        return Estimator(counter.encoding, counter.count)

    async def count(self, encoding: str, texts: Sequence[str]) -> tuple[list[int], str]:
        """Tokens of each text, and the encoding that was used: `heuristic` for all when the tokenizer failed."""
        chars = sum(map(len, texts))
        return await self.count_aside(encoding, chars, lambda estimate: [estimate(text) for text in texts])

    def count_with(self, encoding: str, count: Callable[[Estimator], T]) -> tuple[T, str]:
        """The result of `count` with an estimator, and the one encoding in which all of it was counted."""
        estimator = self.estimator(encoding)
        counted = count(estimator)
        if estimator.encoding == HEURISTIC:
            estimator = self.estimator(HEURISTIC)
            counted = count(estimator)
        return counted, estimator.encoding

    async def count_aside(self, encoding: str, chars: int, count: Callable[[Estimator], T]) -> tuple[T, str]:
        """The same as `count_with` for texts of this many characters. If they are many, it runs on a thread."""
        work = partial(self.count_with, encoding, count)
        is_small = chars <= _INLINE_CHARS and (encoding in _BY_LENGTH or self._counter(encoding).loaded)
        return work() if is_small else await self.off_loop(work)

    async def off_loop(self, count: Callable[[], T]) -> T:
        """The result of `count`, which runs on a thread: for many texts that are each small."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, count)

    async def warm(self, encoding: str) -> None:
        """Loads the vocabulary on a thread. If it cannot be loaded, that is logged and counts fall back."""
        if encoding not in _BY_LENGTH:
            await self.off_loop(self._counter(encoding).vocabulary)


_LONGEST_WORD_CHARS: Final = 64
_MOST_WORDS: Final = 50_000
"""Most words whose counts are cached (about 8 MB); then the cache is emptied."""
_SHORT_CHARS: Final = 512
_SHORT_TEXTS: Final = 8_192
_LONG_TEXTS: Final = 64
"""Most long texts whose counts are cached: a summary is counted several times, and its parts again in the next one."""


class _NotByWords(Exception):
    """A word is empty or ends in a blank, so that the text must not be cut after it."""


class _Words(dict[str, int]):
    """The tokens of words with `blank` before them, counted when they are first looked up."""

    def __init__(self, estimator: Estimator, blank: str) -> None:
        super().__init__()
        self._estimator = estimator
        self._blank = blank

    def __missing__(self, word: str) -> int:
        if not word or word[-1].isspace():
            raise _NotByWords
        tokens = self._estimator(self._blank + word)
        if len(word) <= _LONGEST_WORD_CHARS:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[word] = tokens
        return tokens


class ByWords:
    """Counts as the estimator does, in a fifth of the time for texts that share many words, such as summaries. For use
    by one thread.

    The count is exact: both vocabularies first cut a text into pieces, and in no piece a space follows anything but a
    blank. So a text may be cut before every space that has no blank before it, and has as many tokens as its parts.
    """

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._firsts, self._words, self._after_two = (_Words(estimator, blank) for blank in ("", " ", "  "))
        self._short, self._long = lru_cache(_SHORT_TEXTS)(self._count), lru_cache(_LONG_TEXTS)(self._count)

    def __call__(self, text: str) -> int:
        return self._short(text) if len(text) <= _SHORT_CHARS else self._long(text)

    def of_parts(self, parts: Sequence[str]) -> int:
        """Tokens of the joined parts. Each part but the first must begin with a space that has no blank before it."""
        # Most parts are short and cached: a call of this object for each would take longer than the lookup.
        of_parts = [self._short(part) if len(part) <= _SHORT_CHARS else self._long(part) for part in parts]
        return sum(of_parts) if self._estimator.has_vocabulary else self._estimator("".join(parts))

    def _count(self, text: str) -> int:
        estimator, words = self._estimator, self._words
        if not estimator.has_vocabulary or not text:
            return estimator(text)
        begin, *sentences = text.split("  ")
        first, *others = begin.split(" ")
        try:
            # A text may also be cut before a space with which it begins.
            tokens = sum(map(words.__getitem__, others), self._firsts[first] if first or not others else 0)
            for sentence in sentences:
                first, *others = sentence.split(" ")
                tokens += sum(map(words.__getitem__, others), self._after_two[first])
        except _NotByWords:
            return estimator(text)
        return tokens if estimator.has_vocabulary else estimator(text)
