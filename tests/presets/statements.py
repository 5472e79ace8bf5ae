"""What each preset promises (contract.md, sections 8 to 10), as checks on recordings. One that sees nothing fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from app.engine.window.plan import assert_tool_pairing
from plimsoll_demo.client import Answer
from plimsoll_demo.prompt_check import prompt_faults
from tests.presets.conversations import GOAL_OF_ALL
from tests.presets.looking import (
    after_turn_tokens,
    kinds,
    made_in_background,
    pruned,
    raw_part,
    raw_turns,
    sent_form,
    summarized,
    usage_threshold,
    wire_tokens,
    words_of_users,
)
from tests.presets.recordings import Recording, Sent

Check: TypeAlias = Callable[[Recording], None]
BOTH = ("shipped", "tools")
BEGINNINGS = (
    "Goal of this conversation: ",
    "Pinned for this conversation: ",
    "What follows is a record of the earlier part of this conversation",
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A promise in words, the scenes it is held to, and the check."""

    says: str
    check: Check
    scenes: tuple[str, ...] = BOTH


def every_turn_is_completed(of: Recording) -> None:
    assert [turn.status for turn in of.turns] == ["completed"] * len(of.scene.conversation.turns)


def no_prompt_over_budget(of: Recording) -> None:
    assert all(sent.input_tokens <= sent.budget for _, sent in of.sent)


def tool_groups_whole(of: Recording) -> None:
    for _, sent in of.sent:
        assert_tool_pairing(sent.messages)


def newest_words_verbatim(of: Recording) -> None:
    for turn, sent in of.sent:
        assert words_of_users(sent)[-1] == turn.said
        assert sent.round > 1 or sent.messages[-1] == {"role": "user", "content": turn.said}


def regions_sum(of: Recording) -> None:
    assert all(sum(sent.audit["regions"].values()) == sent.audit["estimated_wire_tokens"] for _, sent in of.sent)


def trim_log_sums(of: Recording) -> None:
    for _, sent in of.sent:
        log = sent.audit["context_trim_log"]
        removed = sum(action["tokens_removed_est"] for action in log["actions"])
        assert log["estimated_tokens_before"] - removed == log["estimated_tokens_after"]
        assert log["estimated_tokens_after"] == sent.audit["estimated_wire_tokens"]
        assert all(set(action) == {"kind", "target", "reason", "tokens_removed_est"} for action in log["actions"])


def prompts_are_rebuilt(of: Recording) -> None:
    for turn, sent in of.sent:
        faults = prompt_faults(Answer(200, sent.prompt), sent.audit, user_message=turn.said, round_number=sent.round)
        assert faults == {}


def regions_in_order(of: Recording) -> None:
    beginnings = (of.scene.conversation.instructions or "", *BEGINNINGS)
    for _, sent in of.sent:
        places = [
            next((at for at, text in enumerate(beginnings) if str(message["content"]).startswith(text)), -1)
            if message["role"] == "system"
            else len(beginnings)
            for message in sent.messages
        ]
        assert places == sorted(places)
        assert places[:2] == [0, 1]


def stored_as_it_was_said(of: Recording) -> None:
    for turn, recorded in zip(of.turns, of.scene.conversation.turns, strict=True):
        said = [recorded.prompt]
        for round_ in recorded.rounds:
            said += [round_.text, *(call.result for call in round_.calls)]
        assert [message["content"] for message in turn.stored] == said


def whole_turns_unless_pruned(of: Recording) -> None:
    for turn, sent in of.sent:
        assert sent.audit["prune_triggered"] or raw_turns(of, turn, sent) is not None


def standing_text_in_every_prompt(of: Recording) -> None:
    for _, sent in of.sent:
        texts = "\n".join(str(message["content"]) for message in sent.messages if message["role"] == "system")
        assert (of.scene.conversation.instructions or "") in texts
        assert GOAL_OF_ALL in texts


def one_active_summary(of: Recording) -> None:
    assert [summary["status"] for summary in of.summaries] == ["superseded"] * (len(of.summaries) - 1) + ["active"]
    assert {summary["from_message_seq"] for summary in of.summaries} == {1}


