"""What the metrics promise: the contract's names, right with several processes, and labels from closed sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from prometheus_client.parser import text_string_to_metric_families

from app.domain.audit import Audit
from app.domain.errors import ProviderError
from app.domain.types import SessionId, TurnId, TurnRecord, TurnStatus
from app.telemetry.metrics import Telemetry

_WORKER = """
import sys
from contextlib import suppress
from pathlib import Path
from app.domain.errors import ProviderTimeout
from app.domain.figures import OpenTurnCount
from app.domain.types import TurnStatus
from app.telemetry.metrics import Telemetry
from tests.telemetry.test_metrics import audit_of, turn_of
telemetry = Telemetry(["main"], Path(sys.argv[1]))
tokens = int(sys.argv[2])
answered = audit_of(wire_tokens=tokens, actual_tokens=tokens, summary=True, prune=True)
telemetry.turn_finished(turn_of(TurnStatus.COMPLETED, tokens), [answered], 0.1)
telemetry.turn_finished(turn_of(TurnStatus.REJECTED, None), [audit_of(wire_tokens=1200)], 0.1)
with telemetry.measured_call("main", "turn"):
    pass
with suppress(ProviderTimeout), telemetry.measured_call("main", "summary"):
    raise ProviderTimeout("It was too slow.")
