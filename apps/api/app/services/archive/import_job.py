"""What an import computes, wherever it is done: a body read, checked, counted and written for the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from app.archive.document import check_document
from app.domain.errors import InvalidRequest, located
from app.domain.incoming import IncomingList
from app.domain.stored import Counters, NewHistory, NewRows
from app.domain.types import JsonObject
from app.engine.window.prompt_refs import SentHashes
from app.openai.chat_messages import check_pairing, cut_turns, read_messages
from app.services.archive.new_rows import drafted_in_batches, restored
from app.services.heavy.child import Tools


@dataclass(frozen=True, slots=True)
class Conversation:
    """OpenAI-style messages beside the fields of a new session, each valid by itself."""

    fields: JsonObject
    messages: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Export:
    """An exported session whose rows are valid one by one."""

    document: JsonObject


@dataclass(frozen=True, slots=True)
class GivenSession:
    """The fields of the session to be made, as a body has them."""

    is_export: bool
    fields: JsonObject


Read: TypeAlias = Callable[[bytes], Export | Conversation]


class ImportJob:
    """`read`, then `draft`, then `next_part` until there is none."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._source: Export | IncomingList | None = None
        self._parts: Iterator[NewHistory | NewRows | Counters] = iter(())

    def read(self, read: Read, raw: bytes) -> GivenSession:
        """The session's fields, once the whole body has been checked. Raises `InvalidRequest` with places.

        The system and developer messages of a conversation become the session's instructions, behind those given.
        """
        source = read(raw)
        if isinstance(source, Export):
            check_document(source.document, SentHashes)
            self._source = source
            return GivenSession(is_export=True, fields=source.document["session"])
        listed = read_messages(source.messages)
        if not listed.messages:
            raise InvalidRequest("There is no message of a user, an assistant or a tool.", ("body", "messages"))
        with located("body", "messages"):
            check_pairing(listed.messages)
        texts = [text for text in (source.fields.get("instructions"), listed.instructions) if text]
        self._source = listed
        return GivenSession(is_export=False, fields=source.fields | {"instructions": "\n\n".join(texts) or None})

    def draft(self, model_alias: str, encoding: str) -> None:
        """Numbers and counts what was read, for a session of this model.

        Each turn of a conversation begins with the user's words; one that ends with the assistant's is `completed`,
        with that text as `assistant_output`. A turn without a final answer is `cancelled`: later prompts hold the
        user's words and its complete tool groups.
        """
        source, self._source = self._source, None
        if isinstance(source, Export):
            self._parts = restored(self._tools, source.document, encoding)
        elif source is not None:
            turns = cut_turns(source.messages)
            self._parts = iter([*drafted_in_batches(self._tools, encoding, model_alias, turns)])

    def next_part(self) -> NewHistory | NewRows | Counters | None:
        """What the next statement stores."""
        return next(self._parts, None)
