"""Anthropic's lists become messages of the neutral form, block by block."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.anthropic.messages import conversation_of, is_complete, read_list, thinking_blocks
from app.domain.content import call_input
from app.domain.incoming import IncomingMessage
from app.domain.types import JsonObject, ToolCall
from app.openai.known_lists import known_list, with_reply


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def result(call_id: str, content: Any = "found") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def read(*messages: tuple[str, Any]) -> list[IncomingMessage]:
    return list(read_list(None, [{"role": role, "content": content} for role, content in messages]).messages)


def test_neighbours_are_one_reply_at_the_place_of_the_first_and_a_users_texts_stay_messages_behind_the_results() -> (
    None
):
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
    assert read(("user", "One"), ("user", [text("Two")]), ("assistant", "Let "), ("assistant", [text("me."), use])) == [
        IncomingMessage(0, "user", "One"),
        IncomingMessage(1, "user", "Two"),
        IncomingMessage(2, "assistant", "Let me.", (ToolCall("a", "f", '{"x":1}'),)),
    ]
    assert read(("user", "One"), ("user", [result("a")]), ("user", [text("Two"), text("Three")])) == [
        IncomingMessage(1, "tool", "found", tool_call_id="a"),
        IncomingMessage(0, "user", "One"),
        IncomingMessage(2, "user", "Two\n\nThree"),
    ]


@pytest.mark.parametrize(
    ("words", "is_note"),
    [
        ("<system-reminder>\nMind <b>this</b>.\n</system-reminder>", True),
        ("<a>1</a>\n<b>2</b> ", True),
        ("  ", True),
        ("Stop it.", False),
        ("<a>1</a> and stop", False),
        ("<a>never closed", False),
        ("<a></a>" * 65, False),
        ("1 < 2 and 3 > 2", False),
    ],
)
def test_text_beside_tool_results_is_the_agents_note_only_if_it_is_an_xml_element(words: str, is_note: bool) -> None:
    messages = read(("user", [result("a"), text(words), result("b")]))
    assert [message.role for message in messages] == ["tool", "tool"] + ([] if is_note else ["user"])
    assert [message.tool_call_id for message in messages[:2]] == ["a", "b"]
    assert (words.strip() in str(messages[1].content)) is is_note or not words.strip()
    assert read(("user", [text(words)]))[0].role == "user"


def test_the_line_that_claude_code_sends_to_its_maker_is_no_instruction() -> None:
    line = "x-anthropic-billing-header: cc_version=2; cch=1;"
    assert read_list([text(line), text("Be brief."), text("Be kind.")], []).instructions == "Be brief.\n\nBe kind."
    assert read_list(f"{line}\nBe brief.", []).instructions == "Be brief."
    assert read_list([text(line)], []).instructions is None


@pytest.mark.parametrize(
    ("user_id", "conversation"),
    [
        ('{"device_id":"d","account_uuid":"","session_id":"s1"}', "s1"),
        ("user_0a_account__session_7d0c7b57-0000-4000-8000-00000000000a", "7d0c7b57-0000-4000-8000-00000000000a"),
        ("user-42", None),
        ('{"session_id":7}', None),
        ("[" * 2000, None),
        (None, None),
    ],
)
def test_a_conversation_is_known_by_what_claude_code_sends_of_it(user_id: str | None, conversation: str | None) -> None:
    assert conversation_of(user_id) == conversation


@pytest.mark.parametrize(
    "arguments",
    [
        '{"id": 1}',
        '{ "b":[1,2], "a":"ü"}',
        "",
        "not json",
        "[1]",
        "[" * 300 + "]" * 300,
        '{"a":' * 250 + "1" + "}" * 250,
    ],
)
def test_a_call_that_comes_back_as_an_object_is_recognized(arguments: str) -> None:
    owner = ("acme", "Bearer k", "main", None)
    answered = known_list(owner, read(("user", "Hi")))
    use = {"type": "tool_use", "id": "a", "name": "f", "input": call_input(arguments)}
    assert orjson.loads(orjson.dumps({"content": [use]})) == {"content": [use]}
    resent = known_list(owner, read(("user", "Hi"), ("assistant", [use]), ("user", [result("a")])))
    assert resent.beginnings == (with_reply(answered.whole, None, [ToolCall("a", "f", arguments)]),)


_MADE = f"session_{'0' * 31}1_turn_7_summary_{'0' * 31}2"
_BLOCK = {"type": "compaction", "content": "A summary.", "encrypted_content": _MADE}
_FAILED = {"type": "compaction", "content": None}


@pytest.mark.parametrize(
    ("messages", "left"),
    [
        ([("user", "One"), ("assistant", [_BLOCK, text("Two")]), ("user", "Three")], ["Two", "Three"]),
        ([("assistant", [_BLOCK]), ("assistant", "Two"), ("user", "Three")], ["Two", "Three"]),
        ([("user", "One"), ("assistant", "Two"), ("user", "Three"), ("assistant", [_BLOCK])], ["Three"]),
        ([("user", "One"), ("assistant", [_BLOCK, text("Two"), _BLOCK]), ("user", "Three")], ["Three"]),
    ],
)
def test_a_compaction_stands_for_what_comes_before_it(messages: list[Any], left: list[str]) -> None:
    found = read_list(None, [{"role": role, "content": content} for role, content in messages])
    assert [message.content for message in found.messages] == left
    assert found.compaction is not None
    assert (found.compaction.handle, found.compaction.turn_seq) == (_MADE, 7)


def test_messages_before_a_failed_compaction_are_kept() -> None:
    text = {"type": "text", "text": "Read."}
    messages = [
        {"role": "assistant", "content": [_BLOCK, text, _FAILED]},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": [text, _FAILED]},
        {"role": "user", "content": "And now?"},
    ]
    found = read_list(None, messages)
    assert [message.content for message in found.messages] == ["Read.", "Go on.", "Read.", "And now?"]


def test_an_empty_reply_is_a_message() -> None:
    messages: list[Any] = [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": []},
        {"role": "user", "content": "Two"},
    ]
    assert [message.content for message in read_list(None, messages).messages] == ["One", "", "Two"]


def test_a_failed_compaction_replaces_no_messages() -> None:
    messages = [("user", "One"), ("assistant", [_FAILED, text("Two")]), ("user", "Three")]
    found = read_list(None, [{"role": role, "content": content} for role, content in messages])
    assert [message.content for message in found.messages] == ["One", "Two", "Three"]
    assert found.compaction is None


def test_the_signature_of_another_providers_call_is_no_block_of_an_answer() -> None:
    signature = {"type": "thought_signature", "id": "call_1", "signature": "s"}
    signed = {"type": "thinking", "thinking": "why", "signature": "s"}
    assert thinking_blocks(None, [signature]) == []
    assert thinking_blocks("why", [signature]) == [{"type": "thinking", "thinking": "why", "signature": "unsigned"}]
    assert thinking_blocks("why", [signed]) == [signed]


@pytest.mark.parametrize("absent", [{}, {"signature": ""}])
def test_a_thinking_block_without_a_signature_is_shown_with_one(absent: dict[str, str]) -> None:
    """Servers with Anthropic's API and other models do not sign, and clients send no unsigned block back as it is."""
    found = thinking_blocks("why", [{"type": "thinking", "thinking": "why"} | absent])
    assert found == [{"type": "thinking", "thinking": "why", "signature": "unsigned"}]


