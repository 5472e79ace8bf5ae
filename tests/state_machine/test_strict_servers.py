"""No provider refuses what the service sends, whatever a session has been through and whichever models answered it."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from tests.api.conftest import NO_TLS, PATIENCE_S, serving, settings_for
from tests.providers.playing import threaded_serving
from tests.state_machine.strict_servers import StrictServer, strict_servers, words

SESSIONS, STEPS = 6, 40
_PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
_PRESETS = ("guarded", "guarded", "rolling", "post_turn", "turn_atomic", "allocated")
_ENDED = ("failed", "cancelled")
List = list[dict[str, Any]]


class Client:
    """Does at random what clients do, with a model of its own choice in each step."""

    def __init__(self, http: httpx.Client, aliases: list[str], random: Random) -> None:
        self.http, self.aliases, self.random = http, aliases, random
        self.alias = random.choice(aliases)
        self.done = Counter[str]()
        policy = {"preset": random.choice(_PRESETS), "look_back": random.choice(("auto", "on"))}
        self.session = self._post("/v1/sessions", policy=policy, instructions="Be brief.").json()["id"]
        self.path = f"/v1/sessions/{self.session}"
        self.list: List = []

    def step(self, *, resends: bool) -> None:
        if self.random.random() < 0.25:
            self.alias = self.random.choice(self.aliases)
        if resends:
            self._resend()
        else:
            self._take()

    def _post(self, path: str, **body: Any) -> httpx.Response:
        answer = self.http.post(path, json=body)
        kind = path.rsplit("/", maxsplit=1)[-1] if path.startswith("/v1/sessions/") else path
        self.done[f"{kind} {answer.status_code}"] += 1
        assert answer.status_code < 500 or answer.status_code in {502, 503, 504}, answer.text
        return answer

    def _content(self) -> Any:
        text = words(self.random, self.random.choice((2, 8, 60, 200))) + self.random.choice(("", "?", " "))
        parts = [{"type": "text", "text": text}, _PICTURE]
        return parts if self.random.random() < 0.1 else text

    def _output(self) -> Any:
        text = self.random.choice(("", " \n", words(self.random, 8), words(self.random, 200)))
        parts = [{"type": "text", "text": words(self.random, 3)}, _PICTURE]
        return parts if self.random.random() < 0.1 else text

    def _options(self) -> dict[str, Any]:
        names = self.random.sample(("look_up", "run", "mcp__notes__read"), self.random.choice((1, 2, 3)))
        tools: List = [
            {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
            for name in names
        ]
        options: dict[str, Any] = {"tools": tools} if self.random.random() < 0.75 else {}
        return options | ({"stream": True} if self.random.random() < 0.4 else {})

    def _take(self) -> None:
        """A step over the service's own routes."""
        newest = self.http.get(f"{self.path}/turns?limit=1&order=desc").json()["items"]
        turn: dict[str, Any] = newest[0] if newest else {"status": "none"}
        at, chance = f"{self.path}/turns/{turn.get('id')}", self.random.random()
        if turn["status"] == "awaiting_tools":
            if chance < 0.1:
                self._post(f"{at}/cancel")
                return
            outputs = [{"tool_call_id": call["id"], "content": self._output()} for call in turn["tool_calls"]]
            self.random.shuffle(outputs)
            self._post(f"{at}/tool-outputs", outputs=outputs)
        elif chance < 0.05:
            self._post(f"{self.path}/summaries")
        elif newest and (chance < 0.1 or (chance < 0.5 and turn["status"] in _ENDED)):
            self._post(f"{at}/regenerate", model_alias=self.alias)
        elif chance < 0.15:
            found = self.http.get(f"{self.path}/summaries").json()["items"]
            for summary in [each for each in found if each["status"] == "active"]:
                self._post(f"{self.path}/summaries/{summary['id']}/undo")
        elif chance < 0.2 and newest:
            self.path = f"/v1/sessions/{self._post(f'{self.path}/fork').json()['id']}"
        else:
            self._post(f"{self.path}/turns", content=self._content(), model_alias=self.alias, **self._options())

    def _resend(self) -> None:
        """A chat completion that resends the whole history."""
        last: dict[str, Any] = self.list[-1] if self.list else {}
        if calls := last.get("tool_calls"):
            self.list += [{"role": "tool", "tool_call_id": call["id"], "content": self._output()} for call in calls]
        if not calls or self.random.random() < 0.1:
            self.list.append({"role": "user", "content": self._content()})
        options = self._options() | {"stream": False}
        answer = self._post("/v1/chat/completions", model=self.alias, messages=self.list, **options)
        if answer.status_code != 200:
            if self.random.random() < 0.5:
                self.list = []
            return
        message = answer.json()["choices"][0]["message"]
        if message["content"] or message.get("tool_calls"):
            kept = ("role", "content", "tool_calls")
            self.list.append({name: message[name] for name in kept if message.get(name) is not None})


@pytest.mark.parametrize("seed", [1, 2])
def test_no_provider_refuses_a_prompt_after_any_history(database_url: str, tmp_path: Path, seed: int) -> None:
    random, servers, models = Random(seed), strict_servers(), tmp_path / "models.toml"  # noqa: S311 - no secret
    with ExitStack() as stack:
        text = f'default = "{servers[0].alias}"\n'
        for at, server in enumerate(servers):
            server.random.seed(seed * 100 + at)
            text += entry(server, stack, random.choice((3000, 4096, 8192)))
        models.write_text(text)
        address = stack.enter_context(serving(settings_for(database_url, models_file=models)))
        http = stack.enter_context(httpx.Client(base_url=address, timeout=PATIENCE_S, trust_env=False, verify=NO_TLS))
        done = Counter[str]()
        for number in range(SESSIONS):
            client = Client(http, [server.alias for server in servers], random)
            for _ in range(STEPS):
                client.step(resends=number % 2 == 1)
            done += client.done
    for server in servers:
        for sentence, body in server.unexpected():
            pytest.fail(f"{server.alias} refused a prompt: {sentence}\n{body}")
        assert server.answered >= 5, server.alias
    assert {"turns 201", "tool-outputs 201", "/v1/chat/completions 200", "regenerate 201", "fork 201"} <= done.keys(), (
        done
    )


def entry(server: StrictServer, stack: ExitStack, window: int) -> str:
    """The server's alias in the catalogue, once it serves."""
    at = stack.enter_context(threaded_serving(server.play))
    base_url = at.base_url.removesuffix("/v1") if server.alias == "claude" else at.base_url
    return (
        f'[models.{server.alias}]\nmodel = "m"\nbase_url = "{base_url}"\ncontext_window = {window}\n'
        f"{server.wire.toml}{server.toml}"
    )
