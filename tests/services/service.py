"""A service over a real database and models behind real sockets, for tests of whole turns."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

import orjson
from uuid_utils.compat import uuid7

from app.api.schemas.imports import read_import
from app.db.database import Database
from app.db.driver import new_id
from app.db.sql import sql
from app.domain.incoming import IncomingMessage
from app.domain.types import Content, JsonObject, RecordedReply, Session, SessionId, SessionRef, TenantId, TurnId
from app.engine.policy.policy import ContextPolicy
from app.engine.window.look_back import NAME
from app.providers.openai import OpenAIProvider
from app.providers.registry import load_catalogue
from app.services.archive.transfer import import_session
from app.services.embeddings import Embeddings
from app.services.heavy.child import Tools
from app.services.heavy.jobs import HeavyJobs
from app.services.paging import PageRequest
from app.services.pasts import Pasts
from app.services.process_state import Allowance, Chores, Cooldowns, HeavyWork
from app.services.runtime import Runtime
from app.services.sessions import create_session
from app.services.turn.take import continue_turn, take_turn
from app.services.turn.types import Listener, OutputsRequest, TurnOptions, TurnOutcome, TurnRequest
from app.telemetry.metrics import Telemetry
from app.telemetry.tracing import NO_TRACES, Tracer
from app.tokenizers.counters import Tokenizers, encoding_for_model
from tests.pooling import behind_pooler
from tests.providers.server import Answer, ScriptedServer, Seen

TENANT = TenantId("default")


def ref_of(session_id: SessionId) -> SessionRef:
    return SessionRef(TENANT, session_id)


NEWEST = PageRequest(200, None, newest_first=True)
OLDEST = PageRequest(200, None, newest_first=False)


def outputs_of(contents: Mapping[str, Content]) -> tuple[IncomingMessage, ...]:
    """Outputs of tools, by call id."""
    return tuple(
        IncomingMessage(place, "tool", content, tool_call_id=call_id)
        for place, (call_id, content) in enumerate(contents.items())
    )


@dataclass(frozen=True, slots=True)
class Service:
    """The runtime under test, with what a test does most."""

    rt: Runtime

    async def session(self, **fields: Any) -> Session:
        """A new session."""
        return await create_session(self.rt, TENANT, fields)

    async def imported(self, document: JsonObject, tenant_id: TenantId = TENANT) -> Session:
        """A session of an export, or of OpenAI-style messages with the fields of a new session."""
        return await import_session(self.rt, tenant_id, orjson.dumps(document), read_import)

    async def turn(
        self,
        session_id: SessionId,
        content: Any,
        key: str | None = None,
        *,
        model_alias: str | None = None,
        listen: Listener | None = None,
        tenant_id: TenantId = TENANT,
        **options: Any,
    ) -> TurnOutcome:
        """Posts a turn."""
        digest = sha256(json.dumps([content, model_alias, sorted(options)]).encode()).hexdigest()
        request = TurnRequest(content, digest, TurnOptions(**options), model_alias)
        return await take_turn(self.rt, SessionRef(tenant_id, session_id), request, key, listen)

    async def outputs(
        self, session_id: SessionId, turn_id: TurnId, outputs: dict[str, str], reply: RecordedReply | None = None
    ) -> TurnOutcome:
        """Answers a turn's open calls."""
        request = OutputsRequest(outputs_of(outputs), reply)
        return await continue_turn(self.rt, ref_of(session_id), turn_id, request)

    async def rows(self, statement: str, **parameters: Any) -> list[JsonObject]:
        """Rows of the database, for what no route shows."""
        async with self.rt.database.autocommit() as tx:
            return [dict(row) for row in await tx.fetch(sql(statement), **parameters)]


