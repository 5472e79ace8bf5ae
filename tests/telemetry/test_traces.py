"""Traces: a span a step, with ids and figures, and never a word of what was said."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.domain.errors import ContextBudgetExceeded, ProviderError
from app.domain.types import Pin, TurnStatus
from app.services.sessions import put_pin
from app.telemetry.otel import OtelTraces
from app.telemetry.tracing import NO_TRACES
from tests.api.conftest import PATIENCE_S
from tests.commands import test_cli
from tests.providers.server import Answer, ScriptedServer, Seen, serving
from tests.services.service import (
    TENANT,
    Service,
    chat,
    client_tools,
    is_summary,
    model,
    models_toml,
    ref_of,
    service,
    sound_summary,
)
from tests.services.test_post_turn import LONG, POLICY

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
CANARY = "canary-words-4711"
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


@dataclass(frozen=True, slots=True)
class Traced:
    """A service whose spans are kept in memory."""

    at: Service
    server: ScriptedServer
    traces: OtelTraces
    exporter: InMemorySpanExporter

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """Those that are over, in the order of their beginning."""
        found = sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
        return [span for span in found if span.name.startswith(name)]


@asynccontextmanager
async def traced(database_url: str, folder: Path, play: Any, *, to_providers: bool = False) -> AsyncGenerator[Traced]:
    exporter = InMemorySpanExporter()
    traces = OtelTraces("0.1", SimpleSpanProcessor(exporter), to_providers=to_providers)
    async with (
        serving(play) as server,
        service(database_url, models_toml(server), folder=folder, tracer=traces) as at,
    ):
        yield Traced(at, server, traces, exporter)
    await traces.aclose()


def tree(spans: Sequence[ReadableSpan]) -> list[tuple[str, str | None]]:
    """Every span's name with its parent's, in the order of their beginning."""
    names = {span.context.span_id: span.name for span in spans if span.context}
    return [(span.name, names.get(span.parent.span_id) if span.parent else None) for span in spans]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_turn_has_a_span_for_each_of_its_steps_in_their_order(database_url: str, tmp_path: Path) -> None:
    async with traced(database_url, tmp_path, model()) as it:
        session = await it.at.session()
        await it.at.turn(session.id, "Hello")
        assert tree(it.spans()) == [
            ("turn", None),
            ("count", "turn"),
            ("claim", "turn"),
            ("gather", "claim"),
            ("count", "turn"),
            ("decide", "turn"),
            ("assemble", "turn"),
            ("chat test-model", "turn"),
            ("count", "turn"),
            ("settle", "turn"),
        ]


async def test_spans_carry_the_turns_ids_and_the_figures_of_its_audit(database_url: str, tmp_path: Path) -> None:
    async with traced(database_url, tmp_path, model()) as it:
        session = await it.at.session()
        outcome = await it.at.turn(session.id, "Hello")
        (turn,), (call,), (settled,) = it.spans("turn"), it.spans("chat"), it.spans("settle")
        assert attributes(turn) == {
            "gen_ai.conversation.id": str(session.id),
            "plimsoll.tenant": TENANT,
            "plimsoll.turn.id": str(outcome.turn.id),
            "plimsoll.turn.seq": 1,
            "plimsoll.turn.round": 1,
            "plimsoll.turn.status": "completed",
            "plimsoll.turn.prompt_tokens": 10,
            "plimsoll.turn.completion_tokens": 5,
        }
        asked = attributes(call)
        assert call.kind.name == "CLIENT"
        assert {name: value for name, value in asked.items() if name.startswith("gen_ai.")} == {
            "gen_ai.conversation.id": str(session.id),
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "test-model",
            "gen_ai.request.max_tokens": outcome.context["output_reserve"],
            "gen_ai.request.stream": False,
            "gen_ai.response.model": "test-model-1",
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.usage.input_tokens": 10,
            "gen_ai.usage.output_tokens": 5,
            "gen_ai.usage.cache_read.input_tokens": 0,
            "gen_ai.usage.cache_creation.input_tokens": 0,
        }
        figures = attributes(settled)
        for name in ("estimated_wire_tokens", "input_budget", "estimated_input_tokens_after_prune", "prompt_sha256"):
            assert figures[f"plimsoll.context.{name}"] == outcome.context[name]
        plain = {name for name, value in outcome.context.items() if not isinstance(value, dict)}
        assert {f"plimsoll.context.{name}" for name in plain} <= figures.keys()


async def test_a_summary_is_a_step_with_the_summarizers_call_inside(database_url: str, tmp_path: Path) -> None:
    async with traced(database_url, tmp_path, model()) as it:
        session = await it.at.session()
        for number in range(9):
            it.exporter.clear()
            await it.at.turn(session.id, f"Point {number}. " + "ledger " * 60)
        found = tree(it.spans())
        at = found.index(("summarize", "turn"))
        assert found[at - 1 : at + 4] == [
            ("decide", "turn"),
            ("summarize", "turn"),
            ("chat test-model", "summarize"),
            ("decide", "turn"),
            ("assemble", "turn"),
        ]
        (step,), decided = it.spans("summarize"), it.spans("decide")
        assert attributes(decided[0])["plimsoll.decision"] == "summarize"
        assert attributes(decided[1])["plimsoll.decision"] == "send"
        stated = attributes(step)
        assert (stated["plimsoll.step.origin"], stated["plimsoll.step.prompt_tokens"]) == ("model", 100)
        assert attributes(it.spans("chat")[0])["plimsoll.purpose"] == "summary"


async def test_a_summary_in_the_background_belongs_to_the_trace_of_its_turn(database_url: str, tmp_path: Path) -> None:
    async with traced(database_url, tmp_path, model()) as it:
        session = await it.at.session(policy=POLICY)
        for number in range(12):
            await it.at.turn(session.id, f"Point {number}. {LONG}")
            await it.at.rt.chores.settle()
        behind = it.spans("after_turn")
        turns = {span.context.trace_id for span in it.spans("turn") if span.context}
        # Behind a turn whose window is far from every trigger there is nothing to look at.
        assert 0 < len(behind) < 12
        assert {span.context.trace_id for span in behind if span.context} < turns
        assert ("chat test-model", "after_turn") in tree(it.spans())


def _with_canaries(request: Seen) -> Answer:
    if is_summary(request):
        answer = sound_summary(request)
        body = json.loads(answer.body["choices"][0]["message"]["content"]) | {"summary_text": CANARY}
        return chat(json.dumps(body))
    last = str(request.json["messages"][-1]["content"])
    if "refuse" in last:
        return Answer({"error": {"message": f"I will not say {CANARY}", "code": CANARY, "param": CANARY}}, status=400)
    if client_tools(request) and request.json["messages"][-1]["role"] == "user":
        call = {"name": "look_up", "arguments": json.dumps({"id": CANARY})}
        message = {
            "role": "assistant",
            "content": CANARY,
            "tool_calls": [{"id": "c", "type": "function", "function": call}],
        }
        return Answer({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    return chat(CANARY)


async def test_no_span_holds_content_whatever_happens(database_url: str, tmp_path: Path) -> None:
    async with traced(database_url, tmp_path, _with_canaries) as it:
        session = await it.at.session(instructions=CANARY, room_goal=CANARY, metadata={CANARY: CANARY})
        await put_pin(it.at.rt, ref_of(session.id), Pin(CANARY, CANARY, source=CANARY))
        for number in range(10):
            await it.at.turn(session.id, f"{CANARY} {number} " + "ledger " * 60, key=f"{CANARY} {number}")
        outcome = await it.at.turn(session.id, CANARY, tools=(TOOL,))
        assert outcome.turn.status is TurnStatus.AWAITING_TOOLS
        await it.at.outputs(session.id, outcome.turn.id, {"c": CANARY})
        with pytest.raises(ProviderError):
            await it.at.turn(session.id, f"{CANARY} refuse")
        with pytest.raises(ContextBudgetExceeded):
            await it.at.turn(session.id, f"{CANARY} " * 20_000)
        failed = [span for span in it.spans() if not span.status.is_ok]
        assert {attributes(span)["error.type"] for span in failed} == {"provider_error", "context_budget_exceeded"}
        assert {span.name for span in failed} == {"turn", "chat test-model"}
        assert len(it.spans()) > 100
        assert it.spans("summarize")
        for span in it.spans():
            assert CANARY not in span.to_json(), span.name
            assert not span.events, "an error's message may quote anything"


@pytest.mark.parametrize("to_providers", [False, True])
async def test_a_provider_gets_the_trace_only_where_the_deployment_allows_it(
    database_url: str, tmp_path: Path, to_providers: bool
) -> None:
    async with traced(database_url, tmp_path, model(), to_providers=to_providers) as it:
        session = await it.at.session()
        carried = {b"traceparent": TRACEPARENT.encode(), b"tracestate": b"vendor=secret"}
        with it.traces.request("POST", "/v1/x", carried):
            await it.at.turn(session.id, "Hello")
        (seen,), (call,) = it.server.seen, it.spans("chat")
        assert call.context is not None
        assert "tracestate" not in seen.headers
        stated = f"00-{TRACE}-{call.context.span_id:016x}-01" if to_providers else None
        assert seen.headers.get("traceparent") == stated


def test_a_request_goes_on_with_its_callers_trace_and_a_broken_header_begins_a_new_one() -> None:
    exporter = InMemorySpanExporter()
    traces = OtelTraces("0.1", SimpleSpanProcessor(exporter))
    for header in (TRACEPARENT, "", "00-zz-1-01", "x" * 10_000, f"00-{'0' * 32}-{CALLER}-01", "\x00ÿ"):
        with traces.request("GET", "/v1/x", {b"traceparent": header.encode("latin-1")}):
            pass
    first, *others = exporter.get_finished_spans()
    assert first.context is not None
    assert first.parent is not None
    assert (f"{first.context.trace_id:032x}", f"{first.parent.span_id:016x}") == (TRACE, CALLER)
    assert [span.parent for span in others] == [None] * 5


def test_without_traces_nothing_is_made_and_the_sdk_is_not_even_imported() -> None:
    first = NO_TRACES.span("a")
    assert first is NO_TRACES.span("b") is NO_TRACES.request("GET", "/", {})
    assert not NO_TRACES.outgoing()
    program = """
