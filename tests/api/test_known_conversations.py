"""A chat client that names no session has one all the same, and a name of its own is as good as an id."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import openai
import pytest

from tests.api.chatting import TOOLS, Chat, chat_service, openai_at, say, tool_call
from tests.api.test_auth import make_key
from tests.api.test_responses import TOOLS as FUNCTIONS
from tests.providers.server import Answer, Seen

SYSTEM: Any = {"role": "system", "content": "Answer in one line."}


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def post(at: Chat, messages: list[Any], client: openai.OpenAI | None = None, **options: Any) -> tuple[str, Any]:
    """The session of an answer, and the reply as the client appends it to its list."""
    create: Callable[..., Any] = (client or at.client).chat.completions.with_raw_response.create
    raw = create(model="main", messages=messages, **options)
    return raw.headers["x-session-id"], raw.parse().choices[0].message


def talk(at: Chat, history: list[Any], *texts: str, **options: Any) -> list[str]:
    """A client that resends everything: the session of each of its turns. `history` grows."""
    sessions: list[str] = []
    for text in texts:
        history.append(user(text))
        session_id, reply = post(at, history, **options)
        history.append(reply)
        sessions.append(session_id)
    return sessions


def test_a_client_that_resends_everything_stays_in_one_session(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, *(say(f"Reply {number} ") for number in range(5))) as at:
        sessions = talk(at, [SYSTEM], "One", "Two", "Three", "Four", "Five")
        assert len(set(sessions)) == 1
        turns = at.turns(sessions[0])
        assert [turn["user_input"] for turn in turns] == ["One", "Two", "Three", "Four", "Five"]
        assert at.sent()[0] == SYSTEM
        assert len(at.sent()) == 10


def test_a_branch_is_a_fork_that_ends_where_the_lists_part(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, *(say(f"Reply {number}") for number in range(5))) as at:
        history: list[Any] = []
        (session_id, _, _) = talk(at, history, "One", "Two", "Three")
        (branch,) = talk(at, history[:4], "Otherwise")
        assert branch != session_id
        assert [turn["user_input"] for turn in at.turns(branch)] == ["One", "Two", "Otherwise"]
        assert [turn["user_input"] for turn in at.turns(session_id)] == ["One", "Two", "Three"]
        forked_from = at.http.get(f"/v1/sessions/{branch}").json()["forked_from"]
        assert forked_from == {"session_id": session_id, "turn_id": at.turns(session_id)[1]["id"]}
        assert talk(at, history, "Four") == [session_id]


def test_rounds_of_tools_go_on_in_the_session(database_url: str, tmp_path: Path) -> None:
    script = (say("Hello."), say(None, "c1", "c2"), say("Found."), say("Bye."))
    with chat_service(database_url, tmp_path, *script) as at:
        history: list[Any] = [SYSTEM]
        (first,) = talk(at, history, "Hi", tools=TOOLS)
        history.append(user("Look up"))
        second, reply = post(at, history, tools=TOOLS)
        outputs = [{"role": "tool", "tool_call_id": call.id, "content": "found"} for call in reply.tool_calls]
        history += [reply, *outputs]
        third, reply = post(at, history, tools=TOOLS)
        history.append(reply)
        assert {first, second, third, *talk(at, history, "Bye", tools=TOOLS)} == {first}
        assert [turn["status"] for turn in at.turns(first)] == ["completed"] * 3


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "agent"}])
def test_a_client_that_forgets_all_calls_of_a_reply_but_the_first_stays_in_one_session(
    database_url: str, tmp_path: Path, headers: dict[str, str]
) -> None:
    script = (say(None, "c1", "c2"), say(None, "d1", "d2", "d3"), say("Found."), say("Bye."))
    with chat_service(database_url, tmp_path, *script) as at:
        history: list[Any] = [user("Look up")]
        sessions: set[str] = set()
        for call_id in ("c1", "d1"):
            session_id, reply = post(at, history, tools=TOOLS, extra_headers=headers)
            first = reply.model_dump(exclude_none=True) | {"tool_calls": [reply.tool_calls[0].model_dump()]}
            history += [first, {"role": "tool", "tool_call_id": call_id, "content": "found"}]
            sessions.add(session_id)
        session_id, reply = post(at, history, tools=TOOLS, extra_headers=headers)
        assert {
            session_id,
            *sessions,
            *talk(at, [*history, reply], "Bye", tools=TOOLS, extra_headers=headers),
        } == sessions
        assert [turn["status"] for turn in at.turns(session_id)] == ["completed"] * 2
        outputs = [(each["tool_call_id"], each["content"]) for each in at.sent() if each["role"] == "tool"]
        not_run = [(call_id, "Not run.") for call_id in ("c2", "d2", "d3")]
        assert outputs == [("c1", "found"), not_run[0], ("d1", "found"), *not_run[1:]]
        assert [each["content"] for each in at.sent() if each["role"] == "user"] == ["Look up", "Bye"]


def test_two_replies_to_one_list_whose_calls_have_the_same_ids_are_never_mixed(
    database_url: str, tmp_path: Path
) -> None:
    calls = [[tool_call("0", "look_up", {"id": "a"}), tool_call("1", "look_up", {"id": of})] for of in "bc"]
    with chat_service(database_url, tmp_path, *(say(None, *each) for each in calls), say("Found.")) as at:
        replies = [post(at, [user("Look up")], tools=TOOLS)[1].model_dump(exclude_none=True) for _ in calls]
        outputs = [{"role": "tool", "tool_call_id": call_id, "content": "found"} for call_id in "01"]
        for reply, called in [*zip(replies, calls, strict=True)][::-1]:  # the older one is found first
            post(at, [user("Look up"), reply, *outputs], tools=TOOLS)
            assert at.sent()[1]["tool_calls"] == called


def test_a_branch_with_other_outputs_of_tools_has_these_alone(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say(None, "c1"), say("Paid."), say("Open.")) as at:
        session_id, reply = post(at, [user("Look up")], tools=TOOLS)
        begun = [user("Look up"), reply.model_dump(exclude_none=True)]
        paid, due = ({"role": "tool", "tool_call_id": "c1", "content": content} for content in ("paid", "due"))
        assert post(at, [*begun, paid, user("Well?")], tools=TOOLS)[0] == session_id
        assert post(at, [*begun, due], tools=TOOLS)[0] != session_id
        assert [message["content"] for message in at.sent()] == ["Look up", None, "due"]


def test_a_branch_within_a_turn_has_all_of_its_list_though_a_reply_reads_like_an_earlier_one(
    database_url: str, tmp_path: Path
) -> None:
    def refuse(_request: Seen) -> Answer:
        return Answer({"error": {"message": "no"}}, status=400)

    with chat_service(database_url, tmp_path, say("Ok."), say(None, "c1"), refuse, say("Fine.")) as at:
        history: list[Any] = []
        talk(at, history, "Hi")
        history.append(user("One thing."))  # it is one message with the next one there
        talk(at, history, "Look up", tools=TOOLS)
        paid, due = ({"role": "tool", "tool_call_id": "c1", "content": content} for content in ("paid", "due"))
        with pytest.raises(openai.BadRequestError):
            post(at, [*history, paid, user("Well?")], tools=TOOLS)
        post(at, [*history, due, {"role": "assistant", "content": "Ok."}, user("And?")], tools=TOOLS)
        texts = ["Hi", "Ok.", "One thing.\n\nLook up", None, "due", "Ok.", "And?"]
        assert [message["content"] for message in at.sent()] == texts


def test_two_conversations_with_the_same_beginning_are_never_mixed(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Hello.")) as at:
        histories: list[list[Any]] = [[], []]
        for text in ("Hi", "Next"):
            for number, history in enumerate(histories):
                talk(at, history, text if text == "Hi" else f"{text} {number}")
        sessions = [talk(at, history, "Last")[0] for history in histories]
        assert sessions[0] != sessions[1]
        for number, session_id in enumerate(sessions):
            assert [turn["user_input"] for turn in at.turns(session_id)] == ["Hi", f"Next {number}", "Last"]


def test_a_client_does_not_go_on_in_a_session_that_may_be_that_of_another_who_began_alike(
    database_url: str, tmp_path: Path
) -> None:
    """The other may name it from now on, by the id in the header of its first answer."""
    with chat_service(database_url, tmp_path, say("Hello!"), say("Hello!"), say("Hello!"), say("Noted.")) as at:
        (older,), history, (newer,) = talk(at, [], "Hi"), list[Any](), talk(at, [], "Hi")
        talk(at, history, "Hi")
        mine = talk(at, history, "Keep my number", "Bye")
        assert mine[0] == mine[1]
        assert [turn["user_input"] for turn in at.turns(mine[0])] == ["Hi", "Keep my number", "Bye"]
        for other in (older, newer):
            assert [turn["user_input"] for turn in at.turns(other)] == ["Hi"]


def test_a_request_whose_conversation_began_as_others_did_is_tried_again_in_its_own_fork(
    database_url: str, tmp_path: Path
) -> None:
    refused = Answer({"error": {"message": "no"}}, status=400)
    with chat_service(database_url, tmp_path, say("Hello!"), say("Hello!"), refused, refused, say("Noted.")) as at:
        history: list[Any] = []
        began = {*talk(at, [], "Hi"), *talk(at, history, "Hi")}
        asked = [*history, user("Keep my number")]
        for _ in range(2):
            with pytest.raises(openai.BadRequestError):
                post(at, asked)
        session_id, reply = post(at, asked)
        again, same = post(at, asked, extra_headers={"X-Stainless-Retry-Count": "1"})
        assert (again, same.content) == (session_id, reply.content)
        assert len(at.model.seen) == 5
        assert [turn["user_input"] for turn in at.turns(session_id)] == ["Hi", "Keep my number"]
        assert {each["id"] for each in at.http.get("/v1/sessions").json()["items"]} == began | {session_id}


def test_two_people_with_the_same_beginning_never_share_a_session(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Hello.")) as at:
        people: tuple[dict[str, Any], ...] = (
            {},
            {"user": "ann"},
            {"safety_identifier": "bob"},
            {"metadata": {"user_id": "cleo"}},
        )
        histories = [list[Any]() for _ in people]
        began = [talk(at, history, "Hi", **person)[0] for history, person in zip(histories, people, strict=True)]
        assert len(set(began)) == len(people)
        for number in reversed(range(len(people))):
            assert talk(at, histories[number], "Next", "Last", **people[number]) == [began[number]] * 2


def test_of_two_at_once_one_goes_on_and_the_other_forks(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Hello.")) as at:
        history: list[Any] = []
        talk(at, history, "Hi")
        with ThreadPoolExecutor(4) as threads:
            running = [threads.submit(post, at, [*history, user(f"Post {number}")]) for number in range(4)]
            answers = [each.result() for each in running]
        assert len({session_id for session_id, _ in answers}) == 4
        for number, (session_id, _) in enumerate(answers):
            assert [turn["user_input"] for turn in at.turns(session_id)] == ["Hi", f"Post {number}"]


@pytest.mark.parametrize("what", ["model", "instructions", "key"])
def test_another_model_other_instructions_and_another_key_begin_anew(
    database_url: str, tmp_path: Path, what: str
) -> None:
    with chat_service(database_url, tmp_path, say("Hello."), key=make_key(database_url, "acme")[1]) as at:
        history: list[Any] = []
        (session_id,) = talk(at, history, "Hi")
        again = [*history, user("More")]
        if what == "key":
            with openai_at(at.address, make_key(database_url, "acme")[1]) as other:
                assert post(at, again, other)[0] != session_id
        elif what == "instructions":
            assert post(at, [SYSTEM, *again])[0] != session_id
        else:
            raw = at.client.chat.completions.with_raw_response.create(model="offline", messages=again)
            assert raw.headers["x-session-id"] != session_id
        assert post(at, again)[0] == session_id


@pytest.mark.parametrize(
    ("texts", "replies"),
    [(("One", "Two", "Three"), ("Done.", "Done.")), (("Go on", "Go on", "Go on"), ("The first part.", "The second."))],
)
def test_what_was_answered_elsewhere_is_stored_also_if_it_reads_like_an_earlier_turn(
    database_url: str, tmp_path: Path, texts: tuple[str, ...], replies: tuple[str, ...]
) -> None:
    """As when a client changes the model, or its instructions, for one turn."""
    first, second, last = texts
    with chat_service(database_url, tmp_path, *map(say, replies)) as at:
        history: list[Any] = []
        (session_id,) = talk(at, history, first)
        history.append(user(second))
        elsewhere, reply = post(at, [SYSTEM, *history])
        assert elsewhere != session_id
        history.append(reply)
        assert talk(at, history, last) == [session_id]
        said = [message["content"] for message in at.sent()]
        assert said == [first, replies[0], second, replies[1], last]
        assert [turn["user_input"] for turn in at.turns(session_id)] == list(texts)


def test_a_named_session_stores_what_was_answered_elsewhere_also_if_it_reads_like_an_earlier_turn(
    database_url: str, tmp_path: Path
) -> None:
    """As when a client asks another service while this one is away."""
    named = {"extra_headers": {"X-Session-Id": "my-chat"}}
    with chat_service(database_url, tmp_path, say("Done.")) as at:
        history: list[Any] = []
        talk(at, history, "One", **named)
        history += [user("Two"), {"role": "assistant", "content": "Done."}]
        (session_id,) = talk(at, history, "Three", **named)
        assert [message["content"] for message in at.sent()] == ["One", "Done.", "Two", "Done.", "Three"]
        assert [turn["user_input"] for turn in at.turns(session_id)] == ["One", "Two", "Three"]


def test_a_retry_of_what_was_answered_is_answered_again(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("One."), say("Two.")) as at:
        history: list[Any] = []
        (session_id,) = talk(at, history, "Hi")
        again = [*history, user("More")]
        for headers in ({}, {"X-Stainless-Retry-Count": "1"}):
            answered_in, reply = post(at, again, extra_headers=headers)
            assert (answered_in, reply.content) == (session_id, "Two.")
        assert len(at.model.seen) == 2
        keyed = [post(at, [*history, user("Keyed")], extra_headers={"Idempotency-Key": "k1"}) for _ in range(2)]
        assert keyed[0] == keyed[1]
        assert len(at.model.seen) == 3


def test_a_retry_is_not_answered_behind_what_followed_the_same_request_elsewhere(
    database_url: str, tmp_path: Path
) -> None:
    with chat_service(database_url, tmp_path, say("Hello."), say("Where?"), say("Noted."), say("Here.")) as at:
        history = [user("Hi"), {"role": "assistant", "content": "Hello."}]
        asked = [*history, user("Help")]
        talk(at, [], "Hi")
        session_id, reply = post(at, asked)
        assert talk(at, [*asked, reply], "My card is 4000.") == [session_id]
        branch, _ = post(at, asked, extra_headers={"X-Stainless-Retry-Count": "1"})
        assert branch != session_id
        assert at.sent() == asked


def test_a_retry_of_the_first_message_is_answered_in_the_session_that_it_made(
    database_url: str, tmp_path: Path
) -> None:
    retry: dict[str, Any] = {"extra_headers": {"X-Stainless-Retry-Count": "1"}}
    script = [say("One."), say(None, "a"), *(say(f"Reply {number}") for number in range(3))]
    with chat_service(database_url, tmp_path, *script, key=make_key(database_url, "acme")[1]) as at:
        first = post(at, [user("Hi")])
        assert post(at, [user("Hi")], **retry) == first
        calling = post(at, [user("Look it up")], tools=TOOLS)
        assert post(at, [user("Look it up")], tools=TOOLS, **retry) == calling
        assert len(at.model.seen) == 2
        response = at.client.responses.create(model="main", input="Hello")
        assert at.client.responses.create(model="main", input="Hello", **retry) == response
        assert len(at.model.seen) == 3
        with openai_at(at.address, make_key(database_url, "acme")[1]) as other:
            assert post(at, [user("Hi")], other, **retry)[0] != first[0]
        assert post(at, [user("Hi")])[0] != first[0], "no retry"
        assert len(at.model.seen) == 5


def test_a_turn_that_failed_is_run_again_in_its_session(database_url: str, tmp_path: Path) -> None:
    refused = Answer({"error": {"message": "no"}}, status=400)
    with chat_service(database_url, tmp_path, say("One."), refused, say("Two.")) as at:
        history: list[Any] = []
        (session_id,) = talk(at, history, "Hi")
        with pytest.raises(openai.APIError):
            post(at, [*history, user("More")])
        assert talk(at, history, "More") == [session_id]
        assert [turn["status"] for turn in at.turns(session_id)] == ["completed", "completed"]


def test_a_message_that_failed_is_not_sent_for_a_list_without_it(database_url: str, tmp_path: Path) -> None:
    """It may be another person's with the same beginning, or the one that the provider refuses."""
    refused = Answer({"error": {"message": "no"}}, status=400)
    script = (say("Hello."), refused, say("Fine."), refused, say("Both."), say("Mine."))
    with chat_service(database_url, tmp_path, *script) as at:
        (session_id,) = talk(at, [], "Hi")
        history = [user("Hi"), {"role": "assistant", "content": "Hello."}]
        mine = [*history, user("My card is 4000.")]
        with pytest.raises(openai.BadRequestError):
            post(at, mine)
        (branch,) = talk(at, [*history], "Which cards do you take?")
        history += [user("Which cards do you take?")]
        assert at.sent() == history
        assert [turn["user_input"] for turn in at.turns(branch)] == ["Hi", "Which cards do you take?"]
        history += [{"role": "assistant", "content": "Fine."}, user("Amex?")]
        with pytest.raises(openai.BadRequestError):
            post(at, history)
        history.append(user("Visa?"))
        assert post(at, history)[0] == branch, "the message that failed is in the list"
        assert at.sent() == history
        assert post(at, mine)[0] == session_id
        assert at.sent() == mine