OF_ALL = (
    Statement("completes every turn", every_turn_is_completed),
    Statement("sends no prompt over its budget", no_prompt_over_budget),
    Statement("sends no tool call without its results and no result without its call", tool_groups_whole),
    Statement("sends the newest user message word for word, last", newest_words_verbatim),
    Statement("gives regions that sum to the wire estimate", regions_sum),
    Statement("logs every token that left, in the shape of the contract", trim_log_sums),
    Statement("rebuilds every prompt with the hash it was sent with", prompts_are_rebuilt),
    Statement("sends system, goal, pins, summary and history in this order", regions_in_order),
    Statement("sends system text and goal in every prompt", standing_text_in_every_prompt),
    Statement("changes nothing that is stored", stored_as_it_was_said),
    Statement("sends whole turns in time order unless it prunes", whole_turns_unless_pruned),
    Statement("has one active summary, which stands for the conversation from its start", one_active_summary),
)


def guarded_triggers(of: Recording) -> None:
    last = 0
    for turn in of.turns:
        for sent, reason in zip(
            [sent for sent in turn.sent if sent.audit["summary_triggered"]], turn.summary_reasons, strict=True
        ):
            at_threshold = sent.before >= 0.70 * sent.budget
            assert at_threshold if reason == "threshold" else turn.number - 1 - last == 8 - (last > 0), turn.number
            last = turn.number
    summarized(of)


def guarded_starts_at_turn_nine(of: Recording) -> None:
    turn, _ = summarized(of)[0]
    assert (turn.number, turn.summary_reasons) == (9, ["turn_count"])


def keeps_users_words_of_the_newest(turns: int) -> Check:
    def check(of: Recording) -> None:
        for turn, sent in summarized(of):
            newest = [earlier.said for earlier in of.turns[max(0, turn.number - 1 - turns) : turn.number - 1]]
            assert words_of_users(sent)[-1 - len(newest) : -1] == newest

    return check


def keeps_the_newest_that_fit(most: int, share: float) -> Check:
    def check(of: Recording) -> None:
        for turn, sent in summarized(of):
            newest = of.turns[max(0, turn.number - 1 - most) : turn.number - 1]
            while len(newest) > 1 and wire_tokens(newest) > share * sent.budget:
                newest = newest[1:]
            assert words_of_users(sent)[:-1] == [earlier.said for earlier in newest]

    return check


def recalls_below_the_prune_threshold(of: Recording) -> None:
    recalled = [sent for _, sent in of.sent if sent.audit["regions"]["recall"]]
    assert recalled
    assert all(sent.input_tokens < 0.90 * sent.budget for sent in recalled)


def prunes_at_ninety_percent(of: Recording) -> None:
    for _, sent in pruned(of):
        assert sent.audit["estimated_input_tokens_after_summary"] >= 0.90 * sent.budget


def guarded_prunes_below(of: Recording) -> None:
    assert all(sent.input_tokens < 0.90 * sent.budget for _, sent in pruned(of))


def summarizes_before_it_prunes(of: Recording) -> None:
    assert any(sent.audit["summary_triggered"] for _, sent in pruned(of))
    for _, sent in pruned(of):
        order = [action["kind"] == "summary_folded" for action in sent.actions]
        assert order == sorted(order, reverse=True)


def prunes_no_words_of_users(of: Recording) -> None:
    for turn, sent in pruned(of):
        words = words_of_users(sent)
        assert words == [earlier.said for earlier in of.turns[turn.number - len(words) : turn.number]]
    assert kinds(of) <= {"summary_folded", "assistant_dropped", "tool_group_dropped", "tool_result_shortened"}


GUARDED = (
    Statement("summarizes at 70 % of the input budget or after 8 turns", guarded_triggers),
    Statement("makes its first summary of short turns before the ninth", guarded_starts_at_turn_nine, ("shipped",)),
    Statement("keeps of the last 4 turns what a quarter of the budget holds", keeps_the_newest_that_fit(4, 0.25)),
    Statement("keeps the last 4 turns raw, without their share", keeps_users_words_of_the_newest(4), ("raw",)),
    Statement("prunes only from 90 % of the input budget on", prunes_at_ninety_percent, ("raw",)),
    Statement("prunes down to below 90 %", guarded_prunes_below, ("raw",)),
    Statement("summarizes before it prunes", summarizes_before_it_prunes, ("raw",)),
    Statement("recalls only in the room below 90 % of the input budget", recalls_below_the_prune_threshold),
    Statement("prunes no words of a user", prunes_no_words_of_users, ("raw",)),
)


