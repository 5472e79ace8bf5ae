"""The embedding model as a process uses it: calls are measured and bounded, and pause after a failure; and a cache of
the vectors of the latest questions."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Final, Literal, TypeAlias, TypeVar

import numpy as np

from app.core.fairness import FairGate
from app.domain.errors import ProviderError, ProviderOverflow
from app.domain.types import SessionId, SessionRef, TenantId
from app.engine.recall.vectors import Rows, packed_query
from app.providers.base import Embedded, EmbeddingModel
from app.services.process_state import Chores, Cooldowns
from app.telemetry.metrics import Telemetry

K = TypeVar("K")
V = TypeVar("V")

Use: TypeAlias = Literal["recall", "pins"]
StoreUsage: TypeAlias = Callable[[Embedded], Awaitable[None]]
"""Stores the usage of a call as that of the session that it was made for."""
LOCAL: Final = "local"
"""The name that the setting has for the model of the extra `embeddings`."""
_VERSION: Final = 1
"""Version of the way in which a text becomes a vector here."""
MOST_EMBEDDED_CHARS: Final = 1_000
"""Characters of a text that are embedded, from its beginning: as much as a small model reads."""
_REFUSED_CHARS: Final = 250
_PLAIN_TEXT: Final = "text"
"""A text that every working model accepts."""
_MAY_BE_REFUSED: Final = frozenset({200, 400, 403, 413, 422, 451, 500})
"""Statuses that may mean a refused text. llama.cpp answers 500 for a text that is too long, a firewall 403 for one that
looks like an attack, and text-embeddings-inference 200 with `null` where its model computed no number."""
_TIMEOUT_S: Final = 10.0
_MOST_KEPT: Final = 1_024
"""Most entries of each cache here, for example of texts with their vectors."""
_MOST_WAITING: Final = 16
_MOST_WAITING_OF_A_TENANT: Final = 12
"""Most questions whose vectors are being made at one time, of all tenants and of one; further ones get no vector."""


class Embeddings:
    """`model` is the name under which vectors are stored: vectors of two models, or of one that is called with other
    parameters, are never compared. `alias` is the catalogue's, or `LOCAL`."""

    def __init__(
        self,
        source: EmbeddingModel,
        *,
        alias: str,
        wait_s: float,
        chores: Chores,
        cooldowns: Cooldowns,
        telemetry: Telemetry,
    ) -> None:
        self.model = f"{source.vector_space}/{_VERSION}"
        self.alias = alias
        self.gate = FairGate(slots=3, per_key=2)
        """Limits how many calls make vectors of messages at the same time; tenants are served in turn, call by call."""
        self.busy: set[SessionId] = set()
        self._source = source
        self._wait_s = wait_s
        self._chores = chores
        self._cooldowns = cooldowns
        self._telemetry = telemetry
        self._resting_as = f"embeddings:{alias}"
        self._questions: OrderedDict[tuple[TenantId, bytes], asyncio.Future[Rows | None]] = OrderedDict()
        self._waiting: Counter[TenantId] = Counter()
        self._uses: OrderedDict[tuple[TenantId, SessionId, Use], None] = OrderedDict()
        self._through: OrderedDict[SessionId, int] = OrderedDict()

    async def embed(self, tenant_id: TenantId, texts: Sequence[str]) -> Embedded:
        """One vector per text, of its beginning; of a shorter one if the model refuses that, and zeros for a text that
        it refuses although it accepts others. Raises a `ProviderError`, after which the model is resting for a while:
        for this tenant, since its texts may be the reason, and for all once it is resting for two."""
        try:
            found = await self._taken([text[:MOST_EMBEDDED_CHARS] for text in texts])
            if found is None and max(map(len, texts)) > _REFUSED_CHARS:
                found = await self._taken([text[:_REFUSED_CHARS] for text in texts])
            return found or await self._one_by_one(texts)
        except ProviderError:
            self._cooldowns.rest(self._resting_as, tenant_id)
            raise

    async def _one_by_one(self, texts: Sequence[str]) -> Embedded:
        """Embeds texts one by one that were refused together: one that always is must not hold up the others."""
        plain = await self._measured([_PLAIN_TEXT])
        rows = [np.zeros_like(plain.vectors) for _ in texts]
        tokens = plain.prompt_tokens or 0
        for at, text in enumerate(texts):
            found = await self._taken([text[:_REFUSED_CHARS]])
            if found is not None:
                tokens += found.prompt_tokens or 0
                rows[at] = found.vectors if found.vectors.shape == plain.vectors.shape else rows[at]
        return Embedded(np.concatenate(rows), tokens)

    async def _taken(self, texts: Sequence[str]) -> Embedded | None:
        """The vectors, or None if the model may have refused these texts."""
        try:
            return await self._measured(texts)
        except ProviderError as error:
            if not isinstance(error, ProviderOverflow) and error.status not in _MAY_BE_REFUSED:
                raise
            return None

    def is_resting(self, tenant_id: TenantId) -> bool:
        """Whether the model failed or was late a short time ago, so that it is not called for this tenant."""
        return self._cooldowns.is_resting(self._resting_as, tenant_id)

    async def prepare(self, tenant_id: TenantId, text: str, store_usage: StoreUsage) -> None:
        """Starts making a question's vector and waits for it, at most as long as a turn waits; raises no model errors.
        A late vector is still cached, and its usage stored, but the model is not waited for again for a while."""
        key = _key(tenant_id, text)
        found = self._questions.get(key)
        if found is None:
            is_full = self._waiting[tenant_id] >= _MOST_WAITING_OF_A_TENANT or self._waiting.total() >= _MOST_WAITING
            if is_full or self.is_resting(tenant_id):
                return
            found = asyncio.get_running_loop().create_future()
            _keep(self._questions, key, found)
            self._waiting[tenant_id] += 1
            self._chores.start(self._answer(found, key, text, store_usage), "the vector of a question")
        if not found.done() and not self.is_resting(tenant_id):
            await asyncio.wait({found}, timeout=self._wait_s)
            if not found.done() and self._wait_s:
                self._cooldowns.rest(self._resting_as, tenant_id)

    def question(self, tenant_id: TenantId, text: str) -> Rows | None:
        """A question's packed vector, if it was prepared and has arrived."""
        found = self._questions.get(_key(tenant_id, text))
        return found.result() if found and found.done() else None

    def has_requested(self, tenant_id: TenantId, text: str) -> bool:
        """Whether a text's vector is cached or being made, or the model gave an unusable one."""
        return _key(tenant_id, text) in self._questions

    async def remember(self, tenant_id: TenantId, texts: Sequence[str], store_usage: StoreUsage) -> None:
        """Makes and caches the vectors of texts that questions are compared with. Raises a `ProviderError`."""
        embedded = await self.embed(tenant_id, texts)
        for text, vector in zip(texts, embedded.vectors, strict=True):
            found: asyncio.Future[Rows | None] = asyncio.get_running_loop().create_future()
            found.set_result(packed_query(vector))
            _keep(self._questions, _key(tenant_id, text), found)
        await store_usage(embedded)

    def compares_in(self, session: SessionRef, use: Use) -> bool:
        """Whether the session has compared by meaning here: only then a question's vector is made before the claim."""
        return (session.tenant_id, session.id, use) in self._uses

    def compared_in(self, session: SessionRef, use: Use) -> None:
        _keep(self._uses, (session.tenant_id, session.id, use), None)

    def through(self, session_id: SessionId) -> int:
        """The message number through which all messages of a session are known to have vectors."""
        return self._through.get(session_id, 0)

    def went_through(self, session_id: SessionId, seq: int) -> None:
        _keep(self._through, session_id, max(seq, self.through(session_id)), lambda _: None)  # costs a query if lost

    def forget_through(self, session_id: SessionId) -> None:
        """The database has lost messages of the session: those that get their numbers have no vectors."""
        self._through.pop(session_id, None)

    async def _answer(
        self, answered: asyncio.Future[Rows | None], key: tuple[TenantId, bytes], text: str, store_usage: StoreUsage
    ) -> None:
        vector = None
        try:
            embedded = await self.embed(key[0], [text])
            vector = packed_query(embedded.vectors[0])
        except BaseException:
            self._questions.pop(key, None)
            raise
        finally:
            self._waiting -= Counter((key[0],))  # leaves no zero
            if not answered.done():
                answered.set_result(vector)
        await store_usage(embedded)

    async def _measured(self, texts: Sequence[str]) -> Embedded:
        with self._telemetry.measured_call(self.alias, "embedding"):
            return await self._source.embed(texts, timeout_s=_TIMEOUT_S)


def _key(tenant_id: TenantId, text: str) -> tuple[TenantId, bytes]:
    return tenant_id, sha256(text[:MOST_EMBEDDED_CHARS].encode(errors="surrogatepass")).digest()


def _keep(kept: OrderedDict[K, V], key: K, value: V, tenant_of: Callable[[K], Hashable] = itemgetter(0)) -> None:
    """Keeps the newest entries. Whoever has the most of them loses the oldest: no tenant displaces those of others."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _MOST_KEPT:
        most = Counter(map(tenant_of, kept)).most_common(1)[0][0]
        del kept[next(each for each in kept if tenant_of(each) == most)]
