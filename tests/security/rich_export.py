"""A session that has been through all that an export can hold, and the service it lives in."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.domain.types import ToolCall
from tests.api.conftest import PATIENCE_S, new_session, serving, settings_for
from tests.providers.playing import threaded_serving
from tests.providers.server import Answer, Seen
from tests.providers.wires import ANTHROPIC, OPENAI, ModelReply
from tests.services.service import chat, client_tools, is_summary, sound_summary
from tests.services.test_tools import TOOLS

_PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'iVBORw0KGgo' * 8}", "detail": "low"}}
_FACT = "The invoice of the harbour crane is number 4711."
_CHATTER = "The reconciliation job compares ledger rows with bank lines and reports each difference. "
_POLICY = {"mandatory_summary_turn": 3, "protected_turns": 1}
_CATALOGUE = """
default = "main"
[models.main]
provider = "openai"
model = "served"
base_url = "{url}"
context_window = 4096
return_reasoning = "tool_loop"
[models.signed]
provider = "anthropic"
model = "served"
base_url = "{url}"
context_window = 65536
parameters = {{ thinking = {{ type = "enabled", budget_tokens = 1024 }} }}
[models.offline]
provider = "offline"
model = "offline"
[instructions]
global = "Be kind."
[instructions.modes]
m = "This is mode m."
[instructions.roles]
r = "This is role r."
"""


@dataclass(frozen=True, slots=True)
class Rich:
    """`document` is the export of `session_id`."""

    client: httpx.Client
    session_id: str
    document: dict[str, Any]


@contextmanager
def rich_export(database_url: str, folder: Path) -> Generator[Rich]:
    """A service with the aliases `main`, `signed` and `offline`, and a session that used them."""
    with threaded_serving(_play) as model:
        models = folder / "models.toml"
        models.write_text(_CATALOGUE.format(url=model.base_url))
        with (
            serving(settings_for(database_url, models_file=models)) as address,
            httpx.Client(base_url=address, timeout=PATIENCE_S, trust_env=False) as client,
        ):
            session_id = _live(client)
            yield Rich(client, session_id, client.get(f"/v1/sessions/{session_id}/export").json())


def _play(request: Seen) -> Answer:
    """Calls the tool once, thinks, fails when told to, and summarizes."""
    newest = request.json["messages"][-1]
    wire = ANTHROPIC if request.path.endswith("/messages") else OPENAI
    if wire is OPENAI and is_summary(request):
        return sound_summary(request)
    if "FAIL" in str(newest["content"]):
        return Answer({"error": {"message": "no"}}, status=400)
    if client_tools(request) and newest["role"] == "user" and "tool_result" not in str(newest["content"]):
        return wire.whole(ModelReply("", "I look it up.", (ToolCall("call_a", "look_up", '{"id": "a"}'),)))
    return wire.whole(ModelReply("Paid.", "That was easy.")) if client_tools(request) else chat("Noted.")


def _live(client: httpx.Client) -> str:
    session_id = new_session(
        client,
        mode="m",
        agent_role="r",
        room_goal="Ship",
        instructions="Be brief.",
        policy=_POLICY,
        metadata={"labels": ["a", {"b": None}], "n": 1.5},
        limits={"turns_per_day": 100},
    )
    at = f"/v1/sessions/{session_id}"
    client.put(f"{at}/pins/p", json={"content": "Pinned.", "relevance": 0.5, "source": "p.md"}).raise_for_status()
    _turn(client, at, _FACT)
    for number in range(3):
        _turn(client, at, f"Point {number}. {_CHATTER * 3}")
    _with_tools(client, at, "Is a paid?", "yes " * 20)
    _with_tools(client, at, "And what does the ledger say?", _CHATTER * 200)
    _with_tools(client, at, "Is b paid?", "yes", model_alias="signed", policy={"protected_turns": 2})
    _turn(client, at, [{"type": "text", "text": "Look at this."}, _PICTURE])
    _turn(client, at, "FAIL", 502)
    _turn(client, at, "word " * 4_000, 422)
    _turn(client, at, "What is the number of the invoice of the harbour crane?")
    summary = client.get(f"{at}/summaries").json()["items"][0]
    client.post(f"{at}/summaries/{summary['id']}/undo").raise_for_status()
    waiting = _turn(client, at, "Is c paid?", tools=TOOLS)
    client.post(f"{at}/turns/{waiting['turn']['id']}/cancel").raise_for_status()
    conversation = f"conv_{session_id.replace('-', '')}"
    asked = {"model": "main", "conversation": conversation, "input": "Hello", "temperature": 0.5, "store": True}
    client.post("/v1/responses", json=asked).raise_for_status()
    return session_id


def _with_tools(client: httpx.Client, at: str, content: str, output: str, **fields: Any) -> None:
    waiting = _turn(client, at, content, tools=TOOLS, max_output_tokens=100, **fields)["turn"]
    outputs = [{"tool_call_id": call["id"], "content": output} for call in waiting["tool_calls"]]
    assert outputs, waiting
    answer = client.post(f"{at}/turns/{waiting['id']}/tool-outputs", json={"outputs": outputs})
    assert answer.status_code == 201, answer.text


def _turn(client: httpx.Client, at: str, content: Any, status: int = 201, **fields: Any) -> Any:
    answer = client.post(f"{at}/turns", json={"content": content, **fields})
    assert answer.status_code == status, answer.text
    return answer.json()


def forms(document: dict[str, Any]) -> set[str]:
    """What of an export's many forms a document has, by name."""
    refs = [audit["prompt_refs"] for audit in document["audits"] if audit["prompt_refs"]]
    logs = [audit["context_trim_log"] for audit in document["audits"]]
    found = {f"ref {item[0]}" for each in refs for item in each["items"]}
    found |= {f"turn {turn['status']}" for turn in document["turns"]}
    found |= {f"summary {summary['status']}" for summary in document["summaries"]}
    found |= {f"summary by {summary['origin']}" for summary in document["summaries"]}
    found |= {f"action {action['kind']}" for log in logs for action in log["actions"]}
    found |= {"recalled" for log in logs if log.get("recalled")}
    found |= {f"message {message['role']}" for message in document["messages"]}
    found |= {name for message in document["messages"] for name in ("reasoning", "reasoning_blocks") if message[name]}
    found |= {"parts" for message in document["messages"] if isinstance(message["content"], list)}
    found |= {"request" for turn in document["turns"] if turn["request"]}
    found |= {"request policy" for turn in document["turns"] if turn["request"] and turn["request"]["policy"]}
    return found | {section for section, rows in document.items() if isinstance(rows, list) and rows}
