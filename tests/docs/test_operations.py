"""What operators are told is whole: every code a client can meet, and a chart without a place for secrets."""

from __future__ import annotations

import re

from app.api.problems import KINDS
from tests.docs.pages import ROOT

_PAGE = (ROOT / "docs" / "operations.md").read_text()
_CHART = ROOT / "deploy" / "helm"


def test_every_problem_code_is_documented_with_its_status() -> None:
    rows = re.findall(r"^\| (`.+?) \| ([\d ]+) \|", _PAGE, re.MULTILINE)
    told = {code: statuses.split() for codes, statuses in rows for code in re.findall(r"`(\w+)`", codes)}
    assert KINDS.keys() <= told.keys()
    for code, kind in KINDS.items():
        assert str(kind.status) in told[code], code


def test_the_chart_takes_secrets_by_name_only_and_gives_turns_time_to_end() -> None:
    templates = {path.name: path.read_text() for path in (_CHART / "templates").iterdir()}
    assert "kind: Secret" not in "".join(templates.values())
    assert not re.search(r"postgresql://\w|password:|api_?key:", (_CHART / "values.yaml").read_text(), re.IGNORECASE)
    assert "helm.sh/hook: pre-install,pre-upgrade" in templates["migrate-job.yaml"]
    deployment = templates["deployment.yaml"]
    for promise in ("terminationGracePeriodSeconds", "/healthz", "/readyz", "preStop", "secretKeyRef", "runAsNonRoot"):
        assert promise in deployment + templates["_names.tpl"], promise