def post_turn_waits_only_at_the_prune_threshold(of: Recording) -> None:
    assert all(sent.before >= int(0.90 * sent.budget) for _, sent in summarized(of))


def post_turn_triggers(of: Recording) -> None:
    made = made_in_background(of)
    assert made
    for turn in made:
        assert after_turn_tokens(turn) >= usage_threshold(turn.sent[-1], 0.80)


def post_turn_answers_first(of: Recording) -> None:
    for turn in made_in_background(of):
        at_once = any(sent.audit["summary_triggered"] for sent in turn.sent)
        assert turn.answer_at_once["summary_triggered"] == turn.sent[-1].audit["summary_triggered"]
        following = of.turns[turn.number : turn.number + 1]
        assert at_once or all(later.first.audit["regions"]["summary"] for later in following)


def post_turn_keeps_five(of: Recording) -> None:
    seen = 0
    for turn in made_in_background(of):
        for later in of.turns[turn.number : turn.number + 1]:
            newest = [earlier.said for earlier in of.turns[turn.number - 5 : turn.number]]
            assert words_of_users(later.first)[-6:-1] == newest
            seen += 1
    assert seen


POST_TURN = (
    Statement(
        "lets a call wait for a summary only where a prune is the other way",
        post_turn_waits_only_at_the_prune_threshold,
    ),
    Statement("summarizes after the turn from 80 % of the window on", post_turn_triggers, ("shipped",)),
    Statement("has answered before it summarizes", post_turn_answers_first, ("shipped",)),
    Statement("keeps the last 5 turns raw", post_turn_keeps_five, ("shipped",)),
    Statement("prunes only from 90 % of the input budget on", prunes_at_ninety_percent, ("shipped",)),
)


def rolling_triggers(of: Recording) -> None:
    summarized(of)
    for _, sent in of.sent:
        assert sent.audit["summary_triggered"] == (sent.before >= usage_threshold(sent, 0.80))


def rolling_extends(of: Recording) -> None:
    assert len(of.summaries) >= 3
    assert [summary["previous_summary_id"] for summary in of.summaries] == [
        None,
        *(summary["id"] for summary in of.summaries[:-1]),
    ]
    covered = [summary["to_message_seq"] for summary in of.summaries]
    assert covered == sorted(set(covered))


def rolling_summarizes_once(of: Recording) -> None:
    folded = [
        of.turn(target).number
        for _, sent in summarized(of)
        for target in sent.targets("summary_folded")
        if target.startswith("turn:")
    ]
    assert folded == list(range(1, len(folded) + 1))


def rolling_keeps_what_fits(of: Recording) -> None:
    for turn, sent in summarized(of):
        kept = raw_turns(of, turn, sent)
        assert kept
        assert wire_tokens(kept) <= 0.50 * sent.budget
        assert wire_tokens([of.turns[kept[0].number - 2], *kept]) > 0.50 * sent.budget


def rolling_counts_no_turns(of: Recording) -> None:
    assert {reason for turn in of.turns for reason in turn.summary_reasons} <= {"usage", "threshold"}


ROLLING = (
    Statement("summarizes at 80 % of the window over the whole prompt, and never below", rolling_triggers),
    Statement("extends the summary it has and stores how far it goes", rolling_extends),
    Statement("summarizes every turn once, in order", rolling_summarizes_once),
    Statement("keeps as many recent turns raw as half the budget has room for", rolling_keeps_what_fits),
    Statement("never summarizes because of a number of turns", rolling_counts_no_turns),
)


def allocated_goal(of: Recording) -> None:
    assert all(f"Goal of this conversation: {GOAL_OF_ALL}" in str(sent.messages[1]["content"]) for _, sent in of.sent)


def allocated_output(of: Recording) -> None:
    for _, sent in of.sent:
        audit, regions = sent.audit, sent.audit["regions"]
        rest = audit["model_context_limit"] - audit["overhead_reserve"] - regions["system"] - regions["user"]
        assert audit["output_reserve"] == rest // 10


def allocated_flows_to_history(of: Recording) -> None:
    assert any(sent.audit["regions"]["history"] > 5 * sent.audit["output_reserve"] for _, sent in of.sent)


def with_trimmed_pins(of: Recording) -> list[Sent]:
    found = [sent for _, sent in of.sent if sent.targets("pinned_trim")]
    assert found, "no prompt of this recording has trimmed pins"
    return found


