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
