"""Settings as the environment gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import AliasChoices, ValidationError

from app.commands.resources import read_settings
from app.core.config import Settings, variables
from app.domain.errors import OperatorError
from app.providers.catalogue_file import key_of, read_catalogue


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


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("PLIMSOLL_DATABASE_URL", "DATABASE_URL"),
        ("PLIMSOLL_WORKER", "PLIMSOLL_WORKERS"),
        ("CONTEXT_PROTECTED_TURN", "CONTEXT_PROTECTED_TURNS"),
        ("plimsoll_loglevel", "PLIMSOLL_LOG_LEVEL"),
    ],
)
@pytest.mark.parametrize("from_file", [False, True])
def test_a_misspelled_setting_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, meant: str, *, from_file: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    if from_file:
        (tmp_path / ".env").write_text(f"# of this host\n{variable}=a value\n")
    else:
        monkeypatch.setenv(variable, "a value")
    place = r" \(\.env, line 2\)" if from_file else ""
    with pytest.raises(OperatorError, match=f"^{variable}{place} is not a setting: the name is {meant}$"):
        read_settings()


def test_variables_that_others_set_beside_the_service_are_let_through(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SERVICE_HOST", "SERVICE_PORT", "PORT_8000_TCP", "PORT_8000_TCP_ADDR", "API_KEY", "URL"):
        monkeypatch.setenv(f"PLIMSOLL_{name}", "tcp://10.96.0.10:80")
    monkeypatch.setenv("CONTEXT_WINDOW", "1")
    assert read_settings().port == 8000


def test_the_key_of_a_provider_may_be_in_the_file_and_the_environment_overrides_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    models = tmp_path / "models.toml"
    models.write_text(
        'default = "m"\n[models.m]\nprovider = "openai"\nmodel = "n"\napi_key_env = "KEY_OF_A_PROVIDER"\n'
    )
    (tmp_path / ".env").write_text('KEY_OF_A_PROVIDER="sk-of-the-file"\nEXPORTED_NOWHERE\n')
    entry = read_catalogue(models, variables()).models["m"]
    assert key_of(entry, variables()) == "sk-of-the-file"
    monkeypatch.setenv("KEY_OF_A_PROVIDER", "sk-of-the-environment")
    assert key_of(entry, variables()) == "sk-of-the-environment"


def test_every_number_is_finite_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are in audits and answers, whose JSON has no integer beyond 64 bits."""
    defaults = Settings(_env_file=None)  # type: ignore[call-arg] # known to pydantic-settings
    numbers = [name for name, default in defaults if type(default) in (int, float)]
    assert len(numbers) > 20
    for name in numbers:
        alias = Settings.model_fields[name].validation_alias
        variable = str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"PLIMSOLL_{name.upper()}"
        for value in ("nan", "inf", "-1", "9" * 30):
            monkeypatch.setenv(variable, value)
            with pytest.raises(ValidationError, match=f"(?i)1 validation error for Settings\n({variable}|{name})"):
                Settings(_env_file=None)  # type: ignore[call-arg] # known to pydantic-settings
        monkeypatch.delenv(variable)
