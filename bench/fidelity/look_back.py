"""A scripted model that looks back: through the doors of the engine that a turn of the service goes through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.domain.content import content_text
from app.domain.types import Completion, Message, ToolCall
from app.engine.messages.tokens import Estimate, message_tokens
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.dates import day_said
from app.engine.recall.index import EMPTY, Index, Packed
from app.engine.recall.pages import (
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
    exchange,
    next_page_tokens,
    next_search,
    with_look_backs,
    without_newest,
)
from app.engine.window.plan import Ready, assemble, plan
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

    def matches(self, lookup: LookBack, turn: LookedBack, tokens: int, estimate: Estimate) -> TextPage | None:
        """A page of the messages that match, as `services/turn/look_back.py` reads it."""
        window = turn.decided.window
        said_day = day_said(window.snapshot.current.messages[0])
        wanted = next_search(lookup, turn.read, window.seqs_beside(tokens), said_day)
        seqs = matching_seqs(self.index, lookup.query, self.index.through_seq, wanted.without, said_day)
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

    def then(self, lookup: LookBack | str, archive: Archive, policy: ContextPolicy, estimate: Estimate) -> LookedBack:
        """The same turn once the model has called `look_back` once more; a text is words to search for."""
        lookup = LookBack(lookup, None, None) if isinstance(lookup, str) else lookup
        window = self.decided.window
        calls = len(self.looked_back) // 2
        room_tokens, before_tokens = window.room_for_result(0), window.looked_back_tokens
        budget = window.budget.input_budget
        size = next_page_tokens(lookup, budget, calls, self.read_tokens, room_tokens, before_tokens)
        page: TextPage | None = None
        if size is not None and lookup.handle is None:
            page = archive.matches(lookup, self, size, estimate)
        elif size is not None and (message := archive.messages.get(seq_of(lookup.handle or "") or 0)):
            page = page_of_message(message, lookup.query, lookup.page, size, estimate)
        nothing = AT_THE_CAP if size is None else NOT_THERE if lookup.handle else NOTHING_FOUND
        text = page.text if page else nothing
        running = window.snapshot.current
        own = replace(running, messages=tuple(m for m in running.messages if not m.is_look_back))
        call = ToolCall(f"back_{calls}", NAME, "{}")
        answer = Completion(None, "tool_calls", None, (call,))
        new = exchange(own.id, own.messages[-1].seq, answer, [(call, lookup, text)])
        with_new = (*self.looked_back, *(_counted(message, estimate) for message in new))
        for looked_back in (with_new, tuple(_counted(message, estimate) for message in without_newest(with_new))):
            snapshot = replace(window.snapshot, current=with_look_backs(own, looked_back), log=None)
            decided = plan(snapshot, policy, estimate, may_summarize=False)
            if isinstance(decided, Ready):
                read = (*self.read, (lookup, page)) if page and looked_back is with_new else self.read
                return LookedBack(decided, read, looked_back, self.read_tokens + estimate(text))
        raise RuntimeError("a prompt that fitted does not fit without what was added to it")


def holds(pages: Sequence[TextPage], text: str) -> bool:
    """Whether a page has a message of this text, whole."""
    return any(f"] {text}\n" in page.text for page in pages)


def _counted(message: Message, estimate: Estimate) -> Message:
    calls, call_id = message.tool_calls, message.tool_call_id
    return replace(message, tokens=message_tokens(message.content, estimate, tool_calls=calls, tool_call_id=call_id))
