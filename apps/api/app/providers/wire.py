"""What every wire protocol shares: reading JSON that may be broken, and text that has to be storable."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, cast

import orjson

_MOST_TOKENS: Final = 2**53


class MalformedAnswerError(Exception):
    """The answer is not what its protocol says. The sentence tells what is wrong with its form and quotes nothing."""


def json_bytes(body: Any) -> bytes:
    """JSON of a request's body; a lone surrogate is sent as something that every server can read."""
    try:
        return orjson.dumps(body)
    except TypeError:  # a lone surrogate or an integer beyond 64 bits, which orjson refuses
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def parse_json(raw: bytes) -> Any:
    """Reads JSON, also with lone surrogates or broken UTF-8, which orjson refuses. Raises `MalformedAnswerError`."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:
            return json.loads(raw.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise MalformedAnswerError("the answer is not valid JSON") from error


def json_text(value: Any) -> str:
    """JSON of a value that came out of an answer, as text that can be stored."""
    return storable(json.dumps(value, ensure_ascii=False))


def storable(text: str) -> str:
    """`text` with NUL and lone surrogates replaced by U+FFFD: Postgres stores neither, and the reply is kept."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        # Pairs that arrived as two escapes become the one character they mean, what stays alone is replaced.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def fields_of(value: Any) -> dict[str, Any]:
    """`value` where it is a JSON object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def items_of(value: Any) -> list[Any]:
    """`value` where it is a JSON list, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def token_count(value: Any) -> int | None:
    """A number of tokens, or None for anything that cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= _MOST_TOKENS and value == int(value) else None


def made_up_call_id(position: int, name: str, arguments: str) -> str:
    """An id for a tool call that came without one: outputs need something to answer to. The same call, the same id."""
    digest = hashlib.sha256(f"{position}\n{name}\n{arguments}".encode("utf-8", "replace")).hexdigest()
    return f"call_{position}_{digest[:16]}"
