"""Everything a provider can do to a caller, plain and streamed: an end by the deadline, in the documented state."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass
from time import monotonic
from typing import Any

import orjson

from bench.programs import free_port
from tests.providers.server import Answer, Raw, Reset, Seen, Step, Stream, serving
from torture.ledger import violations
from torture.models import stream_pieces
from torture.nursery import ENCODING
from torture.replicas import Replica
from torture.results import Result
from torture.site import Answered, Site

DEADLINE_S = 2.0
_SLACK_S = 1.0
_MOST_ATTEMPTS = 3
_LEAST_KINDS = 36
_BOMB_BYTES = 64 * 1024 * 1024
_TEXT = "This is the answer, and it is whole."


@dataclass(frozen=True, slots=True)
class Kind:
    """A fault: what the server does, and what the turn must come to. `code` None is a completed turn.

    `streamed` is what it does to a stream, where that differs. `once` is for refusals that must not be tried again.
    """

    name: str
    play: Step
    code: str | None
    streamed: Step | None = None
    streamed_code: str | None = "same"
    once: bool = False

    def step(self, *, stream: bool) -> Step:
        return self.streamed if stream and self.streamed is not None else self.play

    @property
    def is_plain_too(self) -> bool:
        """Whether it is a fault of answers that are no stream."""
        return self.streamed is None

    def ends_as(self, *, stream: bool) -> str | None:
        return self.streamed_code if stream and self.streamed_code != "same" else self.code


def _completion(**changes: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": _TEXT}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]} | changes


def _error(status: int, code: str, **headers: str) -> Answer:
    return Answer({"error": {"message": "no", "code": code, "type": code}}, status, headers)


def _cut(body: Any) -> Answer:
    return Answer(body, cut_bytes=60)


def _stream(*pieces: bytes, **how: Any) -> Stream:
    return Stream(pieces or tuple(stream_pieces(_TEXT)), **how)


_PIECES = stream_pieces(_TEXT)
_GOOD = Answer(_completion())
_BROKE = "provider_error"
_LATE = "provider_timeout"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_IN_STREAM = b'data: {"error": {"message": "overloaded", "type": "overloaded_error"}}\n\n'

KINDS = (
    Kind("refused connection", Reset(), _BROKE),  # served by nobody: see `_catalogue`
    Kind("reset after the request", Reset(), _BROKE),
    Kind("silent for ever", Answer(_completion(), delay_s=30), _LATE),
    Kind("head only, then silent", Stream((b"{",), ending="open", content_type="application/json"), _LATE),
    Kind("trickle", Stream((b" ",) * 400, pause_s=0.05, content_type="application/json"), _LATE),
    # To a plain call it is an answer of another type, which the head says.
    Kind("trickling stream", _stream(*[b": still here\n\n"] * 400, pause_s=0.05), _BROKE, streamed_code=_LATE),
    Kind("slow but in time", Answer(_completion(), delay_s=0.8), None),
    Kind("truncated body", _cut(_completion()), _BROKE),
    Kind("truncated chunks", Stream((b'{"choices"',), ending="cut", content_type="application/json"), _BROKE),
    Kind("stream cut after text", _GOOD, None, _stream(*_PIECES[:3], ending="cut"), _BROKE),
    Kind("stream cut before text", _GOOD, None, _stream(b": hello\n\n", ending="cut"), _BROKE),
    Kind("end mark missing, closed", _GOOD, None, _stream(*_PIECES[:4]), _BROKE),
    Kind("stream never ends", _GOOD, None, _stream(*_PIECES[:4], ending="open"), _LATE),
    Kind("error in the stream", _GOOD, None, _stream(_IN_STREAM), _BROKE),
    Kind("error after text", _GOOD, None, _stream(*_PIECES[:3], _IN_STREAM), _BROKE),
    Kind("bad JSON in the stream", _GOOD, None, _stream(*_PIECES[:2], b"data: {nonsense\n\n"), _BROKE),
    Kind("bad JSON", Answer(b"{nonsense"), _BROKE),
    Kind("empty body", Answer(b""), _BROKE),
    Kind("JSON of another shape", Answer([1, 2, 3]), _BROKE),
    Kind("no choices", Answer(_completion(choices=[])), _BROKE),
    Kind("wrong content type", Answer(b"<html>hello</html>", content_type="text/html"), _BROKE),
    Kind("not UTF-8", Answer(b'{"choices": "\xff\xfe"}'), _BROKE),
    Kind("not HTTP", Raw(b"SSH-2.0-OpenSSH_9.2\r\n"), _BROKE),
    Kind("broken chunk sizes", Raw(_HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n"), _BROKE),
    Kind("gzip bomb", Answer(gzip.compress(b" " * _BOMB_BYTES), 200, {"content-encoding": "gzip"}), _BROKE),
    Kind("broken gzip", Answer(b"no gzip at all", 200, {"content-encoding": "gzip"}), _BROKE),
    Kind("endless body", Stream((b" " * 65_536,) * 4_000, content_type="application/json"), _BROKE),
    Kind("endless head", Raw(b"HTTP/1.1 200 OK\r\nX-Padding: " + b"x" * 2_000_000), _BROKE),
    Kind("text that is a number", Answer(_completion(choices=[{"index": 0, "message": {"content": 5}}])), _BROKE),
    Kind("204 without a body", Answer(b"", 204), _BROKE),
    Kind("400", _error(400, "bad_request"), _BROKE, once=True),
    Kind("401", _error(401, "invalid_api_key"), _BROKE, once=True),
    Kind("403", _error(403, "permission_error"), _BROKE, once=True),
    Kind("404", _error(404, "not_found"), _BROKE, once=True),
    Kind("redirect", Answer(b"", 307, {"location": "http://127.0.0.1:1/"}), _BROKE, once=True),
    Kind("408", _error(408, "timeout"), _BROKE),
    Kind("409", _error(409, "conflict"), _BROKE),
    Kind("429 with Retry-After", _error(429, "rate_limit_exceeded", **{"retry-after": "1"}), _BROKE),
    Kind(
        "429 with a long Retry-After", _error(429, "rate_limit_exceeded", **{"retry-after": "3600"}), _BROKE, once=True
    ),
    Kind("429 without Retry-After", _error(429, "rate_limit_exceeded"), _BROKE),
    Kind("429, quota used up", _error(429, "insufficient_quota"), _BROKE, once=True),
    Kind("500", _error(500, "server_error"), _BROKE),
    Kind("502 of a proxy", Answer(b"<html>Bad gateway</html>", 502, content_type="text/html"), _BROKE),
    Kind("503 with Retry-After", _error(503, "server_error", **{"retry-after": "0"}), _BROKE),
    Kind("529, overloaded", _error(529, "overloaded_error"), _BROKE),
    Kind("error in a 200", Answer({"error": {"message": "overloaded", "type": "overloaded_error"}}), _BROKE),
    Kind("prompt too long", _error(400, "context_length_exceeded"), "provider_context_overflow"),
)


async def provider_faults(site: Site) -> Result:
    """Every kind at an alias of its own, so that none rests because another failed."""
    result = Result(
        f"{len(KINDS)} provider fault kinds, plain and streamed",
        f"all end by the deadline + {_SLACK_S:g} s as documented; at most {_MOST_ATTEMPTS} attempts; "
        "no connection idle in a transaction",
    )
    for kind in KINDS:
        result.expect(kind.name, 2)
    plain = sum(kind.is_plain_too for kind in KINDS)
    result.check(plain >= _LEAST_KINDS, f"only {plain} kinds are faults of a plain answer")
    hits: dict[tuple[str, bool], int] = {}

    def play(seen: Seen) -> Step:
        kind = KINDS[int(seen.path.split("/")[1])]
        stream = seen.json.get("stream", False)
        told_stream = "stream" in seen.json["messages"][-1]["content"].split()[:1]
        hits[kind.name, told_stream] = hits.get((kind.name, told_stream), 0) + 1
        return kind.step(stream=stream)

    async with serving(play) as server, site.database() as (url, database):
        catalogue = site.folder / "faults.toml"
        catalogue.write_text(_catalogue(server.port))
        environment = site.environment(url) | {"MODELS_FILE": str(catalogue)}
        async with site.nursery.running(environment, name="faults") as replica:
            idle: list[int] = []
            sampling = asyncio.create_task(_sample(database, idle))
            slowest = await _try_all(site, replica, result)
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
            result.failures += await violations(database)
    for (name, stream), number in hits.items():
        result.fire(name)
        most = 1 if next(kind for kind in KINDS if kind.name == name).once else _MOST_ATTEMPTS
        result.check(number <= most, f"{name} (stream: {stream}): asked {number} times")
    result.check(max(idle) == 0, f"{max(idle)} connections were idle in a transaction")
    result.measured = {
        "kinds tried": f"{plain} plain, {len(KINDS)} streamed",
        f"slowest end (deadline {DEADLINE_S:g} s)": f"{slowest:.2f} s",
        "most attempts": max(hits.values()),
        "idle in a transaction": f"{max(idle)} in {len(idle):,} samples",
    }
    return result


async def _try_all(site: Site, replica: Replica, result: Result) -> float:
    free = asyncio.Semaphore(12)

    async def try_one(number: int, kind: Kind, *, stream: bool) -> float:
        async with free:
            session = await site.session(replica.url, model_alias=f"fault-{number}", policy={"summarize_when": "never"})
            started = monotonic()
            body = {"content": "stream it" if stream else "say it", "stream": stream}
            answered = await site.post(f"{replica.url}{session}/turns", body)
            took_s = monotonic() - started
            if kind.name == "refused connection":
                result.fire(kind.name)
            await _judge(site, replica, session, kind, answered, result, stream=stream)
            result.check(took_s <= DEADLINE_S + _SLACK_S, f"{kind.name} (stream: {stream}): it took {took_s:.2f} s")
            return took_s

    return max(
        await asyncio.gather(
            *(try_one(number, kind, stream=stream) for number, kind in enumerate(KINDS) for stream in (False, True))
        )
    )


async def _judge(
    site: Site, replica: Replica, session: str, kind: Kind, answered: Answered, result: Result, *, stream: bool
) -> None:
    """What the client got, and what is stored."""
    async with site.http.get(f"{replica.url}{session}/turns") as response:
        stored = orjson.loads(await response.read())["items"][0]
    expected = kind.ends_as(stream=stream)
    code = stored["error"]["code"] if stored["error"] else None
    status = "completed" if expected is None else "failed"
    result.check(
        (stored["status"], code) == (status, expected),
        f"{kind.name} (stream: {stream}): stored as {stored['status']} {code}, not {status} {expected}",
    )
    if answered.headers["Content-Type"].startswith("text/event-stream"):
        last, data = answered.last_event()
        got_code = data.get("error", {}).get("code") if last == "turn.failed" else None
        result.check(
            last == ("turn.completed" if expected is None else "turn.failed"), f"{kind.name}: it ended with {last}"
        )
    else:
        got_code = answered.code
    result.check(got_code == expected, f"{kind.name} (stream: {stream}): got {got_code}, not {expected}")


async def _sample(database: Any, idle: list[int]) -> None:
    asked = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND state LIKE 'idle in transaction%' AND clock_timestamp() - state_change > interval '0.5 s'"
    )
    while True:
        idle.append(await database.fetchval(asked))
        await asyncio.sleep(0.02)


def _catalogue(port: int) -> str:
    entries = ['default = "fault-0"']
    for number, kind in enumerate(KINDS):
        at = free_port() if kind.name == "refused connection" else port
        entries.append(
            f'[models.fault-{number}]\nprovider = "openai"\nmodel = "m"\n'
            f'base_url = "http://127.0.0.1:{at}/{number}/v1"\ncontext_window = 16384\nencoding = "{ENCODING}"\n'
            f"timeout_s = {DEADLINE_S}"
        )
    return "\n".join(entries) + "\n"
