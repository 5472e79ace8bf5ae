"""The bench's arithmetic, and that its counter reads the wire. Nothing here measures time."""

from __future__ import annotations

import pytest

from bench.cases import (
    BARE,
    REMEMBERING,
    SERVICE,
    Plan,
    default_case,
    loop_case,
    plain_case,
    stream_case,
    window_case,
)
from bench.figures import Batch, judge, pairwise_ratios, percentile, select, spread
from bench.filling import MANDATORY_SUMMARY_TURN, PROTECTED_TURNS, summarized_turns
from bench.measuring import Spent, StatementCount, summaries_of_a_batch
from bench.once import Cold, Stored
from bench.peers.__main__ import PEERS
from bench.report import Run, ratios, reached
from bench.wire import FrontendReader, Tally

SHORT, LONG = plain_case(10), plain_case(1_000)


def batch(target: str, case: str, cpu_ms: float, postgres_cpu_ms: float | None = 1.0) -> Batch:
    return Batch(target, case, 1, 112, 0.5, cpu_ms, postgres_cpu_ms, (1.0, 2.0), 900.0, 0.0)


def frame(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def extended(sql: str) -> bytes:
    """A statement as asyncpg sends it the first time: parse, bind, execute, sync."""
    return b"".join(
        [
            frame(b"P", b"s1\0" + sql.encode() + b"\0\0\0"),
            frame(b"B", b"\0s1\0\0\0\0\0\0\0"),
            frame(b"E", b"\0\0\0\0\0"),
            frame(b"S", b""),
        ]
    )


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.001, 1.0)], ids=["p50", "p99", "max", "min"]
)
def test_a_percentile_is_the_smallest_value_that_covers_its_share(share: float, expected: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], share) == expected


def test_a_slow_round_leaves_the_median_ratio_alone() -> None:
    ratio = spread(pairwise_ratios([2.0, 20.0, 2.2], [2.0, 20.0, 2.0]))
    assert ratio.median == 1.0
    assert ratio.lowest == 1.0
    assert round(ratio.highest, 9) == 1.1


def test_ratios_pair_rounds_that_lack_a_partner_with_nothing() -> None:
    with pytest.raises(ValueError, match="zip"):
        pairwise_ratios([1.0, 2.0], [1.0])


def test_a_floor_is_judged_by_the_worst_cell_on_the_worst_server() -> None:
    plan = Plan(cases=(SHORT, LONG), concurrencies=(1,), rounds=1)
    batches = [
        batch("service", SHORT.name, 2.0),
        batch("bare", SHORT.name, 2.5),
        batch("service", LONG.name, 2.4),
        batch("bare", LONG.name, 2.0),
    ]
    counts = {"service plain": StatementCount(5, 2, 7, ())}
    other = [batch("service", SHORT.name, 1.0), batch("bare", SHORT.name, 1.0, 0.5)]
    figures = reached([Run("18", plan, batches, counts), Run("15", plan, other)])
    assert round(figures["plain_cpu_over_bare"], 9) == 1.2
    assert round(figures["plain_cpu_over_smallest"], 9) == 1.2
    assert figures["plain_postgres_cpu_over_bare"] == 2.0
    verdicts = judge(
        figures,
        {
            "plain_cpu_over_bare": {"aim": 1.0, "floor": 1.15},
            "plain_statements": {"aim": 5, "floor": 5},
            "not_measured": {"aim": 1, "floor": 1},
        },
    )
    assert [(verdict.name, verdict.holds) for verdict in verdicts] == [
        ("plain_cpu_over_bare", False),
        ("plain_statements", True),
    ]


def test_every_window_has_a_floor_of_its_own_and_what_is_measured_once_too() -> None:
    small, large = window_case(20), window_case(1_500)
    plan = Plan(cases=(small, large), concurrencies=(1,), rounds=1)
    batches = [batch("service", small.name, 4.0), batch("service", large.name, 5.0)]
    run = Run("18", plan, batches, cold=Cold(1_500, 14.0, 6.0), stored=Stored(800.0, 300.0))
    assert reached([run]) == {
        "window_1500_cpu_over_smallest": 1.25,
        "cold_turn_ms_more": 8.0,
        "index_and_audit_bytes": 1_100.0,
    }


