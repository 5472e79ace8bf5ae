"""Twenty turns through the 4,096-token window of a small real model, whose tokenizer is not ours."""

from __future__ import annotations

from statistics import mean

from plimsoll_demo.prompt_check import prompt_faults

from .conftest import MAX_REPLY_TOKENS, Played, Plimsoll
from .conversation import TURNS
from .figures import Figures, TurnRow
from .model_server import WINDOW_TOKENS

SETTLED_FROM_TURN = 5
"""The guard moves by a tenth a turn at most: it knows a figure-heavy prompt from the fifth on."""


def test_every_turn_is_answered_and_the_model_refuses_no_prompt_as_too_long(played: Played, figures: Figures) -> None:
    assert [answer["turn"]["status"] for answer in played.answers] == ["completed"] * len(TURNS)
    assert [audit["attempt"] for audit in played.audits] == [1] * len(TURNS)
    assert (played.refused_by_the_model, played.overflow_errors) == (0, 0)
    assert figures.turns[-1].resent_tokens > WINDOW_TOKENS
    figures.noted["overflow errors in twenty turns"] = played.refused_by_the_model


def test_every_prompt_is_within_its_budget_by_our_count_and_leaves_room_for_the_reply_by_the_models(
    played: Played, plimsoll: Plimsoll, figures: Figures
) -> None:
    service = plimsoll.service
    for said, answer, audit in zip(TURNS, played.answers, played.audits, strict=True):
        prompt = service.prompt(played.session_id, str(answer["turn"]["id"]))
        assert prompt_faults(prompt, audit, user_message=said, round_number=1) == {}
        assert audit["model_context_limit"] == WINDOW_TOKENS
        assert audit["actual_prompt_tokens"] <= WINDOW_TOKENS - audit["output_reserve"]
        assert answer["turn"]["completion_tokens"] <= MAX_REPLY_TOKENS
    figures.noted["largest prompt by the model's count"] = max(row.reported_tokens for row in figures.turns)


def test_the_window_and_its_summaries_are_what_the_audits_say(played: Played, plimsoll: Plimsoll) -> None:
    summaries = plimsoll.summaries(played.session_id)
    made = [audit["summary_triggered"] for audit in played.audits]
    assert len(summaries) == sum(made) > 0
    assert [summary["status"] for summary in summaries] == ["active"] + ["superseded"] * (len(summaries) - 1)
    first = made.index(True)
    for at, (answer, audit) in enumerate(zip(played.answers, played.audits, strict=True)):
        assert audit["estimated_wire_tokens"] == sum(audit["regions"].values())
        assert (audit["regions"]["summary"] > 0) == (at >= first), at
        sent = plimsoll.service.prompt(played.session_id, str(answer["turn"]["id"])).body["messages"]
        # In the model's own replies it may stand too: a base model repeats what it has read.
        given = [str(message["content"]) for message in sent if message["role"] != "assistant"]
        assert sum("<conversation-record>" in content for content in given) == (at >= first)
        kinds = {action["kind"] for action in audit["context_trim_log"]["actions"]}
        assert ("summary_folded" in kinds) == audit["summary_triggered"], at
        assert audit["estimated_input_tokens_after_summary"] <= audit["estimated_input_tokens_before"]
    now = plimsoll.service.request("GET", f"/v1/sessions/{played.session_id}/context").body
    assert (now["model_context_limit"], now["active_summary_id"]) == (WINDOW_TOKENS, summaries[0]["id"])


def test_the_calibration_closes_the_gap_to_the_models_own_count(played: Played, figures: Figures) -> None:
    """The guard is the mean of what was seen and its spread: it may fall short once in a while, by little."""
    settled = figures.turns[SETTLED_FROM_TURN - 1 :]
    assert mean(row.ratio_before for row in settled) > 1.02, "the tokenizers agree: there is no gap to close"
    assert figures.turns[0].calibration_ratio == 1.0
    assert max(row.ratio_after for row in settled) <= 1.05
    covered = [row for row in settled if row.ratio_after <= 1.0]
    assert len(covered) >= 0.8 * len(settled)
    assert _shortfall(settled, calibrated=True) < _shortfall(settled, calibrated=False) / 4
    figures.noted["reported over estimated tokens from turn 5 on"] = {
        "raw, mean": round(mean(row.ratio_before for row in settled), 3),
        "raw, highest": round(max(row.ratio_before for row in settled), 3),
        "calibrated, mean": round(mean(row.ratio_after for row in settled), 3),
        "calibrated, highest": round(max(row.ratio_after for row in settled), 3),
        "turns covered": f"{len(covered)} of {len(settled)}",
    }


def _shortfall(rows: list[TurnRow], *, calibrated: bool) -> float:
    """By how many tokens the estimates were too low, summed over the turns in which they were."""
    factors = [row.calibration_ratio if calibrated else 1.0 for row in rows]
    return sum(max(0.0, row.reported_tokens - row.wire_tokens * at) for row, at in zip(rows, factors, strict=True))


def test_summaries_that_are_no_summaries_are_refused_and_the_fallback_stands_in(
    played: Played, plimsoll: Plimsoll, figures: Figures
) -> None:
    """A base model of this size writes on where it should summarize. What is stored is sound all the same."""
    summaries = plimsoll.summaries(played.session_id)
    origins = {origin: sum(summary["origin"] == origin for summary in summaries) for origin in ("model", "fallback")}
    refused = plimsoll.why_no_summary(played.session_id)
    assert sum(origins.values()) == len(summaries)
    assert origins["fallback"] == sum(refused.values()) > 0
    asked = [summary for summary in summaries if summary["prompt_tokens"]]
    assert len(asked) >= 1, "the model was never asked for a summary"
    assert not {"provider_error", "provider_timeout", "provider_context_overflow"} & refused.keys()
    active = summaries[0]
    assert active["summary_text"].strip()
    known = {message for summary in summaries for message in _cited(summary)}
    assert known, "no summary cites a message"
    figures.noted["summaries by origin"] = origins
    figures.noted["why the model's were not used"] = dict(refused)


def _cited(summary: dict[str, object]) -> set[str]:
    items = [summary[name] for name in ("key_facts", "open_questions", "decisions", "action_items")]
    return {str(cited) for found in items for item in found for cited in item["message_ids"]}  # type: ignore[attr-defined]