def test_calls_whose_outputs_got_no_answer_are_not_sent_for_a_list_that_ends_before_them(
    database_url: str, tmp_path: Path
) -> None:
    refused = Answer({"error": {"message": "no"}}, status=400)
    script = (say(None, "c1"), say(None, "c2"), refused, say("Otherwise."))
    with chat_service(database_url, tmp_path, *script) as at:
        history = [user("Look up")]
        for text in ("found", "broken"):
            session_id, reply = post(at, history, tools=TOOLS)
            call = reply.model_dump(exclude_none=True)
            output = {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": text}
            history += [call, output, user("And more")]
        with pytest.raises(openai.BadRequestError):
            post(at, history[:-1], tools=TOOLS)
        assert post(at, history[:4], tools=TOOLS)[0] != session_id
        assert [message["content"] for message in at.sent()] == ["Look up", None, "found", "And more"]


def test_recognition_is_turned_off_for_a_request_and_for_a_deployment(database_url: str, tmp_path: Path) -> None:
    off: dict[str, Any] = {"extra_headers": {"X-Session-New": "true"}}
    with chat_service(database_url, tmp_path, say("Hello.")) as at:
        history: list[Any] = []
        (session_id,) = talk(at, history, "Hi")
        assert talk(at, [*history], "More", **off) != [session_id]
        assert talk(at, history, "More") == [session_id]
    with chat_service(database_url, tmp_path, say("Hello."), recognize_sessions=False) as at:
        assert len(set(talk(at, [], "Hi", "More", "And more"))) == 3


def test_a_name_of_the_clients_own_makes_its_session_and_finds_it(database_url: str, tmp_path: Path) -> None:
    named: dict[str, Any] = {"extra_headers": {"X-Session-Id": "my-chat-42"}}
    with chat_service(database_url, tmp_path, say("Hello."), key=make_key(database_url, "acme")[1]) as at:
        with ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(lambda: post(at, [user("Hi")], **named)[0]) for _ in range(4)]
        (session_id,) = {each.result() for each in asked}
        assert post(at, [user("Next")], metadata={"session_id": "my-chat-42"})[0] == session_id
        assert at.http.get(f"/v1/sessions/{session_id}").json()["external_id"] == "my-chat-42"
        with openai_at(at.address, make_key(database_url, "other")[1]) as other:
            assert post(at, [user("Hi")], other, **named)[0] != session_id
        answer = at.http.post(
            "/v1/chat/completions",
            json={"model": "main", "messages": [user("Hi")]},
            headers={"X-Session-Id": "n" * 201},
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "X-Session-Id"


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("Gespräch", "Gespräch".encode()),
        ("Gespräch", "Gespräch".encode("latin-1")),
        ("相談", "相談".encode()),
        ("chat-🙂", "chat-🙂".encode()),
    ],
    ids=["UTF-8", "Latin-1", "UTF-8 of three bytes", "UTF-8 of four bytes"],
)
def test_a_name_is_the_same_in_a_header_of_either_encoding_and_in_the_body(
    database_url: str, tmp_path: Path, name: str, header: bytes
) -> None:
    body: dict[str, Any] = {"model": "main", "messages": [user("Hi")]}
    with chat_service(database_url, tmp_path, say("Hello.")) as at:
        made = at.http.post("/v1/chat/completions", json=body, headers={b"X-Session-Id": header})
        found = at.http.post("/v1/chat/completions", json=body | {"metadata": {"session_id": name}})
        assert (made.status_code, found.status_code) == (200, 200)
        session_id = made.headers["X-Session-Id"]
        assert found.headers["X-Session-Id"] == session_id
        assert at.http.get(f"/v1/sessions/{session_id}").json()["external_id"] == name


