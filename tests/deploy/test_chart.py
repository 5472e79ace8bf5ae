"""The chart, rendered by Helm's own library; and what its Job and its pods run, run here."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.api.conftest import PATIENCE_S
from tests.commands.test_cli import address, plimsoll, serving
from tests.docs.pages import ROOT

helm = pytest.importorskip("helm_python", reason="there is no wheel of Helm's library for this machine")
DATABASE = {"existingSecret": "database"}


def rendered(**values: Any) -> dict[str, dict[str, Any]]:
    """The objects of a release called `ship`, by kind."""
    with helm.Chart.load(str(ROOT / "deploy" / "helm")) as chart:
        files = chart.render({"database": DATABASE} | values, name="ship", namespace="port")
    objects = [found for text in files.values() for found in yaml.safe_load_all(text) if found is not None]
    by_kind = {found["kind"]: found for found in objects}
    assert len(by_kind) == len(objects)
    return by_kind


def pod_of(made: dict[str, Any]) -> dict[str, Any]:
    return made["spec"]["template"]["spec"]


def environment_of(container: dict[str, Any], secrets: dict[str, dict[str, str]]) -> dict[str, str]:
    """The container's variables, with the values of the Secrets that they refer to."""
    return {
        each["name"]: each["value"]
        if "value" in each
        else secrets[each["valueFrom"]["secretKeyRef"]["name"]][each["valueFrom"]["secretKeyRef"]["key"]]
        for each in container["env"]
    }


def test_what_the_chart_runs_makes_a_service_that_only_the_charts_key_opens(
    tmp_path: Path, empty_database_url: str
) -> None:
    made = rendered()
    secret = made["Secret"]
    key = base64.b64decode(secret["data"]["PLIMSOLL_API_KEY"]).decode()
    secrets = {
        "database": {"DATABASE_URL": empty_database_url},
        secret["metadata"]["name"]: {"PLIMSOLL_API_KEY": key},
    }
    job = pod_of(made["Job"])
    hooks = [each["metadata"]["annotations"] for each in (secret, made["Job"])]
    assert {each["helm.sh/hook"] for each in hooks} == {"pre-install,pre-upgrade"}
    assert int(hooks[0]["helm.sh/hook-weight"]) < int(hooks[1].get("helm.sh/hook-weight", "0"))
    for container in [*job["initContainers"], *job["containers"], *job["containers"]]:  # the last as at an upgrade
        done = plimsoll(tmp_path, *container["args"], **environment_of(container, secrets))
        assert done.returncode == 0, done.stderr
        assert key not in done.stdout + done.stderr
    (api,) = pod_of(made["Deployment"])["containers"]
    assert api["args"] == ["serve"]
    settings = environment_of(api, secrets)
    # The image's own folder is on a read-only file system here, and several workers share a folder for their metrics.
    assert int(settings["PLIMSOLL_WORKERS"]) > 1
    mounts = [mount["mountPath"] for mount in api["volumeMounts"] if not mount.get("readOnly")]
    assert settings["PLIMSOLL_DATA_DIR"] in mounts
    settings["PLIMSOLL_DATA_DIR"] = str(tmp_path / "mount")
    with serving(tmp_path, PLIMSOLL_HOST="0.0.0.0", **settings) as (_, printed):
        sessions = address(printed) + "/v1/sessions"
        assert httpx.get(sessions, timeout=PATIENCE_S).status_code == 401
        assert httpx.get(sessions, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S).status_code == 200


def test_the_chart_takes_a_key_of_ones_own_and_needs_a_database() -> None:
    assert rendered()["Secret"]["data"] != rendered()["Secret"]["data"]
    made = rendered(apiKey={"existingSecret": "ours", "key": "FIRST", "tenant": "acme"}, migrations={"enabled": False})
    assert "Secret" not in made
    job = pod_of(made["Job"])
    assert "initContainers" not in job
    (container,) = job["containers"]
    assert environment_of(container, {"database": {"DATABASE_URL": "url"}, "ours": {"FIRST": "key"}})
    assert container["args"][:4] == ["keys", "create", "--tenant", "acme"]
    with pytest.raises(helm.HelmError, match=r"database\.existingSecret"):
        rendered(database={})


def test_pods_are_restricted_and_get_time_to_end_and_their_settings_exist() -> None:
    made = rendered(models="[models.main]\n", settings={"PLIMSOLL_TURN_LEASE_S": "30"}, providerSecrets=["keys"])
    settings = set(re.findall(r"^#? ?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    pod = pod_of(made["Deployment"])
    (api,) = pod["containers"]
    assert {each["name"] for each in api["env"]} <= settings
    assert api["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert pod["terminationGracePeriodSeconds"] > 30
    assert [api[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")] == [
        "/healthz",
        "/healthz",
        "/readyz",
    ]
    assert made["ConfigMap"]["data"] == {"models.toml": "[models.main]\n"}
    assert (
        made["Service"]["spec"]["selector"].items()
        <= made["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    )
    for each in (pod, pod_of(made["Job"])):
        assert each["securityContext"]["runAsNonRoot"] is True
        assert each["enableServiceLinks"] is False, "the Service of a release `plimsoll` would set PLIMSOLL_PORT"
        for container in [*each.get("initContainers", []), *each["containers"]]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