def test_loops_of_all_lengths_have_one_floor() -> None:
    few, many = loop_case(20), loop_case(200)
    plan = Plan(cases=(few, many), concurrencies=(1, 16), rounds=1)
    batches = [batch("service", few.name, 4.0), batch("bare", few.name, 5.0), batch("service", many.name, 6.0)]
    assert reached([Run("18", plan, batches)]) == {
        "loops_cpu_over_bare": 0.8,
        "loops_postgres_cpu_over_bare": 1.0,
        "loops_cpu_over_smallest": 1.5,
    }


def test_a_server_elsewhere_has_no_postgres_ratio() -> None:
    plan = Plan(cases=(SHORT,), concurrencies=(1,), rounds=1)
    found = ratios([batch("service", SHORT.name, 2.0, None), batch("bare", SHORT.name, 2.0, None)], plan)
    assert list(found) == ["cpu service/bare, plain 10, concurrency 1"]
    assert Spent(10.0, None).of_one(5) == Spent(2.0, None)


def test_batches_of_a_cell_keep_the_order_of_the_rounds() -> None:
    batches = [
        batch("service", SHORT.name, 1.0),
        batch("bare", SHORT.name, 9.0),
        batch("service", SHORT.name, 2.0),
        batch("service", LONG.name, 3.0),
    ]
    assert [found.cpu_ms for found in select(batches, "service", SHORT.name, 1)] == [1.0, 2.0]


def test_a_batch_of_the_default_is_whole_cycles_of_its_summaries() -> None:
    case = default_case(300)
    maker = summarized_turns(case.length) + PROTECTED_TURNS + 1
    assert maker == case.length
    assert case.turns % MANDATORY_SUMMARY_TURN == 0
    assert (case.policy, case.raw_turns) == ({}, None)


def test_statements_inside_a_transaction_count_as_one_transaction() -> None:
    tally = Tally()
    reader = FrontendReader(tally)
    reader.feed(frame(b"Q", b"BEGIN;\0") + extended("SELECT 1") + extended("SELECT 2") + frame(b"Q", b"COMMIT;\0"))
    assert tally.statements == ["SELECT 1", "SELECT 2"]
    assert (tally.transactions, tally.round_trips) == (1, 4)


@pytest.mark.parametrize("target", [SERVICE, REMEMBERING])
def test_a_batch_of_a_target_that_stores_summaries_makes_about_one_a_session(target: str) -> None:
    assert summaries_of_a_batch(target, default_case(20)) == (4, 12)
    assert summaries_of_a_batch(target, stream_case(20)) == (2, 6)
    assert summaries_of_a_batch(target, SHORT) == summaries_of_a_batch(target, loop_case(20)) == (0, 0)


@pytest.mark.parametrize("target", [BARE, *PEERS])
def test_no_stored_summary_is_expected_of_a_bare_handler_or_another_library(target: str) -> None:
    assert summaries_of_a_batch(target, default_case(20)) == (0, 0)


def test_a_statement_outside_a_transaction_is_one_of_its_own() -> None:
    tally = Tally()
    FrontendReader(tally).feed(extended("SELECT 1") + extended("SELECT 2"))
    assert (len(tally.statements), tally.transactions) == (2, 2)


def test_a_message_cut_anywhere_counts_once() -> None:
    tally = Tally()
    reader = FrontendReader(tally)
    for byte in frame(b"Q", b"BEGIN\0") + extended("INSERT\n  INTO t") + frame(b"Q", b"ROLLBACK\0"):
        reader.feed(bytes([byte]))
    assert tally.statements == ["INSERT INTO t"]
    assert tally.transactions == 1
