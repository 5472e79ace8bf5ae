"""Lists of messages are recognized by their beginnings, whatever harmless form a client resends them in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.incoming import IncomingMessage
from app.domain.types import ToolCall
from app.openai.chat_messages import read_messages
from app.openai.known_lists import known_list, with_reply

OWNER = ("acme", "Bearer k", "main", "Be brief.")
CALL = ToolCall("c1", "look_up", '{"id": 1}')
texts = st.text(max_size=6)
exchanges = st.lists(st.tuples(texts, texts), min_size=1, max_size=8)


def listed(exchanged: list[tuple[str, str]], newest: str) -> list[IncomingMessage]:
    wire: list[dict[str, Any]] = []
    for user, assistant in exchanged:
        wire += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    return list(read_messages([*wire, {"role": "user", "content": newest}]).messages)


@given(exchanges, texts, texts, texts)
def test_a_list_goes_on_from_the_one_that_was_answered_with_its_reply(
    exchanged: list[tuple[str, str]], asked: str, reply: str, newest: str
) -> None:
    answered = known_list(OWNER, listed(exchanged, asked))
    resent = known_list(OWNER, listed([*exchanged, (asked, reply)], newest))
    assert resent.beginnings[0] == with_reply(answered.whole, reply, ())
    assert resent.beginnings[1:] == answered.beginnings


@given(exchanges, exchanges, texts)
def test_lists_that_differ_have_only_their_common_beginnings_in_common(
    one: list[tuple[str, str]], other: list[tuple[str, str]], newest: str
) -> None:
    trimmed = [[(user.strip(), reply.strip()) for user, reply in exchanged] for exchanged in (one, other)]
    shared = next(
        (at for at, pair in enumerate(zip(*trimmed, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )
    found = [set(known_list(OWNER, listed(exchanged, newest)).beginnings) for exchanged in (one, other)]
    assert len(found[0] & found[1]) == shared


@pytest.mark.parametrize("changed", range(len(OWNER)))
def test_two_owners_have_no_list_in_common(changed: int) -> None:
    others = [f"{value}!" if at == changed else value for at, value in enumerate(OWNER)]
    messages = listed([("Hi", "Hello")], "And now?")
    one, other = known_list(OWNER, messages), known_list(others, messages)
    assert not {*one.beginnings, one.whole} & {*other.beginnings, other.whole}


@pytest.mark.parametrize(
    "again",
    [
        {"role": "assistant", "content": "Hello there\n"},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello there"}]},
        {"role": "assistant", "content": "Hello there", "refusal": None, "tool_calls": []},
    ],
)
def test_a_reply_is_recognized_in_the_forms_that_clients_resend_it_in(again: dict[str, Any]) -> None:
    first = {"role": "user", "content": "Hi"}
    answered = known_list(OWNER, read_messages([first]).messages)
    resent = known_list(OWNER, read_messages([first, again, {"role": "user", "content": "More"}]).messages)
    assert resent.beginnings == (with_reply(answered.whole, " Hello there", ()),)


def test_the_first_tool_call_counts_by_id_name_and_arguments_and_further_ones_may_be_left_out() -> None:
    calls = [CALL, ToolCall("c2", CALL.name, CALL.arguments), ToolCall("c1", CALL.name, "{}")]
    digests = {with_reply(b"", None, [call]) for call in calls}
    assert len(digests) == 3
    assert with_reply(b"", None, calls[:2]) == with_reply(b"", None, [CALL])


def test_a_long_list_is_recognized_by_its_newest_beginnings() -> None:
    known = known_list(OWNER, listed([(str(number), "Yes.") for number in range(200)], "End"))
    assert len(known.beginnings) == 64
    assert known.beginnings[0] == known_list(OWNER, listed([(str(n), "Yes.") for n in range(200)], "")).beginnings[0]


def test_pictures_count_and_a_text_beside_calls_does_not() -> None:
    images = [[{"type": "image_url", "image_url": {"url": f"data:,{name}"}}] for name in ("a", "b")]
    lists = [read_messages([{"role": "user", "content": image}]).messages for image in images]
    assert len({known_list(OWNER, messages).whole for messages in lists}) == 2
    assert with_reply(b"", "I look.", [CALL]) == with_reply(b"", None, [CALL])
    with_its_id = ToolCall(CALL.id, CALL.name, '{"id": "c1"}')
    assert with_reply(b"", None, [with_its_id]) == with_reply(b"", None, [ToolCall(CALL.id, CALL.name, "{}")])
