"""What the tables of `db/tables.py` are made of: names of constraints, columns that several have, checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import UUID

from app.domain.types import OPEN_STATUSES, TurnStatus

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _in_sql(statuses: Iterable[TurnStatus]) -> str:
    return f"({', '.join(repr(status.value) for status in statuses)})"


OPEN_STATUSES_SQL = _in_sql(OPEN_STATUSES)
UNANSWERED = _in_sql(
    status for status in TurnStatus if status not in OPEN_STATUSES and status is not TurnStatus.COMPLETED
)
"""Of turns that are over without an answer."""


def id_column(name: str = "id") -> sa.Column[object]:
    return sa.Column(name, UUID(as_uuid=True), nullable=False)


def instant_column(name: str, *, nullable: bool = False, default_now: bool = False) -> sa.Column[object]:
    return sa.Column(
        name,
        sa.DateTime(timezone=True),
        nullable=nullable,
        server_default=sa.text("clock_timestamp()") if default_now else None,
    )


def one_of(column: str, values: tuple[str, ...], name: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"{column} IN ({', '.join(repr(value) for value in values)})", name=name)


SPANS = ("minute", "day", "month", "total")


def usage_columns() -> tuple[sa.Column[object] | sa.CheckConstraint, ...]:
    """What a span has seen: used for good, and reserved for calls that run now."""
    return (
        sa.Column("span", sa.Text, nullable=False),
        instant_column("starts_at"),
        sa.Column("turns", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("usd", sa.Numeric(20, 10), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger, nullable=False),
        sa.Column("reserved_usd", sa.Numeric(20, 10), nullable=False),
        one_of("span", SPANS, "span"),
    )


def index_where_set(name: str, *columns: sa.Column[Any], unique: bool = False) -> sa.Index:
    """An index of the rows in which the last of its columns is not null."""
    return sa.Index(name, *columns, unique=unique, postgresql_where=sa.text(f"{columns[-1].name} IS NOT NULL"))
