"""Random walks of clients that keep their messages themselves: with a window that drops nothing the model gets what the
client has, however the client names its past, cuts it back, edits it, or repeats what is in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import httpx
import pytest

from tests.api.chatting import TOOLS, Chat, chat_service, say, tool_call
from tests.api.test_known_conversations import SYSTEM, user
from tests.api.test_responses import TOOLS as FUNCTIONS
from tests.providers.server import Answer, Play, Seen

_STEPS = 60
_Message: TypeAlias = dict[str, Any]


class _Texts:
    """Draws words, which are numbered but for the given share. `own` are the replies that a client makes itself."""

    def __init__(self, random: Random, repeated: float, *own: str) -> None:
        self.random, self.repeated, self.own, self.number = random, repeated, own, 0

    def draw(self, *words: str) -> str:
        self.number += 1
        word = self.random.choice(words)
        return word if self.random.random() < self.repeated else f"{word} {self.number}"

    def next(self, messages: list[_Message]) -> list[_Message]:
        """What a client adds to its list: outputs of the calls at its end, new messages, or both."""
        own = {"role": "assistant", "content": self.draw(*self.own)}
        outputs = [
            {"role": "tool", "tool_call_id": call["id"], "content": self.draw("found", "break")}
            for call in (messages[-1].get("tool_calls") or () if messages else ())
        ]
        if outputs:
            last = user(self.draw("Then", "tool too", "break"))
            return [*outputs, *self.random.choices(([], [last], [own, last]), (3, 2, 3))[0]]
        one, first = user(self.draw("Hi", "tool please", "tool now", "break it")), user(self.draw("First"))
        several = [first, user(self.draw("Second"))], [first, own, user(self.draw("Last"))]
        return self.random.choices(([one], *several), (5, 2, 1))[0]


@dataclass
class _ListWalk:
    """Requests at a service; `done` counts what happened."""

    at: Chat
    random: Random
    texts: _Texts
    done: Counter[str] = field(default_factory=Counter[str])

    def post(self, path: str, body: _Message, want: list[_Message], **headers: str) -> httpx.Response | None:
        """The answer, if the model gave one, which was to get these messages."""
        is_stream = self.random.random() < 0.3
        before = len(self.at.model.seen)
        answer = self.at.http.post(path, json=body | {"model": "main", "stream": is_stream}, headers=headers)
        for request in self.at.model.seen[before:]:
            assert _comparable(request.json["messages"]) == _comparable(_without_open_calls(want))
        self.done[str(answer.status_code)] += 1
        if answer.status_code == 200:
            self.done["stream"] += is_stream
            return answer
        codes = ["provider_error", *(["invalid_request"] if _without_open_calls(want) != want else [])]
        assert (answer.status_code, answer.json()["error"]["code"] in codes) == (400, True), answer.text
        return None

    def chat(self, sent: list[_Message], want: list[_Message], **headers: str) -> list[_Message]:
        """The list that should be sent, with the reply, if there is one."""
        body: _Message = {"messages": sent, "tools": TOOLS}
        if (answer := self.post("/v1/chat/completions", body, want, **headers)) is None:
            return want
        reply = _reply_of_chat(answer)
        self.done["calls"] += "tool_calls" in reply
        return [*want, reply]


@contextmanager
def _walking(database_url: str, folder: Path, seed: int, repeated: float, *own: str) -> Generator[_ListWalk]:
    texts, replies = (_Texts(Random(seed + of), repeated, *own) for of in (0, 1000))  # noqa: S311 - no secret
    script = _repeating_model(replies)
    with chat_service(database_url, folder, script, window=900_000, context_mandatory_summary_turn=10_000) as at:
        walk = _ListWalk(at, texts.random, texts)
        yield walk
        assert min(walk.done[each] for each in ("200", "400", "stream", "calls")) > 0, walk.done


def _repeating_model(texts: _Texts) -> Play:
    """Fails, or calls tools, where the newest message reads so, or says mostly the same."""
    random = texts.random

    def play(request: Seen) -> Answer:
        newest = str(request.json["messages"][-1]["content"])
        if "break" in newest and random.random() < 0.5:
            return Answer({"error": {"message": "no"}}, status=400)
        reply: Any = say(texts.draw("Ok."))
        if "tool" in newest and random.random() < 0.6:
            first = texts.draw("c1").replace(" ", "_")
            ids = [first, f"z{first}"][: random.choice((1, 1, 2))]
            calls = [tool_call(call_id, "look_up", {"id": random.choice("ab")}) for call_id in ids]
            reply = say(random.choice((None, "Let me see.")), *calls)
        return reply(request)

    return play


def _without_open_calls(messages: list[_Message]) -> list[_Message]:
    """Messages without calls that something else follows than their outputs."""
    following = [*messages[1:], {"role": "tool"}]
    pairs = zip(messages, following, strict=True)
    return [message for message, after in pairs if not message.get("tool_calls") or after["role"] == "tool"]


def _comparable(messages: list[_Message]) -> list[list[Any]]:
    """Messages without the system's, and texts beside calls; consecutive ones of the user are one."""
    compared: list[list[Any]] = []
    for message in messages:
        calls = [(call["id"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
        text = "" if calls else message["content"]
        if message["role"] == "user" and compared and compared[-1][0] == "user":
            compared[-1][1] += f"\n\n{text}"
        elif message["role"] != "system":
            compared.append([message["role"], text, calls, message.get("tool_call_id")])
    return compared


def _reply_of_chat(answer: httpx.Response) -> _Message:
    """The reply of a chat completion, as the client appends it to its list."""
    if "event-stream" not in answer.headers["content-type"]:
        return answer.json()["choices"][0]["message"]
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    reply = {"role": "assistant", "content": "".join(delta.get("content") or "" for delta in deltas) or None}
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    return reply | ({"tool_calls": calls} if calls else {})


def _next_list(texts: _Texts, messages: list[_Message]) -> list[_Message]:
    """A list as its client sends it next: cut back, with another message in place of an older one, with other
    instructions, with something new."""
    random, users = texts.random, [at for at, message in enumerate(messages) if message["role"] == "user"]
    calls = [at for at, message in enumerate(messages, 1) if message.get("tool_calls")]
    match random.choices(("new", "cut", "outputs", "edit", "instructions"), (6, 2, 4, 1, 1))[0] if users else "new":
        case "outputs" if calls:
            messages = messages[: calls[-1]]
        case "cut":
            ends = [at for at, after in enumerate(messages[1:], 1) if after["role"] != "tool"]
            messages = messages[: random.choice([*ends, len(messages)][-4:])]
        case "edit":
            at = random.choice(users)
            kept = random.choice(([], messages[at + 1 :]))
            messages = [*messages[:at], *texts.next([]), *kept]
        case "instructions":
            messages = [{"role": "system", "content": texts.draw("Be brief.")}, *messages[1:]]
        case _:
            messages = messages + (texts.next([]) if random.random() < 0.1 else texts.next(messages))
    return messages if messages[-1]["role"] in ("user", "tool") else messages + texts.next(messages)


@pytest.mark.parametrize("seed", [10, 95, 131])
def test_a_list_without_a_session_is_what_the_model_gets(database_url: str, tmp_path: Path, seed: int) -> None:
    with _walking(database_url, tmp_path, seed, 0.8, "Mine.", "Ok.") as walk:
        lists: list[list[_Message]] = [[SYSTEM]]
        for _ in range(_STEPS):
            at = walk.random.randrange(len(lists))
            messages = _next_list(walk.texts, lists[at])
            if walk.random.random() < 0.1:
                at = len(lists)
                lists.append([])
            lists[at] = walk.chat(messages, messages)
        sessions = walk.at.http.get("/v1/sessions").json()["items"]
        assert any(session["forked_from"] for session in sessions)


@pytest.mark.parametrize("repeated", [0, 0.5])
@pytest.mark.parametrize("seed", [0, 1, 4, 6])
def test_a_list_with_a_session_is_too_and_can_be_a_part_if_its_texts_are_unique(
    database_url: str, tmp_path: Path, seed: int, repeated: float
) -> None:
    with _walking(database_url, tmp_path, seed, repeated, "Mine.") as walk:
        for name in ("one", "two"):
            messages: list[_Message] = []
            for _ in range(_STEPS):
                starts = [0]
                if not messages or messages[-1]["role"] == "assistant":  # else the last request failed: it is repeated
                    if not repeated:
                        starts += [at for at, message in enumerate(messages) if message["role"] != "tool"]
                        starts += [len(messages)] * len(starts)
                    messages = messages + walk.texts.next(messages)
                messages = walk.chat(messages[walk.random.choice(starts) :], messages, **{"x-session-id": name})


def _respond(
    walk: _ListWalk, past: list[_Message], new: list[_Message], **fields: Any
) -> tuple[str, list[_Message]] | None:
    """The id of a response to new messages, and the list with its reply; None if the model failed."""
    items: list[_Message] = [
        {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        if message["role"] == "tool"
        else message
        for message in new
    ]
    answer = walk.post("/v1/responses", {"input": items, "tools": FUNCTIONS, **fields}, past + new)
    if answer is None:
        return None
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    response = events[-1]["response"] if events else answer.json()
    texts = [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]
    calls = [
        {"id": item["call_id"], "function": {"arguments": item["arguments"]}}
        for item in response["output"]
        if item["type"] == "function_call"
    ]
    walk.done["calls"] += bool(calls)
    reply = {"role": "assistant", "content": "".join(texts), "tool_calls": calls}
    return response["id"], [*_without_open_calls(past + new), reply]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_response_goes_on_behind_the_previous_one_whatever_came_of_others(
    database_url: str, tmp_path: Path, seed: int
) -> None:
    with _walking(database_url, tmp_path, seed, 0.5, "Mine.", "Ok.") as walk:
        random, responses, conversations = walk.random, dict[str, list[_Message]](), dict[str, list[_Message]]()
        for _ in range(_STEPS):
            match random.choices(("response", "conversation", "created", "deleted"), (12, 3, 1, 1))[0]:
                case "created":
                    items = random.choice(([], [user("Start")]))
                    conversations[walk.at.http.post("/v1/conversations", json={"items": items}).json()["id"]] = items
                case "deleted" if responses:
                    previous = random.choice([*responses])
                    del responses[previous]
                    assert walk.at.http.delete(f"/v1/responses/{previous}").status_code == 200
                    gone = {"model": "main", "input": "Hi", "previous_response_id": previous}
                    answer = walk.at.http.post("/v1/responses", json=gone)
                    walk.done["gone"] += 1
                    assert answer.json()["error"]["code"] == "previous_response_not_found"
                case "conversation" if conversations:
                    name = random.choice([*conversations])
                    past = conversations.pop(name)
                    if made := _respond(walk, past, walk.texts.next(past), conversation=name):
                        conversations[name] = made[1]
                case _:
                    previous = random.choice([*responses, None, *[*responses][-1:] * 9])
                    past = responses[previous] if previous else []
                    new = walk.texts.next(past if random.random() < 0.9 else [])
                    is_kept = random.random() < 0.9
                    if made := _respond(walk, past, new, previous_response_id=previous, store=is_kept):
                        responses |= dict([made] if is_kept else [])
        assert walk.done["gone"]
