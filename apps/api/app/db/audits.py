"""Reads audit rows and prompt blocks; `db/records.py` writes them with the turn they belong to.

The references of an audit to its prompt are stored as lines, in half the bytes of JSON. The first line has the regions,
`name messages name messages …`. Then come `t hash` if there were tools, and the items: `b hash role` and `w hash role`,
`s hash seq` and `j hash seq`, `m first last` and the other runs, and `r packed word …`. The kinds are those of
`engine/window/prompt_refs.py`. Hashes are base64 without the final `=`. Many runs after one another are one line, `n`
and for each its kind, how many numbers are between it and the one before, and how many it has: these are small and
repeat, so that Postgres compresses them well. Older rows and imported ones have JSON.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from app.db.database import Transaction, record_of
from app.db.messages import AS_STORED, messages_from_rows
from app.db.sql import by_key, by_seq, of_session, sql
from app.domain.audit import REFS_OF_BLOCKS, REFS_OF_RUNS, REFS_OF_SHORTENED, Audit, TrimAction, TrimLog
from app.domain.frozen import names_of, replace, values_of
from app.domain.recalled import RECALLED, Recalled, recalled_rows
from app.domain.types import REGIONS, JsonObject, MessageId, SessionId, SessionRef, Turn, TurnId, TurnStatus

_GET = sql(f"""
    SELECT {", ".join(f"a.{name}" for name in names_of(Audit))}
    FROM turn_context_audit a JOIN sessions s ON s.id = a.session_id
    WHERE a.session_id = :session_id AND a.turn_id = :turn_id AND s.tenant_id = :tenant_id
        AND (CAST(:round AS integer) IS NULL OR a.round = :round)
    ORDER BY a.round DESC, a.attempt DESC LIMIT 1
    """)

_IDS = sql(f"SELECT m.seq, m.id FROM {by_seq('messages', 'm')}")

_BLOCKS = sql(f"""
    SELECT b.sha256, b.content FROM {by_key("prompt_blocks", "b", "sha256", "CAST(:sha256s AS text[])")}
    """)

_IN_RANGES = sql(f"""
    SELECT t.id AS turn, t.seq AS turn_seq, t.status, {AS_STORED}
    FROM turns t JOIN messages m ON m.session_id = t.session_id AND m.turn_id = t.id AND NOT m.withdrawn
    WHERE t.session_id = :session_id AND (t.seq BETWEEN :first_turn AND :last_turn OR t.id IN (
        SELECT r.turn_id FROM messages r
        WHERE r.session_id = :session_id AND r.seq BETWEEN :first_message AND :last_message))
    ORDER BY t.seq, m.seq
    """)


async def get_audit(tx: Transaction, session: SessionRef, turn_id: TurnId, round_number: int | None) -> Audit | None:
    """The last audit of a turn, or of one of its rounds."""
    row = await tx.fetchrow(_GET, **of_session(session), turn_id=turn_id, round=round_number)
    if row is None:
        return None
    (audit,) = await as_recorded(tx, session.id, [dict(row)])
    # The database does not keep the order of members. In order, the answer equals the first one to the byte.
    trim_log = _ordered(audit["context_trim_log"], names_of(TrimLog))
    trim_log["actions"] = [_ordered(action, names_of(TrimAction)) for action in trim_log["actions"]]
    return record_of(Audit, audit, regions=_ordered(audit["regions"], REGIONS), context_trim_log=trim_log)


def as_stored(audit: Audit) -> JsonObject:
    """An audit's row by column, without what follows from other columns, without empty regions, and without the ids of
    recalled messages, which the prompt's references have by number."""
    row, log, refs = values_of(audit), audit.context_trim_log, audit.prompt_refs
    derived = _derived(row)
    short = {name: value for name, value in log.items() if derived.get(name) != value}
    if recalled := log.get("recalled"):
        short["recalled"] = {"count": len(recalled), "tokens": sum(row["tokens"] for row in recalled)}
    regions = {region: tokens for region, tokens in audit.regions.items() if tokens}
    return row | {"regions": regions, "context_trim_log": short, "prompt_refs": refs and short_refs(refs)}


