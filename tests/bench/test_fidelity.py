"""The fidelity bench on a conversation made here: its metric, its engine rule, and what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.engine.policy.policy import PRESETS, Recall
from app.tokenizers.counters import Tokenizers
from bench.fidelity.engine_rule import EngineRule, budget_of_input
from bench.fidelity.kept import LEAST_FOLDS, measure_kept
from bench.fidelity.kept import PLANTED as STATEMENTS
from bench.fidelity.look_back import measure_look_backs
from bench.fidelity.measure import common_prefix_tokens, evidence_share, has_answer, measure, violation
from bench.fidelity.recorded import REPLY_WORDS, Question, as_one_loop, read_conversations, with_long_replies
from bench.fidelity.rules import CACHING
from bench.fidelity.updates import PLANTED, measure_updates
from bench.fidelity.values import measure_values
from tests.docs.pages import ROOT

GUARDED = PRESETS["guarded"].policy
ESTIMATE = Tokenizers().estimator("o200k_base")
NAMES = [f"{first}{last}" for first in ("Kar", "Lem", "Nor", "Pel", "Ras") for last in ("anto", "ebel", "igus", "oma")]
QUESTION = Question("Where are the bees?", ("lighthouse",), ("Bees live behind the lighthouse.", "Two hives."), "one")


def recording(folder: Path, turns: int = 30) -> Path:
    """A conversation in which something was said once, early."""
    messages: list[dict[str, str]] = []
    for number in range(turns):
        said = "My sister Ottilie keeps bees behind the lighthouse." if number == 2 else f"The weather, part {number}."
        messages += [
            {"id": f"u{number}", "role": "user", "content": said},
            {"id": f"a{number}", "role": "assistant", "content": f"Clouds drift on over harbour {number}. " * 4},
        ]
    asked = {"q": "Where are Ottilie's bees?", "answers": ["lighthouse"], "evidence": ["u2"], "category": "one"}
    path = folder / "made.jsonl"
    path.write_text(json.dumps({"id": "c", "messages": messages, "questions": [asked]}) + "\n")
    return path


def test_evidence_counts_as_whole_messages_and_an_answer_in_any_one_line() -> None:
    prompt = [
        {"role": "system", "content": 'A record.\n<r>\n{"summary":"Bees. lighthouse","key_facts":["x"]}\n</r>'},
        {"role": "user", "content": "Two hives."},
        {"role": "user", "content": QUESTION.text},
    ]
    assert evidence_share(prompt, QUESTION) == 0.5
    assert has_answer(prompt, QUESTION)
    assert not has_answer(prompt[1:], QUESTION)


def test_a_chat_with_long_replies_has_every_message_as_a_users_and_is_the_same_every_time(tmp_path: Path) -> None:
    (one,) = read_conversations(recording(tmp_path), ESTIMATE)
    long = with_long_replies(one, ESTIMATE)
    assert long == with_long_replies(one, ESTIMATE)
    texts = [message.content for turn in one.turns for message in turn.messages]
    assert [turn.messages[0].content for turn in long.turns] == texts
    assert all(len(str(turn.messages[1].content).split()) == REPLY_WORDS for turn in long.turns)


def test_orphans_and_prompts_without_a_user_are_violations() -> None:
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}],
    }
    result = {"role": "tool", "tool_call_id": "c", "content": "r"}
    user = {"role": "user", "content": "u"}
    assert violation([user, call, result]) is None
    assert violation([user, result]) == "orphaned result"
    assert violation([user, call, user]) == violation([user, call]) == "orphaned call"
    assert violation([call, result]) == "no user message"
    assert common_prefix_tokens([user, call], [user, result], ESTIMATE) == common_prefix_tokens(
        [user], [user], ESTIMATE
    )


def test_a_budget_is_that_of_the_smallest_window_with_so_much_input() -> None:
    for preset in PRESETS.values():
        assert budget_of_input(4096, preset.policy).input_budget == 4096


def test_guarded_brings_back_what_left_and_no_prompt_is_over_its_budget(tmp_path: Path) -> None:
    conversations = read_conversations(recording(tmp_path), ESTIMATE)
    figures = measure(EngineRule(GUARDED, 2048, ESTIMATE), conversations, 2048, ESTIMATE).figures()
    assert figures["ev"] == figures["ans"] == 1
    assert figures["prompts_over_budget"] == figures["prompts_with_violation"] == figures["prompts_refused"] == 0
    assert figures["summarizer_tokens"][0] > 0


def test_a_provider_that_caches_gets_the_same_prompts_for_less_money(tmp_path: Path) -> None:
    conversations = [with_long_replies(each, ESTIMATE) for each in read_conversations(recording(tmp_path), ESTIMATE)]
    separate, cheaper = (
        measure(EngineRule(GUARDED, 4096, ESTIMATE, prices=prices), conversations, 4096, ESTIMATE).figures()
        for prices in (None, CACHING)
    )
    assert cheaper["sent_tokens_per_turn"] == separate["sent_tokens_per_turn"]
    assert cheaper["ev"] == separate["ev"]
    assert cheaper["eff_tokens_per_turn"] < separate["eff_tokens_per_turn"]
    assert separate["summarizer_tokens"][1] == 0 < cheaper["summarizer_tokens"][1]


def test_the_tool_rounds_of_all_transcripts_make_one_turn(tmp_path: Path) -> None:
    def transcript(name: str) -> str:
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        asked, answered = {"role": "user", "content": name}, {"role": "assistant", "content": "Done."}
        called = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "c", "content": name * 40}
        return json.dumps({"id": name, "messages": [asked, called, result, answered]})

    path = tmp_path / "tools.jsonl"
    path.write_text("\n".join(map(transcript, NAMES)))
    loop = as_one_loop(read_conversations(path, ESTIMATE), ESTIMATE)
    (turn,) = loop.turns
    assert [message.role for message in turn.messages] == ["user", *["assistant", "tool"] * len(NAMES)]
    figures = measure(EngineRule(GUARDED, 1024, ESTIMATE), [loop], 1024, ESTIMATE).figures()
    assert figures["prompts"] == len(NAMES) + 1
    assert figures["prompts_over_budget"] == figures["prompts_with_violation"] == figures["prompts_refused"] == 0


def test_the_newest_statement_is_in_the_prompt_behind_the_one_that_it_corrects(tmp_path: Path) -> None:
    conversations = read_conversations(recording(tmp_path, turns=60), ESTIMATE)
    for budget in (1024, 4096):
        rule = EngineRule(GUARDED, budget, ESTIMATE)
        found = measure_updates(rule, conversations, ESTIMATE)
        assert (found.planted, found.in_order_share) == (len(PLANTED), 1.0)
        assert found.newest_share >= 0.95


def test_what_a_user_demanded_once_stands_in_the_prompt_after_many_summaries(tmp_path: Path) -> None:
    conversations = read_conversations(recording(tmp_path, turns=60), ESTIMATE)
    found = measure_kept(EngineRule(GUARDED, 4096, ESTIMATE), conversations, ESTIMATE)
    assert found.folds >= LEAST_FOLDS
    assert (found.planted, found.kept_share) == (len(STATEMENTS), 1.0)
    tight = measure_kept(EngineRule(GUARDED, 1024, ESTIMATE), conversations, ESTIMATE)
    assert tight.kept_share < tight.reached_share == 1.0


def test_what_a_prompt_without_recall_lacks_is_one_look_back_away(tmp_path: Path) -> None:
    conversations = read_conversations(recording(tmp_path), ESTIMATE)
    policy = replace(GUARDED, recall=Recall(enabled=False))
    found = measure_look_backs(EngineRule(policy, 2048, ESTIMATE), conversations, 2048, ESTIMATE)
    assert (found.questions, found.ev[:2], found.ev_of_turn) == (1, (0, 1), (0, 1, 1))
    assert found.over_budget == found.broken == 0
    assert found.page_tokens > 0


def test_a_value_of_a_tool_output_is_read_again_by_the_words_around_it(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "orders", "arguments": "{}"}}
    rows = "\n".join(f"parcel of {name} weighs {at * 7}.25 kg" for at, name in enumerate(NAMES, start=11))
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Read the parcels"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": rows},
        {"role": "assistant", "content": "Read."},
    ]
    for number in range(12):
        messages += [{"role": "user", "content": f"Next, {number}"}, {"role": "assistant", "content": "Clouds. " * 40}]
    path = tmp_path / "tools.jsonl"
    path.write_text(json.dumps({"id": "t", "messages": messages}))
    rule = EngineRule(GUARDED, 2048, ESTIMATE)
    found = measure_values(rule, read_conversations(path, ESTIMATE), 2048, ESTIMATE)
    assert (found.sampled, found.after_two) == (8, 1.0)
    assert found.in_prompt < found.after_two
    assert found.over_budget == found.broken == 0


def test_one_command_prints_the_table_and_draws_the_plot(tmp_path: Path) -> None:
    recording(tmp_path)
    picture = tmp_path / "plot.svg"
    command = [sys.executable, "-m", "bench.fidelity", str(tmp_path), "--budgets", "1024,2048", "--plot", str(picture)]
    command += ["--rules", "guarded;rolling;keep last 20 messages"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'apps' / 'api'}{os.pathsep}{ROOT}"}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert "guarded" in said
    assert picture.read_text().count("<polyline") == 3
    (ROOT / said.split()[-1]).unlink()
