"""A scripted model that looks back: through the doors of the engine that a turn of the service goes through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from app.domain.content import content_text
from app.domain.types import Completion, Message, ToolCall
from app.engine.messages.tokens import Estimate, message_tokens
from app.engine.recall.bm25 import Query
from app.engine.recall.dates import day_said
from app.engine.recall.index import EMPTY, Index, Packed
from app.engine.recall.look_back_pages import (
    TextPage,
    matching_seqs,
    messages_to_read,
    page_of_matches,
    page_of_message,
    seq_of,
)
from app.engine.window.look_back import (
    AT_THE_CAP,
    NAME,
    NOT_THERE,
    NOTHING_FOUND,
    LookBack,
    Read,
    look_back_messages,
    next_page_tokens,
    next_search,
    round_tokens,
    with_look_backs,
    without_newest,
)
from app.engine.window.plan import Ready, assemble, plan
from app.engine.window.recalled import looked_back_tokens, room_for_result, seqs_beside_result
from bench.fidelity.engine_rule import EngineRule
from bench.fidelity.measure import violation
from bench.fidelity.recorded import Conversation


@dataclass(frozen=True)
class Archive:
    """All messages of a conversation, by number, and the index of them that a look-back searches."""

    messages: Mapping[int, Message]
    index: Index

    @classmethod
    def of(cls, conversation: Conversation) -> Archive:
        """Of its last state."""
        messages = [message for turn in conversation.turns for message in turn.messages]
        return cls(
            {message.seq: message for message in messages}, EMPTY.extended(Packed.of(messages), messages[-1].seq)
        )

    def matches(
        self, lookup: LookBack, turn: LookedBack, tokens: int, of_round: int, estimate: Estimate
    ) -> TextPage | None:
        """A page of the messages that match, as `services/turn/recall.py` reads it."""
        window = turn.decided.window
        said_day = day_said(window.snapshot.current.messages[0])
        wanted = next_search(lookup, turn.read, seqs_beside_result(window, of_round + tokens, 2), said_day)
        query = Query(lookup.query, self.index.through_seq, said_day)
        seqs = matching_seqs(self.index, query, wanted.without)
        found = [self.messages[seq] for seq in seqs[: messages_to_read(wanted.number, tokens)]]
        return page_of_matches(found, lookup.query, wanted.number, tokens, estimate, wanted.shown_number)


@dataclass(frozen=True)
class LookedBack:
    """A turn after some look-backs: the prompt that the model answers now, and the pages that it was given."""

    decided: Ready
    read: Read = ()
    looked_back: tuple[Message, ...] = ()
    read_tokens: int = 0

    def text(self) -> str:
        """All that the prompt says."""
        return "\n".join(content_text(message["content"]) for message in assemble(self.decided).messages)

    def then(self, lookup: LookBack | str, archive: Archive, estimate: Estimate) -> LookedBack:
        """The same turn once the model has called `look_back` once more; a text is words to search for."""
        lookup = LookBack(lookup, None, None) if isinstance(lookup, str) else lookup
        window = self.decided.window
        calls = len(self.looked_back) // 2
        running = window.snapshot.current
        own = replace(running, messages=tuple(m for m in running.messages if not m.is_look_back))
        call = ToolCall(f"back_{calls}", NAME, "{}")
        answer = Completion(None, "tool_calls", None, (call,))
        unread = look_back_messages(own.id, own.messages[-1].seq, answer, [(call, lookup, "")])
        of_round = round_tokens(unread, estimate)
        room_tokens, before_tokens = room_for_result(window, of_round, len(unread)), looked_back_tokens(window)
        budget = window.budget.input_budget
        size = next_page_tokens(lookup, budget, calls, self.read_tokens, room_tokens, before_tokens)
        page: TextPage | None = None
        if size is not None and lookup.handle is None:
            page = archive.matches(lookup, self, size, of_round, estimate)
        elif size is not None and (message := archive.messages.get(seq_of(lookup.handle or "") or 0)):
            page = page_of_message(message, lookup.query, lookup.page, size, estimate)
        nothing = AT_THE_CAP if size is None else NOT_THERE if lookup.handle else NOTHING_FOUND
        text = page.text if page else nothing
        new = look_back_messages(own.id, own.messages[-1].seq, answer, [(call, lookup, text)])
        with_new = (*self.looked_back, *(_counted(message, estimate) for message in new))
        for looked_back in (with_new, tuple(_counted(message, estimate) for message in without_newest(with_new))):
            snapshot = replace(window.snapshot, current=with_look_backs(own, looked_back), log=None)
            decided = plan(snapshot, estimate, may_summarize=False)
            if isinstance(decided, Ready):
                read = (*self.read, (lookup, page)) if page and looked_back is with_new else self.read
                return LookedBack(decided, read, looked_back, self.read_tokens + estimate(text))
        raise RuntimeError("a prompt that fitted does not fit without what was added to it")


@dataclass(frozen=True)
class Found:
    """Of so many questions, each after one more call: the EV of the prompt that is answered from, and of all prompts of
    the turn together. Prompts that are over the budget or broken; tokens of a question's pages and of its prompts."""

    questions: int
    ev: tuple[float, ...]
    ev_of_turn: tuple[float, ...]
    over_budget: int
    broken: int
    page_tokens: int
    sent_tokens: int


