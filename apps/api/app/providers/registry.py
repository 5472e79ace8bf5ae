"""The model catalogue: the aliases, the model of each, and the provider that calls it.

Windows and prices of published models come from the data of `genai-prices`; nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Final, Literal, TypeAlias

from genai_prices import data_snapshot
from genai_prices.types import ModelInfo, TieredPrices

from app.domain.content import fields_of
from app.domain.errors import InvalidRequest
from app.domain.frozen import frozen, replace
from app.domain.prices import Prices, call_cost
from app.domain.types import ReasoningRule, TenantId, Usage
from app.providers.anthropic import AnthropicProvider, thinking_tokens
from app.providers.base import Endpoint, Provider
from app.providers.catalogue_file import Instructions, ModelEntry, ProviderName, ReturnReasoning, key_of, read_catalogue
from app.providers.offline import OfflineProvider
from app.providers.openai import OpenAIProvider
from app.providers.responses_answer import REASONING

WindowSource: TypeAlias = Literal["catalogue", "learned", "genai_prices", "fallback"]
LearnedWindows: TypeAlias = Mapping[tuple[str, TenantId | None], int]
"""Windows that providers stated when they refused prompts, in tokens, by alias and tenant; None means all tenants."""

_RULES: Final[Mapping[ReturnReasoning, ReasoningRule | None]] = {
    "never": None,
    "signatures": ReasoningRule("blocks", "tool_loop"),
    "tool_loop": ReasoningRule("text", "tool_loop"),
    "tool_turns": ReasoningRule("text", "tool_turns"),
}
_OF_RESPONSES: Final = ReasoningRule("blocks", "tool_loop", only=REASONING)
"""Chat completions give no such blocks."""


@frozen
class Model:
    """An alias with its current window, in tokens; `context_limit_source` is where the window comes from.

    With `exact_counts` the provider counts prompts near a threshold. `takes_tools` says whether the service may offer a
    tool of its own.
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
    takes_tools: bool = True
    thinking_budget: int | None = None
    """Thinking tokens that a call may use, if the catalogue entry sets them in Anthropic's form."""

    @property
    def caches_conversations(self) -> bool:
        """Whether its provider may read the beginning of a conversation from a cache. At Anthropic a call with other
        thinking settings reads none of it; without a thinking budget it is unknown how many tokens thinking needs."""
        has_known_room = self.reasoning_rule is None or self.thinking_budget is not None
        return self.provider == "openai" or (self.provider == "anthropic" and has_known_room)

    def thinking_tokens(self, max_output_tokens: int) -> int:
        """The tokens of an output limit that thinking may use."""
        return thinking_tokens(self.thinking_budget, max_output_tokens) if self.thinking_budget is not None else 0

    def cost_of(self, usage: Usage) -> Decimal | None:
        """The cost in US dollars at the published prices; None where none is known."""
        return None if self.prices is None else call_cost(usage, self.prices.of_prompt(usage.prompt_tokens))

    @property
    def reports_cache_writes(self) -> bool:
        """Whether its provider reports the tokens that each call wrote to its cache, and has another price for them."""
        return self.provider == "anthropic"


@dataclass(slots=True, eq=False)
class Catalogue:
    """The aliases of a process. Only `learn` changes them, and only windows that the catalogue's file does not set."""

    default: str
    instructions: Instructions
    _models: Mapping[str, Model]
    _providers: Mapping[str, Provider]
    _learned: LearnedWindows = field(default_factory=dict[tuple[str, TenantId | None], int])

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(self._models)

    def model(self, alias: str, tenant_id: TenantId | None = None) -> Model:
        """The model of an alias, with its current window: catalogue > learned > published > fallback.

        A window learned from the tenant's own turns overrides one that applies to all tenants. Raises
        `InvalidRequest` for an unknown alias.
        """
        model = self._models.get(alias)
        if model is None:
            raise InvalidRequest(f"There is no model {alias!r}, only {', '.join(self.aliases)}.", ("model_alias",))
        learned = self._learned.get((alias, tenant_id)) or self._learned.get((alias, None))
        if learned is None or model.context_limit_source == "catalogue":
            return model
        return replace(model, context_window=learned, context_limit_source="learned")

    def provider(self, alias: str) -> Provider:
        """The provider of an alias. Raises `InvalidRequest` for an unknown alias."""
        return self._providers[self.model(alias).alias]

    def learn(self, windows: LearnedWindows) -> None:
        """Replaces the windows that providers have stated."""
        self._learned = dict(windows)

    async def aclose(self) -> None:
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
    tenant_ratio: float = 1.0,
) -> Catalogue:
    """Reads the file at `path`, or takes the built-in catalogue, and makes its providers; opens no connection.

    `environ` holds the keys that the file names, `fallback_window` (tokens) is for unknown models, and
    `estimator` gives an encoding's counter, for the offline responder's usage. One tenant uses at most `tenant_ratio`
    of the connections of an alias. Raises `CatalogueError`.
    """
    entry = read_catalogue(path, environ)
    models: dict[str, Model] = {}
    providers: dict[str, Provider] = {}
    for alias, listed in entry.models.items():
        name = listed.model or listed.provider
        encoding = listed.encoding or encoding_for_model(name)
        models[alias] = _model(alias, listed, name, encoding, fallback_window, now())
        endpoint = Endpoint(alias, listed, key_of(listed, environ), tenant_ratio)
        match listed.provider:
            case "offline":
                providers[alias] = OfflineProvider(estimator(encoding))
            case "openai":
                providers[alias] = OpenAIProvider(endpoint, now=now)
            case "anthropic":
                providers[alias] = AnthropicProvider(endpoint, now=now)
    return Catalogue(entry.default, entry.instructions, models, providers)


