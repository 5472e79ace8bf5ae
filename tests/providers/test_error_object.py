"""What is read of an error, in whichever of its members a server writes it and of whichever type they are."""

from __future__ import annotations

from typing import Any

import pytest

from app.providers.error_object import ErrorObject, error_object, error_status


def read(body: Any) -> ErrorObject:
    found = error_object(body)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Busy.", "code": "busy"}},
        {"error": "Busy."},
        [{"error": {"message": "Busy."}}],
        {"errors": [{"message": "Busy."}]},
        {"errors": ["Busy."]},
        {"detail": "Busy."},
        {"detail": {"message": "Busy."}},
        {"message": "Busy.", "code": 3},
        {"object": "error", "message": "Busy."},
        {"choices": [{"error": {"message": "Busy."}}]},
        {"choices": [{}, {"error": "Busy."}], "message": "more"},
    ],
)
def test_the_message_is_found_in_every_shape(body: Any) -> None:
    assert read(body).messages == ("Busy.",)


@pytest.mark.parametrize(
    "body",
    [None, [], {}, "x", 3, {"choices": []}, {"choices": 3, "message": "x"}, {"choices": [3, None]}, {"error": []}],
)
def test_what_states_no_error_is_none(body: Any) -> None:
    assert error_object(body) is None


@pytest.mark.parametrize("error", [3, True, [3], {"message": None}, {"code": 3}, {"object": "error"}], ids=repr)
def test_an_error_of_another_form_is_one(error: Any) -> None:
    assert error_object({"error": error}) is not None


def test_an_error_may_be_marked_by_its_object_alone() -> None:
    assert read({"object": "error", "code": 400}).status == 400


@pytest.mark.parametrize("message", [None, "", 0, []], ids=repr)
def test_an_error_without_a_message_has_none(message: Any) -> None:
    assert read({"error": {"message": message, "code": "busy"}}).messages in ((), ("",))


def test_members_of_another_type_are_as_if_they_were_missing() -> None:
    strange: dict[str, Any] = {
        "message": ["a", {"b": 1}],
        "code": [],
        "type": {},
        "status": 3,
        "param": ["x"],
        "details": [3, {}],
    }
    found = read({"error": {**strange, "n_ctx": "8", "n_prompt_tokens": -1, "metadata": {"raw": 7}}})
    assert found == ErrorObject(messages=('["a", {"b": 1}]',))


def test_codes_are_the_code_the_type_and_the_status_in_lower_case() -> None:
    found = read({"error": {"message": "x", "code": "Rate-Limit", "type": "TOO_MANY", "status": "RESOURCE_EXHAUSTED"}})
    assert found.codes == ("rate-limit", "too_many", "resource_exhausted")
    assert found.safe_code == "too_many"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": 429}, 429),
        ({"code": "503"}, 503),
        ({"status": 404}, 404),
        ({"http_status_code": 401}, 401),
        ({"code": 200, "type": "overloaded_error"}, 529),
        ({"code": 1302}, 502),
        ({"code": "odd"}, 502),
    ],
)
def test_the_status_of_an_error_is_its_own_or_that_of_its_code(error: dict[str, Any], status: int) -> None:
    assert error_status(read({"error": {"message": "x", **error}})) == status


@pytest.mark.parametrize(
    ("message", "delay"),
    [
        ("Please try again in 1h.", "3600.0s"),
        ("Please try again in 2m.", "120.0s"),
        ("Please try again in 1h2m3.5s.", "3723.5s"),
        ("Please try again in 250ms.", "0.25s"),
        ("Retry after 7 seconds", "7.0s"),
        ("Please try again in a while. Then retry in 5s.", "5.0s"),
        ("Please try again in a while.", None),
        ("", None),
    ],
)
def test_a_delay_in_words_is_read_in_hours_minutes_and_seconds(message: str, delay: str | None) -> None:
    assert read({"error": {"message": message, "code": "x"}}).worded_delay == delay


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        ({"message": "Unsupported parameter: 'top_k'."}, True),
        ({"message": "No.", "param": "top_k", "code": "unsupported_parameter"}, True),
        ({"message": "It is not permitted.", "param": "top_k"}, True),
        ({"message": "top_k", "code": "unknown"}, True),
        ({"message": "top_k is too large"}, False),
        ({"message": "stop_k is not permitted"}, False),
    ],
)
def test_a_parameter_is_refused_if_the_error_is_about_it_and_says_so(error: dict[str, Any], refused: bool) -> None:
    assert read({"error": error}).refuses("top_k") is refused


def test_only_the_beginning_of_a_message_is_read() -> None:
    assert [len(message) for message in read({"error": {"message": "x" * 9_000}}).messages] == [4_000]
    assert [len(message) for message in read({"error": [["x" * 9_000]]}).messages] == [4_000]


def test_the_messages_of_an_upstream_follow_that_of_the_gateway() -> None:
    upstream = '{"error": {"message": "Too long.", "code": "x"}}'
    for text in (f"litellm.BadRequestError: OpenAIException - {upstream} more", f"b'{upstream}'"):
        assert read({"error": {"message": text}}).messages == (text, "Too long.")
    assert read({"error": {"message": "Bad", "metadata": {"raw": upstream}}}).messages == ("Bad", upstream, "Too long.")
    assert read({"error": {"message": "Error: {broken"}}).messages == ("Error: {broken",)
