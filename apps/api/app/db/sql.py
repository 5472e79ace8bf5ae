"""Compiles statements, once, at import, to the text and parameter order that asyncpg takes (why:
docs/decisions/0001-compiled-statements.md); and has the parts of which the tables of `db/tables.py` are made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast, get_args

import orjson
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import UUID
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg

from app.domain.frozen import frozen
from app.domain.limits import LimitSpan
from app.domain.types import ANSWERED_STATUSES, FAILED_STATUSES, OPEN_STATUSES, SessionRef, TurnStatus

_DIALECT = PGDialect_asyncpg()
_PAGE_BYTES = 8 * 1024 * 1024
"""Most bytes of a page's rows: with messages of 4 MB, a page of 200 would take gigabytes on its way to the client."""
CLOCK = "(SELECT statement_timestamp() AS at) AS clock"
"""A FROM item with the database's clock, for use in a CASE, where Citus accepts no clock function.

Statements that write do not use `clock_timestamp()`, because Citus accepts no volatile function. After a wait for a
lock they have the time before the wait, which lasts `PLIMSOLL_DB_LOCK_TIMEOUT_S` at most. So an expired lease is
noticed late but never early, and a lease that a wait has used up is renewed (`services/turn/claim.py`).
"""


@frozen
class Statement:
    """`text` has `$1 … $n`; `names` are the bind parameters in that order, each once."""

    text: str
    names: tuple[str, ...]

    def arguments(self, parameters: Mapping[str, Any]) -> list[Any]:
        """The values in the statement's order. Raises `KeyError` for a missing or an unknown name."""
        if len(parameters) != len(self.names):
            raise KeyError(f"takes {sorted(self.names)}, got {sorted(parameters)}")
        return [parameters[name] for name in self.names]


def sql(text: str) -> Statement:
    """Compiles a statement whose every value is a named bind parameter, `:name`. Where the context determines no type
    of it (`IS NULL`, `unnest`), the parameter needs a `CAST`."""
    compiled = cast(Any, sa.text(text).compile(dialect=_DIALECT))
    return Statement(text=str(compiled), names=tuple(compiled.positiontup or ()))


_MORE_CASES = {"i": "İ", "ß": "ẞ", "σ": "ς", "ς": "σ"}
"""Letters that Python's `lower` and `upper` of one letter do not lead to."""


def in_any_case(text: str) -> str:
    """A regular expression of Postgres for the text in any case. `lower` of a server depends on its locale: with `C`,
    as the embedded one has it, it knows the letters of ASCII only, and with a Turkish one `I` becomes `ı`."""
    return "".join(map(_letter_in_any_case, text))


def in_any_case_as_json(text: str) -> str:
    """The same for a text that has to be found in JSON, which writes quotes, backslashes and line ends otherwise."""
    return in_any_case(orjson.dumps(text)[1:-1].decode())


def _letter_in_any_case(letter: str) -> str:
    small = letter.lower()[:1]
    if small.upper() == small:
        return letter if letter.isalnum() or not letter.isascii() else f"\\{letter}"
    forms = (letter, small, small.upper(), _MORE_CASES.get(small, ""))
    return "[" + "".join(form for form in forms if len(form) == 1) + "]"


def listed(columns: str, source: str, position: str, sized: Sequence[str]) -> Mapping[bool, Statement]:
    """A list's statement for `Transaction.fetch_between` by whether the newest come first. `source` has a condition;
    `sized` is as in `paged`."""
    within = f"SELECT {columns} FROM {source} AND {position} > :after AND {position} < :before ORDER BY {position}"
    by_newest = {False: "", True: " DESC"}
    return {newest: paged(f"{within}{order} LIMIT :limit", sized) for newest, order in by_newest.items()}


def paged(text: str, sized: Sequence[str]) -> Statement:
    """A list's statement for `Transaction.fetch_page`. `rows_read` is how many rows it has without a bound on bytes. It
    ends before the row with which they would have more than `_PAGE_BYTES`, but not before two rows: a client may have
    got a part of a message with several items. The columns `sized` may be large. Of a text, the size is known without
    reading it, and a row as one text would take seven times as long to make as its JSON."""
    row_bytes = " + ".join([f"coalesce(octet_length(CAST(r.{name} AS text)), 0)" for name in sized])
    return sql(f"""
        SELECT * FROM (
            SELECT r.*, count(*) OVER () AS rows_read, row_number() OVER () AS row_number,
                sum({row_bytes}) OVER (ROWS UNBOUNDED PRECEDING) AS bytes_through
            FROM ({text}) AS r
        ) AS sized
        WHERE row_number <= 2 OR bytes_through <= {_PAGE_BYTES}
        """)


