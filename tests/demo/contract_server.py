"""A small real HTTP server that speaks the shapes a replay needs; its budget arithmetic can be checked by hand.

A token is a word. The system text is `instructions`; framing is three tokens a message. Over 70 % of the input budget
the history is folded into a five-token summary; a user's message over the budget is refused.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FRAMING_TOKENS = 3
SUMMARY_TOKENS = 5


@dataclass
class Held:
    """What the server got, and the faults a test asked for: turn number (from 1) to the status it answers."""

    sessions: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    turn_bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    authorizations: list[str | None] = field(default_factory=list[str | None])
    faults: dict[int, int] = field(default_factory=dict[int, int])
    fired: list[int] = field(default_factory=list[int])
    overshoot_tokens: int = 0
    break_prompts: Callable[[dict[str, Any]], None] | None = None
    sent: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    url: str = ""

    def create(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        session_id = f"00000000-0000-7000-8000-{len(self.sessions):012d}"
        self.sessions[session_id] = {"body": body, "history": 0, "messages": 0, "summary": 0, "seq": 0}
        return 201, {"id": session_id, **body}

    def turn(self, session_id: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.turn_bodies.append(body)
        number = len(self.turn_bodies)
        if number in self.faults:
            self.fired.append(number)
            status = self.faults.pop(number)
            code = "turn_in_progress" if status == 409 else "injected"
            return status, {"code": code, "status": status, "detail": "Injected by the test."}
        session = self.sessions[session_id]
        limit = session["body"].get("policy", {}).get("max_context_tokens", 1000)
        output_reserve, overhead = limit // 5, limit // 10
        budget = limit - output_reserve - overhead
        regions = {
            "system": len(session["body"].get("instructions", "").split()),
            "goal": len(session["body"].get("room_goal", "").split()),
            "summary": session["summary"],
            "history": session["history"],
            "user": len(body["content"].split()),
            "framing": FRAMING_TOKENS * (session["messages"] + 1),
        }
        before = _input_tokens(regions, overhead)
        fold = before >= 0.7 * budget and session["history"] > 0
        if fold:
            regions |= {"summary": SUMMARY_TOKENS, "history": 0, "framing": FRAMING_TOKENS * 2}
            session |= {"summary": SUMMARY_TOKENS, "history": 0, "messages": 1}
        after = _input_tokens(regions, overhead) + self.overshoot_tokens
        if after > budget and not self.overshoot_tokens:
            stated = {"limit": limit, "input_budget": budget, "estimated": after, "over_by": after - budget}
            recovery = {"shorten": "user", "by_tokens": after - budget}
            return 422, {"code": "context_budget_exceeded", "budget": stated, "regions": regions, "recovery": recovery}
        reply = body.get("recorded_reply", {}).get("content", "offline reply")
        session["history"] += regions["user"] + len(reply.split())
        session["messages"] += 2
        session["seq"] += 1
        turn = {
            "id": f"turn-{number}", "seq": session["seq"], "status": "completed", "assistant_output": reply,
            "prompt_tokens": sum(regions.values()), "completion_tokens": len(reply.split()),
        }  # fmt: skip
        context: dict[str, Any] = {
            "model_alias": "offline", "model_context_limit": limit, "context_limit_source": "catalogue",
            "input_budget": budget, "output_reserve": output_reserve, "overhead_reserve": overhead,
            "estimated_input_tokens_before": before, "estimated_input_tokens_after_summary": after,
            "estimated_input_tokens_after_prune": after, "summary_triggered": fold, "prune_triggered": False,
            "overflow_rejected": False, "estimated_wire_tokens": sum(regions.values()), "regions": regions,
            "context_trim_log": {"actions": []}, "prompt_sha256": "0" * 64,
        }  # fmt: skip
        prompt: dict[str, Any] = {"messages": [{"role": "user", "content": body["content"]}], "tools": []}
        prompt["prompt_sha256"] = sha256(json.dumps(prompt, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        audit = context | {"prompt_sha256": prompt["prompt_sha256"], "round": 1}
        self.sent[f"turn-{number}"] = {"prompt": prompt, "audit": audit}
        return 201, {"turn": turn, "context": context}

    def read_back(self, turn_id: str, what: str) -> tuple[int, dict[str, Any]]:
        """A prompt or its audit, with the fault that the test asked for."""
        if what == "prompt" and self.break_prompts is not None:
            self.break_prompts(self.sent[turn_id]["prompt"])
        return 200, self.sent[turn_id][what]


def _input_tokens(regions: dict[str, int], overhead: int) -> int:
    return sum(regions.values()) - min(overhead, regions["framing"])


@contextmanager
def contract_server() -> Generator[Held]:
    """Serves on a free loopback port until the block ends; `held.url` is its address."""
    held = Held()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            held.authorizations.append(self.headers["Authorization"])
            parts = self.path.strip("/").split("/")
            self._answer(*(held.turn(parts[2], body) if len(parts) == 4 else held.create(body)))

        def do_GET(self) -> None:
            parts = self.path.partition("?")[0].strip("/").split("/")
            if parts[-1] in {"prompt", "audit"}:
                self._answer(*held.read_back(parts[4], parts[5]))
                return
            summaries = [{"prompt_tokens": 7, "completion_tokens": SUMMARY_TOKENS}]
            self._answer(200, {"items": summaries, "next_cursor": None})

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            raw = json.dumps(body).encode()
            self.send_response(status)
            if status == 409:
                self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class named it
            """Stays silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    held.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield held
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