def _model(alias: str, listed: ModelEntry, name: str, encoding: str, fallback_window: int, at: datetime) -> Model:
    """An alias with its fixed window: the file's, else the published one, else the fallback."""
    published, prices = (None, None) if listed.provider == "offline" else _published(name, listed.address, at)
    window, source = fallback_window, "fallback"
    if listed.context_window is not None:
        window, source = listed.context_window, "catalogue"
    elif published is not None:
        window, source = published, "genai_prices"
    if listed.provider == "anthropic" and fields_of(listed.parameters.get("cache_control")).get("ttl") == "1h":
        prices = prices and _of_an_hour(prices)
    return Model(
        alias=alias,
        provider=listed.provider,
        model=name,
        encoding=encoding,
        timeout_s=listed.timeout_s,
        fallbacks=tuple(listed.fallbacks),
        context_window=window,
        context_limit_source=source,
        is_language_model=listed.provider != "offline",
        prices=prices,
        reasoning_rule=_reasoning_rule(listed, name),
        exact_counts=listed.exact_counts,
        takes_tools=listed.provider != "offline" and listed.tools is not False,
        thinking_budget=_thinking_budget(listed),
    )


def _thinking_budget(listed: ModelEntry) -> int | None:
    thinking = fields_of(listed.parameters.get("thinking"))
    budget = thinking.get("budget_tokens")
    is_known = listed.provider == "anthropic" and thinking.get("type") == "enabled" and isinstance(budget, int)
    return budget if is_known else None


def _reasoning_rule(listed: ModelEntry, name: str) -> ReasoningRule | None:
    """Which reasoning the alias's server expects in later prompts: by the file, else by its host; None for none.

    docs/providers.md, "Reasoning", has what each server requires and refuses; others publish little, and none is known
    to require any. api-docs.deepseek.com/guides/thinking_mode
    """
    thinking = fields_of(listed.parameters.get("thinking"))
    is_off = thinking.get("type") == "disabled"
    if listed.provider == "anthropic":
        return _RULES["signatures"] if thinking and not is_off else None
    if listed.return_reasoning is not None:
        return _RULES[listed.return_reasoning]
    insists = not is_off and (listed.vendor == "deepseek" or name.startswith("kimi"))
    match listed.vendor:
        case "openrouter":
            return ReasoningRule("blocks", "tool_turns")
        case "gemini":
            return _RULES["signatures"]
        case "deepseek" | "moonshot" if insists:
            return _RULES["tool_turns"]
        case _:
            return _OF_RESPONSES if listed.provider == "openai" and listed.api != "chat_completions" else None


def _published(model: str, base_url: str, at: datetime) -> tuple[int | None, Prices | None]:
    """The published window and prices of a model, looked up by its host and name. At an unknown host it is looked up by
    name alone, and has no prices: other hosts have their own."""
    snapshot = data_snapshot.get_snapshot()
    try:
        _, found = snapshot.find_provider_model(model, None, None, base_url)
    except LookupError:
        try:
            vendor = "litellm" if "/" in model else None  # reads `vendor/model`
            _, found = snapshot.find_provider_model(model, None, vendor, None)
        except LookupError:
            return None, None
        return found.context_window, None
    return found.context_window, _prices(found, at)


def _prices(model: ModelInfo, at: datetime) -> Prices:
    listed = model.get_prices(at)
    kinds = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
    prices = [getattr(listed, kind, None) for kind in kinds]
    starts = {tier.start for price in prices if isinstance(price, TieredPrices) for tier in price.tiers}
    return replace(_tier(prices, 0), tiers=tuple(_tier(prices, start) for start in sorted(starts)))


def _tier(listed: Sequence[object], above_prompt_tokens: int) -> Prices:
    fresh, output, cached, written = (_usd(price, above_prompt_tokens) for price in listed)
    return Prices(fresh, output, cached, written, above_prompt_tokens)


def _of_an_hour(prices: Prices) -> Prices:
    """With the price of writing to Anthropic's cache for an hour: twice that of input, by its documentation."""
    written = None if prices.input_usd is None else 2 * prices.input_usd
    return replace(prices, cache_write_usd=written, tiers=tuple(map(_of_an_hour, prices.tiers)))


def _usd(price: object, above_prompt_tokens: int) -> float | None:
    if isinstance(price, TieredPrices):
        reached = [tier.price for tier in price.tiers if tier.start <= above_prompt_tokens]
        price = reached[-1] if reached else price.base
    return float(price) if isinstance(price, Decimal | int | float) else None
