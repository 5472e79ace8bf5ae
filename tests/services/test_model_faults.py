"""What the provider says and does: too long, down, another tokenizer; what it costs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import ContextBudgetExceeded, ProviderDown, ProviderOverflow
from app.domain.types import Pin, TurnStatus
from app.engine.window.plan import assert_tool_pairing
from app.services.sessions import put_pin, session_usage
from app.services.views.turns import get_audit, get_prompt
from app.tokenizers.counters import Tokenizers
from tests.providers.server import Answer, ScriptedServer, Seen, serving
from tests.services.service import TENANT, chat, is_summary, model, models_toml, ref_of, service

LONG = "The reconciliation job compares ledger rows with bank lines and reports each difference. " * 20


def too_long(limit: int, prompt: int, output: int) -> Answer:
    """The refusal of an OpenAI-compatible server, in its words."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, you requested {prompt + output} tokens "
        f"({prompt} in the messages, {output} in the completion). Please reduce the length of the messages."
    )
    return Answer(
        {"error": {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}}, 400
    )


def strict_window(limit: int, factor: float = 1.0) -> Any:
    """A model that counts by itself, `factor` times our words, and refuses what is over its window."""
    tokenizers = Tokenizers()

    def play(request: Seen) -> Answer:
        estimate = tokenizers.estimator("o200k_base")
        body = request.json
        prompt = int(factor * sum(estimate(str(message["content"])) + 4 for message in body["messages"]))
        output = body.get("max_completion_tokens") or body.get("max_tokens") or 0
        return too_long(limit, prompt, output) if prompt + output > limit else chat("Fine.", prompt_tokens=prompt)

    return play


def unknown_window(server: ScriptedServer) -> str:
    """A catalogue whose only model nobody knows, believed to have a window of 8,192."""
    return (
        'default = "main"\n[models.main]\nprovider = "openai"\nmodel = "nobody-knows"\n'
        f'base_url = "{server.base_url}"\ntimeout_s = 10\n'
    )


