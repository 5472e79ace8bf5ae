"""Nothing of one tenant is there for another: over every route, by every way an id or a key can travel."""

from __future__ import annotations

import re
from uuid import uuid4

import httpx

from tests.api.conftest import assert_problem, new_session
from tests.api.test_auth import client_of
from tests.security.routes import Operation, openai_places, operations
from tests.security.two_tenants import CALL, SECRET, TOOLS, Owned, Tenants, chat_body, two_tenants

LEAST_PROBES = 300
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_OF_THE_REQUEST = ("x-request-id", "date")


class Prober:
    """Sends what Bert sends, and the same with things that do not exist; counts, and holds both to be one answer."""

    def __init__(self, tenants: Tenants) -> None:
        self.tenants = tenants
        self.probes = 0

    def clean(self, answer: httpx.Response) -> httpx.Response:
        self.probes += 1
        assert SECRET not in answer.text, answer.request.url
        for owned in self.tenants.annas:
            for text in (answer.text, str(answer.headers)):
                assert owned.session_id not in text
                assert owned.session_id.replace("-", "") not in text
                assert owned.turn_id not in text
        return answer

    def same(self, probe: httpx.Response, unknown: httpx.Response, code: str) -> None:
        self.clean(probe)
        assert _seen(probe) == _seen(unknown), probe.request.url
        if probe.headers["content-type"] == "application/problem+json":
            assert_problem(probe, 404, code)
        else:
            assert (probe.status_code, probe.json()["error"]["code"]) == (404, code)


def _seen(answer: httpx.Response) -> tuple[int, dict[str, str], str]:
    headers = {name: value for name, value in answer.headers.items() if name not in _OF_THE_REQUEST}
    return answer.status_code, headers, _UUID.sub("ID", answer.text)


def _everything(tenants: Tenants) -> list[str]:
    """What Anna has, word for word."""
    texts = [tenants.anna.get("/v1/sessions?limit=200").text]
    for owned in tenants.annas:
        path = f"/v1/sessions/{owned.session_id}"
        texts += [tenants.anna.get(f"{path}/{part}").text for part in ("export", "turns", "summaries", "pins")]
    return texts


def test_no_route_distinguishes_another_tenants_things_from_things_that_do_not_exist(database_url: str) -> None:
    with two_tenants(database_url) as tenants:
        before = _everything(tenants)
        assert all(SECRET in text for text in before[:2])
        prober = Prober(tenants)
        found = operations(tenants.bert)
        for operation in found:
            for owned in tenants.annas:
                _aim(prober, operation, owned)
        _aim_by_body(prober)
        _aim_by_key(prober)
        _aim_by_cursor(prober, found)
        _aim_without_key(prober, found)
        assert prober.probes >= LEAST_PROBES
        assert _everything(tenants) == before


def _aim(prober: Prober, operation: Operation, owned: Owned) -> None:
    """At Anna's session by its id, and at what is in it from within a session of one's own."""
    bert, own = prober.tenants.bert, prober.tenants.berts.places
    if operation.takes("conversation_id") or operation.takes("response_id"):
        _aim_in_openais_form(prober, operation, owned)
        return
    if not operation.takes("session_id"):
        for name in operation.query:
            prober.clean(operation.send(bert, own, params={name: owned.session_id}))
        prober.clean(operation.send(bert, own, headers={"x-tenant-id": "anna", "x-forwarded-user": "anna"}))
        return
    unknown = str(uuid4())
    for spelled in (owned.session_id, owned.session_id.upper()):
        for inner in (owned.places, own):
            prober.same(
                operation.send(bert, inner | {"session_id": spelled}, headers={"x-session-id": owned.session_id}),
                operation.send(bert, inner | {"session_id": unknown}),
                "session_not_found",
            )
    for place, noun in (("turn_id", "turn"), ("summary_id", "summary")):
        if operation.takes(place):
            prober.same(
                operation.send(bert, own | {place: owned.places[place]}),
                operation.send(bert, own | {place: unknown}),
                f"{noun}_not_found",
            )


def _aim_in_openais_form(prober: Prober, operation: Operation, owned: Owned) -> None:
    """At Anna's conversation and response by their ids, and at her item from within a conversation of one's own."""
    bert, own = prober.tenants.bert, prober.tenants.berts.places
    unknown = openai_places(str(uuid4()))
    noun = "conversation" if operation.takes("conversation_id") else "response"
    prober.same(operation.send(bert, owned.places), operation.send(bert, unknown), f"{noun}_not_found")
    if operation.takes("item_id"):
        prober.same(
            operation.send(bert, own | {"item_id": owned.places["item_id"]}),
            operation.send(bert, own | {"item_id": unknown["item_id"]}),
            "item_not_found",
        )


