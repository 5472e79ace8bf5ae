"""How far estimates are from what a provider counts, where clients and operators look for it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.api.conftest import PATIENCE_S, new_session, serving, settings_for
from tests.providers.playing import threaded_serving
from tests.services.test_model_faults import strict_window


def test_the_correction_of_estimates_is_in_the_audit_the_metrics_and_the_list_of_models(
    database_url: str, tmp_path: Path
) -> None:
    models = tmp_path / "models.toml"
    with threaded_serving(strict_window(32_768, factor=1.3)) as model:
        models.write_text(
            'default = "main"\n[models.main]\nprovider = "openai"\nmodel = "m"\ncontext_window = 32768\n'
            f'base_url = "{model.base_url}"\n'
        )
        with (
            serving(settings_for(database_url, models_file=models)) as address,
            httpx.Client(base_url=address, timeout=PATIENCE_S, trust_env=False) as client,
        ):
            assert client.get("/v1/models").json()["items"][0]["calibration_ratio"] == 1.0
            session = new_session(client)
            posted = [client.post(f"/v1/sessions/{session}/turns", json={"content": "word " * 1200}) for _ in range(5)]
            assert [answer.status_code for answer in posted] == [201] * 5
            (listed,) = client.get("/v1/models").json()["items"]
            assert listed["calibration_ratio"] == pytest.approx(1.3, abs=0.08)
            turn = posted[-1].json()["turn"]["id"]
            audit = client.get(f"/v1/sessions/{session}/turns/{turn}/audit").json()
            assert audit["calibration_ratio"] == pytest.approx(1.3, abs=0.08)
            metrics = client.get("/metrics").text.splitlines()
            (line,) = [each for each in metrics if each.startswith("estimate_calibration_ratio{")]
            assert float(line.split(" ")[1]) == pytest.approx(audit["calibration_ratio"])
            observed = [each for each in metrics if each.startswith("estimate_to_actual_ratio_count{")]
            assert observed == ['estimate_to_actual_ratio_count{model_alias="main"} 5.0']