import sys
from app.core.config import Settings
from app.main import create_app
import app.serving
create_app(Settings())
sys.exit(sum(name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")) for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", program], env=test_cli.environment(), check=False).returncode == 0


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, database_url: str) -> None:
    """The SDK is hidden from the interpreter as it starts."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['opentelemetry.sdk'] = None")
    path = f"{tmp_path}:{test_cli.environment()['PYTHONPATH']}"
    environment = test_cli.environment(DATABASE_URL=database_url, PLIMSOLL_TRACES="otlp", PYTHONPATH=path)
    command = [*test_cli.PLIMSOLL, "serve"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "the extra otel of plimsoll-server" in test_cli.refusal(done)


async def test_a_collector_gets_every_span_of_a_service_over_http_until_its_end(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(Answer(b"", content_type="application/x-protobuf")) as collector:
        settings = {
            "DATABASE_URL": database_url,
            "PLIMSOLL_TRACES": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.base_url.removesuffix("/v1"),
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        }
        await asyncio.to_thread(_use, tmp_path, settings)
        assert {seen.path for seen in collector.seen} == {"/v1/traces"}
        sent = [ExportTraceServiceRequest.FromString(seen.body) for seen in collector.seen]
        assert CANARY.encode() not in b"".join(seen.body for seen in collector.seen)
    resources = [of_resource for request in sent for of_resource in request.resource_spans]
    named = {pair.key: pair.value.string_value for pair in resources[0].resource.attributes}
    assert (named["service.name"], named["deployment.environment.name"]) == ("plimsoll", "test")
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    requests = [span for span in spans if not span.parent_span_id or span.parent_span_id.hex() == CALLER]
    post = "POST /v1/sessions/{session_id}/turns"
    assert {span.name for span in requests} == {post, "POST /v1/sessions", "GET /v1/sessions/{session_id}"}
    posted = [span for span in requests if span.name == post]
    assert {(span.trace_id.hex(), span.parent_span_id.hex()) for span in posted} == {(TRACE, CALLER)}
    stated = [{pair.key: pair.value for pair in span.attributes} for span in posted]
    assert sorted(each["http.response.status_code"].int_value for each in stated) == [200, 201]
    assert {each["http.route"].string_value for each in stated} == {"/v1/sessions/{session_id}/turns"}
    names = [span.name for span in spans if span.trace_id.hex() == TRACE]
    assert names.count("turn") == 2, "one streamed, one not"
    assert {"claim", "gather", "count", "decide", "assemble", "chat offline", "settle"} <= set(names)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["trace_id"] for line in lines if line.get("route", "").endswith("/turns")] == [TRACE, TRACE]


def _use(folder: Path, settings: dict[str, str]) -> None:
    """Two turns of a traced request, in a process that is then ended."""
    with (
        test_cli.serving(folder, **settings) as (process, printed),
        httpx.Client(base_url=test_cli.address(printed), timeout=PATIENCE_S) as client,
    ):
        session = client.post("/v1/sessions", json={"room_goal": CANARY}).json()["id"]
        for stream in (False, True):
            body = {"content": CANARY, "stream": stream}
            client.post(f"/v1/sessions/{session}/turns", json=body, headers={"traceparent": TRACEPARENT})
        assert client.get(f"/v1/sessions/{CANARY}").status_code == 404
        assert client.get("/healthz").status_code == 200
    assert process.returncode == 0


def test_a_collector_that_is_away_costs_no_turn_and_delays_no_end(tmp_path: Path, database_url: str) -> None:
    settings = {"PLIMSOLL_TRACES": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    with (
        test_cli.serving(tmp_path, DATABASE_URL=database_url, **settings) as (process, printed),
        httpx.Client(base_url=test_cli.address(printed), timeout=PATIENCE_S) as client,
    ):
        session = client.post("/v1/sessions", json={}).json()["id"]
        for number in range(3):
            answer = client.post(f"/v1/sessions/{session}/turns", json={"content": f"Point {number}"})
            assert answer.status_code == 201
            assert answer.elapsed.total_seconds() < 5
        ended = time.monotonic()
        process.terminate()
        assert process.wait(timeout=45) == 0
        assert time.monotonic() - ended < 25, "the SDK's own 30 s were waited for"
    log = (tmp_path / "log").read_text()
    assert "encountered while exporting spans" in log, "nothing is logged"
    assert "aborting retry" in log, "the export was not given up"