def of_agent(conversation: str) -> Any:
    """The headers of an agent that sends its id of a conversation twice with every request of it, as opencode does."""
    return {"extra_headers": {"X-Session-Id": conversation, "X-Session-Affinity": conversation}}


def test_a_title_asked_for_under_the_id_of_a_conversation_is_not_in_it(database_url: str, tmp_path: Path) -> None:
    titling: Any = {"role": "system", "content": "You make titles."}
    with chat_service(database_url, tmp_path, *(say(f"Reply {number}") for number in range(9))) as at:
        (title,) = talk(at, [titling], "A title for: One", **of_agent("ses_1"))
        history: list[Any] = [SYSTEM]
        first, second = talk(at, history, "One", "Two", **of_agent("ses_1"))
        history[0] = {"role": "system", "content": "Answer in two lines."}
        (third,) = talk(at, history, "Three", **of_agent("ses_1"))
        assert first == second == third != title
        assert [turn["user_input"] for turn in at.turns(first)] == ["One", "Two", "Three"]
        assert [sent["content"] for sent in at.sent()] == [
            "Answer in two lines.",
            *("One", "Reply 1", "Two", "Reply 2", "Three"),
        ]
        (other,) = talk(at, [history[0]], "One", **of_agent("ses_2"))
        (other_next,) = talk(at, [*history[:-2], user("Three")], "Four", **of_agent("ses_2"))
        assert len({title, first, other, other_next}) == 4, "a conversation was joined with one of another id"
        for name, affinity in (("ses_1", "node-7"), ("chat-1", "chat-1")):
            named: Any = {"extra_headers": {"X-Session-Id": name, "X-Session-Affinity": affinity}}
            (by_name,) = talk(at, [], "Five", **named)
            assert at.http.get(f"/v1/sessions/{by_name}").json()["external_id"] == name


