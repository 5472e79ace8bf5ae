"""Settings as the environment gives them."""

from __future__ import annotations

import pytest

from app.core.config import Settings


def test_an_empty_path_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PLIMSOLL_DATA_DIR", "MODELS_FILE"):
        monkeypatch.setenv(variable, "")
    settings = Settings(_env_file=None)  # type: ignore[call-arg] # known to pydantic-settings
    assert (settings.data_dir, settings.models_file) == (None, None)


def test_an_empty_connection_string_leads_to_no_server_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "")
    with pytest.raises(ValueError, match="unset it for the embedded Postgres"):
        Settings(_env_file=None)  # type: ignore[call-arg] # known to pydantic-settings


def test_the_address_that_kubernetes_gives_pods_beside_a_service_called_plimsoll_is_not_the_port_to_listen_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLIMSOLL_PORT", "tcp://10.96.0.10:80")
    assert Settings(_env_file=None).port == 8000  # type: ignore[call-arg] # known to pydantic-settings
    monkeypatch.setenv("PLIMSOLL_PORT", "tcp")
    with pytest.raises(ValueError, match="valid integer"):
        Settings(_env_file=None)  # type: ignore[call-arg] # known to pydantic-settings