@asynccontextmanager
async def service(
    database_url: str,
    models: str | None = None,
    *,
    folder: Path | None = None,
    lease_s: float = 30.0,
    tokenizers: Tokenizers | None = None,
    policy: ContextPolicy | None = None,
    environ: Mapping[str, str] | None = None,
    transaction_pooler: bool | None = None,
    tracer: Tracer = NO_TRACES,
    embeds_with: str | None = None,
    embedding_wait_s: float = 60.0,
    max_windows_bytes: int = 256 * 1024 * 1024,
) -> AsyncGenerator[Service]:
    """A runtime as the composition root makes it. `models` is the text of a models file.

    Without a `policy` no summary is made ahead: what the next turn finds would go by how fast it comes.

    `embeds_with` is the alias that makes vectors. A turn waits long for its question's: a test is not about how fast it
    comes.

    With `PLIMSOLL_TEST_POOLER` in the environment the database is behind a pooler, unless the test says otherwise.
    """
    path = None
    if models is not None:
        assert folder is not None
        path = folder / "models.toml"
        path.write_text(models)
    tokenizers = tokenizers or Tokenizers()
    catalogue = load_catalogue(
        path,
        environ=environ or {},
        fallback_window=8192,
        now=_now,
        encoding_for_model=encoding_for_model,
        estimator=tokenizers.estimator,
    )
    pooler = behind_pooler() if transaction_pooler is None else transaction_pooler
    telemetry = Telemetry(catalogue.aliases)
    chores, cooldowns = Chores(), Cooldowns(monotonic)
    embeddings = None
    if embeds_with is not None:
        provider = catalogue.provider(embeds_with)
        assert isinstance(provider, OpenAIProvider)
        embeddings = Embeddings(
            provider,
            alias=embeds_with,
            wait_s=embedding_wait_s,
            chores=chores,
            cooldowns=cooldowns,
            telemetry=telemetry,
        )
    rt = Runtime(
        # A busy machine may take long for the last of five hundred posts: nothing here is about how long one waits.
        database=Database(database_url, pool_size=5, pool_timeout_s=60, transaction_pooler=pooler),
        heavy=HeavyWork(Database(database_url, pool_size=2, transaction_pooler=pooler), 1.0),
        jobs=HeavyJobs(Tools(tokenizers, uuid7)),
        catalogue=catalogue,
        tokenizers=tokenizers,
        telemetry=telemetry,
        chores=chores,
        cooldowns=cooldowns,
        pasts=Pasts(64 * 1024 * 1024, monotonic, telemetry),
        windows=Allowance("bytes of windows", max_windows_bytes, 1.0),
        guarded=policy or ContextPolicy(summarize_ahead=False),
        turn_lease_s=lease_s,
        now=_now,
        new_id=new_id,
        tracer=tracer,
        embeddings=embeddings,
    )
    try:
        yield Service(rt)
    finally:
        await rt.chores.drain(0)
        rt.jobs.close()
        await catalogue.aclose()
        await rt.database.aclose()
        await rt.heavy.database.aclose()


def _now() -> datetime:
    return datetime.now(UTC)


def models_toml(server: ScriptedServer, *, window: int = 4096, timeout_s: float = 60, extra: str = "") -> str:
    """A catalogue with one alias `main` at the server."""
    return (
        'default = "main"\n[models.main]\nprovider = "openai"\nmodel = "test-model"\n'
        f'base_url = "{server.base_url}"\ncontext_window = {window}\ntimeout_s = {timeout_s}\n{extra}'
    )


def is_summary(request: Seen) -> bool:
    """Whether the request came from the summarizer."""
    return '"context_messages"' in str(request.json["messages"][-1]["content"])


def client_tools(request: Seen) -> list[str]:
    """The names of the client's tools in a request."""
    names = [tool.get("name") or tool["function"]["name"] for tool in request.json.get("tools", ())]
    return [name for name in names if name != NAME]


def chat(content: str | None, *, prompt_tokens: int = 10, completion_tokens: int = 5) -> Answer:
    """A chat completion."""
    return Answer(
        {
            "id": "c",
            "object": "chat.completion",
            "model": "test-model-1",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens},
        }
    )


def model(
    reply: Callable[[Seen], Answer] | str = "Noted.", summary: Callable[[Seen], Answer] | None = None
) -> Callable[[Seen], Answer]:
    """A model that answers turns with `reply` and the summarizer with `summary`, by default a sound one."""

    def play(request: Seen) -> Answer:
        if is_summary(request):
            return (summary or sound_summary)(request)
        return chat(reply) if isinstance(reply, str) else reply(request)

    return play


def sound_summary(request: Seen) -> Answer:
    """A summary within the contract that cites the first message it was shown, and the first that stays."""
    document = json.loads(request.json["messages"][-1]["content"])
    around = document["context_messages"]
    cited = [document["messages"][0]["id"], *([around[1]["id"]] if len(around) > 1 else [])]
    return chat(
        json.dumps(
            {
                "summary_text": "The earlier part.",
                "key_facts": [{"text": "The port is 8443.", "message_ids": cited}],
                "open_questions": [],
                "decisions": [{"text": "Use Postgres.", "message_ids": [document["messages"][0]["id"]]}],
                "action_items": [],
            }
        ),
        prompt_tokens=100,
        completion_tokens=20,
    )
