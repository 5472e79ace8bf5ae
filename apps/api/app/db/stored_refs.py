"""A prompt's references as an audit row has them: a line each, which takes half of the bytes that their JSON does.

The first line has the regions, `name messages name messages …`. Then come `t hash` where there were tools, and the
items: `b hash role` and `w hash role`, `s hash seq` and `j hash seq`, `m first last` and the other runs, and
`r packed word …`. The kinds are
those of `engine/window/prompt_refs.py`. Hashes are base64 without its `=`. Older rows and imported ones have the JSON.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Final

from app.domain.recalled import RECALLED
from app.domain.types import JsonObject

_TOOLS: Final = "t"
_OF_BLOCK: Final = frozenset({"b", "w"})
_OF_MESSAGE: Final = frozenset({"s", "j"})

BLOCKS_OF_TURNS: Final = """
    SELECT encode(decode(split_part(line, ' ', 2) || '=', 'base64'), 'hex')
    FROM turn_context_audit a, turns t, string_to_table(a.prompt_refs #>> '{}', E'\\n') AS line
    WHERE a.session_id = CAST(:source AS uuid) AND t.session_id = a.session_id AND t.id = a.turn_id
        AND t.seq <= CAST(:through_seq AS bigint) AND jsonb_typeof(a.prompt_refs) = 'string'
        AND left(line, 2) IN ('b ', 'w ', 's ', 'j ', 't ')
    UNION ALL
    SELECT text.value #>> '{}' FROM turn_context_audit a, turns t,
        jsonb_path_query(a.prompt_refs, 'strict $.** ? (@.type() == "string")') AS text(value)
    WHERE a.session_id = CAST(:source AS uuid) AND t.session_id = a.session_id AND t.id = a.turn_id
        AND t.seq <= CAST(:through_seq AS bigint) AND jsonb_typeof(a.prompt_refs) = 'object'
"""
"""The hashes of the blocks that the prompts of a session's turns name."""


def short_refs(refs: JsonObject) -> str:
    """References that were made for a prompt."""
    lines = [" ".join([f"{region} {messages}" for region, messages in refs["regions"]])]
    if refs["tools"]:
        lines.append(f"{_TOOLS} {_short(refs['tools'])}")
    for kind, first, *rest in refs["items"]:
        if kind in _OF_BLOCK:
            lines.append(f"{kind} {_short(first)} {rest[0]}")
        elif kind in _OF_MESSAGE:
            lines.append(f"{kind} {_short(rest[0])} {first}")
        else:
            lines.append(" ".join([kind, str(first), *map(str, rest)]))
    return "\n".join(lines)


def whole_refs(stored: Any) -> Any:
    """The references of a row; those that are stored as JSON are as they are."""
    if not isinstance(stored, str):
        return stored
    regions, *lines = stored.split("\n")
    words = regions.split(" ")
    refs: JsonObject = {"items": [], "tools": None}
    for kind, *rest in (line.split(" ") for line in lines):
        if kind == _TOOLS:
            refs["tools"] = _whole(rest[0])
        else:
            refs["items"].append([kind, *_parts(kind, rest)])
    runs = [[region, int(messages)] for region, messages in zip(words[::2], words[1::2], strict=True)]
    return refs | {"regions": runs}


def _parts(kind: str, rest: list[str]) -> list[Any]:
    if kind == RECALLED:
        return rest
    if kind in _OF_BLOCK:
        return [_whole(rest[0]), rest[1]]
    return [int(rest[1]), _whole(rest[0])] if kind in _OF_MESSAGE else list(map(int, rest))


def _short(sha256: str) -> str:
    return b64encode(bytes.fromhex(sha256))[:-1].decode()


def _whole(short: str) -> str:
    return b64decode(f"{short}=").hex()
