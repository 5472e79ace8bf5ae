"""The order in which rows are locked, which is what keeps writers of a session from waiting for each other in a circle.

1. The session's row, by whoever writes anything of the session, in its transaction's first statement that locks. Those
   who decide on what is stored, or end a turn, take it `FOR NO KEY UPDATE` (an UPDATE of it does the same); who only
   adds rows that no decision depends on (pins, counts) takes it `FOR KEY SHARE`; who erases takes it `FOR UPDATE`.
2. The turn's row, and other rows of the session.
3. The tenant's usage rows, by span; then the session's. Nothing is waited for after them.

A foreign key's own `FOR KEY SHARE` is no substitute for the first step: it comes at the end of a statement, and where
the row was changed between its look and its lock it waits for whoever changes it next, whatever lock that one holds.

Nobody waits for rows of two sessions, but for who erases several: it skips those that are locked. Renewing leases takes
rows of many turns and skips likewise.
"""

from __future__ import annotations


def locked_session(condition: str = "true") -> str:
    """A CTE `locked` with the session's id as `locked_id`: the row of `:session_id`, held to the transaction's end.

    A statement that joins it to what it writes locks nothing before it. It has no row where `condition` does not hold.
    """
    return f"""
        locked AS (
            SELECT id AS locked_id FROM sessions
            WHERE id = CAST(:session_id AS uuid) AND {condition} FOR NO KEY UPDATE
        )
    """
