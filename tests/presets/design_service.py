"""The service over HTTP, for scenarios of the published designs; a scripted model is behind it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from app.domain.types import JsonObject
from app.tokenizers.counters import Tokenizers
from tests.api.conftest import PATIENCE_S, serving, settings_for
from tests.conftest import lasting_database
from tests.providers.playing import ThreadedServer, threaded_serving
from tests.providers.server import Answer, Play, Seen
from tests.services.service import chat, is_summary, model, sound_summary

MODELS = """
default = "main"
[models.main]
context_window = 128000
{main}
[models.unknown]
{nobody}
[models."llama3.1-8b"]
context_window = 128000
{fast}
[instructions]
global = "You keep the books."
"""


@dataclass(frozen=True, slots=True)
class Design:
    """`http` is the service, `model` what it calls: the aliases `main`, `unknown` (a window nobody knows), and the
    summarizer `llama3.1-8b`."""

    http: httpx.Client
    model: ThreadedServer

    def session(self, policy: JsonObject, **fields: Any) -> str:
        """The path of a new session."""
        answer = self.http.post("/v1/sessions", json={"policy": policy, **fields})
        assert answer.status_code == 201, answer.text
        return f"/v1/sessions/{answer.json()['id']}"

    def get(self, path: str) -> Any:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def turn(self, session: str, content: Any = "Go on.", **body: Any) -> Any:
        """A turn's answer."""
        answer = self.http.post(f"{session}/turns", json={"content": content, **body})
        assert answer.status_code == 201, answer.text
        return answer.json()

    def turns(self, session: str, number: int, content: str) -> list[Any]:
        return [self.turn(session, content)["context"] for _ in range(number)]

    def pin(self, session: str, name: str, content: str, relevance: float | None = None) -> None:
        answer = self.http.put(f"{session}/pins/{name}", json={"content": content, "relevance": relevance})
        assert answer.status_code == 200, answer.text

    def prompt(self, session: str, turn: Any) -> list[JsonObject]:
        return self.get(f"{session}/turns/{turn['turn']['id']}/prompt")["messages"]

    def summaries(self, session: str) -> list[Any]:
        return self.get(f"{session}/summaries")["items"]

    def summarized(self, session: str, number: int = 1) -> list[Any]:
        """The summaries, once there are so many: those after a turn are made in the background."""
        return until(lambda: found if len(found := self.summaries(session)) >= number else None)

    def asked_to_summarize(self) -> list[Seen]:
        return [request for request in self.model.seen if is_summary(request)]


def until(look: Callable[[], Any]) -> Any:
    """What `look` gives once it is not None; the bound is generous."""
    deadline = time.monotonic() + 60
    while (found := look()) is None:
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
    return found


@contextmanager
def design_service(server: str, template: str, folder: Path) -> Generator[Design]:
    """A service over a database of its own."""
    with lasting_database(server, template) as url, threaded_serving(reply()) as provider:
        of = f'provider = "openai"\nbase_url = "{provider.base_url}"\ntimeout_s = 20\nmodel = '
        models = folder / "models.toml"
        models.write_text(
            MODELS.format(main=f'{of}"gpt-4o"', nobody=f'{of}"nobody-knows"', fast=f'{of}"fast-summarizer"')
        )
        with (
            serving(settings_for(url, models_file=models)) as address,
            httpx.Client(base_url=address, timeout=PATIENCE_S, trust_env=False) as http,
        ):
            yield Design(http, provider)


def words(tokens: int, word: str = "ledger") -> str:
    """A text of about so many tokens."""
    return " ".join([word] * tokens)


def roles(messages: list[JsonObject]) -> list[str]:
    return [message["role"] for message in messages]


def actions(context: JsonObject) -> list[JsonObject]:
    return context["context_trim_log"]["actions"]


def reply(text: str = "Noted.", summary_tokens: int = 0) -> Play:
    """A model that answers so and summarizes soundly, at some length, and counts a prompt as we do."""
    tokenizers = Tokenizers()

    def summary(request: Seen) -> Answer:
        sound: Any = sound_summary(request).body
        document = json.loads(sound["choices"][0]["message"]["content"])
        return chat(json.dumps(document | {"summary_text": f"The earlier part. {words(summary_tokens, 'kept')}"}))

    def play(request: Seen) -> Answer:
        estimate = tokenizers.estimator("o200k_base")
        counted = sum(estimate(str(message["content"])) + 4 for message in request.json["messages"])
        answer = model(text, summary)(request)
        body: Any = answer.body
        return replace(answer, body=body | {"usage": body["usage"] | {"prompt_tokens": counted}})

    return play
