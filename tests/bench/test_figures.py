"""The bench's arithmetic, and that its counter reads the wire. Nothing here measures time."""

from __future__ import annotations

import pytest

from bench.figures import Batch, judge, pairwise_ratios, percentile, select, spread
from bench.filling import MANDATORY_SUMMARY_TURN, PLAIN_TURNS, PROTECTED_TURNS, summarized_turns
from bench.measuring import Plan, StatementCount
from bench.report import ratios, reached
from bench.wire import FrontendReader, Tally


def batch(target: str, length: int, cpu_ms: float, postgres_cpu_ms: float | None = 1.0) -> Batch:
    return Batch(target, length, 1, 112, 0.5, cpu_ms, postgres_cpu_ms, (1.0, 2.0))


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


def test_a_floor_is_judged_by_the_worst_cell() -> None:
    plan = Plan(lengths=(10, 1000), concurrencies=(1,), rounds=1, provider_latency_ms=0.0)
    batches = [batch("service", 10, 2.0), batch("bare", 10, 2.5), batch("service", 1000, 2.4), batch("bare", 1000, 2.0)]
    counts = {"service": StatementCount(5, 2, 7, ())}
    figures = reached(ratios(batches, plan), counts)
    assert round(figures["cpu_service_over_bare"], 9) == 1.2
    assert round(figures["cpu_longest_over_shortest"], 9) == 1.2
    verdicts = judge(
        figures,
        {
            "cpu_service_over_bare": {"aim": 1.0, "floor": 1.15},
            "statements_per_turn": {"aim": 5, "floor": 5},
            "not_measured": {"aim": 1, "floor": 1},
        },
    )
    assert [(verdict.name, verdict.holds) for verdict in verdicts] == [
        ("cpu_service_over_bare", False),
        ("statements_per_turn", True),
    ]


def test_a_server_elsewhere_has_no_postgres_ratio() -> None:
    plan = Plan(lengths=(10,), concurrencies=(1,), rounds=1, provider_latency_ms=0.0)
    found = ratios([batch("service", 10, 2.0, None), batch("bare", 10, 2.0, None)], plan)
    assert list(found) == ["cpu service/bare at length 10, concurrency 1"]


def test_batches_of_a_cell_keep_the_order_of_the_rounds() -> None:
    batches = [
        batch("service", 10, 1.0),
        batch("bare", 10, 9.0),
        batch("service", 10, 2.0),
        batch("service", 1000, 3.0),
    ]
    assert [found.cpu_ms for found in select(batches, "service", 10, 1)] == [1.0, 2.0]


def test_a_filled_session_takes_its_plain_turns_without_a_summary_falling_due() -> None:
    length = 10
    maker = summarized_turns(length) + PROTECTED_TURNS + 1
    assert maker == length
    completed_since_before_the_last_plain_turn = length + PLAIN_TURNS - 1 - (maker - 1)
    assert completed_since_before_the_last_plain_turn < MANDATORY_SUMMARY_TURN


def test_statements_inside_a_transaction_count_as_one_transaction() -> None:
    tally = Tally()
    reader = FrontendReader(tally)
    reader.feed(frame(b"Q", b"BEGIN;\0") + extended("SELECT 1") + extended("SELECT 2") + frame(b"Q", b"COMMIT;\0"))
    assert tally.statements == ["SELECT 1", "SELECT 2"]
    assert (tally.transactions, tally.round_trips) == (1, 4)


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
