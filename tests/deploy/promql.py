"""What a PromQL expression reads, by a real parser of it, and what a scrape has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from promql_parser import (
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    MatchOp,
    MatrixSelector,
    ParenExpr,
    SubqueryExpr,
    UnaryExpr,
    VectorSelector,
    parse,
)

ADDED_BY_PROMETHEUS = frozenset({"job", "instance"})
"""Labels that a scrape gets on its way in."""
OF_PROMETHEUS = frozenset({"up", "ALERTS"})
"""Series that Prometheus makes itself."""


@dataclass
class Read:
    """Series that an expression selects: the values that each label is matched with, and the labels it groups by."""

    name: str
    values: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    grouped_by: set[str] = field(default_factory=set[str])


def reads(expression: str) -> list[Read]:
    """Every selector of the expression, with the labels of the aggregations around it. Raises as the parser does."""
    return list(_reads(parse(expression), frozenset()))


def _reads(expression: Expr, grouped_by: frozenset[str]) -> Iterator[Read]:
    match expression:
        case VectorSelector():
            values = {
                matcher.name: tuple(matcher.value.split("|")) if _is_regex(matcher.op) else (matcher.value,)
                for matcher in expression.matchers.matchers
            }
            assert expression.name is not None
            yield Read(expression.name, values, set(grouped_by))
        case MatrixSelector():
            yield from _reads(expression.vector_selector, grouped_by)
        case AggregateExpr():
            labels = expression.modifier.labels if expression.modifier else []
            yield from _reads(expression.expr, grouped_by | set(labels))
        case BinaryExpr():
            yield from _reads(expression.lhs, grouped_by)
            yield from _reads(expression.rhs, grouped_by)
        case Call():
            for argument in expression.args:
                yield from _reads(argument, grouped_by)
        case ParenExpr() | UnaryExpr() | SubqueryExpr():
            yield from _reads(expression.expr, grouped_by)
        case _:
            return  # a number or a text


def _is_regex(op: MatchOp) -> bool:
    return op in (MatchOp.Re, MatchOp.NotRe)


def exported(text: str) -> dict[str, dict[str, set[str]]]:
    """The series of a scrape: by name of a sample its labels, with the values that they have."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = found[sample.name]
            for label, value in sample.labels.items():
                labels[label].add(value)
    return found


def missing(read: Read, series: Mapping[str, Mapping[str, set[str]]]) -> list[str]:
    """What the selector asks for that no scrape of these series has; empty when it has all of it."""
    if read.name in OF_PROMETHEUS:
        return []
    if read.name not in series:
        return [read.name]
    labels = series[read.name]
    unknown = sorted((read.grouped_by | read.values.keys()) - labels.keys() - ADDED_BY_PROMETHEUS)
    return [f"{read.name}: label {label}" for label in unknown] + [
        f"{read.name}: {label}={value}"
        for label, values in read.values.items()
        if label in labels
        for value in values
        if value not in labels[label]
    ]
