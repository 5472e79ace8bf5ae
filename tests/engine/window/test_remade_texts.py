"""Shortened texts are not stored: a reference says how each is made again of its message, by later versions too."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from app.domain.types import JsonObject, Message, MessageId, ToolCall, TurnId, TurnStatus
from app.engine.policy.policy import ClearToolResults
from app.engine.window.plan import Ready, assemble, plan
from app.engine.window.prompt_refs import SentHashes, rebuilt_parts
from tests.engine.histories import GUARDED, History, UnitShape, estimate, snapshot_of

_LETTERS: Final = ("k", "h", "e", "l", "p")


def _message(seq: int, role: str) -> Message:
    turn_id, is_result = TurnId(History().new_id()), role == "tool"
    text = "".join(f"{seq}.{at} Ärger 日 \U0001f600\n" for at in range(60))
    return Message(
        MessageId(History().new_id()),
        turn_id,
        seq,
        "tool" if is_result else "assistant",
        [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}],
        2,
        tool_calls=() if is_result else (ToolCall(f"call_{seq}", "look_up", "{}"),),
        tool_call_id=f"call_{seq - 1}" if is_result else None,
        reasoning="So it is.",
    )


def test_prompts_that_were_stored_with_shortened_texts_are_rebuilt_to_their_hashes() -> None:
    """The hashes were made when these references came into use. If one changes, stored prompts cannot be rebuilt: a new
    form of shortened texts needs new letters."""
    messages = {seq: _message(seq, "assistant" if seq % 2 else "tool") for seq in range(1, 9)}
    hashes = {}
    for letter in _LETTERS:
        refs: JsonObject = {"items": [[f"{letter}t", 1, 1], [letter, 2, 2], ["m", 3, 3], [letter, 4, 8]], "tools": None}
        hashes[letter] = SentHashes({}, messages).sha256(refs)
        parts = list(rebuilt_parts(refs, {}, messages))
        assert [part.shortened for part in parts] == [True, True, False, True, True, True, True, True]
        assert [("handle m2" in str(part.sent["content"])) for part in parts[:2]] == [False, letter in "hl"]
    assert hashes == {
        "k": "b4c763519920e862cad8b63fa159e6e31a11fc3524ecef8e6987ae3629dd0261",
        "h": "87bdeb9dffe0dab76be2f4c3605592218d8111a0eb79736eb2f95c6fdd13da05",
        "e": "f88d2befb5bf75890db784493218d59ade068082b7f9ccd25c87540e2a67d6f6",
        "l": "f3b7141ac98004bc05f51b298ea8d757f1b7ca30ce509e08c4312733a8310887",
        "p": "14be1743e712250822f5f7caf65e30683c2ff82cbbb65da29b22a245e5993aa9",
    }


def test_a_long_loop_of_tools_stores_no_block_for_a_result_that_was_shortened_or_cleared() -> None:
    round_of_400: tuple[UnitShape, int, int] = ("tool_group", 400, 1)
    turn = History().turn(*[round_of_400] * 80, user_tokens=50, status=TurnStatus.RUNNING)
    stored = {message.seq: message for message in turn.messages}
    cleared = replace(GUARDED, clear_tool_results=ClearToolResults(trigger_tokens=1000))
    for policy, letters in ((GUARDED, {"m", "k", "h"}), (cleared, {"m", "e", "l", "k", "h"})):
        snapshot = replace(snapshot_of((), turn, input_budget=16_000, policy=policy), may_look_back=True)
        ready = plan(snapshot, estimate)
        assert isinstance(ready, Ready)
        assembled = assemble(ready)
        kinds = [ref[0] for ref in assembled.refs["items"]]
        assert len([kind for kind in kinds if kind in _LETTERS]) > 50
        assert set(kinds) - {"b"} <= letters
        assert len(assembled.blocks) <= kinds.count("b") + 1  # and the tools
        assert SentHashes(assembled.blocks, stored).sha256(assembled.refs) == assembled.sha256
        assert [part.sent for part in rebuilt_parts(assembled.refs, assembled.blocks, stored)] == assembled.messages