async def as_recorded(tx: Transaction, session_id: SessionId, rows: Sequence[JsonObject]) -> list[JsonObject]:
    """Restores rows to the form that `as_stored` was given; rows that were stored whole are returned as they are."""
    rows = [row | {"prompt_refs": whole_refs(row["prompt_refs"])} for row in rows]
    is_short = [isinstance(row["context_trim_log"].get("recalled"), dict) for row in rows]
    recalled = [recalled_rows(row["prompt_refs"]) if short else [] for row, short in zip(rows, is_short, strict=True)]
    seqs = sorted({each.seq for of_row in recalled for each in of_row})
    found = await tx.fetch(_IDS, session_id=session_id, seqs=seqs) if seqs else ()
    ids = {row["seq"]: row["id"] for row in found}
    return [_recorded(row, of_row, ids) for row, of_row in zip(rows, recalled, strict=True)]


def _recorded(row: JsonObject, recalled: Sequence[Recalled], ids: Mapping[int, MessageId]) -> JsonObject:
    log, refs = row["context_trim_log"], row["prompt_refs"]
    if "estimated_tokens_after" not in log:
        log = {**_derived(row), **log}
    if recalled:
        log = {**log, "recalled": [replace(each, message_id=ids[each.seq]).public() for each in recalled]}
    if refs and isinstance(refs.get("regions"), str):  # the form before references were lines
        refs = refs | {"regions": _regions(refs["regions"])}
    return row | {"context_trim_log": log, "prompt_refs": refs, "regions": all_regions(row["regions"])}


def _derived(row: JsonObject) -> JsonObject:
    """The members of a row's trim log that follow from its actions and other columns."""
    wire_tokens, actions = row["estimated_wire_tokens"], row["context_trim_log"]["actions"]
    return {
        "max_context_tokens": row["model_context_limit"] - row["output_reserve"],
        "estimated_tokens_before": wire_tokens + sum(action["tokens_removed_est"] for action in actions),
        "estimated_tokens_after": wire_tokens,
    }


def all_regions(stored: Mapping[str, Any]) -> JsonObject:
    """Tokens by region, including regions without any."""
    return {**dict.fromkeys(REGIONS, 0), **stored}


async def blocks_by_sha256(tx: Transaction, session_id: SessionId, sha256s: tuple[str, ...]) -> dict[str, str]:
    rows = await tx.fetch(_BLOCKS, session_id=session_id, sha256s=list(sha256s))
    return {row["sha256"]: row["content"] for row in rows}


async def turns_in_ranges(tx: Transaction, session_id: SessionId, actions: Sequence[TrimAction]) -> tuple[Turn, ...]:
    """The turns within the span of a trim log's turn ranges, and those with messages in that of its message ranges."""
    found = [action.seqs for action in actions if action.seqs]
    bounds: dict[str, int] = {}
    for noun in ("message", "turn"):
        seqs = [seq for of, first, last in found if of == f"{noun}s" for seq in (first, last)]
        bounds |= {f"first_{noun}": min(seqs, default=0), f"last_{noun}": max(seqs, default=0)}
    rows = await tx.fetch(_IN_RANGES, session_id=session_id, **bounds) if found else []
    messages = iter(await messages_from_rows(rows))
    return tuple(
        Turn(turn_id, seq, TurnStatus(status), unresolved=False, messages=tuple([next(messages) for _ in of_turn]))
        for (turn_id, seq, status), of_turn in groupby(rows, key=itemgetter("turn", "turn_seq", "status"))
    )


def _ordered(members: Mapping[str, Any], names: tuple[str, ...]) -> JsonObject:
    """The named members first, in this order, then the others by name."""
    others = sorted(members.keys() - set(names))
    return {name: members[name] for name in (*names, *others) if name in members}


_TOOLS: Final = "t"
_MANY: Final = "n"
_MOST_LINES_OF_RUNS: Final = 16
"""After one another. Prompts have few runs, which can be read in SQL, unless messages are pruned by their value."""
_SPACE_OF_A_WORD: Final = "\u00a0"
"""Stored in place of a space within a matched word ("8 May 2023"), as spaces separate the members of a reference. No
matched word has this character itself."""

