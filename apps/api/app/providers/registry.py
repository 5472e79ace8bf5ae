"""The model catalogue: which aliases there are, what each is, and the provider that speaks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias

from app.domain.errors import InvalidRequest
from app.domain.prices import Prices
from app.domain.types import ReasoningRule, TenantId
from app.providers.anthropic import DEFAULT_BASE_URL as ANTHROPIC_BASE_URL
from app.providers.anthropic import AnthropicProvider
from app.providers.base import Provider
from app.providers.catalogue_file import CatalogueError, ModelEntry, key_of, read_catalogue
from app.providers.endpoint import Endpoint
from app.providers.offline import OfflineProvider
from app.providers.openai import DEFAULT_BASE_URL as OPENAI_BASE_URL
from app.providers.openai import OpenAIProvider
from app.providers.reasoning_rules import reasoning_rule
from app.providers.windows import LearnedWindows, Published, WindowSource, published

__all__ = ["Catalogue", "CatalogueError", "Instructions", "LearnedWindows", "Model", "load_catalogue"]

ProviderName: TypeAlias = Literal["openai", "anthropic", "offline"]


@dataclass(frozen=True, slots=True)
class Instructions:
    """System layers 1 to 3. `modes` and `roles` go by the names that a session may use."""

    global_: str | None
    modes: Mapping[str, str]
    roles: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Model:
    """An alias as it stands now. `context_window` is in tokens, and `context_limit_source` says who named it.

    `exact_counts` asks for the provider's own count of a prompt that is near a threshold.
    """

    alias: str
    provider: ProviderName
    model: str
    encoding: str
    timeout_s: float
    fallbacks: tuple[str, ...]
    context_window: int
    context_limit_source: WindowSource
    is_language_model: bool
    prices: Prices | None
    reasoning_rule: ReasoningRule | None = None
    exact_counts: bool = False


class Catalogue:
    """The aliases of a process. Only `learn` changes anything, and only what is not fixed by the catalogue's file."""

    def __init__(
        self,
        *,
        default: str,
        instructions: Instructions,
        models: Mapping[str, Model],
        providers: Mapping[str, Provider],
    ) -> None:
        self.default = default
        self.instructions = instructions
        self.aliases = tuple(models)
        self._models = dict(models)
        self._providers = dict(providers)
        self._learned: LearnedWindows = {}

    def model(self, alias: str, tenant_id: TenantId | None = None) -> Model:
        """The model of an alias, with the window that counts now: catalogue > learned > published > fallback.

        What the tenant's own turns have learned stands above what was learned for everybody. Raises
        `InvalidRequest` for an alias that is not there.
        """
        model = self._models.get(alias)
        if model is None:
            raise InvalidRequest(f"There is no model {alias!r}; there are {', '.join(self.aliases)}.", ("model_alias",))
        learned = self._learned.get((alias, tenant_id)) or self._learned.get((alias, None))
        if learned is None or model.context_limit_source == "catalogue":
            return model
        return replace(model, context_window=learned, context_limit_source="learned")

    def provider(self, alias: str) -> Provider:
        """Who answers for an alias. Raises `InvalidRequest` for one that is not there."""
        return self._providers[self.model(alias).alias]

    def learn(self, windows: LearnedWindows) -> None:
        """Replaces what this process knows of windows that providers have named."""
        self._learned = dict(windows)

    async def aclose(self) -> None:
        """Gives every provider's connections back."""
        for provider in self._providers.values():
            await provider.aclose()


def load_catalogue(
    path: Path | None,
    *,
    environ: Mapping[str, str],
    fallback_window: int,
    now: Callable[[], datetime],
    encoding_for_model: Callable[[str], str],
    estimator: Callable[[str], Callable[[str], int]],
) -> Catalogue:
    """Reads the file at `path`, or takes the built-in catalogue, and makes its providers; opens no connection.

    `environ` holds the keys that the file names, `fallback_window` (tokens) is for unknown models, and
    `estimator` gives an encoding's counter, for the offline responder's usage. Raises `CatalogueError`.
    """
    entry = read_catalogue(path, environ)
    models: dict[str, Model] = {}
    providers: dict[str, Provider] = {}
    for alias, listed in entry.models.items():
        name = listed.model or listed.provider
        encoding = listed.encoding or encoding_for_model(name)
        endpoint = _endpoint(alias, name, listed, key_of(listed, environ))
        known = Published()
        provider: Provider
        match listed.provider:
            case "offline":
                provider = OfflineProvider(estimator(encoding))
            case "openai":
                known = published(name, listed.base_url or OPENAI_BASE_URL, now())
                provider = OpenAIProvider(endpoint, now=now)
            case "anthropic":
                known = published(name, listed.base_url or ANTHROPIC_BASE_URL, now())
                provider = AnthropicProvider(endpoint, now=now)
        window, source = _window(listed, known, fallback_window)
        providers[alias] = provider
        models[alias] = Model(
            alias=alias,
            provider=listed.provider,
            model=name,
            encoding=encoding,
            timeout_s=listed.timeout_s,
            fallbacks=tuple(listed.fallbacks),
            context_window=window,
            context_limit_source=source,
            is_language_model=provider.is_language_model,
            prices=known.prices,
            reasoning_rule=reasoning_rule(listed, name),
            exact_counts=listed.exact_counts,
        )
    said = entry.instructions
    return Catalogue(
        default=entry.default,
        instructions=Instructions(said.global_, said.modes, said.roles),
        models=models,
        providers=providers,
    )


def _endpoint(alias: str, name: str, listed: ModelEntry, key: str | None) -> Endpoint:
    return Endpoint(
        label=alias,
        model=name,
        base_url=listed.base_url,
        api_key=key,
        api_key_header=listed.api_key_header,
        timeout_s=listed.timeout_s,
        max_tokens_field=listed.max_tokens_field,
        parameters=listed.parameters,
    )


def _window(listed: ModelEntry, known: Published, fallback_window: int) -> tuple[int, WindowSource]:
    """The window that does not change while the process runs; a learned one may stand above the last two."""
    if listed.context_window is not None:
        return listed.context_window, "catalogue"
    if known.context_window is not None:
        return known.context_window, "genai_prices"
    return fallback_window, "fallback"
