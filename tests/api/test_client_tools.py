"""Tools of a Responses client that are no functions: any model gets them as functions, the client in their own form."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import openai
import pytest

from tests.api.chatting import chat_service, say, tool_call
from tests.api.test_responses import sessions
from tests.providers.server import Answer, Seen, Step

GRAMMAR = 'start: "*** Begin Patch" line+ "*** End Patch"'
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
}
TOOLS: Any = [PATCH, {"type": "local_shell"}, {"type": "function", "name": "look_up", "parameters": {"type": "object"}}]
DIFF = "*** Begin Patch\n+ a\n*** End Patch"
REPLY = say(
    None,
    tool_call("c1", "apply_patch", {"input": DIFF}),
    tool_call("c2", "local_shell", {"command": ["ls", "-l"], "timeout_ms": 500}),
    "c3",
)
OUTPUTS: Any = [
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done."},
    {"type": "local_shell_call_output", "id": "c2", "output": "a"},
    {"type": "function_call_output", "call_id": "c3", "output": "paid"},
]


def check_calls(output: Any) -> None:
    patch, shell, function = output
    assert (patch.type, patch.call_id, patch.name, patch.input) == ("custom_tool_call", "c1", "apply_patch", DIFF)
    assert (shell.type, shell.call_id, shell.action.type) == ("local_shell_call", "c2", "exec")
    assert (shell.action.command, shell.action.timeout_ms, shell.action.env) == (["ls", "-l"], 500, {})
    assert (function.type, function.call_id, function.name) == ("function_call", "c3", "look_up")


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_custom_tools_and_the_local_shell_are_called_and_answered(
    database_url: str, tmp_path: Path, streamed: bool
) -> None:
    with chat_service(database_url, tmp_path, REPLY, say("All done.")) as at:
        if streamed:
            with at.client.responses.stream(model="main", input="Patch it.", tools=TOOLS) as stream:
                typed = "".join(
                    event.delta for event in stream if event.type == "response.custom_tool_call_input.delta"
                )
                first = stream.get_final_response()
            assert "".join(typed) == DIFF
        else:
            first = at.client.responses.create(model="main", input="Patch it.", tools=TOOLS)
        check_calls(first.output)
        offered = {tool["function"]["name"]: tool["function"] for tool in at.model.seen[-1].json["tools"]}
        assert list(offered) == ["apply_patch", "local_shell", "look_up"]
        assert GRAMMAR in offered["apply_patch"]["parameters"]["properties"]["input"]["description"]
        check_calls(at.client.responses.retrieve(first.id).output)
        chosen: Any = {"type": "custom", "name": "apply_patch"}
        second = at.client.responses.create(
            model="main", input=OUTPUTS, previous_response_id=first.id, tools=TOOLS, tool_choice=chosen
        )
        assert second.output_text == "All done."
        assert [message["role"] for message in at.sent()] == ["user", "assistant", "tool", "tool", "tool"]
        assert at.model.seen[-1].json["tool_choice"] == {"type": "function", "function": {"name": "apply_patch"}}


def test_a_client_that_resends_all_its_items_goes_on_in_its_session(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, REPLY, say("All done."), say("Again.")) as at:
        items: list[Any] = [{"role": "user", "content": "Patch it."}]
        for newest in (OUTPUTS, [{"role": "user", "content": "And again."}], []):
            answer = at.client.responses.create(model="main", input=items, tools=TOOLS)
            items += [item.model_dump(exclude_none=True) for item in answer.output] + newest
        assert len(sessions(at)) == 1
        assert [message["role"] for message in at.sent()] == [
            "user",
            "assistant",
            "tool",
            "tool",
            "tool",
            "assistant",
            "user",
        ]


LONG = "search_the_archive_of_all_meetings_by_speaker_and_day"
NOTES: Any = {
    "type": "namespace",
    "name": "mcp__team_notes",
    "description": "Notes of the team.",
    "tools": [
        {"type": "function", "name": "read", "description": "Reads a note.", "strict": False},
        {"type": "function", "name": LONG},
        PATCH,
    ],
}


@pytest.mark.parametrize("stored", [False, True], ids=["not stored", "stored"])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_tools_of_a_namespace_are_offered_one_by_one_and_called_by_their_own_names(
    database_url: str, tmp_path: Path, streamed: bool, stored: bool
) -> None:
    def calls(seen: Seen) -> Step:
        names = [tool["function"]["name"] for tool in seen.json["tools"]]
        play: Any = say(None, *(tool_call(f"c{at}", name, {"input": DIFF}) for at, name in enumerate(names)))
        return play(seen)

    outputs: Any = [
        {"type": "function_call_output", "call_id": "c0", "output": "paid"},
        {"type": "function_call_output", "call_id": "c1", "output": "a note"},
        {"type": "function_call_output", "call_id": "c2", "output": "none"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "Done."},
    ]
    with chat_service(database_url, tmp_path, calls, say("All done.")) as at:
        items: list[Any] = [{"role": "user", "content": "Read the notes."}]
        given: Any = {"model": "main", "tools": [TOOLS[2], NOTES], "store": stored}
        more: Any = {"client_metadata": {"thread": "t-1"}}
        create: Any = at.client.responses.create
        if streamed:
            with at.client.responses.stream(input=items, extra_body=more, **given) as stream:
                first: Any = stream.get_final_response()
        else:
            first = create(input=items, extra_body=more, **given)
        read: Any = at.client.responses.retrieve(first.id) if stored else first
        for response in (first, read):
            assert [(call.type, call.namespace, call.name) for call in response.output] == [
                ("function_call", None, "look_up"),
                ("function_call", "mcp__team_notes", "read"),
                ("function_call", "mcp__team_notes", LONG),
                ("custom_tool_call", "mcp__team_notes", "apply_patch"),
            ]
        assert first.output[3].input == DIFF
        offered = [tool["function"] for tool in at.model.seen[0].json["tools"]]
        names = [function["name"] for function in offered]
        assert names[1] == "mcp__team_notes__read"
        assert names[2].startswith("mcp__team_notes__search_the_archive_of")
        assert max(map(len, names)) == 64
        assert offered[1]["description"] == "Notes of the team.\n\nReads a note."
        items += [item.model_dump(exclude_none=True) for item in first.output] + outputs
        assert create(input=items, **given).output_text == "All done."
        again = at.sent()[1]["tool_calls"]
        assert [call["function"]["name"] for call in again] == names, "the calls came back under other names"
        assert len(sessions(at)) == int(stored)


@pytest.mark.parametrize("hosted", ["web_search", "web_search_preview", "image_generation"])
def test_a_search_of_the_web_is_left_out_beside_tools_of_the_client(
    database_url: str, tmp_path: Path, hosted: str
) -> None:
    """Codex has it on by default: the 400 kept everybody from using it before its configuration was changed."""
    offered: Any = [{"type": hosted, "external_web_access": False}, *TOOLS]
    with chat_service(database_url, tmp_path, say("Done.")) as at:
        response = at.client.responses.create(model="main", input="Patch it.", tools=offered)
        assert [tool.type for tool in response.tools] == [tool["type"] for tool in TOOLS]
        assert len(at.model.seen[0].json["tools"]) == len(TOOLS)
        forced: Any = {"type": hosted}
        with pytest.raises(openai.BadRequestError) as refused:
            at.client.responses.create(model="main", input="Hi", tools=offered, tool_choice=forced)
        assert str(refused.value.param).startswith("tool_choice")
        with pytest.raises(openai.BadRequestError, match=f"hosts {hosted}") as alone:
            at.client.responses.create(model="main", input="Hi", tools=offered[:1])
        assert alone.value.param == "tools[0]"
        assert at.model.hits == 1


def test_a_tool_of_a_namespace_without_a_form_is_refused_by_its_place(database_url: str, tmp_path: Path) -> None:
    hosted: Any = NOTES | {"tools": [*NOTES["tools"], {"type": "web_search"}]}
    with chat_service(database_url, tmp_path) as at:
        with pytest.raises(openai.BadRequestError) as refused:
            at.client.responses.create(model="main", input="Hi", tools=[hosted])
        assert str(refused.value.param).startswith("tools[0]")
        assert not at.model.seen


def test_input_of_a_custom_tool_that_is_no_json_reaches_the_client_as_it_is(database_url: str, tmp_path: Path) -> None:
    broken = tool_call("c1", "apply_patch", {})
    broken["function"]["arguments"] = DIFF
    with chat_service(database_url, tmp_path, say(None, broken)) as at:
        (patch,) = at.client.responses.create(model="main", input="Patch it.", tools=TOOLS).output
        assert patch.type == "custom_tool_call"
        assert patch.input == DIFF


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_provider_that_has_custom_tools_gets_them_as_they_are(
    database_url: str, tmp_path: Path, streamed: bool
) -> None:
    native = {"id": "c1", "type": "custom", "custom": {"name": "apply_patch", "input": DIFF}}
    play = say(None, native)
    with chat_service(database_url, tmp_path, play, say("Done."), of_main="custom_tools = true") as at:
        if streamed:
            with at.client.responses.stream(model="main", input="Patch it.", tools=TOOLS) as stream:
                first: Any = stream.get_final_response()
        else:
            first = at.client.responses.create(model="main", input="Patch it.", tools=TOOLS)
        (patch,) = first.output
        assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "apply_patch", DIFF)
        offered, *functions = at.model.seen[-1].json["tools"]
        assert [tool["type"] for tool in functions] == ["function", "function"]
        assert (offered["type"], offered["custom"]["name"]) == ("custom", "apply_patch")
        grammar = {"syntax": "lark", "definition": GRAMMAR}
        assert offered["custom"]["format"] == {"type": "grammar", "grammar": grammar}
        chosen: Any = {"type": "custom", "name": "apply_patch"}
        at.client.responses.create(
            model="main", input=OUTPUTS[:1], previous_response_id=first.id, tools=TOOLS, tool_choice=chosen
        )
        assert at.sent()[1]["tool_calls"] == [native]
        assert at.model.seen[-1].json["tool_choice"] == {"type": "custom", "custom": {"name": "apply_patch"}}
        (session,) = sessions(at)
        exported = at.http.get(f"/v1/sessions/{session['id']}/export").json()
        assert at.http.post("/v1/sessions/import", json=exported).status_code == 201


def test_a_server_that_refuses_custom_tools_gets_them_as_functions(database_url: str, tmp_path: Path) -> None:
    message = "Invalid value: 'custom'. Supported values are: 'function'."
    refusal = Answer({"error": {"message": message, "param": "tools[0].type"}}, status=400)
    with chat_service(database_url, tmp_path, refusal, say("Done."), of_main="custom_tools = true") as at:
        assert at.client.responses.create(model="main", input="Patch it.", tools=TOOLS).output_text == "Done."
        assert [tool["type"] for tool in at.model.seen[-1].json["tools"]] == ["function"] * 3
        at.client.responses.create(model="main", input="Again.", tools=TOOLS)
        assert len(at.model.seen) == 3


CHAT_PATCH: Any = {
    "type": "custom",
    "custom": {"name": "apply_patch", "description": "Changes files.", "format": {"type": "text"}},
}
CHAT_LOOK_UP: Any = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_client_of_chat_completions_calls_custom_tools_and_answers_them(
    database_url: str, tmp_path: Path, streamed: bool
) -> None:
    asked: Any = {"role": "user", "content": "Patch it."}
    called = {"id": "c1", "type": "custom", "custom": {"name": "apply_patch", "input": DIFF}}
    with chat_service(database_url, tmp_path, say(None, tool_call("c1", "apply_patch", {"input": DIFF}))) as at:
        create: Any = at.client.chat.completions.create
        chosen = {"type": "custom", "custom": {"name": "apply_patch"}}
        first = create(model="main", messages=[asked], tools=[CHAT_PATCH], tool_choice=chosen, stream=streamed)
        if streamed:
            (call,) = [call for chunk in first for choice in chunk.choices for call in choice.delta.tool_calls or ()]
            assert call.model_dump(exclude_none=True) == {"index": 0, **called}
        else:
            assert first.choices[0].finish_reason == "tool_calls"
            assert [call.model_dump() for call in first.choices[0].message.tool_calls] == [called]
        assert at.model.seen[0].json["tool_choice"]["function"]["name"] == "apply_patch"
        answer = {"role": "tool", "tool_call_id": "c1", "content": "Done."}
        reply = {"role": "assistant", "content": None, "tool_calls": [called]}
        create(model="main", messages=[asked, reply, answer], tools=[CHAT_PATCH])
        (session,) = sessions(at)
        assert len(at.turns(session["id"])) == 1, "the call that came back was taken for another one"
        assert at.sent()[1]["tool_calls"][0]["function"]["name"] == "apply_patch"


def test_a_client_of_chat_completions_may_allow_some_of_its_tools(database_url: str, tmp_path: Path) -> None:
    def choice(name: str) -> Any:
        tools = [{"type": "function", "function": {"name": name}}]
        return {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools}}

    with chat_service(database_url, tmp_path) as at:
        given: Any = {
            "model": "main",
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [CHAT_PATCH, CHAT_LOOK_UP],
        }
        at.client.chat.completions.create(**given, tool_choice=choice("look_up"))
        sent = at.model.seen[-1].json
        assert sent["tools"] == [CHAT_LOOK_UP]
        assert sent["tool_choice"] == "required"
        with pytest.raises(openai.BadRequestError) as refused:
            at.client.chat.completions.create(**given, tool_choice=choice("other"))
        assert refused.value.param == "tool_choice"
        with pytest.raises(openai.BadRequestError, match="there are no tools") as refused:
            at.client.chat.completions.create(model="main", messages=given["messages"], tool_choice="required")
        assert refused.value.param == "tool_choice"
        with pytest.raises(openai.BadRequestError, match="Another tool has this name") as refused:
            at.client.chat.completions.create(**given | {"tools": [CHAT_LOOK_UP, CHAT_PATCH, CHAT_LOOK_UP]})
        assert refused.value.param == "tools[2]"
        assert len(at.model.seen) == 1


@pytest.mark.parametrize(
    "more", [{"function": "x"}, {"function": {"a": 1}}, {"function": {"name": "apply_patch"}}, {"tools": 1.5}]
)
@pytest.mark.parametrize("is_list", [False, True], ids=["one", "allowed"])
def test_members_that_a_choice_of_responses_does_not_have_are_ignored(
    database_url: str, tmp_path: Path, more: dict[str, Any], is_list: bool
) -> None:
    named = {"type": "function", "name": "look_up"} | more
    choice = {"type": "allowed_tools", "mode": "required", "tools": [named], "allowed_tools": 5} if is_list else named
    with chat_service(database_url, tmp_path) as at:
        asked = at.client.responses.create(model="main", input="Hi", tools=TOOLS, tool_choice=cast(Any, choice))
        assert asked.status == "completed"
        sent = at.model.seen[-1].json
        assert sent["tool_choice"] == ("required" if is_list else {"type": "function", "function": {"name": "look_up"}})
        assert len(sent["tools"]) == (1 if is_list else 3)