SIGNED = {"type": "thinking", "thinking": "why", "signature": "s"}
REDACTED = {"type": "redacted_thinking", "data": "d"}


@pytest.mark.parametrize(
    ("sent", "reasoning", "blocks"),
    [
        ([SIGNED], "why", [SIGNED]),
        ([{**SIGNED, "extra": 1}, REDACTED], "why", [SIGNED, REDACTED]),
        ([{"type": "thinking", "signature": "s"}], None, [{"type": "thinking", "thinking": "", "signature": "s"}]),
        ([{**SIGNED, "signature": "unsigned"}], "why", []),
        ([SIGNED, {"type": "thinking", "thinking": " and how"}], "why and how", []),
        ([{"type": "redacted_thinking"}], None, []),
        ([], None, []),
    ],
)
def test_thoughts_that_a_client_sends_back_are_kept_signed_if_all_are(
    sent: list[Any], reasoning: str | None, blocks: list[Any]
) -> None:
    (read,) = read_list(None, [{"role": "assistant", "content": [*sent, text("Paid.")]}]).messages
    assert (read.content, read.reasoning, list(read.reasoning_blocks)) == ("Paid.", reasoning, blocks)


COMPLETE: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "type": {"type": "null"}},
    "required": ["type", "a"],
    "additionalProperties": False,
}


SCHEMAS: list[tuple[Any, bool]] = [
    (COMPLETE, True),
    ({"anyOf": [COMPLETE, {"type": "null"}]}, True),
    ({**COMPLETE, "required": ["a"]}, False),
    ({"anyOf": [COMPLETE, {**COMPLETE, "required": ["a"]}]}, False),
    ({**COMPLETE, "additionalProperties": True}, False),
    ({name: value for name, value in COMPLETE.items() if name != "additionalProperties"}, False),
    ({**COMPLETE, "properties": {"a": {"type": "array", "items": {"type": "object"}}, "type": {}}}, False),
    ({"$defs": {"x": {**COMPLETE, "required": [[], {}]}}, "$ref": "#/$defs/x"}, False),
    ({**COMPLETE, "properties": [{}, []], "required": "a"}, True),
    ({**COMPLETE, "properties": 3, "required": [[], {}]}, True),
    ([], True),
]


@pytest.mark.parametrize(("schema", "is_strict"), SCHEMAS)
def test_a_schema_is_complete_if_no_property_is_optional_or_unknown(schema: Any, is_strict: bool) -> None:
    assert is_complete(schema) is is_strict


def test_a_reply_of_a_failed_compaction_alone_is_no_message() -> None:
    listed: list[Any] = [("user", "One"), ("assistant", [_FAILED]), ("user", "Two")]
    found = read_list(None, [{"role": role, "content": content} for role, content in listed])
    assert [message.content for message in found.messages] == ["One", "Two"]


def test_a_reply_of_calls_alone_has_no_text_and_the_agents_note_alone_is_the_users() -> None:
    call: JsonObject = {"type": "tool_use", "id": "x", "name": "f", "input": {}}
    note = "<system-reminder>Be brief.</system-reminder>"
    listed: list[Any] = [("user", note), ("assistant", [call]), ("user", [result("x"), text(note)])]
    found = read_list(None, [{"role": role, "content": content} for role, content in listed])
    assert [(message.role, message.content) for message in found.messages] == [
        ("user", note),
        ("assistant", None),
        ("tool", f"found\n\n{note}"),
    ]


def test_arguments_of_no_text_are_an_empty_object_and_others_are_given_as_they_are() -> None:
    deep = '{"a": ' + "[" * 300 + "]" * 300 + "}"
    assert call_input("") == call_input(" ") == {}
    assert call_input(deep) == {"malformed_arguments": deep}
    assert call_input('{"a": "\\u0000"}') == {"a": "\ufffd"}