def allocated_pins_by_relevance(of: Recording) -> None:
    for sent in with_trimmed_pins(of):
        assert sent.targets("pinned_trim")[0] == "bank", "the least relevant first"
        assert "ledger" not in sent.targets("pinned_trim"), "the most relevant one stays whole"
        assert sent.targets("pinned_drop") == [], "shortening was enough"


def allocated_pins_share(of: Recording) -> None:
    for sent in with_trimmed_pins(of):
        rest = 10 * sent.audit["output_reserve"] + 10
        assert sent.audit["regions"]["pins"] > 0.50 * rest
        assert sent.input_tokens > 0.97 * sent.budget, "what others leave is theirs"


def allocated_summary_share(of: Recording) -> None:
    shown = [sent for _, sent in of.sent if sent.audit["regions"]["summary"]]
    assert shown
    assert all(sent.audit["regions"]["summary"] <= 0.25 * (10 * sent.audit["output_reserve"] + 10) for sent in shown)


def allocated_actions(of: Recording) -> None:
    assert kinds(of)
    assert kinds(of) <= {"summary_folded", "summary_shortened", "pinned_trim", "pinned_drop", "history_drop"}


ALLOCATED = (
    Statement("sends the goal whole in every prompt", allocated_goal, ("shipped", "tools", "pins")),
    Statement("gives the output a tenth of what system text and message leave", allocated_output, ("shipped", "pins")),
    Statement("gives the history what goal, pins and summary do not use", allocated_flows_to_history, ("shipped",)),
    Statement("shortens the least relevant pins first and drops none before", allocated_pins_by_relevance, ("pins",)),
    Statement("gives pins their half and what the others leave", allocated_pins_share, ("pins",)),
    Statement("holds the summary to its quarter where pins use theirs", allocated_summary_share, ("pins",)),
    Statement("drops of the history whole turns alone", allocated_actions, ("shipped", "tools", "pins")),
    Statement("logs every prompt as all presets do where pins are trimmed", trim_log_sums, ("pins",)),
    Statement("rebuilds every prompt where pins are trimmed", prompts_are_rebuilt, ("pins",)),
)


def atomic_whole_turns(of: Recording) -> None:
    assert all(raw_turns(of, turn, sent) is not None for turn, sent in of.sent)
    assert kinds(of) <= {"summary_folded", "turn_dropped"}


def atomic_triggers(of: Recording) -> None:
    made = made_in_background(of)
    assert made
    for turn in made:
        last = turn.sent[-1]
        messages = len(raw_part(last)) + 1
        assert messages >= 20 or after_turn_tokens(turn) >= usage_threshold(last, 0.75), turn.number


def atomic_fits_the_window(of: Recording) -> None:
    for _, sent in of.sent:
        audit = sent.audit
        assert audit["estimated_wire_tokens"] + audit["output_reserve"] <= audit["model_context_limit"]


def atomic_drops_the_oldest(of: Recording) -> None:
    for turn, sent in pruned(of):
        dropped = [of.turn(target).number for target in sent.targets("turn_dropped")]
        kept = raw_turns(of, turn, sent)
        assert kept is not None
        assert dropped == list(range(dropped[0], turn.number - len(kept)))


def atomic_newest_group_stays(of: Recording) -> None:
    later = [(turn, sent) for turn, sent in of.sent if sent.round > 1]
    assert later
    for turn, sent in later:
        newest = [sent_form(message) for message in turn.stored if message["role"] == "tool"]
        assert {sent_form(message) for message in raw_part(sent) if message["role"] == "tool"} & set(newest)


TURN_ATOMIC = (
    Statement("sends whole turns alone, pruned or not", atomic_whole_turns),
    Statement("summarizes in the background at 20 messages or 75 % of the window", atomic_triggers),
    Statement("calls only where messages, tools and the answer fit the window", atomic_fits_the_window),
    Statement("drops the oldest turns first", atomic_drops_the_oldest, ("shipped",)),
    Statement("keeps the results that the running turn goes on from", atomic_newest_group_stays, ("tools",)),
)

STATEMENTS = {
    "guarded": (*OF_ALL, *GUARDED),
    "post_turn": (*OF_ALL, *POST_TURN),
    "rolling": (*OF_ALL, *ROLLING),
    "allocated": (*OF_ALL, *ALLOCATED),
    "turn_atomic": (*OF_ALL, *TURN_ATOMIC),
}
