"""What is passed on of the message with which a provider refuses a request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.providers.error_object import ErrorObject, error_object
from app.providers.failures import provider_error

KEY = "canary-key-1a2b"


def passed_on(status: int, body: Any, key: str | None = KEY) -> str | None:
    error = provider_error(status, error_object(body) or ErrorObject(), "main", key=key)
    return error.members().get("provider_message")


def said(message: Any) -> dict[str, Any]:
    return {"error": {"message": message}}


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (said("Unsupported parameter: 'top_k'"), "Unsupported parameter: 'top_k'"),
        (said("one\r\n\ttwo\x00\x1b[1m \u202e\ud800three"), "one two [1m three"),
        (said("See https://docs.example/errors?page=2"), "See https://docs.example/errors?page=2"),
        (said("function 'get_api_key' has no parameters"), "function 'get_api_key' has no parameters"),
        (said("x" * 3_000), "x" * 1_000 + "…"),
        ({"detail": "Unknown role"}, "Unknown role"),
        (said("litellm.BadRequestError: AnthropicError - tools.0: bad"), "tools.0: bad"),
        ({"error": {"message": "Provider returned error", "metadata": {"raw": json.dumps(said("n > 1"))}}}, "n > 1"),
        ({}, None),
        (said(" \n"), None),
    ],
)
def test_it_is_the_innermost_message_on_one_bounded_line(body: Any, shown: str) -> None:
    assert passed_on(400, body) == shown


@pytest.mark.parametrize(
    "message",
    [
        f"Bad header: {KEY}",
        f"Bad header: {'x' * 2_000}{KEY}",
        "Incorrect API key provided: xa***89",
        "api-key is not valid",
        "It was sk-proj-12345678",
        "Bearer abc.def is malformed",
        "Cannot reach http://user:word@upstream/v1",
        "Cannot reach https://upstream/v1?version=1&api_key=12345678",
        "could not connect: postgresql://a:b@c/d",
    ],
)
def test_nothing_is_passed_on_of_a_message_that_may_have_a_key(message: str) -> None:
    assert passed_on(400, said(message)) is None


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_an_error_says_of_the_request_is_passed_on(status: int) -> None:
    for key in (KEY, None):
        assert passed_on(status, said("Words of it"), key) == "Words of it"


@pytest.mark.parametrize("status", [401, 402, 403, 404, 405, 429, 500, 503])
def test_nothing_is_passed_on_of_an_error_that_is_not_about_the_request(status: int) -> None:
    assert passed_on(status, said("Words of it")) is None
