"""A service for chat clients: the unmodified `openai` client at it, and a scripted model behind it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

from tests.api.conftest import NO_TLS, PATIENCE_S, serving, settings_for
from tests.providers.playing import ThreadedServer, threaded_serving
from tests.providers.server import Answer, Play, Seen

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"id": {"type": "string"}}}},
    }
]


@dataclass(frozen=True, slots=True)
class Chat:
    """`client` is the application's; `http` is for what the service's own routes say of it."""

    address: str
    client: openai.OpenAI
    http: httpx.Client
    model: ThreadedServer

    def turns(self, session_id: str) -> list[dict[str, Any]]:
        return self.http.get(f"/v1/sessions/{session_id}/turns").json()["items"]

    def sent(self, number: int = -1) -> list[dict[str, Any]]:
        """The messages of a request that the model got."""
        return self.model.seen[number].json["messages"]


@contextmanager
def chat_service(
    database_url: str,
    folder: Path,
    *script: Play,
    window: int = 4096,
    key: str = "none",
    provider: str = "openai",
    of_main: str = "",
    **changes: Any,
) -> Generator[Chat]:
    """A service with the aliases `main`, behind which the script is played (`of_main` is more of its entry), and
    `offline`."""
    with threaded_serving(*(script or (say("Noted."),))) as model:
        models = folder / "models.toml"
        models.write_text(
            f'default = "main"\n[models.main]\nprovider = "{provider}"\nmodel = "served"\n'
            f'context_window = {window}\n{of_main}\ntimeout_s = 60\nbase_url = "{model.base_url}"\n'
            f'[models.offline]\nprovider = "offline"\nmodel = "offline"\n'
        )
        headers = {"authorization": f"Bearer {key}"}
        with (
            serving(settings_for(database_url, models_file=models, **changes)) as address,
            httpx.Client(base_url=address, timeout=PATIENCE_S, trust_env=False, verify=NO_TLS, headers=headers) as http,
            openai_at(address, key) as client,
        ):
            yield Chat(address, client, http, model)


def openai_at(address: str, key: str = "none", **options: Any) -> openai.OpenAI:
    """An application that changed its base_url, and nothing else."""
    options.setdefault("http_client", openai.DefaultHttpxClient(verify=NO_TLS))
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, **options)


class Hasty:
    """An application whose first request hangs up before the model has answered, and whose own retries wait longer.

    The model is to answer once `tried_again` holds: once a retry was answered, or one has waited for a while because
    the first request had not been read when it hung up.
    """

    def __init__(self) -> None:
        self._sent = self._answered = 0
        self._first_retry_at = math.inf

    @contextmanager
    def at(self, address: str) -> Generator[openai.OpenAI]:
        """The application's client, whose next request is its first."""
        self._sent = self._answered = 0
        self._first_retry_at = math.inf
        hooks: dict[str, list[Callable[..., Any]]] = {"request": [self._send], "response": [self._answer]}
        with httpx.Client(event_hooks=hooks, trust_env=False) as http:
            yield openai_at(address, timeout=60, max_retries=8, http_client=http)

    def tried_again(self) -> bool:
        return self._answered > 0 or time.monotonic() > self._first_retry_at + 5

    def _send(self, request: httpx.Request) -> None:
        self._sent += 1
        if self._sent == 1:
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), 0.6)
        else:
            self._first_retry_at = min(self._first_retry_at, time.monotonic())

    def _answer(self, _response: httpx.Response) -> None:
        self._answered += 1


def tool_call(call_id: str, name: str, arguments: object) -> dict[str, Any]:
    """A call as a model makes it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def say(
    text: str | None,
    *calls: str | dict[str, Any],
    prompt_tokens: int = 20,
    after: Callable[[], bool] | None = None,
) -> Play:
    """A reply once `after` holds, whole or streamed as it is asked for; it makes these calls, and calls `look_up` once
    for each id."""
    tool_calls = [tool_call(call, "look_up", {"id": call}) if isinstance(call, str) else call for call in calls]
    finish_reason = "tool_calls" if calls else "stop"
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 8}}

    def play(request: Seen) -> Answer:
        if not request.json.get("stream"):
            message = {"role": "assistant", "content": text, **({"tool_calls": tool_calls} if calls else {})}
            choice = {"index": 0, "message": message, "finish_reason": finish_reason}
            return Answer({"model": "served-1", "choices": [choice], "usage": usage}, after=after)
        deltas: list[dict[str, Any]] = [{"content": word} for word in (text or "").split(" ")] if text else []
        deltas = [{"content": (" " if at else "") + delta["content"]} for at, delta in enumerate(deltas)]
        deltas += [{"tool_calls": [{"index": at, **call}]} for at, call in enumerate(tool_calls)]
        chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]})
        chunks.append({"choices": [], "usage": usage})
        body = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"
        return Answer(body, content_type="text/event-stream", after=after)

    return play