telemetry.turns_lost(3)
telemetry.database.pool_of(20)
telemetry.database.connection_waited_for(0.5)
telemetry.database.connection_used(1.5)
telemetry.database.probed({TurnStatus.RUNNING: OpenTurnCount(tokens, 2.5)})
print(telemetry.render()[0].decode())
"""


def values(text: str) -> dict[str, float]:
    """Samples by name and labels."""
    return {
        sample.name + "".join(f",{name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def turn_of(status: TurnStatus, prompt_tokens: int | None, alias: str = "main") -> TurnRecord:
    return TurnRecord(
        id=TurnId(uuid4()),
        session_id=SessionId(uuid4()),
        seq=1,
        status=status,
        user_input="Hello",
        assistant_output=None,
        tool_calls=(),
        finish_reason=None,
        error=None,
        model_alias=alias,
        prompt_tokens=prompt_tokens,
        completion_tokens=None,
        cost_usd=None,
        idempotency_key=None,
        created_at=datetime.now(UTC),
        completed_at=None,
    )


def audit_of(
    *, wire_tokens: int, actual_tokens: int | None = None, summary: bool = False, prune: bool = False
) -> Audit:
    """The audit of a call with an input budget of 1,000 tokens."""
    return Audit(
        id=uuid4(),
        session_id=SessionId(uuid4()),
        turn_id=TurnId(uuid4()),
        round=1,
        attempt=1,
        model_alias="main",
        model_context_limit=2_000,
        context_limit_source="catalogue",
        input_budget=1_000,
        output_reserve=500,
        overhead_reserve=500,
        estimated_input_tokens_before=wire_tokens,
        estimated_input_tokens_after_summary=wire_tokens,
        estimated_input_tokens_after_prune=wire_tokens,
        estimated_wire_tokens=wire_tokens,
        summary_triggered=summary,
        prune_triggered=prune,
        overflow_rejected=wire_tokens > 1_000,
        regions={},
        context_trim_log={},
        prompt_sha256=None,
        estimator="tiktoken",
        calibration_ratio=1.0,
        actual_prompt_tokens=actual_tokens,
        prompt_refs=None,
    )


def finish(
    telemetry: Telemetry,
    *,
    alias: str = "main",
    status: TurnStatus = TurnStatus.COMPLETED,
    prompt_tokens: int = 100,
) -> None:
    audit = audit_of(wire_tokens=110, actual_tokens=prompt_tokens, summary=True)
    telemetry.turn_finished(turn_of(status, prompt_tokens, alias), [audit], 0.5)


def test_a_scrape_has_the_names_of_the_contract_from_the_start() -> None:
    found = values(Telemetry(["main"]).render()[0].decode())
    for name in (
        "context_summary_count_total",
        "context_prune_count_total",
        "context_overflow_reject_count_total",
        "avg_prompt_tokens_per_turn",
        "prompt_tokens_per_turn_count",
    ):
        assert found[name] == 0


def test_what_can_fail_is_there_at_zero_before_it_fails() -> None:
    found = values(Telemetry(["main"]).render()[0].decode())
    for name in (
        "turn_latency_seconds_count,status=awaiting_tools",
        "provider_errors_total,kind=timeout",
        "context_summary_outcome_total,outcome=fallback,when=preflight",
        "turn_latency_seconds_count,status=failed",
        "turns_lost_total",
    ):
        assert found[name] == 0


def test_the_average_is_over_completed_turns_only() -> None:
    telemetry = Telemetry(["main"])
    finish(telemetry, prompt_tokens=100)
    finish(telemetry, prompt_tokens=300)
    finish(telemetry, prompt_tokens=9000, status=TurnStatus.FAILED)
    assert values(telemetry.render()[0].decode())["avg_prompt_tokens_per_turn"] == 200


def test_a_turn_is_counted_once_however_many_rounds_it_has() -> None:
    telemetry = Telemetry(["main"])
    summarized = audit_of(wire_tokens=900, summary=True, prune=True)
    later = audit_of(wire_tokens=900, prune=True)
    for status, audits in (
        (TurnStatus.AWAITING_TOOLS, [summarized, later]),  # the model looked back before it called the client's tool
        (TurnStatus.AWAITING_TOOLS, [later]),
        (TurnStatus.COMPLETED, [later]),
    ):
        telemetry.turn_finished(turn_of(status, 900), audits, 0.5)
    found = values(telemetry.render()[0].decode())
    assert found["context_summary_count_total"] == 1
    assert found["context_prune_count_total"] == 1


def test_summaries_are_compared_with_completed_turns_also_where_a_provider_counts_no_tokens() -> None:
    telemetry = Telemetry(["main"])
    for prompt_tokens in (100, None, None, None):
        telemetry.turn_finished(turn_of(TurnStatus.COMPLETED, prompt_tokens), [], 0.5)
    telemetry.summary_finished(when="preflight", outcome="used", seconds=0.5)
    assert values(telemetry.render()[0].decode())["context_summaries_per_hundred_turns"] == 25


def test_labels_come_from_closed_sets_whatever_is_passed() -> None:
    telemetry = Telemetry(["main"])
    for number in range(50):
        finish(telemetry, alias=f"stranger-{number}")
        unknown = type("Unknown", (ProviderError,), {"kind": f"k{number}"})
        with suppress(unknown), telemetry.measured_call(f"s{number}", f"p{number}"):
            raise unknown("It failed in a new way.")
    text = telemetry.render()[0].decode()
    assert "stranger" not in text
    assert values(text)["provider_errors_total,kind=other"] == 50


def test_a_prompt_so_small_that_it_is_mostly_a_template_says_nothing_about_estimates() -> None:
    """A provider's own template of 30 tokens would else be an alert for a service of short prompts."""
    telemetry = Telemetry(["main"])
    for estimated in (60, 255, 256):
        audit = audit_of(wire_tokens=estimated, actual_tokens=estimated + 30)
        telemetry.turn_finished(turn_of(TurnStatus.COMPLETED, estimated + 30), [audit], 0.1)
    found = values(telemetry.render()[0].decode())
    assert found["estimate_to_actual_ratio_count,model_alias=main"] == 1
    assert found["estimate_to_actual_ratio_sum,model_alias=main"] == 256 / 286