async def test_a_prompt_the_provider_calls_too_long_is_made_smaller_and_the_window_is_learned(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(strict_window(4096)) as server,
        service(database_url, unknown_window(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"summarize_when": "never"})
        await put_pin(at.rt, ref_of(session.id), Pin("rule", "Never touch account 4711."))
        changed = await at.turn(session.id, f"Point 1. {LONG}")
        assert changed.context["context_limit_source"] == "fallback"
        for number in range(2, 20):
            changed = await at.turn(session.id, f"Point {number}. {LONG}")
            if changed.context["context_limit_source"] == "learned":
                break
        assert changed.context["model_context_limit"] == 4096
        assert server.hits > changed.turn.seq, "the provider never refused anything"
        rows = await at.rows(
            "SELECT attempt, prompt_sha256 FROM turn_context_audit WHERE turn_id = CAST(:turn_id AS uuid) "
            "ORDER BY attempt",
            turn_id=changed.turn.id,
        )
        assert len(rows) >= 2, "the audit does not say that the prompt was made again"
        assert rows[0]["prompt_sha256"] != rows[-1]["prompt_sha256"]
        prompt = await get_prompt(at.rt, ref_of(session.id), changed.turn.id, None)
        assert "Never touch account 4711." in prompt.messages[0]["content"]
        assert prompt.messages[-1]["content"].startswith(f"Point {changed.turn.seq}.")
        assert_tool_pairing(prompt.messages)
        stored = await at.rows("SELECT model_alias, tenant_id, context_window, statements FROM learned_windows")
        assert stored == [{"model_alias": "main", "tenant_id": TENANT, "context_window": 4096, "statements": 1}]


async def test_a_server_that_counts_only_to_its_limit_gets_a_prompt_that_fits_and_teaches_no_wrong_size(
    database_url: str, tmp_path: Path
) -> None:
    """vLLM stops counting at the first token too many. Here a prompt has 2.5 times the tokens that we estimate."""
    window = strict_window(4096, factor=2.5)

    def bounded(request: Seen) -> Answer:
        answer = window(request)
        if answer.status == 200:
            return answer
        output = request.json["max_tokens"]
        message = (
            f"This model's maximum context length is 4096 tokens. However, you requested {output} output tokens and "
            f"your prompt contains at least {4096 - output + 1} input tokens, for a total of at least 4097 tokens."
        )
        return Answer({"error": {"message": message, "type": "BadRequestError", "code": 400}}, 400)

    async with (
        serving(*[chat("Fine.")] * 24, bounded) as server,
        service(database_url, models_toml(server, window=4096), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"summarize_when": "never"})
        for number in range(24):
            await at.turn(session.id, f"Point {number}. {LONG[: len(LONG) // 6]}")
        outcome = await at.turn(session.id, f"And now? {LONG}")
        assert outcome.turn.status is TurnStatus.COMPLETED
        assert server.hits > 25, "the provider never refused anything"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (429, "in organization org-x on tokens per min (TPM): Limit {limit}, Requested {asked}. The input or output "),
        (
            413,
            "in organization `org_x` service tier `on_demand` on tokens per minute (TPM): Limit {limit}, "
            "Requested {asked}, please reduce your message size and try again.",
        ),
    ],
    ids=["openai", "groq"],
)
async def test_what_an_account_may_use_in_a_minute_is_not_taken_for_the_models_window(
    database_url: str, tmp_path: Path, status: int, words: str
) -> None:
    window = strict_window(4096)

    def by_the_minute(request: Seen) -> Answer:
        answer = window(request)
        if answer.status == 200:
            return answer
        asked = int(answer.body["error"]["message"].split("requested ")[1].split(" ")[0])
        message = "Request too large for nobody-knows " + words.format(limit=4096, asked=asked)
        return Answer({"error": {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}}, status)

    async with (
        serving(by_the_minute) as server,
        service(database_url, unknown_window(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"summarize_when": "never"})
        outcomes = [await at.turn(session.id, f"Point {number}. {LONG}") for number in range(1, 15)]
        assert server.hits > len(outcomes), "the provider never refused anything"
        assert {outcome.context["model_context_limit"] for outcome in outcomes} == {8192}
        assert {outcome.context["context_limit_source"] for outcome in outcomes} == {"fallback"}
        assert await at.rows("SELECT 1 FROM learned_windows") == []


async def test_after_two_smaller_tries_the_turn_fails_with_the_providers_word(
    database_url: str, tmp_path: Path
) -> None:
    stubborn = Answer({"error": {"message": "prompt is too long", "code": "context_length_exceeded"}}, 400)
    async with (
        serving(chat("Fine."), chat("Fine."), stubborn) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session()
        for number in (1, 2):
            await at.turn(session.id, f"Point {number}. {LONG}")
        with pytest.raises(ProviderOverflow):
            await at.turn(session.id, "And now?")
        assert server.hits == 5, "one try and two smaller ones"
        sizes = [len(json.dumps(seen.json["messages"])) for seen in server.seen[2:]]
        assert sizes == sorted(sizes, reverse=True)
        turn = (await at.rows("SELECT id, status, error FROM turns ORDER BY seq DESC LIMIT 1"))[0]
        assert (turn["status"], turn["error"]["code"]) == ("failed", "provider_context_overflow")


async def test_an_encoding_that_is_wrong_by_thirty_percent_stops_overflowing_after_a_few_turns(
    database_url: str, tmp_path: Path
) -> None:
    """The model counts 1.3 tokens for each of ours and refuses over 4,096; the catalogue's window is right."""
    async with (
        serving(strict_window(4096, factor=1.3)) as server,
        service(database_url, models_toml(server), folder=tmp_path) as at,
    ):
        session = await at.session(policy={"summary_trigger_ratio": 0.99, "prune_trigger_ratio": 0.99})
        refusals: list[int] = []
        outcome = await at.turn(session.id, "Begin")
        for number in range(1, 31):
            before = server.hits
            try:
                outcome = await at.turn(session.id, f"Point {number}. {LONG}")
            except ContextBudgetExceeded:
                break
            summaries = 1 if outcome.context["summary_triggered"] else 0
            if server.hits - before > 1 + summaries:
                refusals.append(number)
        assert all(number <= 12 for number in refusals), refusals
        ratio = at.rt.calibrations.ratio(TENANT, "main", "o200k_base")
        assert 1.2 <= ratio <= 1.45
        audit = await get_audit(at.rt, ref_of(session.id), outcome.turn.id, None)
        assert audit.calibration_ratio == pytest.approx(ratio, abs=0.1)
        await at.rt.calibrations.flush(at.rt.database)
        async with service(database_url, models_toml(server), folder=tmp_path) as restarted:
            loaded = [each.rt.calibrations for each in (at, restarted)]
            for calibrations in loaded:
                await calibrations.load(at.rt.database)
            stored = [calibrations.ratio(TENANT, "main", "o200k_base") for calibrations in loaded]
            assert stored[0] == stored[1] == pytest.approx(ratio, abs=0.01)


async def test_an_alias_that_is_down_gives_way_to_its_fallback_with_a_budget_of_its_own(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(Answer(status=503, headers={"retry-after": "0"})) as down,
        serving(model("From the backup.")) as backup,
    ):
        models = models_toml(down, window=65_536, extra='fallbacks = ["tiny", "backup"]\n') + (
            f'[models.tiny]\nprovider = "openai"\nmodel = "t"\nbase_url = "{backup.base_url}"\n'
            "context_window = 1280\n"
            f'[models.backup]\nprovider = "openai"\nmodel = "b"\nbase_url = "{backup.base_url}"\n'
            "context_window = 4096\n"
        )
        async with service(database_url, models, folder=tmp_path) as at:
            session = await at.session()
            first = await at.turn(session.id, "Hi")
            assert first.turn.status is TurnStatus.COMPLETED
            assert first.turn.assistant_output == "From the backup."
            assert first.turn.model_alias == "backup"
            assert (first.context["model_alias"], first.context["model_context_limit"]) == ("backup", 4096)
            assert down.hits == 3
            second = await at.turn(session.id, "Hi again")
            assert second.turn.model_alias == "backup"
            assert down.hits == 3, "an alias that is known to be down was asked again"
            steps = await at.rows("SELECT detail FROM turn_steps WHERE kind = 'model_call' ORDER BY started_at")
            assert steps[0]["detail"]["before"][0]["model_alias"] == "main"


async def test_an_alias_without_credit_gives_way_to_its_fallback(database_url: str, tmp_path: Path) -> None:
    """Anthropic's error has the status and the code of a wrong request."""
    said = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade."
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": said}}
    async with serving(Answer(error, 400)) as broke, serving(model("From the backup.")) as backup:
        models = models_toml(broke, extra='fallbacks = ["backup"]\n') + (
            f'[models.backup]\nprovider = "openai"\nmodel = "b"\nbase_url = "{backup.base_url}"\n'
            "context_window = 4096\n"
        )
        async with service(database_url, models, folder=tmp_path) as at:
            session = await at.session()
            for _ in range(2):
                assert (await at.turn(session.id, "Hi")).turn.model_alias == "backup"
            assert broke.hits == 1


async def test_with_no_fallback_left_the_turn_fails_and_nothing_is_called_twice_as_often(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(Answer(status=503, headers={"retry-after": "0"})) as down:
        models = models_toml(down, extra='fallbacks = ["other"]\n') + (
            f'[models.other]\nprovider = "openai"\nmodel = "o"\nbase_url = "{down.base_url}"\ncontext_window = 4096\n'
        )
        async with service(database_url, models, folder=tmp_path) as at:
            session = await at.session()
            with pytest.raises(ProviderDown):
                await at.turn(session.id, "Hi")
            assert down.hits == 6
            audits = await at.rows("SELECT model_alias, attempt FROM turn_context_audit ORDER BY attempt")
            assert [row["model_alias"] for row in audits] == ["main", "other"]


async def test_at_an_unknown_host_tokens_are_counted_and_the_cost_is_null(database_url: str, tmp_path: Path) -> None:
    async with (
        serving(model()) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        session = await at.session()
        outcomes = [await at.turn(session.id, f"Point {number}. {LONG}") for number in range(1, 10)]
        assert outcomes[-1].turn.cost_usd is None, "a price was made up for a host nobody knows"
        totals = {(used.model_alias, used.purpose): used for used in await session_usage(at.rt, session.id)}
        assert totals["main", "turn"].calls == 9
        assert totals["main", "summary"].calls == 1
        assert totals["main", "summary"].prompt_tokens == 100
        metrics = at.rt.telemetry.render()[0].decode()
        assert 'model_tokens_total{kind="prompt",model_alias="main",purpose="summary"} 100.0' in metrics


@pytest.mark.parametrize("call", ["separate", "cached"])
async def test_a_summarizer_that_is_down_gives_way_to_a_fallback_that_is_a_language_model(
    database_url: str, tmp_path: Path, call: str
) -> None:
    def answers_no_summary(request: Seen) -> Answer:
        is_asked_for_one = is_summary(request) or "The conversation is interrupted here" in request.body.decode()
        return Answer(status=503, headers={"retry-after": "0"}) if is_asked_for_one else chat("Noted.")

    async with serving(answers_no_summary) as down, serving(model()) as backup:
        models = models_toml(down, window=16_384, extra='fallbacks = ["none", "backup"]\n') + (
            '[models.none]\nprovider = "offline"\n'
            f'[models.backup]\nprovider = "openai"\nmodel = "b"\nbase_url = "{backup.base_url}"\n'
            "context_window = 16384\n"
        )
        async with service(database_url, models, folder=tmp_path) as at:
            session = await at.session(policy={"summary_call": call})
            for number in range(1, 10):
                await at.turn(session.id, f"Point {number}. {LONG}")
            made = await at.rows("SELECT model_alias, origin FROM session_summaries")
            assert made == [{"model_alias": "backup", "origin": "model"}]
            assert down.hits == 9 + 3, "the summarizer was not called, or again after its retries"
            usage = await at.rows("SELECT model_alias FROM usage_records WHERE purpose = 'summary'")
            assert usage == [{"model_alias": "backup"}]


@pytest.mark.parametrize(
    ("requested", "is_ours"), [(None, True), (5_000, True), (500, False)], ids=["by itself", "as far as may be", "less"]
)
async def test_an_answer_that_is_cut_off_at_our_limit_is_a_warning_that_names_the_setting(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, requested: int | None, *, is_ours: bool
) -> None:
    cut = chat("And then")
    cut.body["choices"][0]["finish_reason"] = "length"
    async with (
        serving(lambda _: cut) as server,
        service(database_url, models_toml(server, window=16_384), folder=tmp_path) as at,
    ):
        session = await at.session()
        with caplog.at_level(logging.WARNING, logger="app"):
            outcomes = [await at.turn(session.id, "Tell me", max_output_tokens=requested) for _ in range(2)]
        assert {outcome.turn.finish_reason for outcome in outcomes} == {"length"}
        assert server.seen[0].json["max_tokens"] == min(requested or 2048, 2048)
    lines = [record.getMessage() for record in caplog.records if "cut off" in record.getMessage()]
    assert len(lines) == (1 if is_ours else 0)
    assert all("main" in line and "2048" in line and "CONTEXT_MAX_OUTPUT_TOKENS" in line for line in lines)
