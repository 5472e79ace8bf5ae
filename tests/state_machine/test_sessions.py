"""Any legal history of sessions, against a model: turns, tool rounds, cancels, summaries, undo, pins, forks, exports.

`PLIMSOLL_STATE_MACHINE=300x40` runs so many examples of so many steps; 10x20 here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.api.conftest import PATIENCE_S, as_sent, assert_problem, serving, settings_for
from tests.state_machine.session_model import LEGAL, ModelSession, ModelTurn, assert_sendable

EXAMPLES, STEPS = (int(number) for number in os.environ.get("PLIMSOLL_STATE_MACHINE", "10x20").split("x"))
_PRESETS: list[dict[str, Any]] = [
    {},
    {"preset": "rolling"},
    {"preset": "post_turn"},
    {"preset": "turn_atomic"},
    {"preset": "allocated"},
    {"mandatory_summary_turn": 3, "protected_turns": 1},
]
_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
]
_WORDS = "The job compares ledger rows with bank lines. "
_sizes = st.sampled_from((0, 1, 10, 40, 400))
_names = st.sampled_from(("a", "b", "c"))
# Often none: a turn that waits for tools keeps its session from everything else.
_calls = st.sampled_from(([], [], [], [0], [1, 2], [3, 4, 5]))
_numbers = st.integers(0, 2**16)


class Sessions(RuleBasedStateMachine):
    """Posts to the service what the model says is legal now, and what it says is not."""

    client: httpx.Client
    done: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[ModelSession] = []
        self.at = 0
        self.called = 0

    @property
    def now(self) -> ModelSession:
        return self.sessions[self.at]

    @property
    def path(self) -> str:
        return f"/v1/sessions/{self.now.id}"

    @initialize(policy=st.sampled_from(_PRESETS), instructions=st.sampled_from((None, "Be brief.")))
    def begin(self, policy: dict[str, Any], instructions: str | None) -> None:
        answer = self.client.post("/v1/sessions", json={"policy": policy, "instructions": instructions})
        assert answer.status_code == 201, answer.text
        self.sessions = [ModelSession(answer.json()["id"])]

    @rule(number=_numbers)
    def go_to_another_session(self, number: int) -> None:
        self.at = number % len(self.sessions)

    @rule(words=_sizes, reply=_sizes, calls=_calls, looked=st.booleans())
    def post_a_turn(self, words: int, reply: int, calls: list[int], looked: bool) -> None:
        content = f"{len(self.now.turns)}. {_WORDS * words}"
        body = {"content": content, **self._reply(reply, calls)}
        if self.now.open_turn is not None:
            refused = self.client.post(f"{self.path}/turns", json=body)
            assert_problem(refused, 409, "turn_in_progress")
            assert int(refused.headers["retry-after"]) >= 1
            return
        preview = self.client.post(f"{self.path}/context/preview", json=body).json() if looked else None
        answer = self.client.post(f"{self.path}/turns", json=body)
        self._record(answer, content)
        if preview and not preview["summary_pending"]:
            assert preview["context"]["overflow_rejected"] == (answer.status_code == 422)
            if answer.status_code == 201:
                assert preview["context"]["prompt_sha256"] == answer.json()["context"]["prompt_sha256"]

    @rule(words=_sizes, reply=_sizes, calls=_calls)
    def answer_the_calls(self, words: int, reply: int, calls: list[int]) -> None:
        turn = self.now.open_turn
        if turn is None:
            if self.now.turns:
                path = f"{self.path}/turns/{self.now.turns[-1].id}/tool-outputs"
                answer = self.client.post(path, json={"outputs": [{"tool_call_id": "x", "content": "x"}]})
                assert answer.status_code in {409, 422}, answer.text
            return
        outputs = [{"tool_call_id": call, "content": f"{call} {_WORDS * words}"} for call in reversed(turn.open_calls)]
        options = {name: value for name, value in self._reply(reply, calls).items() if name != "tools"}
        answer = self.client.post(f"{self.path}/turns/{turn.id}/tool-outputs", json={"outputs": outputs, **options})
        if answer.status_code == 422:
            assert_problem(answer, 422, "context_budget_exceeded")
            found = self.client.get(f"{self.path}/turns/{turn.id}").json()
            turn.status, turn.open_calls = found["status"], [call["id"] for call in found["tool_calls"]]
            assert turn.status in {"failed", "rejected", "awaiting_tools"}
            self.done[f"outputs too large: {turn.status}"] += 1
            return
        assert answer.status_code == 201, answer.text
        turn.rounds += 1
        self._took(turn, answer.json()["turn"])

    @rule()
    def cancel(self) -> None:
        turn = self.now.open_turn
        if turn is None:
            if self.now.turns:
                answer = self.client.post(f"{self.path}/turns/{self.now.turns[-1].id}/cancel")
                assert_problem(answer, 409, "turn_not_open")
            return
        assert self.client.post(f"{self.path}/turns/{turn.id}/cancel").json()["status"] == "cancelled"
        turn.status, turn.open_calls = "cancelled", []
        self.done["cancelled"] += 1

    @rule()
    def summarize(self) -> None:
        answer = self.client.post(f"{self.path}/summaries")
        if answer.status_code == 409:
            assert answer.json()["code"] in {"nothing_to_summarize", "turn_in_progress"}
            return
        assert answer.status_code == 201, answer.text
        self._catch_up_summaries()
        assert self.now.active_summary is not None
        assert self.now.active_summary[0] == answer.json()["id"]

    @rule(turns=st.integers(2, 6))
    def talk_and_summarize(self, turns: int) -> None:
        """Steps that are drawn one by one seldom make a summary, and then seldom undo it."""
        for _ in range(turns):
            self.post_a_turn(40, 40, [], False)
        self.summarize()

    @rule()
    def undo(self) -> None:
        self._catch_up_summaries()
        active = self.now.active_summary
        if active is None:
            return
        answer = self.client.post(f"{self.path}/summaries/{active[0]}/undo")
        if answer.status_code == 409:
            assert answer.json()["code"] == "turn_in_progress"
            return
        assert answer.status_code == 200, answer.text
        self.now.undone()
        window = self.client.get(f"{self.path}/context").json()
        left = self.now.active_summary
        assert window["active_summary_id"] == (left[0] if left else None)
        if left is None:
            assert window["raw_turns"] == sum(turn.sends and not turn.is_open for turn in self.now.turns)
        assert_problem(self.client.post(f"{self.path}/summaries/{active[0]}/undo"), 409, "summary_not_active")
        self.done["undone"] += 1

    @rule(name=_names, words=st.sampled_from((1, 5, 20)))
    def pin(self, name: str, words: int) -> None:
        assert self.client.put(f"{self.path}/pins/{name}", json={"content": _WORDS * words}).is_success
        self.now.pins[name] = _WORDS * words

    @rule(name=_names)
    def unpin(self, name: str) -> None:
        answer = self.client.delete(f"{self.path}/pins/{name}")
        assert answer.status_code == (204 if self.now.pins.pop(name, None) else 404)

    @rule(number=_numbers)
    def fork(self, number: int) -> None:
        ended = [at for at, turn in enumerate(self.now.turns) if not turn.is_open]
        if not ended:
            return
        last = ended[number % len(ended)]
        answer = self.client.post(f"{self.path}/fork", json={"through_turn_id": self.now.turns[last].id})
        assert answer.status_code == 201, answer.text
        self._adopt(answer.json()["id"], last + 1)
        self.done["forked"] += 1

    @rule(reply=_sizes, calls=_calls)
    def regenerate(self, reply: int, calls: list[int]) -> None:
        if not self.now.turns:
            return
        last = self.now.turns[-1]
        body = self._reply(reply, calls)
        answer = self.client.post(f"{self.path}/turns/{last.id}/regenerate", json=body)
        if last.is_open:
            assert_problem(answer, 409, "turn_in_progress")
            return
        found = answer.json()
        self._adopt(
            found["session_id"] if answer.status_code == 422 else found["session"]["id"], len(self.now.turns) - 1
        )
        source, self.at = self.at, len(self.sessions) - 1
        self._record(answer, last.user_input)
        self.at = source
        self.done["regenerated"] += 1

    @rule()
    def take_it_elsewhere(self) -> None:
        if self.now.open_turn is not None:
            return
        document = self.client.get(f"{self.path}/export").json()
        answer = self.client.post("/v1/sessions/import", json=document)
        assert answer.status_code == 201, answer.text
        self._adopt(answer.json()["id"], len(self.now.turns))
        self.done["imported"] += 1

    @invariant()
    def the_turns_are_the_models(self) -> None:
        if not self.sessions:
            return
        items = self.client.get(f"{self.path}/turns?limit=200").json()["items"]
        assert [item["seq"] for item in items] == list(range(1, len(items) + 1)), "seq is gapless"
        assert [item["id"] for item in items] == [turn.id for turn in self.now.turns]
        assert sum(item["status"] in ("running", "awaiting_tools") for item in items) <= 1
        for item, turn in zip(items, self.now.turns, strict=True):
            assert item["status"] in LEGAL[turn.status]
            assert (item["status"], item["user_input"], item["assistant_output"]) == (
                turn.status,
                turn.user_input,
                turn.output,
            )
        pins = self.client.get(f"{self.path}/pins").json()["items"]
        assert {pin["name"]: pin["content"] for pin in pins} == self.now.pins

    @invariant()
    def the_summaries_are_a_chain(self) -> None:
        if self.sessions:
            self._catch_up_summaries()

    def teardown(self) -> None:
        for at in range(len(self.sessions)):
            self.at = at
            self._same_prompts(self.now.turns)

    def _reply(self, words: int, calls: list[int]) -> dict[str, Any]:
        self.called += 1
        if not calls:
            return {"recorded_reply": {"content": f"Noted. {_WORDS * words}"}}
        made = [
            {"id": f"c{self.called}-{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            for number in calls
        ]
        return {"tools": _TOOLS, "recorded_reply": {"tool_calls": made}}

    def _record(self, answer: httpx.Response, content: str) -> None:
        if answer.status_code == 422:
            assert_problem(answer, 422, "context_budget_exceeded")
            turn_id = self.client.get(f"{self.path}/turns?limit=200").json()["items"][-1]["id"]
            self.now.turns.append(ModelTurn(turn_id, "rejected", content, None, []))
            self.done["rejected"] += 1
            return
        assert answer.status_code == 201, answer.text
        context = answer.json()["context"]
        assert context["estimated_input_tokens_after_prune"] <= context["input_budget"]
        assert sum(context["regions"].values()) == context["estimated_wire_tokens"]
        self.done["summarized"] += context["summary_triggered"]
        self.done["pruned"] += context["prune_triggered"]
        turn = ModelTurn(answer.json()["turn"]["id"], "awaiting_tools", content, None, [])
        self.now.turns.append(turn)
        self._took(turn, answer.json()["turn"])

    def _took(self, turn: ModelTurn, found: dict[str, Any]) -> None:
        assert found["status"] in {"completed", "awaiting_tools"}
        turn.status, turn.output = found["status"], found["assistant_output"]
        turn.open_calls = [call["id"] for call in found["tool_calls"]] if turn.is_open else []
        self.done[f"turn {turn.status}"] += 1
        self._same_prompts([turn])

    def _same_prompts(self, turns: list[ModelTurn]) -> None:
        """What a round was sent is sendable, and is for ever what it was when it was first read."""
        for turn in turns:
            for number in range(1, turn.rounds + 1 if turn.sends else 1):
                prompt = self.client.get(f"{self.path}/turns/{turn.id}/prompt?round={number}").json()
                assert_sendable(prompt["messages"])
                sent = as_sent(prompt)
                assert sent == turn.prompts.setdefault(number, sent)

    def _adopt(self, session_id: str, turns: int) -> None:
        """A session whose past is this one's first turns, with the same ids; their prompts are the same."""
        source = self.now
        found = self.client.get(f"/v1/sessions/{session_id}/turns?limit=200").json()["items"][:turns]
        copied = deepcopy(source.turns[:turns])
        for turn, item in zip(copied, found, strict=True):
            turn.id = item["id"]
        made = ModelSession(session_id, copied, [], dict(source.pins))
        made.summaries = [
            [item["id"], item["status"], item.get("previous_summary_id")] for item in self._summaries(session_id)
        ]
        self.sessions.append(made)
        before, self.at = self.at, len(self.sessions) - 1
        self._same_prompts(copied)
        self.at = before

    def _summaries(self, session_id: str) -> list[dict[str, Any]]:
        return self.client.get(f"/v1/sessions/{session_id}/summaries?limit=200").json()["items"][::-1]

    def _catch_up_summaries(self) -> None:
        """What turns and the background made meanwhile; each folds in the one that was active."""
        found = self._summaries(self.now.id)
        for item in found[len(self.now.summaries) :]:
            self.now.made_summary(item["id"])
        assert [[item["id"], item["status"]] for item in found] == [summary[:2] for summary in self.now.summaries]


@pytest.fixture
def service(database_url: str, tmp_path: Path) -> Iterator[httpx.Client]:
    """A service whose window is small enough that everything happens."""
    models = tmp_path / "models.toml"
    models.write_text(
        'default = "offline"\n[models.offline]\nprovider = "offline"\nmodel = "offline"\ncontext_window = 4096\n'
    )
    with (
        serving(settings_for(database_url, models_file=models)) as address,
        httpx.Client(base_url=address, timeout=PATIENCE_S, trust_env=False) as client,
    ):
        yield client


def test_the_service_agrees_with_the_model_after_any_legal_history(service: httpx.Client) -> None:
    done: Counter[str] = Counter()
    machine = type("Machine", (Sessions,), {"client": service, "done": done})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=EXAMPLES < 100,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )
    print(f"{EXAMPLES} runs of {STEPS} steps: {dict(done)}")  # noqa: T201 - `make fuzz` shows it
    assert done["turn completed"], done
    if EXAMPLES >= 100:
        seen = {"turn awaiting_tools", "cancelled", "forked", "regenerated", "imported", "rejected", "undone"}
        assert seen <= done.keys(), done
        assert done["summarized"]
        assert done["pruned"]
