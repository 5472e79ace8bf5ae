"""Tokens are counted offline, exactly, off the event loop where it matters, and a failure is only an overcount."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import os
import random
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.tokenizers.counters import Tokenizers, encoding_for_model, heuristic_tokens
from app.tokenizers.vocabularies import ENCODINGS, Vocabulary, load_vocabulary

MEGABYTE = 1_000_000
LONGEST_STALL_S = 0.5  # of this process's CPU time: a thread that holds the interpreter counts, other processes do not
MOST_TIMES_PROSE = 40.0
"""Of the CPU time for as much prose, in the same minute. It is up to 10; a cost that grows with the square of the text
would be thousands."""


@cache
def vocabulary(encoding: str) -> Vocabulary:
    return load_vocabulary(encoding)


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return Tokenizers(vocabulary)


def pathological_texts() -> dict[str, str]:
    chance = random.Random(7)  # noqa: S311 - made-up text, no secret
    letters = "abcdefghijklmnopqrstuvwxyz"

    def repeated(piece: str) -> str:
        return piece * (MEGABYTE // len(piece.encode()))

    return {
        "one letter": repeated("a"),
        "random letters": "".join(chance.choices(letters, k=MEGABYTE)),
        "spaces": repeated(" "),
        "spaces and tabs, then a word": " \t" * (MEGABYTE // 2) + "end",
        "newlines": repeated("\n"),
        "emoji": repeated("👩‍👩‍👧‍👦"),
        "han": "".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(MEGABYTE // 3)),
        "base64": base64.b64encode(chance.randbytes(MEGABYTE * 3 // 4)).decode(),
        "digits": repeated("1234567890"),
        "mixed scripts": repeated("aб漢1😀שᄀ"),
        "combining marks": "e" + repeated("\u0301"),
        "punctuation": repeated("!?.,;:-_#*"),
        "special tokens": repeated("<|endoftext|>"),
        "one capital": repeated("A"),
    }


def prose() -> str:
    chance = random.Random(11)  # noqa: S311 - made-up text, no secret
    words = (Path(__file__).parents[2] / "README.md").read_text().split()
    return " ".join(chance.choices(words, k=MEGABYTE // 6))[:MEGABYTE]


async def longest_stall_while(work: asyncio.Task[object]) -> float:
    longest, last = 0.0, time.process_time()
    while not work.done():
        await asyncio.sleep(0.005)
        now = time.process_time()
        longest, last = max(longest, now - last), now
    return longest


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_pathological_megabyte_is_counted_like_prose_and_off_the_event_loop(
    encoding: str, tokenizers: Tokenizers
) -> None:
    await tokenizers.warm(encoding)
    begun = time.process_time()
    await tokenizers.count(encoding, [prose()])
    of_prose = time.process_time() - begun
    for name, text in pathological_texts().items():
        begun = time.process_time()
        work = asyncio.ensure_future(tokenizers.count(encoding, [text]))
        stall = await longest_stall_while(work)
        times_prose = (time.process_time() - begun) / of_prose
        (tokens,), used = work.result()
        assert used == encoding, name
        assert 0 < tokens <= len(text.encode()), name
        assert times_prose < MOST_TIMES_PROSE, f"{name}: {times_prose:.1f} times what prose costs"
        assert stall < LONGEST_STALL_S, f"{name}: the loop stood still for {stall:.2f} s"


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(text=st.text(max_size=400) | st.text(alphabet=" \t\n\r a!/'s1é\u00a0\u3000", max_size=200))
@settings(max_examples=150)
def test_a_count_is_the_length_of_tiktokens_own_encoding(encoding: str, text: str) -> None:
    reference = vocabulary(encoding)._encoding  # pyright: ignore[reportPrivateUsage] - the very object compared with
    assert Tokenizers(vocabulary).estimator(encoding)(text) == len(reference.encode_ordinary(text))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("before", "after"),
    [("", ""), ("word", "word"), ("end.", "!"), ("end.\n/", "1"), ("a\r\n", "\nmore"), ("x\n", "é"), ("x\n", " \t")],
)
def test_cutting_out_very_long_blank_runs_changes_no_count(encoding: str, before: str, after: str) -> None:
    """tiktoken can still count runs of 600,000, so there both ways can be compared."""
    text = before + "  \t" * 200_000 + after + " " * 20 + "tail"
    reference = vocabulary(encoding)._encoding  # pyright: ignore[reportPrivateUsage] - the very object compared with
    assert vocabulary(encoding).count(text) == len(reference.encode_ordinary(text))


def test_the_vocabulary_is_the_published_one() -> None:
    """The example of the encoding's publisher: six tokens."""
    reference = vocabulary("cl100k_base")._encoding  # pyright: ignore[reportPrivateUsage] - ids show nowhere else
    assert reference.encode_ordinary("tiktoken is great!") == [83, 1609, 5963, 374, 2294, 0]


def test_text_that_looks_like_a_special_token_is_counted_as_plain_text(tokenizers: Tokenizers) -> None:
    assert tokenizers.estimator("o200k_base")("<|endoftext|>") == 7


def test_lone_surrogates_are_counted(tokenizers: Tokenizers) -> None:
    estimator = tokenizers.estimator("o200k_base")
    assert estimator("a\ud800b") > 0
    assert estimator("a\ud800b" * 1000) > 0
    assert estimator.encoding != "heuristic"


