"""An export with any value of it made wrong is refused, or it is a session of which every read is answered.

Runs one fault in 60; `make fuzz` sets `PLIMSOLL_BROKEN_EXPORTS` to 1 and runs every one, in four parts.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import jsonschema_rs
import orjson
import pytest

from tests.security.broken_exports import Fault, faults
from tests.security.rich_export import Rich, forms, rich_export
from tests.security.routes import Operation, openai_places, operations

IMPORT = "/v1/sessions/import"
_FEW = 60
ONE_IN = int(os.environ.get("PLIMSOLL_BROKEN_EXPORTS", _FEW))
PARTS = 1 if ONE_IN == _FEW else 4
FORMS = {
    *("action assistant_dropped", "action media_marked", "action summary_folded", "action tool_result_shortened"),
    *("message assistant", "message tool", "message user", "parts", "reasoning", "reasoning_blocks"),
    *("ref b", "ref m", "ref mb", "ref mt", "ref s", "recalled", "request", "request policy"),
    *("summary active", "summary by model", "summary superseded", "summary undone"),
    *("turn cancelled", "turn completed", "turn failed", "turn rejected"),
    *("pins", "blocks", "turns", "messages", "steps", "summaries", "audits"),
}
_VARIANTS: dict[str, tuple[dict[str, str], ...]] = {
    "/v1/sessions/{session_id}/pins": ({}, {"figures": "true"}),
    "/v1/sessions/{session_id}/turns/{turn_id}/audit": ({}, {"round": "1"}, {"expand": "actions"}),
    "/v1/sessions/{session_id}/turns/{turn_id}/prompt": ({}, {"round": "1"}),
    "/v1/sessions/{session_id}/timeline": ({}, {"limit": "1"}),
    "/v1/sessions/{session_id}/search": ({"q": "invoice ledger"},),
    "/v1/sessions/{session_id}/look-back": ({"q": "invoice ledger"}, {"handle": "m2"}),
}
_OF_A_RESPONSE = ("{response_id}", "{item_id}")


@dataclass(slots=True)
class Reader:
    """Reads all that there is to read of a session, and holds each answer to the OpenAPI document."""

    client: httpx.Client
    reads: list[Operation] = field(init=False)
    schemas: dict[str, Any] = field(default_factory=dict[str, Any])
    sent: Counter[int] = field(default_factory=Counter[int])

    def __post_init__(self) -> None:
        self.reads = [
            operation
            for operation in operations(self.client)
            if operation.method == "GET"
            and ("{session_id}" in operation.path or "{conversation_id}" in operation.path)
            and not any(place in operation.path for place in _OF_A_RESPONSE)
        ]
        assert len(self.reads) >= 15
        document = self.client.get("/openapi.json").json()
        lists = [("GET", "/v1/sessions")]
        posts = [("POST", "/v1/sessions/{session_id}/context/preview"), ("POST", "/v1/sessions/{session_id}/simulate")]
        for method, path in [*((read.method, read.path) for read in self.reads), *lists, *posts]:
            content = document["paths"][path][method.lower()]["responses"]["200"]["content"]["application/json"]
            schema = {**content["schema"], "components": document["components"]}
            self.schemas[path] = jsonschema_rs.validator_for(schema)

    def read_all(self, session_id: str, export: dict[str, Any], only_turn: str | None = None) -> None:
        """Every read of the session, which was made of `export`; a problem of any is an error of the test.

        With `only_turn`, of the reads of single turns those of this one.
        """
        turns = self._get("/v1/sessions/{session_id}/turns", f"/v1/sessions/{session_id}/turns")["items"]
        assert len(turns) == len(export["turns"])
        summaries = self._get("/v1/sessions/{session_id}/summaries", f"/v1/sessions/{session_id}/summaries")["items"]
        places = {"session_id": session_id, **openai_places(session_id)}
        audits = _last_audits(export)
        for read in self.reads:
            for params in _VARIANTS.get(read.path, ({},)):
                if read.takes("turn_id"):
                    for turn, stored in zip(turns, export["turns"], strict=True):
                        if only_turn not in (None, stored["id"]):
                            continue
                        last = audits["round" in params].get(stored["id"])
                        missing = last is None or (read.path.endswith("/prompt") and last["prompt_refs"] is None)
                        path = read.path.format_map({**places, "turn_id": turn["id"]})
                        self._get(read.path, path, params, missing=missing and not path.endswith(turn["id"]))
                elif read.takes("summary_id"):
                    for summary in summaries:
                        self._get(read.path, read.path.format_map({**places, "summary_id": summary["id"]}), params)
                elif read.takes("name"):
                    for pin in export["pins"]:
                        name = httpx.URL("http://x").copy_with(path=f"/{pin['name']}").raw_path.decode()[1:]
                        self._get(read.path, read.path.format_map({**places, "name": name}), params)
                else:
                    self._get(read.path, read.path.format_map(places), params)
        self._get("/v1/sessions", "/v1/sessions", {"figures": "true", "limit": "1"})
        self._go_on(session_id)

    def _go_on(self, session_id: str) -> None:
        """A preview, a simulation, the export as a session again, and a turn."""
        for path, body in (("context/preview", {"content": "And now?"}), ("simulate", {"policies": ["guarded"]})):
            answer = self.client.post(f"/v1/sessions/{session_id}/{path}", json=body)
            self._hold(answer, f"/v1/sessions/{{session_id}}/{path}", 200)
        again = self.client.post(
            IMPORT, content=self.client.get(f"/v1/sessions/{session_id}/export").content, headers=_JSON
        )
        assert again.status_code == 201, again.text
        self.client.delete(f"/v1/sessions/{again.json()['id']}").raise_for_status()
        turn = {"content": "And now?", "model_alias": "offline"}
        goes_on = self.client.post(f"/v1/sessions/{session_id}/turns", json=turn)
        assert goes_on.status_code in (201, 422), goes_on.text

    def _get(self, route: str, path: str, params: dict[str, str] | None = None, *, missing: bool = False) -> Any:
        return self._hold(self.client.get(path, params=params or None), route, 404 if missing else 200)

    def _hold(self, answer: httpx.Response, route: str, status: int) -> Any:
        self.sent[answer.status_code] += 1
        assert answer.status_code == status, (str(answer.request.url), answer.status_code, answer.text[:500])
        body = orjson.loads(answer.content)
        if status == 200:
            error = next(self.schemas[route].iter_errors(body), None)
            assert error is None, (route, error.message[:300], list(error.instance_path))
        return body


_JSON = {"content-type": "application/json"}


def _last_audits(export: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last audit of each turn, and the last of each turn's first round."""
    ordered = sorted(export["audits"], key=lambda audit: (audit["round"], audit["attempt"]))
    return (
        {audit["turn_id"]: audit for audit in ordered},
        {audit["turn_id"]: audit for audit in ordered if audit["round"] == 1},
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_an_export_with_any_value_made_wrong_is_refused_or_is_a_session_that_can_be_read(
    database_url: str, tmp_path: Path, part: int
) -> None:
    with rich_export(database_url, tmp_path) as rich:
        assert forms(rich.document) >= FORMS, FORMS - forms(rich.document)
        reader = Reader(rich.client)
        reader.read_all(rich.session_id, rich.document)
        answers: Counter[int] = Counter()
        broken: list[str] = []
        for fault in list(faults(rich.document))[::ONE_IN][part::PARTS]:
            place = ".".join(map(str, fault.path))
            try:
                answers[_import_and_read(rich, reader, fault)] += 1
            except AssertionError as error:
                broken.append(f"{place} = {fault.name}: {str(error)[:400]}")
        found = f"{answers.total():,} broken exports: {dict(answers)}; reads {dict(reader.sent)}"
        print(found)  # noqa: T201 - `make fuzz` shows it
        assert not broken, f"{len(broken)} of {found}:\n" + "\n".join(broken[:40])
        assert answers[201] > 10
        assert answers[422] > answers[201]
        assert answers.keys() == {201, 422}


def _import_and_read(rich: Rich, reader: Reader, fault: Fault) -> int:
    document = fault.document(rich.document)
    answer = rich.client.post(IMPORT, json=document)
    assert answer.status_code in (201, 422), answer.text
    if answer.status_code == 201:
        made = cast("str", answer.json()["id"])
        try:
            reader.read_all(made, document, _only_turn(rich, fault))
        finally:
            rich.client.delete(f"/v1/sessions/{made}").raise_for_status()
    return answer.status_code


def _only_turn(rich: Rich, fault: Fault) -> str | None:
    """The turn whose own reads alone can show the fault; None where it may be any."""
    match fault.path:
        case ("turns", int(at), str(), *_):
            return rich.document["turns"][at]["id"]
        case ("steps" | "audits" as section, int(at), str(), *_):
            return rich.document[section][at]["turn_id"]
        case _:
            return None