BLOCKS_OF_TURNS: Final = """
    SELECT encode(decode(split_part(line, ' ', 2) || '=', 'base64'), 'hex')
    FROM turn_context_audit a, turns t, string_to_table(a.prompt_refs #>> '{}', E'\\n') AS line
    WHERE a.session_id = :source AND t.session_id = a.session_id AND t.id = a.turn_id
        AND t.seq <= :through_seq AND jsonb_typeof(a.prompt_refs) = 'string'
        AND split_part(line, ' ', 1) IN ('b', 'w', 's', 'st', 'sb', 'j', 'jt', 'jb', 't')
    UNION ALL
    SELECT text.value #>> '{}' FROM turn_context_audit a, turns t,
        jsonb_path_query(a.prompt_refs, 'strict $.** ? (@.type() == "string")') AS text(value)
    WHERE a.session_id = :source AND t.session_id = a.session_id AND t.id = a.turn_id
        AND t.seq <= :through_seq AND jsonb_typeof(a.prompt_refs) = 'object'
    UNION ALL
    SELECT part.value FROM turns t, jsonb_each_text(t.request) AS part
    WHERE t.session_id = :source AND t.seq <= :through_seq AND part.key IN ('instructions_sha256', 'tools_sha256')
"""
"""A query for the hashes of the blocks that the prompts and the requests of a session's turns refer to."""


def short_refs(refs: JsonObject) -> str:
    """The references of a prompt as the lines that are stored."""
    lines = [" ".join([f"{region} {messages}" for region, messages in refs["regions"]])]
    if refs["tools"]:
        lines.append(f"{_TOOLS} {_short(refs['tools'])}")
    for are_runs, items in groupby(refs["items"], lambda item: item[0][0] in REFS_OF_RUNS):
        of_kind = list(items)
        lines += [_many_runs(of_kind)] if are_runs and len(of_kind) > _MOST_LINES_OF_RUNS else map(_line, of_kind)
    return "\n".join(lines)


def _line(item: Sequence[Any]) -> str:
    kind, first, *rest = item
    if kind in REFS_OF_BLOCKS:
        return f"{kind} {_short(first)} {rest[0]}"
    if kind[0] in REFS_OF_SHORTENED:
        return f"{kind} {_short(rest[0])} {first}"
    return " ".join([kind, str(first), *[str(part).replace(" ", _SPACE_OF_A_WORD) for part in rest]])


def _many_runs(runs: Sequence[Sequence[Any]]) -> str:
    words, before = [_MANY], 0
    for kind, first, last in runs:
        words += (kind, str(first - before - 1), str(last - first + 1))
        before = last
    return " ".join(words)


def whole_refs(stored: Any) -> Any:
    """The references of a row, decoded from lines; those that are stored as JSON are returned as they are."""
    if not isinstance(stored, str):
        return stored
    regions, *lines = stored.split("\n")
    refs: JsonObject = {"items": [], "tools": None}
    for kind, *rest in (line.split(" ") for line in lines):
        if kind == _TOOLS:
            refs["tools"] = _whole(rest[0])
        elif kind == _MANY:
            refs["items"] += _runs_of(rest)
        else:
            refs["items"].append([kind, *_parts(kind, rest)])
    return refs | {"regions": _regions(regions)}


def _runs_of(words: Sequence[str]) -> Iterator[list[Any]]:
    last = 0
    for kind, between, messages in zip(words[::3], words[1::3], words[2::3], strict=True):
        first = last + int(between) + 1
        last = first + int(messages) - 1
        yield [kind, first, last]


def _regions(regions: str) -> list[list[Any]]:
    words = regions.split()
    return [[region, int(messages)] for region, messages in zip(words[::2], words[1::2], strict=True)]


def _parts(kind: str, rest: list[str]) -> list[Any]:
    if kind == RECALLED:
        return [word.replace(_SPACE_OF_A_WORD, " ") for word in rest]
    if kind in REFS_OF_BLOCKS:
        return [_whole(rest[0]), rest[1]]
    return [int(rest[1]), _whole(rest[0])] if kind[0] in REFS_OF_SHORTENED else list(map(int, rest))


def _short(sha256: str) -> str:
    return b64encode(bytes.fromhex(sha256))[:-1].decode()


def _whole(short: str) -> str:
    return b64decode(f"{short}=").hex()
