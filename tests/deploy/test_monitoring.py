"""What operators see is there: each series of alerts and dashboard is exported; each alert fires and notifies."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.domain.types import Usage
from app.telemetry.metrics import Telemetry
from tests.api.conftest import PATIENCE_S, new_session, serving, settings_for
from tests.deploy.promql import Read, exported, missing, reads
from tests.docs.pages import ROOT, table

MONITORING = ROOT / "deploy" / "helm" / "monitoring"
ALERTS = MONITORING / "alerts.yml"
ALERTS_TEST = ROOT / "tests" / "deploy" / "alerts_test.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not here, so alert rules are neither linted nor shown firing: Debian has it in `prometheus`",
)


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of alerts and dashboard, with where it stands; Grafana's variables have a value."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$job", "plimsoll")
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def what_is_exported(database_url: str) -> dict[str, dict[str, set[str]]]:
    """The scrape of a service that has made turns and a summary."""
    with serving(settings_for(database_url)) as address, httpx.Client(base_url=address, timeout=PATIENCE_S) as client:
        session = new_session(client)
        for number in range(10):
            long_turn = {"content": f"Turn {number}. " * 100}
            assert client.post(f"/v1/sessions/{session}/turns", json=long_turn).status_code == 201
        deadline = time.monotonic() + 60
        while True:
            series = exported(client.get("/metrics").text)
            if "open_turns" in series and "context_summary_seconds_count" in series:
                break
            assert time.monotonic() < deadline, sorted(series)
            time.sleep(0.05)
    # Only calls at a published price make the one series that the offline responder never has.
    priced = Telemetry(["offline"])
    usage = Usage(prompt_tokens=1, completion_tokens=1)
    priced.model_usage(alias="offline", purpose="turn", usage=usage, cost_usd=Decimal(1))
    cost = "model_cost_usd_total"
    assert cost not in series
    series[cost] = exported(priced.render()[0].decode())[cost]
    return series


def test_every_series_of_alerts_and_dashboard_is_exported_with_its_labels(database_url: str) -> None:
    series = what_is_exported(database_url)
    absent = {where: gone for where, text in expressions() for read in reads(text) if (gone := missing(read, series))}
    assert not absent


def test_a_series_a_label_or_a_value_that_is_not_exported_is_seen() -> None:
    series = exported(Telemetry(["main"]).render()[0].decode())
    good = 'sum by (kind) (rate(provider_errors_total{kind="down", job="x"}[5m]))'
    assert [missing(read, series) for read in reads(good)] == [[]]
    for bad, gone in {
        "provider_errors_total": "provider_error_total",
        "by (kind)": "by (sort)",
        '"down"': '"up"',
    }.items():
        (read,) = reads(good.replace(bad, gone))
        assert missing(read, series), gone
    assert reads("a / b > 2 and c")[2] == Read("c")


@promtool
def test_rules_and_configuration_pass_promtools_lint(tmp_path: Path) -> None:
    run("promtool", "check", "rules", ALERTS)
    shutil.copy(ROOT / "deploy" / "prometheus" / "prometheus.yml", tmp_path)
    shutil.copy(ALERTS, tmp_path)  # as docker-compose.yml mounts it, beside the other
    run("promtool", "check", "config", tmp_path / "prometheus.yml")


@promtool
def test_every_alert_fires_where_it_should_and_not_before() -> None:
    run("promtool", "test", "rules", ALERTS_TEST)


def test_every_alert_is_shown_firing_and_not_firing() -> None:
    shown: dict[str, set[bool]] = {}
    for test in yaml.safe_load(ALERTS_TEST.read_text())["tests"]:
        for case in test["alert_rule_test"]:
            shown.setdefault(case["alertname"], set()).add(bool(case.get("exp_alerts")))
    assert shown == {rule["alert"]: {True, False} for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_links_to_its_entry_in_the_operations_page(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert (page, anchor) == ("docs/operations.md", rule["alert"].lower())
    entry = re.search(rf"^### {rule['alert']}\n\n(.+?)(?=\n##)", OPERATIONS, re.MULTILINE | re.DOTALL)
    assert entry is not None, "no entry"
    assert "**Look**" in entry[1]
    assert "**Do**" in entry[1]
    assert rule["labels"]["severity"] in {"critical", "warning"}


def test_the_operations_page_names_every_series_and_of_no_other() -> None:
    text = Telemetry(["main"]).render()[0].decode()
    documented = {name for cell, _ in table("series", OPERATIONS) for name in re.findall(r"`(\w+)`", cell)}
    labels = {"status", "model_alias", "when", "outcome", "purpose", "kind", "cause", "code"}
    assert documented - labels == set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


def test_the_operations_page_names_no_alert_that_is_not_there() -> None:
    assert re.findall(r"^### (Plimsoll\w+)$", OPERATIONS, re.MULTILINE) == [rule["alert"] for rule in RULES]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"] or panel["type"])
def test_every_panel_says_what_it_shows_and_in_which_unit(panel: dict[str, Any]) -> None:
    assert panel["description"]
    if panel["type"] != "text":
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_panels_neither_overlap_nor_share_an_id() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert all(x < 24 for x, _ in cells), panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_compose_mounts_files_that_are_there_and_pins_its_images() -> None:
    for name, service in COMPOSE["services"].items():
        image = service["image"]
        assert image == "plimsoll:local" or re.search(r":v?\d+", image), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"], volume


def test_what_is_provisioned_is_what_is_mounted() -> None:
    grafana = COMPOSE["services"]["grafana"]
    mounted = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    assert mounted["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "plimsoll.yml").read_text())["providers"]
    dashboard = mounted["./deploy/helm/monitoring/dashboard.json"]
    assert Path(dashboard).parent == Path(provider["options"]["path"])
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == dashboard
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    prometheus = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
    (job,) = prometheus["scrape_configs"]
    assert job["job_name"] == "plimsoll"
    assert job["static_configs"] == [{"targets": ["api:8000"]}]


def test_the_chart_takes_rules_and_dashboard_from_the_same_files() -> None:
    template = (ROOT / "deploy" / "helm" / "templates" / "monitoring.yaml").read_text()
    taken = re.findall(r'\.Files\.Get "(.+?)"', template)
    assert sorted(taken) == sorted(str(path.relative_to(MONITORING.parent)) for path in MONITORING.iterdir())
    assert "jobLabel: app.kubernetes.io/name" in template
