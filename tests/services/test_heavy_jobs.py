"""Jobs in processes of their own: the same answers as here, and nobody is left behind, whoever ends first."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from uuid_utils.compat import uuid7

from app.api.schemas.archive import check_rows
from app.api.schemas.imports import read_import
from app.domain.errors import InvalidRequest, ProcessBusy
from app.domain.stored import Counters, NewHistory, NewRows
from app.domain.types import JsonObject
from app.services.archive.new_rows import BodyReader, ImportJob
from app.services.archive.transfer import SMALL_BYTES, export_session
from app.services.heavy import jobs as heavy
from app.services.heavy.child import JobFailed, Tools
from app.services.heavy.jobs import HeavyJobs
from app.services.sessions import list_sessions
from app.services.views import simulation
from app.services.views.simulation import SMALL_WORK, THRESHOLDS, simulate, variant_of
from app.tokenizers.counters import Tokenizers
from tests.freed import assert_is_freed, no_collections
from tests.services.service import NEWEST, TENANT, Service, ref_of, service

CONVERSATION = {
    "messages": [
        {"role": role, "content": f"{role} {number}: " + "the ledger and the bank disagree. " * 18}
        for number in range(60)
        for role in ("user", "assistant")
    ]
}
LARGE = orjson.dumps(CONVERSATION)
UNTIL_WRITTEN = cast(BodyReader, Path.read_bytes)
"""A `read` that goes on, given a pipe, until somebody writes: what a document that takes long would do."""


@contextmanager
def heavy_jobs(**options: Any) -> Generator[HeavyJobs]:
    jobs = HeavyJobs(Tools(Tokenizers(), uuid7), **options)
    try:
        yield jobs
    finally:
        jobs.close()


async def until_gone(pid: int) -> None:
    """Returns once there is no such process, not even a dead one that nobody has asked about."""
    for _ in range(1000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"process {pid} is still there")


class Pipe:
    """What a job is held up by; `reached` returns once one is."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pipe"
        os.mkfifo(self.path)

    async def hold_up(self, jobs: HeavyJobs) -> None:
        async with jobs.job(ImportJob) as job:
            await job.do(ImportJob.read, UNTIL_WRITTEN, cast(bytes, self.path))

    async def reached(self) -> int:
        """The pipe's other end, which keeps whoever reads it waiting."""
        for _ in range(1000):
            with suppress(OSError):  # nobody reads yet
                return os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            await asyncio.sleep(0.02)
        raise AssertionError("no job reads the pipe")


async def outcome(jobs: HeavyJobs, raw: bytes, *, small: bool) -> Any:
    """All that an import's job tells, with ids as the lengths of their text."""
    try:
        async with jobs.job(ImportJob, small=small) as job:
            given = await job.do(ImportJob.read, read_import, raw)
            await job.do(ImportJob.draft, "any", "o200k_base")
            parts: list[Any] = []
            while (part := await job.do(ImportJob.next_part)) is not None:
                parts.append(_without_ids(part))
    except InvalidRequest as error:
        return type(error), error.detail, error.where, error.members()
    return given, parts


def _without_ids(part: NewHistory | NewRows | Counters) -> Any:
    match part:
        case NewHistory():
            return _rows(part.turns), _rows(part.messages), part.turn_count, part.message_count
        case NewRows():
            return part.section, _rows(part.rows)
        case Counters():
            return part


def _rows(text: str) -> list[Any]:
    ids = {"id", "turn_id"}
    return [{name: value for name, value in row.items() if name not in ids} for row in orjson.loads(str(text))]


async def _exported(at: Service) -> bytes:
    session = await at.imported(CONVERSATION)
    document: dict[str, Any] = {"format": "plimsoll.session", "version": 1}
    async for name, value in export_session(at.rt, ref_of(session.id)):
        document[name] = value if name == "session" else document.get(name, []) + value
    for section in ("pins", "blocks", "steps", "summaries", "audits"):
        document.setdefault(section, [])
    return orjson.dumps(document, default=str, option=orjson.OPT_UTC_Z)