def measure_look_backs(
    rule: EngineRule, conversations: Sequence[Conversation], input_budget: int, estimate: Estimate, calls: int = 2
) -> Found:
    """Asks every question of every conversation at its end, and looks back so often with the words of the question."""
    of_prompt: list[list[float]] = []
    of_turn: list[list[float]] = []
    over = broken = page_tokens = sent_tokens = 0
    for conversation in conversations:
        _, state = rule.replay(conversation)
        archive = Archive.of(conversation)
        for question in conversation.questions:
            asked = rule.decide(conversation, state, question.text)
            turns = [LookedBack(asked)] if isinstance(asked, Ready) else []
            while turns and len(turns) <= calls and turns[-1].decided.window.snapshot.offers_look_back:
                turns.append(turns[-1].then(question.text, archive, estimate))
            held = [[_holds(turn, text) for text in question.evidence] for turn in turns]
            last = held[-1] if held else [False] * len(question.evidence)
            held += [last] * (calls + 1 - len(held))
            so_far = accumulate(held, _either)
            of_prompt.append([_share(each) for each in held])
            of_turn.append([_share(each) for each in so_far])
            page_tokens += turns[-1].read_tokens if turns else 0
            for turn in turns:
                over += turn.decided.window.input_tokens > input_budget
                broken += violation(assemble(turn.decided).messages) is not None
                sent_tokens += turn.decided.prompt.wire_tokens
    asked_for = len(of_prompt)
    ev, ev_of_turn = (
        tuple(sum(column) / max(1, asked_for) for column in zip(*rows, strict=True)) for rows in (of_prompt, of_turn)
    )
    each = max(1, asked_for)
    return Found(asked_for, ev, ev_of_turn, over, broken, page_tokens // each, sent_tokens // each)


def _holds(turn: LookedBack, text: str) -> bool:
    """Whether the prompt has a message of this text, or a page in it has one whole."""
    messages = [message for message in assemble(turn.decided).messages if message["role"] != "system"]
    return any(
        content_text(message["content"]) == text
        or (message["role"] == "tool" and f"] {text}\n" in content_text(message["content"]))
        for message in messages
    )


def _either(before: Sequence[bool], now: Sequence[bool]) -> list[bool]:
    return [one or other for one, other in zip(before, now, strict=True)]


def _share(held: Sequence[bool]) -> float:
    return sum(held) / max(1, len(held))


def _counted(message: Message, estimate: Estimate) -> Message:
    calls, call_id = message.tool_calls, message.tool_call_id
    return replace(message, tokens=message_tokens(message.content, estimate, tool_calls=calls, tool_call_id=call_id))