def test_an_agent_that_notes_each_call_in_its_text_and_its_input_stays_in_one_session(
    database_url: str, tmp_path: Path
) -> None:
    first, second = (tool_call(f"call_{number}", "look_up", {"query": f"{number}"}) for number in (1, 2))
    with chat_service(database_url, tmp_path, say(None, first), say(None, second), say("Found."), say("Bye.")) as at:
        history = [SYSTEM, user("Look it up")]
        sessions: list[str] = []
        for number in (1, 2):
            session_id, reply = post(at, history, tools=TOOLS)
            (call,) = reply.model_dump()["tool_calls"]
            given = json.dumps({"query": f"{number}", "id": call["id"]})
            call["function"]["arguments"] = given
            noted: Any = {"role": "assistant", "content": f"Calling look_up with {given}", "tool_calls": [call]}
            history += [noted, {"role": "tool", "tool_call_id": call["id"], "content": "yes"}]
            sessions.append(session_id)
        session_id, reply = post(at, history, tools=TOOLS)
        assert {*sessions, session_id, *talk(at, [*history, reply], "Bye", tools=TOOLS)} == {session_id}
        assert [call["function"] for sent in at.sent() for call in sent.get("tool_calls", ())] == [
            {"name": "look_up", "arguments": json.dumps({"query": f"{number}"})} for number in (1, 2)
        ]
        (call,) = history[2]["tool_calls"]
        call["function"]["arguments"] = json.dumps({"query": "3", "id": call["id"]})
        assert post(at, history, tools=TOOLS)[0] != session_id, "another input of a call is a branch"


