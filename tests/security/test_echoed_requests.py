"""Providers that quote the request in an error that is about something else: nothing is learned from what they quote.

Every request carries sentences that real servers say when a prompt is too long, somewhere in it; a real server refuses
it with an error that echoes that part, whole or cut, in the shapes and with the beginnings that servers use.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from app.domain.errors import ProviderError, ProviderOverflow
from tests.providers.server import Answer, Seen, serving
from tests.providers.test_overflow import OVERFLOWS
from tests.services.service import Service, service
from tests.services.test_model_faults import unknown_window

EXAMPLES = int(os.environ.get("PLIMSOLL_ECHO_EXAMPLES", "60"))
LONG = "The job compares ledger rows with bank lines. " * 200
"""Some two thousand tokens, so that a window under that could be believed."""


def strings(value: Any) -> Iterator[str]:
    """Every text of a JSON value, the names of its members included."""
    match value:
        case str():
            yield value
        case dict():
            for name, each in value.items():  # pyright: ignore[reportUnknownVariableType]
                yield from strings(name)
                yield from strings(each)
        case list():
            for each in value:  # pyright: ignore[reportUnknownVariableType]
                yield from strings(each)
        case _:
            pass


SENTENCES = sorted(
    {text for row in OVERFLOWS for text in strings(row[2]) if len(text) > 20}
    | {"maximum context length is 1300 tokens", "Prompt is too long: 2000 tokens > 1300 maximum"}
)


def with_other_figures(random: Random, sentence: str) -> str:
    """The sentence with a small window for its smallest large figure and sizes that agree with what is sent."""
    figures = sorted({int(each) for each in re.findall(r"\d{4,}", sentence)})
    for at, figure in enumerate(figures):
        new = random.randint(1300, 1900) if at == 0 else random.randint(2000, 3500)
        sentence = sentence.replace(str(figure), random.choice((str(new), f"{new:,}")))
    return sentence


def asking(random: Random, sentence: str) -> tuple[str, dict[str, Any]]:
    """The user's message and the rest of a turn, with the sentence at one place of it."""
    name, key, text, instructions = "note", "text", LONG, "Be brief."
    match random.randrange(6):
        case 0:
            name = sentence
        case 1:
            key = sentence
        case 2:
            text = f"{sentence} {LONG}"
        case 3:
            instructions = sentence
        case 4:
            text = f"{json.dumps({sentence: sentence})} {LONG}"
        case _:
            key, text, instructions = sentence, f"{LONG} {sentence}", f"{sentence}\n{sentence}"
    parameters = {"type": "object", "properties": {key: {"type": "string"}}}
    tool = {"type": "function", "function": {"name": name, "parameters": parameters}}
    return text, {"tools": (tool,), "instructions": instructions}


BEGINNINGS = (
    "",
    "",
    "'",
    '"',
    "This model's ",
    "The ",
    "Prompt ",
    "Input validation error: ",
    "Invalid schema for function 'note': ",
    "messages.0.content: ",
    "litellm.BadRequestError: OpenAIException - ",
    "Error code: 400 - ",
    "Unexpected value. Received: ",
)
SHAPES: tuple[Callable[[str, str | None], Any], ...] = (
    lambda message, code: {"error": {"message": message, "type": "invalid_request_error", "code": code}},
    lambda message, code: {"type": "error", "error": {"type": code or "invalid_request_error", "message": message}},
    lambda message, code: {"object": "error", "message": message, "code": code},
    lambda message, code: [{"error": {"message": message, "status": code}}],
    lambda message, _: {"error": message},
    lambda message, _: {"detail": message},
    lambda message, _: {"detail": [{"loc": ["body"], "msg": "extra", "input": message}]},
    lambda message, code: {"error": {"message": "Provider error", "code": code, "metadata": {"raw": message}}},
    lambda message, _: {
        "error": {"message": "Provider error", "metadata": {"raw": json.dumps({"error": {"message": message}})}}
    },
)
CODES = (None, None, None, "invalid_value", "context_length_exceeded", "tokens_limit_reached")


def echoing(random: Random, sentence: str) -> Callable[[Seen], Answer]:
    """A server that refuses every request and quotes where the sentence stands in it."""
    beginning, shape, code = random.choice(BEGINNINGS), random.choice(SHAPES), random.choice(CODES)
    status, cut = random.choice((400, 400, 413, 422)), random.choice((None, 40, 80, 200))
    change: Callable[[str], str] = random.choice((str, str, str.lower, json.dumps, repr))
    from_its_start = random.random() < 0.8

    def play(request: Seen) -> Answer:
        holding = [text for text in strings(request.json) if sentence in text]
        assert holding, "the request does not hold the sentence"
        quoted = holding[0]
        quoted = quoted[quoted.index(sentence) :] if from_its_start else quoted
        return Answer(shape(beginning + change(quoted[:cut]), code), status)

    return play


async def refused(at: Service, random: Random, sentence: str) -> ProviderError:
    text, rest = asking(random, sentence)
    session = await at.session()
    try:
        await at.turn(session.id, text, **rest)
    except ProviderError as error:
        return error
    raise AssertionError("the turn was not refused")


async def test_no_request_that_is_echoed_in_an_error_teaches_anything(database_url: str, tmp_path: Path) -> None:
    plays: list[Callable[[Seen], Answer]] = []
    errors: list[ProviderError] = []

    def play(request: Seen) -> Answer:
        return plays[-1](request)

    async with (
        serving(play) as server,
        service(database_url, unknown_window(server), folder=tmp_path) as at,
    ):
        for number in range(EXAMPLES):
            random = Random(number)  # noqa: S311 - the same examples at every run
            sentence = SENTENCES[number % len(SENTENCES)]
            sentence = with_other_figures(random, sentence) if random.random() < 0.8 else sentence
            plays.append(echoing(random, sentence))
            errors.append(await refused(at, random, sentence))
            assert at.rt.catalogue.model("main").context_window == 8192, (number, sentence)
        await at.rt.calibrations.flush(at.rt.database)
        assert await at.rows("SELECT * FROM learned_windows") == []
        assert await at.rows("SELECT * FROM calibrations") == []
    named = [error for error in errors if isinstance(error, ProviderOverflow) and error.stated.limit_tokens is not None]
    assert named, "no echo was so good that a limit was read from it"
