"""Whether anything in the database changed."""

from __future__ import annotations

from app.db.tables import metadata
from tests.services.service import Service


async def contents(at: Service) -> dict[str, tuple[int, str]]:
    """Of every table the number of rows and a hash over all of them, instants included."""
    found: dict[str, tuple[int, str]] = {}
    for table in metadata.sorted_tables:
        sql = f"SELECT count(*) AS rows, md5(string_agg(t::text, '|' ORDER BY t::text)) AS hash FROM {table.name} t"  # noqa: S608 - our own table's name
        row = (await at.rows(sql))[0]
        found[table.name] = (row["rows"], row["hash"])
    return found
