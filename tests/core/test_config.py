"""Settings as the environment gives them."""

from __future__ import annotations

import pytest

from app.core.config import Settings


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("DATABASE_URL", "PLIMSOLL_DATA_DIR", "MODELS_FILE"):
        monkeypatch.setenv(variable, "")
    settings = Settings(_env_file=None)  # type: ignore[call-arg] # known to pydantic-settings
    assert (settings.database_url, settings.data_dir, settings.models_file) == (None, None, None)