def test_a_front_ends_id_of_a_chat_keeps_it_one_session_while_its_instructions_change(
    database_url: str, tmp_path: Path
) -> None:
    def at_time(minute: int) -> Any:
        return {"role": "system", "content": f"You help the user. It is 12:{minute:02}."}

    chat: Any = {"extra_headers": {"X-Session-Affinity": "186b37c5-7389-49ad-b51f-4eceb55567b7"}}
    with chat_service(database_url, tmp_path, *(say(f"Reply {number}") for number in range(9))) as at:
        history: list[Any] = [at_time(0)]
        (first,) = talk(at, history, "One", **chat)
        (title,) = talk(at, [], "### Task: a title for this chat: One, Reply 0", **chat)
        history[0] = at_time(1)
        (second,) = talk(at, history, "Two", **chat)
        assert first == second != title
        assert at.sent() == [at_time(1), user("One"), {"role": "assistant", "content": "Reply 0"}, user("Two")]
        edited = [at_time(2), *history[1:3]]
        (branch,) = talk(at, edited, "Two, in other words", **chat)
        assert branch != first
        assert [turn["user_input"] for turn in at.turns(first)] == ["One", "Two"]
        assert [turn["user_input"] for turn in at.turns(branch)] == ["One", "Two, in other words"]
        (elsewhere,) = talk(at, history, "Three", extra_headers={"X-Session-Affinity": "another"})
        (without,) = talk(at, history[:5], "Three", extra_headers={"X-Session-Affinity": ""})
        (of_another,) = talk(at, history[:5], "Three", user="bob", **chat)
        found = {first, title, branch, elsewhere, without, of_another}
        assert len(found) == 6, "a chat was joined with one of another id or person"