def binds(*names: str) -> dict[str, str]:
    """Maps each column to the bind parameter of the same name."""
    return {name: f":{name}" for name in names}


def of_session(session: SessionRef) -> dict[str, object]:
    """The values of `:session_id` and `:tenant_id`, by which a statement finds a tenant's session."""
    return {"session_id": session.id, "tenant_id": session.tenant_id}


def insert_from(table: sa.Table, source: str, values: Mapping[str, str], *, without: Collection[str] = ()) -> str:
    """The text of an INSERT of the rows `x` of `source` into all columns of the table except `without`, which get their
    defaults. `values` has the expressions of columns that are not taken from `x`."""
    columns = {column.name: f"x.{column.name}" for column in table.columns if column.name not in without}
    assert values.keys() <= columns.keys(), values.keys() - columns.keys()
    return insert_row(table, {**columns, **values}, source)


def insert_row(table: sa.Table, values: Mapping[str, str], source: str = "") -> str:
    """The text of an INSERT of the expressions `values` by column: a row for each row of `source`, or one row without a
    source. The table's other columns get their defaults."""
    assert values.keys() <= set(table.columns.keys()), values.keys() - set(table.columns.keys())
    row = ", ".join(values.values())
    taken = f"SELECT {row} FROM {source}" if source else f"VALUES ({row})"
    return f"INSERT INTO {table.name} ({', '.join(values)}) {taken}"


def by_key(table: str, row: str, key: str, values: str) -> str:
    """FROM items: the rows of a table of `:session_id` whose `key` is one of `values`, an array, each looked up by its
    key. A list of values would be compared with all rows of the session if most sessions had few of these when the
    table was analyzed, and so would single ones without an order."""
    return f"""unnest({values}) AS wanted(key) CROSS JOIN LATERAL (
        SELECT * FROM {table}
        WHERE session_id = :session_id AND {key} >= wanted.key AND {key} <= wanted.key
        ORDER BY {key} LIMIT 1) AS {row}"""


def by_seq(table: str, row: str) -> str:
    """`by_key` for the numbers `:seqs`."""
    return by_key(table, row, "seq", "CAST(:seqs AS bigint[])")


def json_rows(table: sa.Table, parameter: str) -> str:
    """A FROM item: the rows `x` of a parameter, a list of JSON objects by column name. Missing columns are null."""
    return f"jsonb_populate_recordset(CAST(NULL AS {table.name}), :{parameter}) AS x"


metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _in_sql(values: Iterable[str]) -> str:
    return f"({', '.join(repr(str(value)) for value in values)})"


OPEN_STATUSES_SQL = _in_sql(OPEN_STATUSES)
ANSWERED = _in_sql(ANSWERED_STATUSES)
FAILED = _in_sql(FAILED_STATUSES)
UNANSWERED = _in_sql(
    status for status in TurnStatus if status not in OPEN_STATUSES and status is not TurnStatus.COMPLETED
)
"""The statuses of turns that ended without an answer."""


def id_column(name: str = "id") -> sa.Column[object]:
    return sa.Column(name, UUID(as_uuid=True), nullable=False)


def instant_column(name: str, *, nullable: bool = False, default_now: bool = False) -> sa.Column[object]:
    return sa.Column(
        name,
        sa.DateTime(timezone=True),
        nullable=nullable,
        server_default=sa.text("clock_timestamp()") if default_now else None,
    )


def columns(
    kind: Any, *names: str, nullable: bool = False, default: str | sa.TextClause | None = None
) -> tuple[sa.Column[object], ...]:
    """Adjacent columns of one type."""
    return tuple(sa.Column(name, kind, nullable=nullable, server_default=default) for name in names)


def one_of(column: str, values: Iterable[str]) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"{column} IN {_in_sql(values)}", name=column)


def usage_columns() -> tuple[sa.Column[object] | sa.CheckConstraint, ...]:
    """The columns of a span: what was used in it, and what is reserved for calls that run now."""
    return (
        sa.Column("span", sa.Text, nullable=False),
        instant_column("starts_at"),
        *columns(sa.BigInteger, "turns", "tokens"),
        sa.Column("usd", sa.Numeric(20, 10), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger, nullable=False),
        sa.Column("reserved_usd", sa.Numeric(20, 10), nullable=False),
        one_of("span", get_args(LimitSpan)),
    )


def index_where(condition: str, name: str, *columns: sa.Column[Any], unique: bool = False) -> sa.Index:
    return sa.Index(name, *columns, unique=unique, postgresql_where=sa.text(condition))


def index_where_set(name: str, *columns: sa.Column[Any], unique: bool = False) -> sa.Index:
    """An index of the rows in which the last of its columns is not null."""
    return index_where(f"{columns[-1].name} IS NOT NULL", name, *columns, unique=unique)