def _aim_by_body(prober: Prober) -> None:
    bert, own = prober.tenants.bert, prober.tenants.berts.session_id
    unknown = str(uuid4())
    for owned in prober.tenants.annas:
        prober.same(
            bert.post(f"/v1/sessions/{own}/fork", json={"through_turn_id": owned.turn_id}),
            bert.post(f"/v1/sessions/{own}/fork", json={"through_turn_id": unknown}),
            "turn_not_found",
        )
        for headers, member in (({"x-session-id": owned.session_id}, None), ({}, owned.session_id)):
            aimed = chat_body("x") | ({"metadata": {"session_id": member}} if member else {})
            lost = chat_body("x") | ({"metadata": {"session_id": unknown}} if member else {})
            prober.same(
                bert.post("/v1/chat/completions", json=aimed, headers=headers),
                bert.post("/v1/chat/completions", json=lost, headers=dict.fromkeys(headers, unknown)),
                "session_not_found",
            )
        streamed = chat_body("x") | {"stream": True}
        prober.same(
            bert.post("/v1/chat/completions", json=streamed, headers={"x-session-id": owned.session_id}),
            bert.post("/v1/chat/completions", json=streamed, headers={"x-session-id": unknown}),
            "session_not_found",
        )
        _aim_responses(prober, owned)
    waiting = new_session(bert)
    made = bert.post(
        f"/v1/sessions/{waiting}/turns",
        json={
            "content": "x",
            "tools": TOOLS,
            "recorded_reply": CALL | {"tool_calls": [CALL["tool_calls"][0] | {"id": "b"}]},
        },
    ).json()["turn"]
    answer = prober.clean(
        bert.post(
            f"/v1/sessions/{waiting}/turns/{made['id']}/tool-outputs",
            json={"outputs": [{"tool_call_id": "call-1", "content": "x"}]},
        )
    )
    assert (answer.status_code, answer.json()["missing"], answer.json()["unknown"]) == (422, ["b"], ["call-1"])
    _import_aimed(prober)


def _aim_responses(prober: Prober, owned: Owned) -> None:
    bert, own = prober.tenants.bert, prober.tenants.berts.places["conversation_id"]
    theirs, unknown = owned.places, openai_places(str(uuid4()))
    said = {"role": "user", "content": "x"}
    for store, stream in ((True, False), (False, False), (True, True)):
        common = {"model": "offline", "input": "x", "store": store, "stream": stream}
        for field, name in (("conversation", "conversation_id"), ("previous_response_id", "response_id")):
            answers = [bert.post("/v1/responses", json=common | {field: ids[name]}) for ids in (theirs, unknown)]
            assert {answer.status_code for answer in answers} == {404 if field == "conversation" else 400}
            assert _seen(prober.clean(answers[0])) == _seen(answers[1])
        answers = [
            bert.post("/v1/responses", json=common | {"input": [{"id": ids["item_id"]}, said]})
            for ids in (theirs, unknown)
        ]
        assert {answer.status_code for answer in answers} == {400}
        assert _seen(prober.clean(answers[0])) == _seen(answers[1])
    for path in ("/v1/conversations", f"/v1/conversations/{own}/items"):
        answers = [bert.post(path, json={"items": [{"id": ids["item_id"]}, said]}) for ids in (theirs, unknown)]
        assert {answer.status_code for answer in answers} == {400}
        assert _seen(prober.clean(answers[0])) == _seen(answers[1])


def _import_aimed(prober: Prober) -> None:
    """An export of one's own that names Anna's rows makes rows of one's own, or nothing."""
    bert = prober.tenants.bert
    text = bert.get(f"/v1/sessions/{prober.tenants.berts.session_id}/export").text
    for owned in prober.tenants.annas:
        for ours, theirs in (
            (prober.tenants.berts.session_id, owned.session_id),
            (prober.tenants.berts.turn_id, owned.turn_id),
        ):
            answer = bert.post(
                "/v1/sessions/import",
                content=text.replace(ours, theirs).encode(),
                headers={"content-type": "application/json"},
            )
            prober.clean(answer)
            assert answer.status_code == 201
            prober.clean(bert.get(f"/v1/sessions/{answer.json()['id']}/turns"))


def _aim_by_key(prober: Prober) -> None:
    """A key that Anna used is a key like any other."""
    bert, own = prober.tenants.bert, new_session(prober.tenants.bert)
    for name in (*range(10), "waiting", "chat", "response"):
        headers = {"idempotency-key": f"annas-key-{name}"}
        turn = prober.clean(bert.post(f"/v1/sessions/{own}/turns", json={"content": "mine"}, headers=headers))
        assert turn.status_code == 201
        assert turn.json()["turn"]["user_input"] == "mine"
        chat = prober.clean(bert.post("/v1/chat/completions", json=chat_body("mine"), headers=headers))
        assert chat.status_code == 200
        assert bert.get(f"/v1/sessions/{chat.headers['x-session-id']}").status_code == 200
        body = {"model": "offline", "input": "mine"}
        answer = prober.clean(bert.post("/v1/responses", json=body, headers={"idempotency-key": f"annas-key-r{name}"}))
        assert bert.get(f"/v1/responses/{answer.json()['id']}").status_code == 200


def _aim_by_cursor(prober: Prober, found: list[Operation]) -> None:
    """A cursor is a place in one list: in another it is garbage."""
    tenants = prober.tenants
    cursors = [tenants.sessions_cursor, *(text for owned in tenants.annas for text in owned.cursors.values())]
    assert len(cursors) == 3
    for operation in found:
        if "cursor" not in operation.query:
            continue
        for cursor in cursors:
            answer = prober.clean(operation.send(tenants.bert, tenants.berts.places, params={"cursor": cursor}))
            assert_problem(answer, 422, "invalid_request")


_WRONG_HEADERS: tuple[dict[str, str], ...] = (
    {},
    {"authorization": "Bearer"},
    {"x-tenant-id": "anna"},
    {"authorization": "Bearer plk_" + "A" * 43, "x-api-key": "anna"},
)


def _aim_without_key(prober: Prober, found: list[Operation]) -> None:
    with client_of(str(prober.tenants.bert.base_url), None) as nobody:
        for operation in found:
            for headers in _WRONG_HEADERS:
                answer = prober.clean(operation.send(nobody, prober.tenants.annas[0].places, headers=headers))
                assert answer.status_code == 401, operation.name
