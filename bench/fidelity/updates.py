"""Planted updates: facts that a user states and corrects later, asked for at the end of recorded conversations.

Of a correction, the newest statement has to be in the prompt, and behind the one that it corrects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from app.domain.content import content_text
from app.domain.types import Turn, TurnId, TurnStatus
from app.engine.messages.tokens import Estimate
from bench.fidelity.engine_rule import EngineRule
from bench.fidelity.recorded import Conversation, Question, numbered_message

PLANTED: Final = (
    ("My dentist is Dr. Okafor.", "My dentist is Dr. Lindqvist now.", "Who is my dentist?"),
    ("The stand-up is at nine.", "They moved the stand-up to half past ten.", "When is the stand-up?"),
    ("The rental car is on level 3.", "Correction: the rental is on level 7.", "Where is the rental car?"),
    ("My flight to Lisbon is on Monday.", "The Lisbon flight is on Thursday now.", "When do I fly to Lisbon?"),
    ("The wifi password is tulip-42.", "I changed the wifi password to heron-77.", "What is the wifi password?"),
    ("The kitchen budget is 8,000.", "We raised the kitchen budget to 11,500.", "What is the kitchen budget?"),
    ("My sister Ines lives in Porto.", "Ines lives in Braga these days.", "Where does my sister Ines live?"),
    ("I am allergic to walnuts.", "The test says I am allergic to hazelnuts.", "What am I allergic to?"),
    ("My thesis is due on 12 June.", "The thesis deadline is 30 June now.", "When is my thesis due?"),
    ("The parcel goes to Elm Street 4.", "Send the parcel to Birch Lane 19 instead.", "Where does the parcel go?"),
    ("The database is on port 5432.", "We switched the database to port 6543.", "Which port has the database?"),
    ("My cat is called Biscuit.", "We renamed the cat, she is Marmalade.", "What is my cat called?"),
    ("The recital is in the town hall.", "The recital will be in the old brewery.", "Where is the recital?"),
    ("I want to learn the cello.", "I want to learn the harp instead.", "Which instrument do I want to learn?"),
)
"""What is said, how it is corrected, and what is asked."""
AROUND: Final = (
    " It was a long week with the garden and the fence, we went to the lake twice, and I finally read that novel you "
    "mentioned, which I liked a lot even though the ending felt rushed and the middle part could have been shorter."
)
"""What else may be said beside a correction, which makes it dear."""
_NOTED: Final = "Noted."


@dataclass(frozen=True, slots=True)
class Updates:
    """Of so many corrections: shares whose newest statement was in the prompt, and behind the older where both were."""

    planted: int
    newest_share: float
    in_order_share: float


def measure_updates(
    rule: EngineRule, conversations: Sequence[Conversation], estimate: Estimate, around: str = ""
) -> Updates:
    """Plants every fact in every conversation, with `around` behind its correction, and asks for each at the end.

    Conversations that are too short for all of them are left out.
    """
    conversations = [each for each in conversations if len(each.turns) >= 2 * len(PLANTED) + 2]
    ordered: list[bool] = []
    present = 0
    for conversation in conversations:
        with_facts = planted(conversation, estimate, around)
        _, state = rule.replay(with_facts)
        for older, newer, asked in PLANTED:
            sent = rule.ask(with_facts, state, Question(asked, (), (), "update")).messages or ()
            texts = [content_text(message["content"]) for message in sent if message["role"] == "user"]
            present += newer + around in texts
            if newer + around in texts and older in texts:
                ordered.append(texts.index(older) < texts.index(newer + around))
    total = len(PLANTED) * len(conversations)
    return Updates(total, present / max(1, total), sum(ordered) / len(ordered) if ordered else 1.0)


def planted(conversation: Conversation, estimate: Estimate, around: str = "") -> Conversation:
    """The conversation with a turn for each statement in its first half, and for each correction in its second."""
    said = [*(older for older, _, _ in PLANTED), *(newer + around for _, newer, _ in PLANTED)]
    step = len(conversation.turns) // (len(said) + 2)
    found: list[Turn] = []
    seq = 0
    for number, turn in enumerate(conversation.turns, start=1):
        spoken = [[(each.role, content_text(each.content)) for each in turn.messages]]
        if step and number % step == 0 and number // step <= len(said):
            spoken.append([("user", said[number // step - 1]), ("assistant", _NOTED)])
        for words in spoken:
            turn_id, said_at = TurnId(UUID(int=len(found) + 1)), turn.messages[0].said_at
            messages = tuple(
                numbered_message(turn_id, at, role, text, estimate, said_at=said_at)
                for at, (role, text) in enumerate(words, start=seq + 1)
            )
            seq += len(messages)
            found.append(Turn(turn_id, len(found) + 1, TurnStatus.COMPLETED, unresolved=False, messages=messages))
    return replace(conversation, turns=tuple(found))
