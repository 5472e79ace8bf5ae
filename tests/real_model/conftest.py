"""The real model, a Plimsoll of its own before it, and the conversation, which is played once for all tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from plimsoll_demo.client import Service
from plimsoll_demo.own_service import own_service

from .conversation import TURNS
from .figures import Figures, TurnRow
from .model_server import FOLDER, MODEL, WINDOW_TOKENS, ModelServer, model_server

MAX_REPLY_TOKENS = 160
OVERSTATED_TOKENS = 16_384
_FIGURES = pytest.StashKey[Figures]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = Figures()


def pytest_terminal_summary(config: pytest.Config) -> None:
    """Prints what was measured and keeps it as JSON."""
    figures = config.stash[_FIGURES]
    if figures.turns:
        figures.print()
        figures.write(FOLDER / "figures.json")


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> Figures:
    return pytestconfig.stash[_FIGURES]


@pytest.fixture(scope="session")
def the_model() -> Generator[ModelServer]:
    with model_server() as server:
        yield server


@dataclass(frozen=True, slots=True)
class Plimsoll:
    """A running service and its log."""

    service: Service
    log_path: Path

    def why_no_summary(self, session_id: str) -> Counter[str]:
        """Why a summarizer's answers were not used in the session's turns, counted. The log leaves repetitions out."""
        steps = self.service.request("GET", f"/v1/sessions/{session_id}/export").body["steps"]
        failures = [step["detail"]["failure"] for step in steps if step["kind"] == "summarize"]
        return Counter(failure for failure in failures if failure)

    def overflow_errors(self) -> int:
        """Calls, summaries' too, that the model refused as too long, as `/metrics` counts them."""
        metrics = httpx.get(f"{self.service.url}/metrics", trust_env=False).text
        found = re.search(r'^provider_errors_total\{kind="overflow"\} (\S+)$', metrics, re.MULTILINE)
        return int(float(found[1])) if found else 0

    def summaries(self, session_id: str) -> list[dict[str, Any]]:
        """The session's summaries, newest first."""
        return self.service.request("GET", f"/v1/sessions/{session_id}/summaries", limit=100).body["items"]


@pytest.fixture(scope="session")
def plimsoll(the_model: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Generator[Plimsoll]:
    """With its embedded Postgres and every setting at its default, but for the role of the summary: Gemma's template
    has no system role, and its server drops such messages."""
    models = tmp_path_factory.mktemp("real-model") / "models.toml"
    models.write_text(catalogue(the_model.base_url))
    log_path = FOLDER / "plimsoll.log"
    settings = {"MODELS_FILE": str(models), "CONTEXT_SUMMARY_ROLE": "user"}
    with own_service(settings, log_path=log_path) as url, Service(url, timeout_s=600.0) as service:
        yield Plimsoll(service, log_path)


def catalogue(base_url: str) -> str:
    """One model under three aliases: its window stated, stated too large, and not stated."""
    windows = {
        "main": f"context_window = {WINDOW_TOKENS}",
        "overstated": f"context_window = {OVERSTATED_TOKENS}",
        "unstated": "",
    }
    return 'default = "main"\n' + "".join(
        f'[models.{alias}]\nprovider = "openai"\nmodel = "{MODEL}"\nbase_url = "{base_url}"\n{window}\n'
        "timeout_s = 600\nparameters = { temperature = 0.7, seed = 20 }\n"
        for alias, window in windows.items()
    )


@dataclass(frozen=True, slots=True)
class Played:
    """The conversation as it went: a session, and for each turn its answer and its audit."""

    session_id: str
    answers: list[dict[str, Any]]
    audits: list[dict[str, Any]]
    refused_by_the_model: int
    overflow_errors: int


@pytest.fixture(scope="session")
def played(plimsoll: Plimsoll, the_model: ModelServer, figures: Figures) -> Played:
    """Plays the twenty turns; a turn that is not answered ends the run."""
    service = plimsoll.service
    session_id = service.create_session({"model_alias": "main"})
    answers: list[dict[str, Any]] = []
    audits: list[dict[str, Any]] = []
    resent_tokens, refused_before, errors_before = 0, the_model.answers(400), plimsoll.overflow_errors()
    for number, said in enumerate(TURNS, start=1):
        answer = service.post_turn(session_id, {"content": said, "max_output_tokens": MAX_REPLY_TOKENS})
        assert answer.status_code == 201, (number, answer.body)
        turn = answer.body["turn"]
        audit = dict(service.audit(session_id, str(turn["id"])))
        origin = str(plimsoll.summaries(session_id)[0]["origin"]) if audit["summary_triggered"] else None
        resent_tokens += audit["regions"]["user"]
        figures.turns.append(turn_row(number, turn, audit, resent_tokens, origin, answer.elapsed_s))
        resent_tokens += turn["completion_tokens"]
        answers.append(dict(answer.body))
        audits.append(audit)
    refused, errors = the_model.answers(400) - refused_before, plimsoll.overflow_errors() - errors_before
    return Played(session_id, answers, audits, refused, errors)


def turn_row(
    number: int,
    turn: Mapping[str, Any],
    audit: Mapping[str, Any],
    resent_tokens: int,
    origin: str | None,
    elapsed_s: float,
) -> TurnRow:
    """The figures of one turn."""
    return TurnRow(
        number=number,
        attempt=audit["attempt"],
        window_tokens=audit["model_context_limit"],
        window_source=audit["context_limit_source"],
        input_budget_tokens=audit["input_budget"],
        input_tokens=audit["estimated_input_tokens_after_prune"],
        wire_tokens=audit["estimated_wire_tokens"],
        calibration_ratio=audit["calibration_ratio"],
        reported_tokens=audit["actual_prompt_tokens"],
        reply_tokens=turn["completion_tokens"],
        resent_tokens=resent_tokens,
        summary=origin,
        is_pruned=audit["prune_triggered"],
        elapsed_s=round(elapsed_s, 1),
    )