def test_a_clock_in_the_instructions_does_not_begin_anew_and_each_turn_has_its_own(
    database_url: str, tmp_path: Path
) -> None:
    times = ("Tuesday, December 1, 2026 at 11:59 PM", "Wednesday, December 2, 2026 at 12:03 AM")
    with chat_service(database_url, tmp_path, *(say(f"Reply {number}") for number in range(3))) as at:
        history: list[Any] = []
        sessions: list[str] = []
        for time, text in zip(times, ("One", "Two"), strict=True):
            system = {"role": "system", "content": f"You help at desk 7. The time is {time}."}
            history.append(user(text))
            session_id, reply = post(at, [system, *history])
            assert at.sent() == [system, *history]
            history.append(reply.model_dump(exclude_none=True))
            sessions.append(session_id)
        assert len(set(sessions)) == 1
        other = {"role": "system", "content": f"You help at desk 8. The time is {times[1]}."}
        assert post(at, [other, *history, user("Three")])[0] != sessions[0]


def test_an_agents_id_of_a_conversation_selects_no_session_in_any_form(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, *(say(f"Reply {number}") for number in range(4))) as at:
        (headers,) = of_agent("ses_1").values()
        body: Any = {"model": "main", "max_tokens": 100, "messages": [user("One")]}
        whole = at.http.post("/v1/messages", json=body, headers=headers)
        title = at.http.post("/v1/messages", json=body | {"messages": [user("A title")]}, headers=headers)
        assert whole.headers["x-session-id"] != title.headers["x-session-id"]
        create = at.client.responses.with_raw_response.create
        first = create(model="main", input="One", extra_headers=headers)
        after = create(model="main", input="Two", previous_response_id=first.parse().id, extra_headers=headers)
        assert first.headers["x-session-id"] == after.headers["x-session-id"]
        assert len(at.http.get("/v1/sessions").json()["items"]) == 3