def test_both_vocabularies_load_with_no_network_no_cache_and_without_the_native_library() -> None:
    """Every way out is closed: name resolution and connecting raise, the proxies point nowhere."""
    program = (
        "import socket, sys\n"
        "def closed(*_a, **_k): raise OSError('no network here')\n"
        "socket.getaddrinfo = socket.create_connection = socket.socket.connect = closed\n"
        "from app.tokenizers.counters import Tokenizers\n"
        "from app.tokenizers.vocabularies import ENCODINGS\n"
        "t = Tokenizers()\n"
        "es = [t.estimator(e) for e in ENCODINGS]\n"
        "print([e('the quick brown fox') for e in es], [e.encoding for e in es], 'bpe_openai' in sys.modules)\n"
    )
    nowhere = "http://127.0.0.1:9"
    environment = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HTTP_PROXY": nowhere,
        "HTTPS_PROXY": nowhere,
        "TIKTOKEN_CACHE_DIR": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "[4, 4] ['o200k_base', 'cl100k_base'] False", done.stderr


class FailingVocabulary:
    """Counts well until `broken`, then raises what it was given, and counts how often."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.fired = 0

    def count(self, text: str) -> int:  # noqa: ARG002 - the protocol's
        self.fired += 1
        raise self.error


class NativePanic(BaseException):
    """Like the panic of a native extension: no `Exception`."""


@pytest.mark.parametrize("error", [ValueError("secret text"), NativePanic("secret text")])
async def test_a_failing_tokenizer_falls_back_to_the_heuristic_warns_once_and_says_so(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    failing = FailingVocabulary(error)
    tokenizers = Tokenizers(lambda _encoding: failing)
    estimator = tokenizers.estimator("o200k_base")
    assert estimator.encoding != "heuristic"
    with caplog.at_level(logging.WARNING):
        assert estimator("private words" * 3) == math.ceil(39 / 4 * 1.25)
        assert estimator("other") == 2
        counts, encoding = await tokenizers.count("o200k_base", ["a" * 16, "b" * 40_000])
    assert failing.fired >= 3
    assert (counts, encoding) == ([5, 12_500], "heuristic")
    assert estimator.encoding == "heuristic"
    assert len(caplog.records) == 1
    assert "private" not in caplog.text
    assert "secret" not in caplog.text


async def test_a_vocabulary_that_cannot_be_loaded_is_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[str] = []

    def load(encoding: str) -> Vocabulary:
        tries.append(encoding)
        raise OSError("disk is gone")

    tokenizers = Tokenizers(load)
    with caplog.at_level(logging.WARNING):
        await tokenizers.warm("cl100k_base")
        assert tokenizers.estimator("cl100k_base")("12345678") == 3
        assert await tokenizers.count("cl100k_base", ["12345678"]) == ([3], "heuristic")
    assert tries == ["cl100k_base"]
    assert len(caplog.records) == 1


async def test_a_count_is_kept_so_that_the_engine_does_not_count_large_text_on_the_loop() -> None:
    class Once:
        fired = 0

        def count(self, text: str) -> int:
            self.fired += 1
            return vocabulary("o200k_base").count(text)

    once = Once()
    tokenizers = Tokenizers(lambda _encoding: once)
    text = "a large text " * 100_000
    (tokens,), _ = await tokenizers.count("o200k_base", [text])
    assert tokenizers.estimator("o200k_base")(text + "") == tokens
    assert once.fired == 1


def test_the_counts_that_were_used_last_are_kept_and_no_more() -> None:
    counted: list[str] = []

    class Length:
        def count(self, text: str) -> int:
            counted.append(text)
            return len(text)

    estimate = Tokenizers(lambda _encoding: Length()).estimator("o200k_base")
    texts = [f"text {number}" for number in range(8_192)]
    for text in (*texts, texts[0], "one more"):
        estimate(text)
    assert counted == [*texts, "one more"]
    for text in (texts[0], texts[2], texts[1]):
        assert estimate(text) == len(text)
    assert counted == [*texts, "one more", texts[1]]


def test_no_text_is_kept_with_its_count(tokenizers: Tokenizers) -> None:
    text = "".join(["My door code is ", "4711."])
    before = sys.getrefcount(text)
    assert tokenizers.estimator("o200k_base")(text)
    assert sys.getrefcount(text) == before


def test_an_unknown_encoding_is_counted_as_o200k_base(tokenizers: Tokenizers) -> None:
    assert tokenizers.estimator("klingon_base").encoding == "o200k_base"


@given(st.text(max_size=300))
def test_the_heuristic_is_the_contracts_formula(text: str) -> None:
    assert heuristic_tokens(text) == math.ceil(len(text) / 4 * 1.25)


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("gpt-5-mini", "o200k_base"),
        ("gpt-4o-2024-08-06", "o200k_base"),
        ("gpt-4-0613", "cl100k_base"),
        ("openai/gpt-3.5-turbo", "cl100k_base"),
        ("ft:gpt-4:acme", "cl100k_base"),
        ("gpt-oss-120b", "o200k_base"),
        ("text-davinci-003", "o200k_base"),
        ("llama3.2:3b", "o200k_base"),
        ("", "o200k_base"),
    ],
)
def test_an_encoding_is_found_by_model_name(model: str, encoding: str) -> None:
    assert encoding_for_model(model) == encoding
