"""Plimsoll's own engine as a rule: the doors that a turn of the service goes through, with the offline summarizer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from uuid import UUID

import numpy as np

from app.domain.content import content_text
from app.domain.prices import Prices
from app.domain.types import (
    CompletionRequest,
    JsonObject,
    Summary,
    SummaryBody,
    SummaryId,
    Turn,
    TurnId,
    TurnStatus,
    Usage,
)
from app.engine.messages.tokens import Estimate
from app.engine.policy.budget import Budget, budget_for
from app.engine.policy.policy import ContextPolicy
from app.engine.recall.index import EMPTY, Index, Packed
from app.engine.recall.ranking import evicted_among
from app.engine.recall.vectors import Meaning, Rows, Vectors, packed_query
from app.engine.summary.block import fit_summary
from app.engine.summary.cached_call import QUOTED_SHARE, behind_the_prompt, cheaper_call
from app.engine.summary.extractive import fallback_summary
from app.engine.summary.fold import Fold
from app.engine.summary.summarizer_prompt import (
    SummaryRefused,
    accept_summary,
    split_for_summarizer,
    summarizer_prompt,
    summarizer_usage,
)
from app.engine.window.cache_break import repeated
from app.engine.window.past import past_of
from app.engine.window.plan import Ready, Refused, SummaryDue, assemble, plan, with_summary
from app.engine.window.shares import with_shared_budget
from app.engine.window.snapshot import Snapshot
from app.engine.window.triggers import fold_after_turn
from app.providers.local_embeddings import LocalEmbeddings
from app.providers.offline import OfflineProvider
from app.services.embeddings import MOST_EMBEDDED_CHARS
from bench.fidelity.measure import Sent
from bench.fidelity.plain_rules import calls_of
from bench.fidelity.recorded import Conversation, Question, numbered_message

SUMMARIZER_ROOM_TOKENS = 16_384


def budget_of_input(input_budget: int, policy: ContextPolicy) -> Budget:
    """The budget of the smallest window that has this room for input."""
    low, high = 1, 4 * input_budget + 8192
    while low < high:
        middle = (low + high) // 2
        if budget_for(middle, "bench", policy.max_output_tokens).input_budget >= input_budget:
            high = middle
        else:
            low = middle + 1
    return budget_for(low, "bench", policy.max_output_tokens)


@dataclass(slots=True)
class State:
    """A session between two turns."""

    summary: Summary | None = None
    raw: list[Turn] = field(default_factory=list[Turn])
    since_summary: int = 0
    folds: int = 0
    index: Index = EMPTY
    vectors: Vectors | None = None
    folded: dict[int, Turn] = field(default_factory=dict[int, Turn])
    seq: int = 0
    last_refs: JsonObject | None = None
    """The references of the last prompt."""
    spent: list[Usage] = field(default_factory=list[Usage])
    """Of summarizer calls since the last prompt."""


class EngineRule:
    """A policy's value as a rule; with `vector_of` a text's packed vector, it also recalls by meaning. With `prices` of
    a provider that caches prompts, a summarizer call repeats the last prompt where the service would do that."""

    def __init__(
        self,
        policy: ContextPolicy,
        input_budget: int,
        estimate: Estimate,
        vector_of: Callable[[str], Rows] | None = None,
        prices: Prices | None = None,
    ) -> None:
        self.policy = policy
        self._prices = prices
        self._vector_of = vector_of
        self._budget = budget_of_input(input_budget, policy)
        self._estimate = estimate
        self._offline = OfflineProvider(estimate)

    def replay(self, conversation: Conversation) -> tuple[list[Sent], State]:
        """Every model call of the conversation, tool rounds included."""
        state = State()
        sent: list[Sent] = []
        for turn in conversation.turns:
            if turn.messages[0].role == "user":
                sent += [self._send(conversation, state, current) for current in _rounds(turn)]
            state.raw.append(turn)
            state.since_summary += 1
            state.seq = turn.messages[-1].seq
            self._after_turn(conversation, state)
        return sent, state

    def ask(self, conversation: Conversation, state: State, question: Question) -> Sent:
        """The prompt of the question, of which the state keeps nothing."""
        return _sent(self.decide(conversation, state, question.text))

    def decide(self, conversation: Conversation, state: State, text: str) -> Ready | Refused:
        """What is sent for a user's message after the last one, of which the state keeps nothing."""
        turn_id = TurnId(UUID(int=10**9))
        message = numbered_message(turn_id, state.seq + 1, "user", text, self._estimate, said_at=conversation.ended_at)
        current = Turn(turn_id, 10**9, TurnStatus.RUNNING, unresolved=True, messages=(message,))
        copied = replace(state, raw=list(state.raw), folded=dict(state.folded), spent=[])
        return self._decide(conversation, copied, current)

    def _send(self, conversation: Conversation, state: State, current: Turn) -> Sent:
        decided = self._decide(conversation, state, current)
        spent, state.spent = state.spent, []
        if isinstance(decided, Ready):
            state.last_refs = assemble(decided).refs
        return _sent(decided, spent)

    def _decide(self, conversation: Conversation, state: State, current: Turn) -> Ready | Refused:
        snapshot = self._with_evicted(state, self._snapshot(conversation, state, current))
        decided = plan(snapshot, self._estimate)
        if isinstance(decided, SummaryDue):
            decided = self._summarize(state, decided)
        elif decided.summary_worthless:
            state.since_summary = 0
        return decided

    def _with_evicted(self, state: State, snapshot: Snapshot) -> Snapshot:
        """The same with what may come back of what the state's summary stands for."""
        if not self.policy.recall.enabled or state.summary is None:
            return snapshot
        asked, budget = snapshot.current.messages[0], snapshot.budget.input_budget
        meaning = None
        if self._vector_of and state.vectors:
            meaning = Meaning(self._vector_of(content_text(asked.content)), state.vectors)
        evicted = evicted_among(state.index, state.folded.__getitem__, asked, self.policy.recall, budget, meaning)
        return replace(snapshot, evicted=evicted)

    def _summarize(self, state: State, due: SummaryDue) -> Ready | Refused:
        snapshot = due.snapshot
        summary = self._make(state, due.fold, snapshot)
        if summary is not None:
            self._take(state, due.fold, summary)
            snapshot = self._with_evicted(state, with_summary(due.snapshot, due.fold, summary, self._estimate))
        return plan(snapshot, self._estimate, may_summarize=False)

    def _after_turn(self, conversation: Conversation, state: State) -> None:
        """What a policy does in the background, here before anything else happens."""
        nobody = Turn(TurnId(UUID(int=0)), state.seq + 1, TurnStatus.RUNNING, unresolved=True, messages=())
        snapshot = self._snapshot(conversation, state, nobody)
        fold = fold_after_turn(snapshot, self._estimate)
        summary = self._make(state, fold, snapshot) if fold else None
        if fold and summary:
            self._take(state, fold, summary)

    def _take(self, state: State, fold: Fold, summary: Summary) -> None:
        folded = {turn.id for turn in fold.turns}
        state.summary = summary
        state.raw = [turn for turn in state.raw if turn.id not in folded]
        state.folds += 1
        state.since_summary = 0
        state.index = state.index.extended(Packed.of(fold.messages), fold.messages[-1].seq)
        state.folded |= {message.seq: turn for turn in fold.turns for message in turn.messages}
        if self._vector_of:
            texts = {m.seq: content_text(m.content) for m in fold.messages if m.role != "tool"}
            rows = {seq: self._vector_of(text) for seq, text in texts.items() if text}
            for seq, row in rows.items():
                before = state.vectors or Vectors.none_of("bench", len(row))
                state.vectors = before.extended(np.array([seq]), row.tobytes())

    def _snapshot(self, conversation: Conversation, state: State, current: Turn) -> Snapshot:
        snapshot = Snapshot(
            policy=self.policy,
            budget=self._budget,
            layers=(("system:session", conversation.system),) if conversation.system else (),
            goal=None,
            pins=(),
            summary=state.summary,
            past=past_of(state.raw),
            current=current,
            completed_since_summary=state.since_summary,
            may_look_back=self.policy.look_back != "off",
        )
        shared = with_shared_budget(snapshot, self._estimate).budget
        # An output by share may leave the input more than the budget that is compared.
        budget = replace(shared, input_budget=min(shared.input_budget, self._budget.input_budget))
        return replace(snapshot, budget=budget)

    def _make(self, state: State, fold: Fold, snapshot: Snapshot) -> Summary | None:
        answered, spent = self._asked(fold)
        behind = self._behind_prompt(state, fold, snapshot, sum(each.completion_tokens for each in spent))
        state.spent += [behind] if behind else spent
        body = answered or fallback_summary(fold, self._estimate)
        if body is None:
            return None
        first, last = fold.messages[0], fold.messages[-1]
        from_id = fold.previous.from_message_id if fold.previous else first.id
        return Summary(SummaryId(UUID(int=last.seq)), body, from_id, last.id, last.seq, "model")

    def _asked(self, fold: Fold) -> tuple[SummaryBody | None, list[Usage]]:
        """As `services/turn/summarizer_call.py` asks: chunk by chunk, each with what the one before gave."""
        body, spent = fold.previous.body if fold.previous else None, list[Usage]()
        for chunk in split_for_summarizer(fold, SUMMARIZER_ROOM_TOKENS, self._estimate):
            prompt = summarizer_prompt(fold, chunk, body, SUMMARIZER_ROOM_TOKENS, self._estimate)
            request = CompletionRequest(prompt.messages, max_output_tokens=2 * fold.cap_tokens, purpose="summary")
            answered = asyncio.run(self._offline.complete(request))
            asked_tokens = sum(self._estimate(content_text(message["content"])) for message in prompt.messages)
            spent.append(Usage(asked_tokens, self._estimate(answered.text or "")))
            try:
                accepted = accept_summary(answered.text, prompt.known_ids, prompt.items_before)
                body = fit_summary(accepted, fold.cap_tokens, self._estimate)
            except SummaryRefused:
                return None, spent
        return body, spent

    def _behind_prompt(self, state: State, fold: Fold, snapshot: Snapshot, answer_tokens: int) -> Usage | None:
        """The usage of a call behind the last prompt in place of separate ones, if that is cheaper. Its summary is
        taken to be the same, and its answer to be longer than `answer_tokens`, as it cites by quotations."""
        if self._prices is None or state.last_refs is None:
            return None
        found = repeated(snapshot, fold, self._estimate)
        behind = behind_the_prompt(fold, extend=self.policy.incremental, focus=self.policy.focus)
        tokens = found.prompt.wire_tokens + sum(self._estimate(message["content"]) for message in behind)
        if tokens > self._budget.prompt_ceiling or not found.goes_on_from(state.last_refs):
            return None
        expected = summarizer_usage(fold, None, SUMMARIZER_ROOM_TOKENS, self._estimate, extend=self.policy.incremental)
        cached = Usage(tokens, int(QUOTED_SHARE * answer_tokens), found.cached_tokens)
        choice = cheaper_call(
            fold.cap_tokens, expected.prompt_tokens, self._prices, replace(cached, completion_tokens=0), self._prices
        )
        return cached if choice.call == "cached" else None


def _sent(decided: Ready | Refused, summarizer: Sequence[Usage] = ()) -> Sent:
    input_tokens = decided.window.input_tokens
    if isinstance(decided, Refused):
        return Sent(None, input_tokens, summarizer)
    recalled_tokens = sum(row.tokens for row in decided.accounts.recalled)
    messages, tools_tokens = assemble(decided).messages, decided.prompt.tools_tokens
    return Sent(messages, input_tokens, summarizer, recalled_tokens, tools_tokens)


def local_vectors() -> Callable[[str], Rows]:
    """What gives a text's packed vector by the local model; a text that comes again is not asked for again."""
    model = LocalEmbeddings()

    @cache
    def vector_of(text: str) -> Rows:
        embedded = asyncio.run(model.embed([text[:MOST_EMBEDDED_CHARS]], timeout_s=60.0))
        found = packed_query(embedded.vectors[0])
        assert found is not None, "the model gives every text a direction"
        return found

    return vector_of


def _rounds(turn: Turn) -> list[Turn]:
    """The turn as it stands before each of its model calls."""
    running = replace(turn, status=TurnStatus.RUNNING, unresolved=True)
    return [replace(running, messages=turn.messages[:end]) for end in calls_of(turn)]