def test_responses_take_the_header_and_recognize_a_full_history(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, *(say(f"Reply {number}") for number in range(4))) as at:
        items: list[Any] = []
        sessions: list[str] = []
        for text in ("One", "Two", "Three"):
            items.append(user(text))
            raw = at.client.responses.with_raw_response.create(model="main", input=items)
            items += [item.model_dump(exclude_none=True) for item in raw.parse().output]
            sessions.append(raw.headers["x-session-id"])
        assert len(set(sessions)) == 1
        assert [turn["user_input"] for turn in at.turns(sessions[0])] == ["One", "Two", "Three"]
        raw = at.client.responses.with_raw_response.create(
            model="main", input=[*items, user("Four")], extra_headers={"X-Session-Id": sessions[0]}
        )
        assert raw.headers["x-session-id"] == sessions[0]
        assert len(at.turns(sessions[0])) == 4
        answer = at.http.post(
            "/v1/responses",
            json={"model": "main", "input": "Hi", "previous_response_id": raw.parse().id},
            headers={"X-Session-Id": sessions[0]},
        )
        assert answer.status_code == 400


def test_a_history_whose_replies_have_their_text_after_their_calls_is_recognized(
    database_url: str, tmp_path: Path
) -> None:
    """As LiteLLM sends those of Anthropic's form."""
    with chat_service(database_url, tmp_path, say("I look.", "7"), say("It is paid.")) as at:
        create, items = at.client.responses.create, [user("Is 7 paid?")]
        said, call = create(model="main", input=items, tools=FUNCTIONS).output
        items += [each.model_dump(exclude_none=True) for each in (call, said)]
        items.append({"type": "function_call_output", "call_id": "7", "output": "yes"})
        assert create(model="main", input=items, tools=FUNCTIONS).output_text == "It is paid."
        assert [sent["content"] for sent in at.sent()] == ["Is 7 paid?", "I look.", "yes"]
        (session,) = at.http.get("/v1/sessions").json()["items"]
        assert [turn["status"] for turn in at.turns(session["id"])] == ["completed"]


def test_a_conversation_stores_what_is_new_of_a_full_history(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, *(say(f"Reply {number}") for number in range(6))) as at:
        conversation = at.client.conversations.create()
        items: list[Any] = []

        def ask(given: list[Any]) -> None:
            answer = at.client.responses.create(model="main", input=given, conversation=conversation.id)
            items.extend(item.model_dump(exclude_none=True) for item in answer.output)

        for text in ("One", "Two"):
            items.append(user(text))
            ask(items)
        items.append(user("Three"))
        ask([user("Three")])  # the newest alone
        items.append(user("Four"))
        ask(items)
        (session,) = at.http.get("/v1/sessions").json()["items"]
        assert [turn["user_input"] for turn in at.turns(session["id"])] == ["One", "Two", "Three", "Four"]
        # A client without a session whose list is that of one of these turns alone is not mixed up with them.
        reply = {"role": "assistant", "content": "Reply 2"}
        raw = at.client.chat.completions.with_raw_response.create(
            model="main", messages=cast(Any, [user("Three"), reply, user("And?")])
        )
        assert raw.headers["x-session-id"] != session["id"]
        assert at.sent()[0] == user("Three")