def test_two_processes_are_counted_as_one_service(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    output = ""
    for tokens in ("260", "340"):
        output = subprocess.run(
            [sys.executable, "-c", _WORKER, str(tmp_path), tokens],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    found = values(output)
    assert found["context_summary_count_total"] == 2
    assert found["context_prune_count_total"] == 2
    assert found["context_overflow_reject_count_total"] == 2
    assert found["avg_prompt_tokens_per_turn"] == 300
    assert found["prompt_tokens_per_turn_sum"] == 600
    assert found["turn_latency_seconds_count,status=completed"] == 2
    assert found["provider_latency_seconds_count,model_alias=main,purpose=summary"] == 2
    assert found["provider_errors_total,kind=timeout"] == 2
    assert found["estimate_to_actual_ratio_count,model_alias=main"] == 2
    assert found["input_budget_use_ratio_count,model_alias=main"] == 4
    assert found["turns_lost_total"] == 6
    assert found["db_pool_wait_seconds_count"] == 2
    assert found["db_connection_use_seconds_total"] == 3
    # What both see alike is not added up: the newest look, and the size that both state.
    assert found["open_turns,status=running"] == 340
    assert found["oldest_open_turn_seconds,status=awaiting_tools"] == 0
    assert found["db_pool_connections"] == 20
    assert found["database_up"] == 1


_WITH_ALL_LABELS = """
import json, sys
from decimal import Decimal
from pathlib import Path
from typing import get_args
from app.api.problems import KINDS
from app.domain.types import Purpose, TurnStatus, Usage
from app.telemetry.metrics import Telemetry
from tests.telemetry.test_metrics import audit_of, turn_of
folder = Path(sys.argv[1])
def on_disk():
    found = {path.name: path.stat() for path in folder.glob("*.db")}
    return {name: [each.st_size, each.st_blocks * 512] for name, each in found.items()}
aliases = sys.argv[2:]
telemetry = Telemetry(aliases, folder, KINDS)
before = on_disk()
for alias in [*aliases, "a stranger"]:
    audit = audit_of(wire_tokens=300, actual_tokens=300)
    telemetry.turn_finished(turn_of(TurnStatus.COMPLETED, 100, alias), [audit], 0.1)
    for purpose in get_args(Purpose):
        telemetry.model_usage(alias=alias, purpose=purpose, usage=Usage(1, 1), cost_usd=Decimal(1))
    for purpose in [*get_args(Purpose), "count", "another"]:
        with telemetry.measured_call(alias, purpose):
            pass
print(json.dumps([before, on_disk()]))
"""


def test_the_files_of_a_worker_never_grow_and_have_no_gap_that_a_full_disk_could_not_hold(tmp_path: Path) -> None:
    """A write to a part of a mapped file that the disk cannot hold ends the worker."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    aliases = [f"model-{number}-{'é' * 40}" for number in range(20)]
    command = [sys.executable, "-c", _WITH_ALL_LABELS, str(tmp_path), *aliases]
    before, after = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    assert before == after
    assert len(before) > 3
    assert all(size <= on_disk for size, on_disk in before.values())


def test_a_worker_that_replaces_a_killed_one_goes_on_with_its_counts_and_not_with_its_state(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    worker = f"""
from pathlib import Path
from app.telemetry.metrics import Telemetry
import sys
telemetry = Telemetry([], Path({str(tmp_path)!r}))
print(telemetry.render()[0].decode() + "END")
telemetry.event_loop_lag(float(sys.argv[1]))
telemetry.session_cache_size(10)
telemetry.turns_lost()
print(telemetry.render()[0].decode() + "END", flush=True)
sys.stdin.read()
"""

    def start(lag_s: str) -> tuple[subprocess.Popen[str], list[dict[str, float]]]:
        process = subprocess.Popen(
            [sys.executable, "-c", worker, lag_s],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        return process, [values("".join(iter(process.stdout.readline, "END\n"))) for _ in ("before", "after")]

    def figures(found: dict[str, float]) -> tuple[float, float, float]:
        return found["event_loop_lag_seconds"], found["session_cache_bytes"], found["turns_lost_total"]

    slow, (_, after) = start("0.75")
    assert figures(after) == (0.75, 10, 1)
    other, (_, after) = start("0.25")
    assert figures(after) == (0.75, 20, 2)
    files = set(tmp_path.iterdir())
    for _ in range(3):
        slow.kill()
        slow.communicate()
        slow, (before, after) = start("0.5")
        assert before["session_cache_bytes"] == 10
    assert figures(after) == (0.5, 20, 5)
    assert set(tmp_path.iterdir()) == files  # else each scrape would take longer
    for process in (slow, other):
        process.kill()
        process.communicate()
