"""Planted demands and values: what a user said once, early, and has to stand in the prompt of a turn that asks nothing.

They are planted in the first turns of recorded conversations. After so many folds that the messages left long ago, the
prompt of a message about nothing is searched for their words: recall has no reason to bring them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from app.domain.types import Message, MessageId, Turn, TurnId, TurnStatus
from app.engine.messages.tokens import Estimate
from app.engine.window.plan import Ready
from bench.fidelity.engine_rule import EngineRule
from bench.fidelity.look_back import Archive, LookedBack
from bench.fidelity.recorded import Conversation, numbered_message

PLANTED: Final = {
    "Never write to the table ledger_entry.": "which tables must not be written",
    "Always answer in British English.": "answer in which English",
    "Do not book anything before 11 AM.": "do not book before what time",
    "The restore command is `pg_restore -j 4 -d ledger`.": "restore command",
    "Our staging host is db-7.example.org.": "staging host",
    "The case number is BA-2207-44.": "case number",
    "Only use the card that ends in 4471.": "which card to use",
    "The config file is /etc/harbour/cranes.toml.": "config file path",
}
"""What a user says, and with which words a model looks back for it."""
LEAST_FOLDS: Final = 5
_NOTED: Final = "Noted."
_ABOUT_NOTHING: Final = "Go on, please."


@dataclass(frozen=True, slots=True)
class Kept:
    """Of so many statements in conversations that were summarized often enough: the share that the prompt has, and that
    it has once the model has looked back once."""

    planted: int
    folds: int
    kept_share: float
    reached_share: float


def measure_kept(rule: EngineRule, conversations: Sequence[Conversation], estimate: Estimate) -> Kept:
    """Plants every statement behind the first turn of every conversation, and looks for all at its end.

    Conversations that are summarized less than `LEAST_FOLDS` times are left out.
    """
    folds: list[int] = []
    found: list[tuple[bool, bool]] = []
    for conversation in conversations:
        with_statements = planted(conversation, estimate)
        _, state = rule.replay(with_statements)
        if state.folds < LEAST_FOLDS:
            continue
        folds.append(state.folds)
        asked, archive = rule.decide(with_statements, state, _ABOUT_NOTHING), Archive.of(with_statements)
        for statement, words in PLANTED.items():
            if not isinstance(asked, Ready):
                found.append((False, False))
                continue
            turn = LookedBack(asked)
            is_kept = statement in turn.text()
            found.append((is_kept, is_kept or statement in turn.then(words, archive, estimate).text()))
    asked_for = max(1, len(found))
    shares = [sum(each) / asked_for for each in zip(*found, strict=True)] or [0.0, 0.0]
    return Kept(len(found), round(sum(folds) / max(1, len(folds))), *shares)


def planted(conversation: Conversation, estimate: Estimate) -> Conversation:
    """The conversation with a turn for each statement behind its first turn."""
    first, *others = conversation.turns
    said_at = first.messages[0].said_at
    statements: list[list[Message]] = []
    for number, statement in enumerate(PLANTED):
        turn_id = TurnId(UUID(int=10**6 + number))
        words = (("user", statement), ("assistant", _NOTED))
        statements.append([numbered_message(turn_id, 1, role, text, estimate, said_at=said_at) for role, text in words])
    found: list[Turn] = []
    seq = 0
    for messages in (first.messages, *statements, *(turn.messages for turn in others)):
        numbered = tuple(
            replace(message, id=MessageId(UUID(int=at)), seq=at) for at, message in enumerate(messages, start=seq + 1)
        )
        seq += len(numbered)
        turn_id = numbered[0].turn_id
        found.append(Turn(turn_id, len(found) + 1, TurnStatus.COMPLETED, unresolved=False, messages=numbered))
    return replace(conversation, turns=tuple(found))