def test_an_agent_that_writes_calls_as_text_stays_in_one_session_without_cancelled_turns(
    database_url: str, tmp_path: Path
) -> None:
    def written(*calls: Any) -> Any:
        return {"role": "assistant", "content": f"Calling tools:\n{[call.model_dump() for call in calls]}"}

    with chat_service(database_url, tmp_path, say(None, "c1"), say(None, "c2"), say(None, "c3"), say("Bye.")) as at:
        history: list[Any] = [SYSTEM, user("New task:\nLook up")]
        sessions: set[str] = set()
        for observed in ("Observation:\nfound", "Observation:\nDone.\nNew task:\nAnother", "Observation:\nfound"):
            session_id, reply = post(at, history, tools=TOOLS)
            sessions.add(session_id)
            history += [written(*reply.tool_calls), user(observed)]
        session_id, _ = post(at, history, tools=TOOLS)
        assert sessions == {session_id}
        turns = at.turns(session_id)
        assert [turn["user_input"] for turn in turns] == ["New task:\nLook up", "New task:\nAnother"]
        assert [turn["status"] for turn in turns] == ["completed", "completed"]
        assert [sent["role"] for sent in at.sent()] == [
            "system",
            "user",
            *("assistant", "tool") * 2,
            "user",
            *("assistant", "tool"),
        ]


def test_a_list_that_ends_with_a_reply_or_has_only_instructions_is_answered(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, *(say(f"Reply {number}") for number in range(6))) as at:
        history: list[Any] = [SYSTEM]
        for first in (None, None, user("And then?")):
            history += [first] if first else []
            session_id, reply = post(at, history)
            history.append(reply)
        assert [turn["user_input"] for turn in at.turns(session_id)] == ["Begin.", "Continue.", "And then?"]
        assert [message["content"] for message in at.sent()] == [
            "Answer in one line.",
            *("Begin.", "Reply 0", "Continue.", "Reply 1", "And then?"),
        ]
        ends_with_reply = [user("One"), {"role": "assistant", "content": "Begun by another model."}]
        named, reply = post(at, ends_with_reply, extra_headers={"X-Session-Id": "mine"})
        again, same = post(at, ends_with_reply, extra_headers={"X-Session-Id": "mine"})
        assert (again, same) == (named, reply)
        assert at.model.hits == 4
        asked = [{"role": "developer", "content": "Name a colour."}]
        assert at.client.responses.create(model="main", input=cast(Any, asked)).output_text == "Reply 4"
        assert at.sent() == [{"role": "system", "content": "Name a colour."}, user("Begin.")]


def test_a_system_message_between_replies_is_answered_where_it_stands(database_url: str, tmp_path: Path) -> None:
    """gptme sends what its tools gave as system messages: after the reply that ran them, in all later lists too."""
    with chat_service(database_url, tmp_path, *(say(f"Reply {number}") for number in range(4))) as at:
        history: list[Any] = [SYSTEM, user("Look.")]
        sessions: set[str] = set()
        results = [["Ran `ls`: a.txt", "Two are left."], ["Ran `cat a.txt`: text"], []]
        for given in results:
            session_id, reply = post(at, history)
            sessions.add(session_id)
            history += [reply, *({"role": "system", "content": text} for text in given)]
        context: Any = {"role": "developer", "content": "For this turn: today is Monday."}
        (session_id,) = sessions
        assert post(at, [*history, context, user("And?")], extra_headers={"X-Session-Id": session_id})[0] == session_id
        first, second = (
            "\n\n".join(f"<system-reminder>\n{text}\n</system-reminder>" for text in given) for given in results[:2]
        )
        assert at.sent() == [
            {"role": "system", "content": f"Answer in one line.\n\n{context['content']}"},
            *(user("Look."), {"role": "assistant", "content": "Reply 0"}),
            *(user(first), {"role": "assistant", "content": "Reply 1"}),
            *(user(second), {"role": "assistant", "content": "Reply 2"}),
            user("And?"),
        ]


def test_instructions_alone_after_a_response_do_not_begin_anew(database_url: str, tmp_path: Path) -> None:
    with chat_service(database_url, tmp_path, say("Blue."), say("Green.")) as at:
        first = at.client.responses.create(model="main", input="Name a colour.")
        again = [{"role": "developer", "content": "Name another one."}]
        at.client.responses.create(model="main", input=cast(Any, again), previous_response_id=first.id)
        assert [message["content"] for message in at.sent()[-3:]] == ["Name a colour.", "Blue.", "Continue."]
