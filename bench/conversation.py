"""What is said in the bench's conversations: short technical questions and answers, about sixty tokens a message."""

from __future__ import annotations

INSTRUCTIONS = (
    "You are the assistant of an engineering team. Answer briefly, name figures with their units, and say so when you "
    "do not know something. Quote the decision that was taken last when two of them contradict each other."
)
REPLY = (
    "Keep the pool small, because every connection holds memory on the server and a queue in front of the database "
    "is cheaper than contention inside it. Start with two connections per core, measure the waiting time under the "
    "expected load, and only then decide whether a proxy in front of Postgres is worth its own failure modes."
)
QUESTIONS = (
    "How large should the connection pool be when four workers share one Postgres with eight cores, and what do we see "
    "first when it is too small? Yesterday the p99 of the write path rose to 180 ms while the median stayed at 12 ms.",
    "The nightly export blocks the queue for two minutes. Is it enough to move it to a replica, or does the lag of the "
    "replica break the promise that the report shows every order placed before midnight?",
    "Compare keyset pagination with offsets for the audit list: it has thirty million rows, is filtered by tenant, and "
    "people jump to the last page more often than I would have thought.",
    "We want to rename a column that three services read. Which order of deploys keeps all of them working, and when "
    "is it safe to drop the old name for good?",
)
SUMMARY_TEXT = (
    "The team sizes its database for a write path that must stay under 50 ms at p99. The pool was set to two "
    "connections per core after measuring the waiting time; a proxy was considered and postponed. The nightly "
    "export moved to a replica and waits until the replica has replayed midnight. Lists use keyset pagination led "
    "by the tenant. Columns are renamed in three deploys: add and write both, read the new one, drop the "
    "old one a week later."
)
SUMMARY_FACTS = (
    "The write path has a target of 50 ms at p99.",
    "The pool has two connections per core.",
    "The export runs on a replica and waits for midnight's position.",
)


def question(number: int) -> str:
    """The user's message of turn `number`; no two are equal."""
    return f"{QUESTIONS[number % len(QUESTIONS)]} (case {number})"


def answer(number: int) -> str:
    return f"{REPLY} ({number})"
