"""What happens when the catalogue is wrong about the window, and the real server refuses a prompt for its length."""

from __future__ import annotations

from typing import Any

import httpx

from tests.api.test_streaming import events_of

from .conftest import OVERSTATED_TOKENS, Plimsoll
from .conversation import pasted_records
from .figures import Figures
from .model_server import WINDOW_TOKENS, ModelServer

MAX_REPLY_TOKENS = 48
PAGES = 3
"""Two fit into the real window and three do not."""


def test_a_window_that_is_stated_too_large_is_learned_and_the_turn_completes(
    plimsoll: Plimsoll, the_model: ModelServer, figures: Figures
) -> None:
    service = plimsoll.service
    session_id = service.create_session({"model_alias": "overstated"})
    refused_before, errors_before = the_model.answers(400), plimsoll.overflow_errors()
    for page in range(1, PAGES):
        assert service.post_turn(session_id, _body(page)).status_code == 201
    assert the_model.answers(400) == refused_before, "a prompt was refused before it was provoked"
    answer = service.post_turn(session_id, _body(PAGES))
    assert answer.status_code == 201, answer.body
    turn = answer.body["turn"]
    assert (turn["status"], bool(turn["assistant_output"])) == ("completed", True)
    assert the_model.answers(400) - refused_before == 1
    audit = service.audit(session_id, str(turn["id"]))
    _assert_shrunk(audit)
    assert audit["actual_prompt_tokens"] <= WINDOW_TOKENS - audit["output_reserve"]
    first = service.audit(session_id, _turn_ids(plimsoll, session_id)[1])
    assert (first["model_context_limit"], first["context_limit_source"]) == (OVERSTATED_TOKENS, "catalogue")
    assert plimsoll.overflow_errors() - errors_before == 1
    figures.noted["provoked: the catalogue says 16,384"] = _noted(audit)


def test_a_streamed_turn_survives_the_refusal_that_the_server_streams_as_nothing(
    plimsoll: Plimsoll, the_model: ModelServer, figures: Figures
) -> None:
    """And the window that nobody had stated is known once two turns met it: the next session does not run into it."""
    service = plimsoll.service
    assert _model(plimsoll)["context_window_source"] == "fallback"
    for source in ("fallback", "learned"):
        # With a summary before the third page, the prompt would fit: the fallback window is as small as that.
        session_id = service.create_session({"model_alias": "unstated", "policy": {"auto_summarize": False}})
        for page in range(1, PAGES):
            assert service.post_turn(session_id, _body(page)).status_code == 201
        refused_before = the_model.answers(400)
        noted = _streamed(plimsoll, session_id, _body(PAGES) | {"stream": True})
        names = [name for name, _ in noted]
        assert (names[0], names[1], names[-1]) == ("turn.created", "context.assembled", "turn.completed")
        assert "output.delta" in names
        assert the_model.answers(400) - refused_before == 1
        audit = service.audit(session_id, _turn_ids(plimsoll, session_id)[0])
        _assert_shrunk(audit)
        assert audit["actual_prompt_tokens"] is None, (
            "this server reports usage in a stream by now: hold it to the window"
        )
        assert _model(plimsoll)["context_window_source"] == source
    assert _model(plimsoll)["context_window"] == WINDOW_TOKENS
    figures.noted["provoked, streamed: nobody says"] = _noted(audit)

    fresh = service.create_session({"model_alias": "unstated"})
    answer = service.post_turn(fresh, {"content": "Good morning.", "max_output_tokens": MAX_REPLY_TOKENS})
    context = answer.body["context"]
    assert (context["model_context_limit"], context["context_limit_source"]) == (WINDOW_TOKENS, "learned")


def _body(page: int) -> dict[str, Any]:
    return {"content": pasted_records(page), "max_output_tokens": MAX_REPLY_TOKENS}


def _assert_shrunk(audit: Any) -> None:
    """The audit is of the second call, within the window that the first one's refusal named."""
    assert (audit["attempt"], audit["model_context_limit"], audit["context_limit_source"]) == (
        2,
        WINDOW_TOKENS,
        "learned",
    )
    assert "emergency_drop" in {action["kind"] for action in audit["context_trim_log"]["actions"]}


def _noted(audit: Any) -> dict[str, Any]:
    return {
        "learned window": audit["model_context_limit"],
        "attempt that completed": audit["attempt"],
        "its estimate": audit["estimated_wire_tokens"],
        "its prompt as reported": audit["actual_prompt_tokens"],
        "trimmed": [action["kind"] for action in audit["context_trim_log"]["actions"]],
    }


def _turn_ids(plimsoll: Plimsoll, session_id: str) -> list[str]:
    """Newest first."""
    turns = plimsoll.service.request("GET", f"/v1/sessions/{session_id}/turns").body["items"]
    return [turn["id"] for turn in sorted(turns, key=lambda turn: turn["seq"], reverse=True)]


def _model(plimsoll: Plimsoll) -> dict[str, Any]:
    (found,) = [
        model for model in plimsoll.service.request("GET", "/v1/models").body["items"] if model["alias"] == "unstated"
    ]
    return found


def _streamed(plimsoll: Plimsoll, session_id: str, body: dict[str, Any]) -> list[tuple[str, Any]]:
    url = f"{plimsoll.service.url}/v1/sessions/{session_id}/turns"
    with (
        httpx.Client(trust_env=False, timeout=600) as http,
        http.stream("POST", url, json=body) as answer,
    ):
        assert answer.status_code == 200
        return events_of(answer)