WRONG: dict[str, bytes] = {
    "no JSON": b"{",
    "a list": b"[]",
    "a NUL": b'{"messages": ["\\u0000"]}',
    "no messages": b"{}",
    "a message of text": b'{"messages": ["x"]}',
    "an orphan": orjson.dumps({"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]}),
    "instructions alone": orjson.dumps({"messages": [{"role": "system", "content": "x"}]}),
    "half an export": orjson.dumps({"messages": [], "format": "plimsoll.session", "version": 1}),
    "another format": orjson.dumps({"messages": [], "format": "csv"}),
}


async def test_errors_have_the_same_text_from_another_process() -> None:
    with heavy_jobs() as jobs:
        for name, raw in WRONG.items():
            here, there = await outcome(jobs, raw, small=True), await outcome(jobs, raw, small=False)
            assert here == there, name
            assert issubclass(here[0], InvalidRequest), name
        assert len(jobs.pids) == 1, "one process did it all"


async def test_a_conversation_and_an_export_come_to_the_same_rows_here_and_there(database_url: str) -> None:
    async with service(database_url) as at:
        export = await _exported(at)
        for raw in (LARGE, export):
            assert len(raw) > SMALL_BYTES
            here, there = await outcome(at.rt.jobs, raw, small=True), await outcome(at.rt.jobs, raw, small=False)
            assert here == there
            assert len(here[1]) > 1, "in more than one statement"
        lied = orjson.loads(export)
        lied["messages"][7]["turn_id"] = lied["messages"][3]["turn_id"]
        here, there = [await outcome(at.rt.jobs, orjson.dumps(lied), small=small) for small in (True, False)]
        assert here == there
        assert here[2] == ("body.messages.7.turn_id",)


def test_a_process_for_heavy_work_loads_neither_the_database_nor_the_providers_nor_the_web_framework() -> None:
    """Half of its start, and half of its memory of 119 MB, were of modules that no job uses."""
    of_jobs = (ImportJob, read_import, check_rows, simulation.SimulationJob)
    loads = "; ".join(["import sys", *(f"import {each.__module__}" for each in of_jobs)])
    unused = {"aiohttp", "asyncpg", "fastapi", "sqlalchemy", "app.db", "app.providers", "app.services.runtime"}
    asks = f"{loads}; print(*sorted({unused!r}.intersection(sys.modules)), 'numpy' in sys.modules)"
    seen = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert seen.stdout == "True\n"


async def test_a_simulation_in_another_process_answers_what_one_here_does(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.imported(CONVERSATION)
        assert 60 * len(THRESHOLDS) > SMALL_WORK
        there = await simulate(at.rt, ref_of(session.id), THRESHOLDS, ["offline"])
        assert len(at.rt.jobs.pids) == 1
        with heavy_jobs(own_processes=False) as jobs:
            here = await simulate(_with(at, jobs), ref_of(session.id), THRESHOLDS, ["offline"])
        assert here == there
        assert here["policies"][0]["summaries"]


async def test_a_turn_of_many_calls_counts_as_many_in_a_simulation(database_url: str) -> None:
    """Four policies look through its rounds for each of its calls: that is no work for a thread of the service."""
    rounds: list[JsonObject] = []
    for number in range(23):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
        rounds += [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "The ledger and the bank disagree."},
        ]
    looped = [{"role": "user", "content": "Compare them."}, *rounds, {"role": "assistant", "content": "Done."}]
    work = 24 + 24 * 24 // 16
    async with service(database_url) as at:
        session = ref_of((await at.imported({"messages": [*looped, *CONVERSATION["messages"][:2]]})).id)
        for most_work, turns in ((4 * (work + 1), 2), (4 * work, 1), (4 * work - 1, 0)):
            found = await simulate(at.rt, session, THRESHOLDS, most_work=most_work)
            assert (found["turns"], found["truncated"]) == (turns, turns < 2)
            assert {len(policy["per_turn"]) for policy in found["policies"]} == {turns}
        assert len(THRESHOLDS) == 4
        assert 2 * 4 <= SMALL_WORK < 4 * work
        assert len(at.rt.jobs.pids) == 1


@pytest.fixture
def _divided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every simulation that is not small is divided, as on a machine with several processors and no quota."""
    monkeypatch.setattr(simulation, "LARGE_WORK", SMALL_WORK + 1)
    _may_run_on(monkeypatch, {0, 1})
    monkeypatch.setattr(heavy, "CPU_QUOTAS", (tmp_path / "none",))


def _may_run_on(monkeypatch: pytest.MonkeyPatch, processors: set[int]) -> None:
    """On Linux the first is asked, elsewhere the second."""

    def of_process(_pid: int) -> set[int]:
        return processors

    monkeypatch.setattr(os, "sched_getaffinity", of_process, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: len(processors))


@pytest.mark.usefixtures("_divided")
async def test_a_simulation_divided_among_two_processes_answers_what_one_here_does(database_url: str) -> None:
    presets = [variant_of(name) for name in ("post_turn", "guarded", "rolling", "allocated", "turn_atomic")]
    async with service(database_url) as at:
        session = await at.imported(CONVERSATION)
        there = await simulate(at.rt, ref_of(session.id), presets)
        assert len(at.rt.jobs.pids) == 2
        with heavy_jobs(own_processes=False) as jobs:
            assert await simulate(_with(at, jobs), ref_of(session.id), presets) == there
        assert [each["name"] for each in there["policies"]] == [each.name for each in presets]
        assert all(each["summaries"] or each["later_summaries"] for each in there["policies"])


@pytest.mark.usefixtures("_divided")
async def test_a_simulation_is_divided_only_if_no_other_job_is_at_work(database_url: str, tmp_path: Path) -> None:
    async with service(database_url) as at:
        session = await at.imported(CONVERSATION)
        pipe = Pipe(tmp_path)
        at_work = asyncio.create_task(pipe.hold_up(at.rt.jobs))
        await pipe.reached()
        await simulate(at.rt, ref_of(session.id), THRESHOLDS)
        assert len(at.rt.jobs.pids) == 2, "that of the job, and one more"
        at_work.cancel()
        await asyncio.gather(at_work, return_exceptions=True)


@pytest.mark.usefixtures("_divided")
@pytest.mark.parametrize(
    ("quota", "processors", "processes"),
    [
        ("200000 100000\n", {0, 1}, 1),
        ("max 100000\n", {0, 1}, 2),
        ("150000\n", {0, 1}, 1),
        ("-1\n", {0, 1}, 2),
        ("-1\n", {3}, 1),
    ],
)
async def test_a_simulation_is_not_divided_where_the_processors_time_is_limited(
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quota: str,
    processors: set[int],
    processes: int,
) -> None:
    file = tmp_path / "quota"
    file.write_text(quota)
    monkeypatch.setattr(heavy, "CPU_QUOTAS", (tmp_path / "none", file))
    _may_run_on(monkeypatch, processors)
    async with service(database_url) as at:
        session = await at.imported(CONVERSATION)
        await simulate(at.rt, ref_of(session.id), THRESHOLDS)
        assert len(at.rt.jobs.pids) == processes


@pytest.mark.usefixtures("_divided")
async def test_a_divided_simulation_of_which_one_process_is_killed_is_busy_and_the_next_is_whole(
    database_url: str,
) -> None:
    async with service(database_url) as at:
        session = await at.imported(CONVERSATION)
        first = await simulate(at.rt, ref_of(session.id), THRESHOLDS)
        killed, _ = at.rt.jobs.pids
        with pytest.raises(ProcessBusy, match="nothing was stored"):
            await simulate(
                at.rt, ref_of(session.id), THRESHOLDS, progress=lambda _done, _of: os.kill(killed, signal.SIGKILL)
            )
        assert at.rt.jobs.has_room_for_two, "nothing is at work"
        assert killed not in at.rt.jobs.pids
        assert await simulate(at.rt, ref_of(session.id), THRESHOLDS) == first


def _with(at: Service, jobs: HeavyJobs) -> Any:
    return replace(at.rt, jobs=jobs)


async def test_turns_go_on_while_a_simulation_and_imports_are_at_work(database_url: str) -> None:
    async with service(database_url) as at:
        session = await at.imported(CONVERSATION)
        small = await at.session()
        simulated = asyncio.create_task(simulate(at.rt, ref_of(session.id), THRESHOLDS))
        imported = asyncio.create_task(at.imported(CONVERSATION))
        taken = 0
        while not (simulated.done() and imported.done()):
            assert (await at.turn(small.id, f"Turn {taken}")).turn.assistant_output
            taken += 1
        await simulated
        await imported
        assert taken >= 3
        assert len(at.rt.jobs.pids) == 2


async def test_a_job_whose_process_is_killed_is_busy_and_the_next_one_has_another(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with heavy_jobs() as jobs:
        pipe = Pipe(tmp_path)
        at_work = asyncio.create_task(pipe.hold_up(jobs))
        await pipe.reached()
        (killed,) = jobs.pids
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(ProcessBusy, match="nothing was stored") as refused:
            await at_work
        assert refused.value.retry_after_s > 0
        assert f"ended: pid {killed}, exit code -9" in caplog.text
        assert jobs.pids == []
        await outcome(jobs, LARGE, small=False)
        assert jobs.pids not in ([], [killed])


async def test_a_process_that_is_killed_while_idle_is_replaced_without_an_error() -> None:
    with heavy_jobs() as jobs:
        first = await outcome(jobs, LARGE, small=False)
        (idle,) = jobs.pids
        os.kill(idle, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, idle, os.WEXITED | os.WNOWAIT)
        assert await outcome(jobs, LARGE, small=False) == first
        assert jobs.pids not in ([], [idle])


async def test_an_import_whose_process_is_killed_stores_nothing(database_url: str) -> None:
    async with service(database_url) as at:
        await at.imported(CONVERSATION)
        (pid,) = at.rt.jobs.pids
        os.kill(pid, signal.SIGSTOP)  # it does nothing of the import, so that it can not have ended before it is killed
        importing = asyncio.create_task(at.imported({"messages": CONVERSATION["messages"] * 60}))
        while at.rt.jobs.idle_pids:  # noqa: ASYNC110 - nothing is set when a job takes its process
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ProcessBusy):
            await importing
        assert len((await list_sessions(at.rt, TENANT, NEWEST)).items) == 1
        await at.imported(CONVERSATION)
        assert len((await list_sessions(at.rt, TENANT, NEWEST)).items) == 2


async def test_the_process_of_a_cancelled_job_ends(tmp_path: Path) -> None:
    with heavy_jobs() as jobs:
        pipe = Pipe(tmp_path)
        at_work = asyncio.create_task(pipe.hold_up(jobs))
        await pipe.reached()
        (pid,) = jobs.pids
        at_work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await at_work
        await until_gone(pid)
        assert jobs.pids == []
        await outcome(jobs, LARGE, small=False)


async def test_an_error_from_another_process_is_freed_with_its_caller_without_a_collection() -> None:
    """It referred to a frame that referred to it: the body of each refused import stayed in memory."""
    with heavy_jobs() as jobs, no_collections():

        async def refuse() -> None:
            async with jobs.job(ImportJob) as job:
                await job.do(ImportJob.read, read_import, WRONG["no JSON"])

        await assert_is_freed(refuse, InvalidRequest)


async def test_an_unexpected_error_is_reported_by_its_type_and_the_process_keeps_serving() -> None:
    with heavy_jobs() as jobs:
        for _ in range(2):
            with pytest.raises(JobFailed, match="TypeError"):
                async with jobs.job(ImportJob) as job:
                    await job.do(ImportJob.read, cast(BodyReader, time.sleep), b"no number")
        assert len(jobs.pids) == 1


async def test_a_process_ends_when_it_is_idle_for_long_and_all_do_at_the_end() -> None:
    with heavy_jobs(idle_s=0.2) as jobs:
        await outcome(jobs, LARGE, small=False)
        (pid,) = jobs.pids
        await until_gone(pid)
        assert jobs.pids == []
    with heavy_jobs() as jobs:
        await outcome(jobs, LARGE, small=False)
        (pid,) = jobs.pids
        jobs.close()
        assert jobs.pids == []
        await until_gone(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="counts the process's open sockets in /proc")
async def test_a_process_that_ended_leaves_no_socket_open_while_its_job_is_referred_to() -> None:
    before = _sockets()
    with heavy_jobs() as jobs:
        async with jobs.job(ImportJob) as job:
            assert jobs.pids
        opened = _sockets() - before
        assert opened
    for _ in range(1000):
        if not opened & _sockets():
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("a socket stays open")
    del job


def _sockets() -> set[str]:
    """The open sockets of this process."""
    found = set[str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # it is closed meanwhile
            found.add(str(descriptor.readlink()))
    return {each for each in found if each.startswith("socket:")}


async def test_a_process_that_cannot_start_reports_it_in_one_sentence(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with heavy_jobs(log_level="NONSENSE") as jobs, caplog.at_level(logging.ERROR):
        for _ in range(2):
            with pytest.raises(ProcessBusy):
                async with jobs.job(ImportJob):
                    raise AssertionError("it started")
        assert jobs.pids == []
    assert caplog.text.count("The process for heavy work did not start") == 2
    assert capfd.readouterr().err.count("plimsoll: the process for heavy work cannot start: KeyError") == 2


PARENT = """
import asyncio, time
from uuid_utils.compat import uuid7
from app.services.archive.new_rows import ImportJob
from app.services.heavy.child import Tools
from app.services.heavy.jobs import HeavyJobs
from app.tokenizers.counters import Tokenizers

async def main():
    jobs = HeavyJobs(Tools(Tokenizers(), uuid7))
    async with jobs.job(ImportJob) as idle, jobs.job(ImportJob) as job:
        print(*jobs.pids, flush=True)
        await job.do(ImportJob.read, time.sleep, 60)

asyncio.run(main())
"""


async def test_no_process_outlives_a_parent_that_was_killed() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=subprocess.PIPE)
    assert parent.stdout
    pids = list(map(int, (await parent.stdout.readline()).split()))
    assert len(pids) == 2
    parent.kill()
    await parent.wait()
    for pid in pids:
        await until_gone(pid)
