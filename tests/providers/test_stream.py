"""Server-sent events: the same events wherever the bytes are cut and however the lines end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.providers.stream import Event, EventReader
from app.providers.wire import MalformedAnswerError

STREAM = (
    "\ufeff: a heartbeat\n\nevent: first\ndata: {\ndata:  naïve 😀\ndata\nid: 7\nretry: 9\nfuture: x\n\n"
    "data:[DONE]\n\n\n\nevent: nothing\n\ndata: last\n\n"
)
EVENTS = [
    Event("first", "{\n naïve 😀\n".encode()),
    Event("", b"[DONE]"),
    Event("", b"last"),
]


def read(*chunks: bytes, most_event_bytes: int = 200) -> list[Event]:
    reader = EventReader(most_event_bytes)
    found = [event for chunk in chunks for event in reader.feed(chunk)]
    last = reader.end()
    return found if last is None else [*found, last]


@given(cuts=st.lists(st.integers(0, 250), max_size=30), ending=st.sampled_from(["\n", "\r\n", "\r"]))
def test_events_are_the_same_wherever_the_bytes_are_cut(cuts: list[int], ending: str) -> None:
    raw = STREAM.replace("\n", ending).encode()
    places = [0, *sorted(cuts), len(raw)]
    chunks = [raw[begin:end] for begin, end in pairwise(places)]
    assert read(*chunks) == EVENTS


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_events_are_the_same_byte_by_byte(ending: str) -> None:
    raw = STREAM.replace("\n", ending).encode()
    assert read(*(raw[place : place + length] for place in range(len(raw)) for length in (1, 0))) == EVENTS


@pytest.mark.parametrize("tail", [b"", b"\n", b"\n\n", b"\r", b"\r\n"])
def test_a_last_event_is_read_without_the_empty_line_after_it(tail: bytes) -> None:
    assert read(b"data: [DONE]" + tail) == [Event("", b"[DONE]")]


def test_an_event_that_never_ends_is_refused_while_it_is_read_and_heartbeats_are_not() -> None:
    for endless in (b"data: " + b"x" * 50, b"data: x\n", b"x" * 50):
        with pytest.raises(MalformedAnswerError):
            read(*([endless] * 100))
    assert read(*([b": heartbeat\n"] * 1000), b"data: x\n\n") == [Event("", b"x")]


def test_the_error_field_of_older_llama_servers_is_an_event_named_error() -> None:
    assert read(b'error: {"code":400}\n\n') == [Event("error", b'{"code":400}')]


def test_a_byte_order_mark_is_left_out_at_the_beginning_and_nowhere_else() -> None:
    mark = "\ufeff".encode()
    assert read(mark + b"data: a\n\n" + mark + b"data: b\n\ndata: " + mark + b"c\n\n") == [
        Event("", b"a"),
        Event("", mark + b"c"),
    ]


def test_a_line_feed_belongs_to_the_carriage_return_just_before_it_and_to_no_other() -> None:
    assert read(b"data: a\r", b"\ndata: b\r\n", b"\n", b"data: c\n", b"\n") == [Event("", b"a\nb"), Event("", b"c")]


def test_an_event_has_so_many_bytes_and_no_more_however_many_heartbeats_are_within_it() -> None:
    heartbeats = b": heartbeat\n" * 100
    assert read(b"data: x\n", heartbeats, b"data: y\n\n", most_event_bytes=50) == [Event("", b"x\ny")]
    assert read(b"data: 6789\n", most_event_bytes=11) == [Event("", b"6789")]
    with pytest.raises(MalformedAnswerError):
        read(b"data: 6789\n", most_event_bytes=10)
    with pytest.raises(MalformedAnswerError):
        read(*([b"data: 6789\n" + heartbeats] * 10), most_event_bytes=50)


def test_the_name_of_an_event_is_its_own() -> None:
    assert read(b"event: \xff\ndata: a\n\ndata: b\n\n") == [Event("\ufffd", b"a"), Event("", b"b")]
