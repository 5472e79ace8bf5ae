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
    ("My dentist is Dr. Okafor.", "My dentist is Dr. Lindqvist now, I left Dr. Okafor.", "Who is my dentist?"),
    ("The stand-up is at nine.", "They moved the stand-up to half past ten.", "When is the stand-up?"),
    ("I parked the rental car on level 3.", "Correction: the rental is on level 7.", "Which level is my rental car on?"),
    ("My flight to Lisbon leaves on Monday.", "Change of plans, the Lisbon flight is on Thursday.", "When do I fly to Lisbon?"),
    ("The wifi password is tulip-42.", "I changed the wifi password to heron-77.", "What is the wifi password?"),
    ("Our budget for the kitchen is 8,000 euros.", "We had to raise the kitchen budget to 11,500.", "What is our budget for the kitchen?"),
    ("My sister Ines lives in Porto.", "Ines has moved, she lives in Braga these days.", "Where does my sister Ines live?"),
    ("I am allergic to walnuts.", "The new test says I am allergic to hazelnuts, walnuts are fine.", "What am I allergic to?"),
    ("The landlord's number is 555-0142.", "The landlord has a new number, 555-0199.", "What is the landlord's number?"),
    ("My thesis is due on 12 June.", "The thesis deadline was extended to 30 June.", "When is my thesis due?"),
    ("I take my coffee with oat milk.", "I stopped with oat milk, black coffee for me now.", "How do I take my coffee?"),
    ("The parcel goes to Elm Street 4.", "Please send the parcel to Birch Lane 19 instead.", "Where does the parcel go?"),
    ("Our database runs on port 5432.", "We switched the database to port 6543 yesterday.", "Which port does our database run on?"),
    ("My cat is called Biscuit.", "We renamed the cat, she is Marmalade now.", "What is my cat called?"),
    ("The recital is in the town hall.", "The recital will be in the old brewery after all.", "Where is the recital?"),
    ("I want to learn the cello.", "I gave up on the cello idea, I want to learn the harp.", "Which instrument do I want to learn?"),
)
"""What is said, how it is corrected, and what is asked."""
_NOTED: Final = "Noted."


@dataclass(frozen=True, slots=True)
class Updates:
    """Of so many corrections: shares whose newest statement was in the prompt, and behind the older where both were."""

    planted: int
    newest_share: float
    in_order_share: float


def measure_updates(rule: EngineRule, conversations: Sequence[Conversation], estimate: Estimate) -> Updates:
    """Plants every fact in every conversation, and asks for each at its end."""
    present = ordered = both = total = 0
    for conversation in conversations:
        with_facts = planted(conversation, estimate)
        _, state = rule.replay(with_facts)
        for older, newer, asked in PLANTED:
            sent = rule.ask(with_facts, state, Question(asked, (), (newer,), "update")).messages or ()
            texts = [content_text(message["content"]) for message in sent if message["role"] == "user"]
            total += 1
            present += newer in texts
            if newer in texts and older in texts:
                both += 1
                ordered += texts.index(older) < texts.index(newer)
    return Updates(total, present / total, ordered / both if both else 1.0)


def planted(conversation: Conversation, estimate: Estimate) -> Conversation:
    """The conversation with a turn for each statement in its first half, and for each correction in its second."""
    turns = conversation.turns
    step = len(turns) // (2 * len(PLANTED) + 2)
    said = [*(older for older, _, _ in PLANTED), *(newer for _, newer, _ in PLANTED)]
    found: list[Turn] = []
    seq = 0
    for number, turn in enumerate(turns):
        texts = [[(each.role, content_text(each.content)) for each in turn.messages]]
        if step and number % step == step - 1 and number // step < len(said):
            texts.append([("user", said[number // step]), ("assistant", _NOTED)])
        for words in texts:
            turn_id = TurnId(UUID(int=len(found) + 1))
            messages = [
                numbered_message(turn_id, seq + at, role, text, estimate, said_at=turn.messages[0].said_at)
                for at, (role, text) in enumerate(words, start=1)
            ]
            seq += len(messages)
            found.append(Turn(turn_id, len(found) + 1, TurnStatus.COMPLETED, unresolved=False, messages=tuple(messages)))
    return replace(conversation, turns=tuple(found))
