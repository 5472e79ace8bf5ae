"""What a process keeps of a session is what is stored of it: workers that keep pasts, and one that keeps none, decide
and send the same, whatever happens to the session and whoever's turn it is."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import is_
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any
from uuid import UUID

import pytest

from app.domain.errors import ContextBudgetExceeded, NotFound, NothingToSummarize, ProviderError, SummaryNotActive
from app.domain.responses import item_id
from app.domain.types import JsonObject, Message, SessionId, Summary, TurnId, TurnStatus
from app.engine.policy.policy import ContextPolicy
from app.engine.window.columns import Columns
from app.engine.window.past import past_of_columns
from app.services.archive.transfer import fork_session
from app.services.openai.conversations import withdraw_item
from app.services.pasts import Counting, Pasts
from app.services.runtime import Runtime
from app.services.sessions import change_session
from app.services.summaries import summarize_now, undo_summary
from app.services.turn.gather import session_window
from app.services.turn.take import cancel_turn, retry_turn
from app.services.turn.types import TurnOptions, TurnRequest
from app.services.turn.window_rows import counting_of
from app.services.views.context import window_now
from app.services.views.preview import preview_turn
from app.services.views.turns import get_prompt, get_turn, list_turns
from app.telemetry.metrics import Telemetry
from app.tokenizers.counters import Tokenizers
from app.tokenizers.vocabularies import load_vocabulary
from tests.engine.histories import History
from tests.engine.histories import chat as chat_history
from tests.engine.pictures import image, png
from tests.providers.server import Answer, Seen, serving
from tests.services.service import OLDEST, Service, chat, client_tools, model, ref_of, service
from tests.services.test_off_the_event_loop import calls_here
from tests.services.test_tools import TOOLS, calls

_STEPS = 45
_ANY_ID = UUID(int=7)
_POLICIES: tuple[JsonObject, ...] = (
    {},
    {"preset": "rolling"},
    {"preset": "turn_atomic", "max_messages": 12},
    {"preset": "allocated"},
    {"auto_summarize": False, "prune_order": "value"},
    {"auto_summarize": False, "protected_turns": 1},
    {"mandatory_summary_turn": 3},
)
_OTHER = """
[models.other]
provider = "openai"
model = "gpt-4-vision-preview"
base_url = "{url}"
context_window = 3000
"""


def _answer(request: Seen) -> Answer:
    last = request.json["messages"][-1]
    content = str(last["content"])
    if "break" in content:
        return Answer({"error": {"message": "no such thing"}}, status=400)
    looks = last["role"] == "user" and "look" in content
    if client_tools(request) and (looks or "more to see" in content):
        number = len(request.json["messages"])
        return calls(f"{number}a", f"{number}b", text="Let me see.")
    return chat("So it is. " + content[:400])


class _Workers:
    """Processes on one database: two that keep pasts, and one that keeps none. `at` is the one whose turn it is."""

    def __init__(self, at: Service, random: Random) -> None:
        self.random = random
        self.reader = _worker(at.rt, 0)
        self.keepers = (at, Service(_worker(at.rt, 1 << 24)))

    @property
    def at(self) -> Service:
        return self.random.choice(self.keepers)

    async def agree(self, session_id: SessionId, content: Any, policy: JsonObject | None, alias: str) -> str | None:
        """All of them would send the same; its hash."""
        request = TurnRequest(content, "0" * 64, TurnOptions(policy=policy), alias)
        await self.reader.chores.settle()  # a summary behind a turn may end between two previews
        seen = [
            await preview_turn(replace(rt, new_id=lambda: _ANY_ID), ref_of(session_id), request)
            for rt in (self.reader, *(keeper.rt for keeper in self.keepers))
        ]
        assert seen[1:] == seen[:1] * 2
        windows = [await window_now(rt, ref_of(session_id)) for rt in (self.reader, self.keepers[1].rt)]
        assert windows[0] == windows[1]
        return seen[0].context["prompt_sha256"]


def _worker(rt: Runtime, most_bytes: int) -> Runtime:
    return replace(rt, pasts=Pasts(most_bytes, monotonic, rt.telemetry))


@pytest.mark.parametrize("seed", range(4))
async def test_workers_that_keep_pasts_send_what_one_does_that_reads_everything(
    database_url: str, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)  # noqa: S311 - no secret
    async with (
        serving(model(_answer)) as server,
        service(database_url, _catalogue(server.base_url), folder=tmp_path) as at,
    ):
        workers = _Workers(at, random)
        session_id = (await at.session(policy=random.choice(_POLICIES))).id
        for _ in range(_STEPS):
            session_id = await _step(workers, session_id)
        turns = (await list_turns(at.rt, ref_of(session_id), OLDEST)).items
        for turn in turns:
            with suppress(NotFound):
                await get_prompt(at.rt, ref_of(session_id), turn.id, None)  # rebuilt, and held against its hash
        assert _figure(at, "session_cache_hits_total") > _STEPS


async def test_a_turn_is_kept_once_another_follows_it_and_an_unresolved_one_once_it_is_settled(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model(_answer)) as server,
        service(database_url, _catalogue(server.base_url), folder=tmp_path) as at,
    ):
        session_id = (await at.session()).id
        last_kept: list[int | None] = []
        for content in ("One.", "Two.", "Three: break.", "Four.", "Five."):
            with suppress(ProviderError):
                await at.turn(session_id, content)
            last_kept.append(at.rt.pasts.last_message(session_id)[0])
        assert last_kept == [None, 2, 4, 4, 8]


async def test_an_unresolved_turn_is_not_kept_by_a_look_at_the_window_while_the_turn_after_it_waits_for_tools(
    database_url: str, tmp_path: Path
) -> None:
    """The next rounds of that worker could drop its newest messages, other workers never."""
    async with (
        serving(model(_answer)) as server,
        service(database_url, _catalogue(server.base_url), folder=tmp_path) as at,
    ):
        session_id = (await at.session()).id
        await at.turn(session_id, "One.")
        with pytest.raises(ProviderError):
            await at.turn(session_id, "Two: break.")
        await at.turn(session_id, "Have a look.", tools=TOOLS)
        for worker in (at.rt, _worker(at.rt, 1 << 24)):
            rows = await session_window(worker, ref_of(session_id))
            assert [(turn.seq, turn.unresolved) for turn in rows.turns] == [(2, True), (3, True)]
            assert worker.pasts.last_message(session_id)[0] == 2


async def test_a_turn_that_ran_again_after_a_refused_one_is_read_as_one_turn(database_url: str, tmp_path: Path) -> None:
    """The refused message is between the first message of that turn and its reply: a worker without the session
    answered 500."""
    failures = [Answer({"error": {"message": "no such thing"}}, status=400)]

    def answer(request: Seen) -> Answer:
        is_first_try = "once more" in str(request.json["messages"][-1]["content"])
        return failures.pop() if is_first_try and failures else _answer(request)

    past = [{"role": role, "content": f"{number}"} for number in range(40) for role in ("user", "assistant")]
    async with (
        serving(model(answer)) as server,
        service(database_url, _catalogue(server.base_url), folder=tmp_path) as at,
    ):
        session_id = (await at.imported({"messages": past, "policy": {"auto_summarize": False}})).id
        with pytest.raises(ProviderError):
            await at.turn(session_id, "And once more.")
        with pytest.raises(ContextBudgetExceeded):
            await at.turn(session_id, "too long " * 9_000)
        (*_, failed, _) = (await list_turns(at.rt, ref_of(session_id), OLDEST)).items
        await retry_turn(at.rt, ref_of(session_id), failed.id, TurnOptions(), "main")
        for content in ("After it.", "And after that."):
            await at.turn(session_id, content)
            windows = [await window_now(_worker(at.rt, most_bytes), ref_of(session_id)) for most_bytes in (0, 1 << 24)]
            assert windows[0] == windows[1]


@pytest.mark.parametrize("is_first", [False, True])
async def test_a_round_of_a_long_turn_reads_only_what_was_added_to_the_turn(
    database_url: str, tmp_path: Path, *, is_first: bool
) -> None:
    async with (
        serving(model(_answer)) as server,
        service(database_url, _catalogue(server.base_url), folder=tmp_path) as at,
    ):
        session_id = (await at.session()).id
        if not is_first:
            await at.turn(session_id, "Before.")
        turn = (await at.turn(session_id, "Have a look.", tools=TOOLS)).turn
        cached: list[tuple[Message, ...]] = []
        for output in ("more to see",) * 24 + ("the end",):
            turn = (await at.outputs(session_id, turn.id, {call.id: output for call in turn.tool_calls})).turn
            cached.append(await _of_open_turn(at, session_id))
        assert [len(messages) for messages in cached] == [0, 0, *range(11, 2 + 3 * 25, 3), 2 + 3 * 24 + 2]
        for one, following in pairwise(cached):
            assert all(map(is_, one, following)), "none was read again"
        assert at.rt.pasts.last_message(session_id)[0] == cached[-1][-1].seq
        await at.turn(session_id, "After.")
        assert await _of_open_turn(at, session_id) == ()
        assert at.rt.pasts.last_message(session_id)[0] == cached[-1][-1].seq + 1, "it is settled"


async def test_a_summary_is_read_once_by_each_worker_for_as_long_as_it_is_the_active_one(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model(_answer)) as server,
        service(database_url, _catalogue(server.base_url), folder=tmp_path) as at,
    ):
        session_id = (await at.session(policy={"auto_summarize": False, "protected_turns": 1})).id
        for number in range(6):
            await at.turn(session_id, f"The number of crane {number} is 47{number}. " * 20)
        other = Service(_worker(at.rt, 1 << 24))
        window = partial(_read, session_id=session_id)
        assert await window(other) is None
        first = await summarize_now(at.rt, ref_of(session_id))
        read = await window(other)
        assert read is not None
        assert read.id == first.id
        assert await window(other) is read
        assert (await window(Service(_worker(at.rt, 0)))) == read
        await at.turn(session_id, "And the number of crane 7 is 477. " * 20)
        second = await summarize_now(at.rt, ref_of(session_id))
        again = await window(other)
        assert again is not None
        assert again.id == second.id
        await undo_summary(at.rt, ref_of(session_id), second.id)
        assert await window(other) == read


async def _of_open_turn(at: Service, session_id: SessionId) -> tuple[Message, ...]:
    """The cached messages of the turn that is open, or was last."""
    rows = await session_window(at.rt, ref_of(session_id))
    counting = counting_of(rows.session, rows.model, rows.policy)
    found = at.rt.pasts.open_turn(session_id, counting, rows.kept.last_seq)
    return found.messages if found else ()


async def _read(at: Service, session_id: SessionId) -> Summary | None:
    return (await session_window(at.rt, ref_of(session_id))).summary


async def test_what_is_kept_is_given_for_the_same_counts_from_the_beginning_of_a_turn_and_in_its_bytes() -> None:
    telemetry = Telemetry(())
    pasts = Pasts(1 << 22, monotonic, telemetry)
    session_id, counting = SessionId(_ANY_ID), Counting(3, "o200k_base", "gpt-4o", None)
    turns = chat_history(History(), 700)
    last_seq = turns[-1].messages[-1].seq + 2
    made = await pasts.keep(session_id, counting, pasts.kept(session_id, counting, 0, last_seq), turns[:650])
    assert (made.first_turn, made.turn_count, pasts.size_bytes > made.columns.size_bytes) == (0, 650, True)
    assert pasts.kept(session_id, counting, 0, last_seq) == made
    for other in (replace(counting, past_version=4), replace(counting, encoding="x"), replace(counting, model="y")):
        assert pasts.kept(session_id, other, 0, last_seq).turn_count == 0
    assert pasts.kept(session_id, counting, turns[4].messages[0].seq, last_seq).turn_count == 0, (
        "in the middle of a turn"
    )
    assert pasts.kept(session_id, counting, 0, made.last_seq).turn_count == 0, "it may be the turn that ended last"
    later = pasts.kept(session_id, counting, turns[599].messages[-1].seq, last_seq)
    assert (later.first_turn, later.turn_count) == (600, 50)
    shorter = await pasts.keep(session_id, counting, later, turns[650:])
    assert shorter.columns is not made.columns, "what nobody looks at any more was let go"
    assert (shorter.first_turn, shorter.columns.turns) == (0, 100)
    assert [shorter.columns.turn(at) for at in range(100)] == list(turns[600:])
    assert pasts.kept(session_id, counting, turns[599].messages[-1].seq, last_seq) == shorter
    assert pasts.kept(session_id, counting, 0, last_seq).turn_count == 0, "it begins later"
    older = replace(counting, past_version=2)
    await pasts.keep(session_id, older, pasts.kept(session_id, older, 0, last_seq), turns[:2])
    assert pasts.kept(session_id, counting, shorter.columns.from_seq, last_seq) == shorter, "what is newer stays"
    assert "session_cache_misses_total 8.0" in telemetry.render()[0].decode()
    small = Pasts(20_000, monotonic, telemetry)
    await small.keep(session_id, counting, small.kept(session_id, counting, 0, last_seq), turns[:650])
    assert small.size_bytes == 0


async def test_an_image_is_counted_once_by_its_rule_where_a_summary_behind_the_answer_is_considered(
    database_url: str, tmp_path: Path
) -> None:
    """The difference to the flat figure was taken off a second time, and the count that was left, below 0, was kept."""
    async with (
        serving(model(_answer)) as server,
        service(database_url, _catalogue(server.base_url), folder=tmp_path, policy=ContextPolicy()) as at,
    ):
        session_id = (await at.session(policy={"mandatory_summary_turn": 4, "protected_turns": 2})).id
        for content in ("One.", "Two.", [image(png(600, 400))], "Four.", "Five.", "Six."):
            await at.turn(session_id, content)
            await at.rt.chores.settle()
        request = TurnRequest("And here?", "any")
        read, kept = [await preview_turn(rt, ref_of(session_id), request) for rt in (_worker(at.rt, 0), at.rt)]
        assert kept.context == read.context
        assert _figure(at, "session_cache_hits_total") > 0


async def test_counts_from_when_the_tokenizer_was_out_of_order_are_not_kept(database_url: str, tmp_path: Path) -> None:
    failures: list[str] = []

    class Flaky:
        is_out = True

        def count(self, text: str) -> int:
            if not self.is_out:
                return load_vocabulary("o200k_base").count(text)
            failures.append(text)
            raise RuntimeError("out of order")

    flaky = Flaky()
    tokenizers = Tokenizers(lambda _: flaky)
    async with (
        serving(model()) as server,
        service(database_url, _catalogue(server.base_url), folder=tmp_path, tokenizers=tokenizers) as at,
    ):
        session = await at.session(policy={"auto_summarize": False})
        for number in range(4):
            await at.turn(session.id, f"Point {number}: four pumps, two valves and a boiler.")
        assert failures, "the fault never fired"
        flaky.is_out = False
        request = TurnRequest("And here?", "any")
        read, kept = [await preview_turn(rt, ref_of(session.id), request) for rt in (_worker(at.rt, 0), at.rt)]
        assert kept.context == read.context


async def test_a_fork_gets_columns_of_its_own_version_that_end_before_its_last_turn() -> None:
    pasts, source, fork = Pasts(1 << 22, monotonic, Telemetry(())), SessionId(_ANY_ID), SessionId(UUID(int=8))
    counting, turns = Counting(3, "o200k_base", "gpt-4o", None), chat_history(History(), 10)
    kept = await pasts.keep(source, counting, pasts.kept(source, counting, 0, 1000), turns[:6])
    for through_seq, past_version, given in ((7, 3, 6), (6, 3, 0), (7, 2, 0), (7, 4, 0)):
        pasts.keep_fork(source, fork, through_seq, turns[through_seq - 1].messages[-1].seq, past_version)
        found = pasts.kept(fork, counting, 0, 1000)
        assert found.turn_count == given
        assert found.columns is not kept.columns, "each goes on by itself"


async def test_turns_of_many_messages_are_kept_in_steps_between_which_other_requests_are_served() -> None:
    """128 turns were added at once: with 200 messages in each they took 80 ms of the event loop."""
    pasts, history = Pasts(1 << 30, monotonic, Telemetry(())), History()
    turns = [history.turn(("tool_group", 1, 200)) for _ in range(40)]
    counting = Counting(1, "o200k_base", "gpt-4o", None)
    kept = asyncio.create_task(pasts.keep(SessionId(_ANY_ID), counting, past_of_columns(Columns(0)), turns))
    steps = 0
    while not kept.done():
        await asyncio.sleep(0)
        steps += 1
    assert kept.result().turn_count == 40
    assert steps > 40 * 200 / 2_000


def test_an_open_turn_of_thousands_of_messages_is_cached_in_steps_each_of_which_is_valid() -> None:
    """All at once, 10,000 messages would take tens of milliseconds of the event loop."""
    pasts, session_id = Pasts(1 << 30, monotonic, Telemetry(())), SessionId(_ANY_ID)
    counting, turn = Counting(1, "o200k_base", "gpt-4o", None), History().turn(("tool_group", 1, 1_400))
    lengths: list[int] = []
    for _ in range(4):
        pasts.keep_open_turn(session_id, counting, 0, turn)
        cached = pasts.open_turn(session_id, counting, 0)
        assert cached is not None
        assert cached.messages == turn.messages[: len(cached.messages)]
        lengths.append(len(cached.messages))
    assert lengths == [512, 1024, len(turn.messages), len(turn.messages)]


async def test_the_last_cached_message_is_that_of_the_columns_when_another_model_read_more_than_the_open_turn() -> None:
    """If that message was lost in the database, the columns are wrong: the open turn is of before."""
    pasts, session_id, turns = Pasts(1 << 30, monotonic, Telemetry(())), SessionId(_ANY_ID), chat_history(History(), 9)
    counting = Counting(1, "o200k_base", "gpt-4o", None)
    pasts.keep_open_turn(session_id, counting, 0, turns[0])
    columns = Columns(0)
    columns.extend(turns)
    await pasts.keep(session_id, replace(counting, model="other"), past_of_columns(columns, 0, columns.turns), ())
    assert pasts.last_message(session_id) == (turns[-1].messages[-1].seq, turns[-1].messages[-1].id)


async def test_a_turn_of_thousands_of_messages_is_kept_off_the_event_loop() -> None:
    """One of 30,000 messages took 95 ms of it. Meanwhile other tasks may add their turns to the same columns."""
    pasts, history = Pasts(1 << 30, monotonic, Telemetry(())), History()
    counting, session_id = Counting(1, "o200k_base", "gpt-4o", None), SessionId(_ANY_ID)
    before, *turns = history.turn(), history.turn(("tool_group", 1, 5_000)), history.turn(("tool_group", 1, 5_000))
    kept = await pasts.keep(session_id, counting, past_of_columns(Columns(0)), (before,))
    with calls_here() as called:
        results = await asyncio.gather(
            pasts.keep(session_id, counting, kept, turns), pasts.keep(session_id, counting, kept, turns[:1])
        )
    assert Columns.extend.__code__ not in called
    both, one = ([each.columns.turn(at) for at in range(each.end_turn)] for each in results)
    assert both == [before, *turns]
    assert one == [before, turns[0]]


async def test_a_fork_begins_with_what_is_kept_of_its_source_and_goes_on_by_itself(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        serving(model()) as server,
        service(database_url, _catalogue(server.base_url), folder=tmp_path) as at,
    ):
        reader = _worker(at.rt, 0)
        session = await at.session(policy={"auto_summarize": False})
        turns = [(await at.turn(session.id, f"Point {number}.")).turn for number in range(6)]
        forks = [(await fork_session(at.rt, ref_of(session.id), through)).id for through in (None, turns[2].id)]
        each = (*forks, session.id)
        request = TurnRequest("And here?", "any")
        read = [(await preview_turn(reader, ref_of(one), request)).context["prompt_sha256"] for one in each]
        misses = _figure(at, "session_cache_misses_total")
        for one, sha256 in zip(each, read, strict=True):
            assert (await preview_turn(at.rt, ref_of(one), request)).context["prompt_sha256"] == sha256
            await at.turn(one, "On its own.")
        assert _figure(at, "session_cache_misses_total") == misses + 1, "of the one that ends in the middle alone"
        sent = [(await preview_turn(at.rt, ref_of(one), request)).messages for one in each]
        assert [str(messages).count("On its own") for messages in sent] == [1, 1, 1]


def _catalogue(base_url: str) -> str:
    other = _OTHER.format(url=base_url)
    return (
        'default = "main"\n[models.main]\nprovider = "openai"\nmodel = "gpt-4o"\n'
        f'base_url = "{base_url}"\ncontext_window = 4096\n{other}'
    )


def _figure(at: Service, name: str) -> float:
    text = at.rt.telemetry.render()[0].decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


async def _step(workers: _Workers, session_id: SessionId) -> SessionId:
    random, at = workers.random, workers.at
    match random.choices(("turn", "policy", "withdraw", "undo", "summarize", "fork"), (20, 2, 2, 1, 1, 1))[0]:
        case "policy":
            await change_session(at.rt, ref_of(session_id), {"policy": random.choice(_POLICIES)})
        case "withdraw":
            await _withdraw(at, session_id, random)
        case "undo":
            with suppress(NotFound, SummaryNotActive):
                await undo_summary(at.rt, ref_of(session_id), None)
        case "summarize":
            with suppress(NothingToSummarize):
                await summarize_now(at.rt, ref_of(session_id))
        case "fork":
            return (await fork_session(at.rt, ref_of(session_id), None)).id
        case _:
            await _turn(workers, session_id)
    return session_id


async def _withdraw(at: Service, session_id: SessionId, random: Random) -> None:
    rows = await at.rows(
        "SELECT m.seq FROM messages m JOIN turns t ON t.session_id = m.session_id AND t.id = m.turn_id"
        " WHERE m.session_id = :id AND NOT m.withdrawn AND t.status <> 'rejected' AND m.tool_calls IS NULL"
        " AND m.role <> 'tool' ORDER BY m.seq",
        id=session_id,
    )
    if rows:
        await withdraw_item(at.rt, ref_of(session_id), item_id("msg", session_id, random.choice(rows)["seq"]))


async def _turn(workers: _Workers, session_id: SessionId) -> None:
    random, at = workers.random, workers.at
    words = " ".join(random.choices(("bees", "cranes", "ledger", "invoice", "rows"), k=random.choice((5, 40, 150))))
    picture = image(png(600, 400))
    content: Any = random.choices(
        (
            words,
            f"{words} break",
            f"{words} look",
            f"{words} " * 400,
            [{"type": "text", "text": words}, picture],
        ),
        (10, 2, 3, 1, 1),
    )[0]
    alias, policy = random.choices(("main", "other"), (6, 1))[0], random.choices((None, _POLICIES[0]), (6, 1))[0]
    would_be = await workers.agree(session_id, content, policy, alias)
    options: dict[str, Any] = {"tools": TOOLS} if "look" in str(content) else {}
    try:
        outcome = await at.turn(session_id, content, model_alias=alias, policy=policy, **options)
    except ContextBudgetExceeded:
        return
    except ProviderError:
        await _try_again(workers, session_id, alias)
        return
    if not options and would_be:
        assert outcome.context["prompt_sha256"] == would_be
    if outcome.turn.status is TurnStatus.AWAITING_TOOLS:
        await _go_on(workers, session_id, outcome.turn.id)


async def _try_again(workers: _Workers, session_id: SessionId, alias: str) -> None:
    (newest,) = (await list_turns(workers.at.rt, ref_of(session_id), OLDEST)).items[-1:]
    if workers.random.random() < 0.5:
        await workers.agree(session_id, "Between the tries.", None, alias)
    with suppress(ProviderError, ContextBudgetExceeded):
        await retry_turn(workers.at.rt, ref_of(session_id), newest.id, TurnOptions(), alias)


async def _go_on(workers: _Workers, session_id: SessionId, turn_id: TurnId) -> None:
    """Posts outputs to any worker until the turn ends, after up to eleven rounds, or is cancelled, or fails."""
    random = workers.random
    for rounds_left in reversed(range(random.choice((1, 2, 11)))):
        if random.random() < 0.1:
            await cancel_turn(workers.at.rt, ref_of(session_id), turn_id)
            return
        if random.random() < 0.5:
            await workers.agree(session_id, "While it waits.", None, "main")
        turn = await get_turn(workers.at.rt, ref_of(session_id), turn_id)
        ends = random.choices(("more to see", "break"), (12, 1))[0] if rounds_left else "the end"
        outputs = {call.id: f"{'1 ' * random.choice((3, 300))}{ends}" for call in turn.tool_calls}
        try:
            outcome = await workers.at.outputs(session_id, turn_id, outputs)
        except ContextBudgetExceeded:
            return
        except ProviderError:
            await _try_again(workers, session_id, "main")
            return
        assert (outcome.turn.status is TurnStatus.AWAITING_TOOLS) == bool(rounds_left)
