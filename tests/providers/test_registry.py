"""The model catalogue: what a file says is what an alias is, and a mistake in it is named by its key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.domain.errors import InvalidRequest
from app.domain.prices import Prices
from app.domain.types import CompletionRequest, ReasoningRule, TenantId
from app.providers.catalogue_file import CatalogueError
from app.providers.registry import Catalogue, load_catalogue
from app.tokenizers.counters import encoding_for_model

from .server import Answer, serving

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def words_of(_encoding: str) -> Callable[[str], int]:
    return lambda text: len(text.split())


def load(path: Path | None, environ: Mapping[str, str] | None = None) -> Catalogue:
    return load_catalogue(
        path,
        environ=environ or {},
        fallback_window=8192,
        now=lambda: NOW,
        encoding_for_model=encoding_for_model,
        estimator=words_of,
    )


@pytest.fixture
def catalogue_of(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "models.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


FULL = """
default = "main"
[models.main]
provider = "openai"
model = "gpt-4"
base_url = "http://127.0.0.1:9000/v1"
api_key_env = "THE_KEY"
context_window = 16384
encoding = "o200k_base"
timeout_s = 12
fallbacks = ["backup"]
[models.backup]
provider = "offline"
[instructions]
global = "Be kind."
[instructions.modes]
research = "Cite."
[instructions.roles]
planner = "Plan."
"""


def test_without_a_file_there_is_one_alias_that_needs_nothing() -> None:
    catalogue = load(None)
    model = catalogue.model("offline")
    assert (catalogue.default, catalogue.aliases) == ("offline", ("offline",))
    assert (model.context_window, model.context_limit_source, model.encoding) == (16384, "catalogue", "o200k_base")
    assert (model.is_language_model, model.takes_tools, model.reasoning_rule) == (False, False, None)


def test_a_file_is_read_whole(catalogue_of: Callable[[str], Path]) -> None:
    catalogue = load(catalogue_of(FULL), {"THE_KEY": "sk-1"})
    model = catalogue.model("main")
    assert (model.provider, model.model, model.encoding, model.timeout_s) == ("openai", "gpt-4", "o200k_base", 12.0)
    assert (model.fallbacks, model.context_window, model.context_limit_source) == (("backup",), 16384, "catalogue")
    assert model.is_language_model
    assert catalogue.instructions.global_ == "Be kind."
    assert catalogue.instructions.modes == {"research": "Cite."}
    assert catalogue.instructions.roles == {"planner": "Plan."}


def test_an_unknown_alias_is_the_requests_mistake() -> None:
    for ask in (load(None).model, load(None).provider):
        with pytest.raises(InvalidRequest) as raised:
            ask("nope")
        assert raised.value.where == ("model_alias",)


OFFLINE = "default = 'a'\n[models.a]\nprovider = 'offline'\n"
REMOTE = "default = 'a'\n[models.a]\nprovider = 'openai'\nmodel = 'm'\n"


@pytest.mark.parametrize(
    ("text", "key", "word"),
    [
        ("default = ", "", "TOML"),
        ("default = 'x'", "models", "missing"),
        (OFFLINE.replace("default = 'a'", ""), "default", "missing"),
        (OFFLINE.replace("default = 'a'", "default = 'b'"), "default", "'b'"),
        (f"modles = 1\n{OFFLINE}", "modles", "no such key"),
        (f"{OFFLINE}context_windw = 1", "models.a.context_windw", "no such key"),
        (OFFLINE.replace("offline", "gemini"), "models.a.provider", "any server of chat completions"),
        (OFFLINE.replace("offline", "anthropic") + "base_url = 'http://h'", "models.a.model", "missing"),
        (REMOTE.replace("openai", "anthropic"), "models.a.api_key_env", "Anthropic"),
        (
            f"{REMOTE.replace('openai', 'anthropic')}base_url = 'http://h'\nmax_tokens_field = 'max_tokens'",
            "models.a.max_tokens_field",
            "nothing to anthropic",
        ),
        (f"{REMOTE}base_url = 'http://h'\nparameters = {{system = 'x'}}", "models.a.parameters", "system"),
        (f"{REMOTE}base_url = 'http://h'\nexact_counts = true", "models.a.exact_counts", "no endpoint that counts"),
        (f"{REMOTE}base_url = 'http://h'\nreturn_reasoning = 'all'", "models.a.return_reasoning", "tool_turns"),
        (
            f"{REMOTE.replace('openai', 'anthropic')}base_url = 'http://h'\nreturn_reasoning = 'never'",
            "models.a.return_reasoning",
            "nothing to anthropic",
        ),
        (f"{OFFLINE}pass_unknown = true", "models.a.pass_unknown", "nothing to offline"),
        (f"{OFFLINE}exact_counts = true", "models.a.exact_counts", "nothing to offline"),
        (f"{OFFLINE}tools = true", "models.a.tools", "nothing to offline"),
        (OFFLINE.replace("offline", "openai") + "base_url = 'http://h'", "models.a.model", "missing"),
        (REMOTE, "models.a.api_key_env", "missing"),
        (f"{REMOTE}api_key_env = 'UNSET_KEY'", "models.a.api_key_env", "UNSET_KEY is not set"),
        (f"{REMOTE}api_key_env = 'sk-hunter2'", "models.a.api_key_env", "that it names is not set"),
        (f"{REMOTE}api_key_env = 'gsk_hunter2'", "models.a.api_key_env", "that it names is not set"),
        (f"{OFFLINE}fallbacks = ['z']", "models.a.fallbacks", "'z'"),
        (f"{OFFLINE}fallbacks = ['a']", "models.a.fallbacks", "itself"),
        (f"{OFFLINE}context_window = '9'", "models.a.context_window: input should be a valid integer", ""),
        (f"{OFFLINE}context_window = true", "models.a.context_window", "integer"),
        (f"{OFFLINE}context_window = 0", "models.a.context_window", "greater"),
        (f"{OFFLINE}timeout_s = 0", "models.a.timeout_s", "greater"),
        (f"{OFFLINE}timeout_s = nan", "models.a.timeout_s", "less"),
        (f"{OFFLINE}encoding = 'gpt2'", "models.a.encoding", "o200k_base"),
        (f"{OFFLINE}base_url = 'http://h'", "models.a.base_url", "nothing to offline"),
        (f"{REMOTE}base_url = 'ftp://h'", "models.a.base_url", "http"),
        (f"{REMOTE}base_url = 'http://u:hunter2@h/v1'", "models.a.base_url", "password"),
        (f"{REMOTE}base_url = 'http://h/v1#part'", "models.a.base_url", "fragment"),
        (f"{REMOTE}base_url = 'http://a..b/v1'", "models.a.base_url", "address"),
        (f"{REMOTE}base_url = 'http://{'a' * 64}/v1'", "models.a.base_url", "address"),
        (f"{REMOTE}base_url = 'http://xn--zzzzzz/v1'", "models.a.base_url", "address"),
        (f"{REMOTE}base_url = 'http://h:0'", "models.a.base_url", "address"),
        (f"{REMOTE}base_url = 'http://h:65536'", "models.a.base_url", "address"),
        (f"{REMOTE}base_url = 'http://h'\napi_key_header = 'a: b'", "models.a.api_key_header", "header"),
        (f"{REMOTE}base_url = 'http://h'\nparameters = {{stream = true}}", "models.a.parameters", "stream"),
        (f"{REMOTE}base_url = 'http://h'\nparameters = {{input = 'x'}}", "models.a.parameters", "input"),
        (f"{OFFLINE}[instructions]\nglobl = 'x'", "instructions.globl", "no such key"),
    ],
)
def test_a_mistake_is_named_by_its_key(catalogue_of: Callable[[str], Path], text: str, key: str, word: str) -> None:
    with pytest.raises(CatalogueError) as raised:
        load(catalogue_of(text))
    (problem,) = raised.value.problems
    assert problem.startswith(key)
    assert word in problem
    assert "hunter2" not in str(raised.value)


def test_all_mistakes_are_reported_together_and_a_file_that_is_not_there_or_too_large_too(
    catalogue_of: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(CatalogueError) as raised:
        load(catalogue_of("default = 1\nx = 2\n[models.a]\nprovider = 'offline'\ny = 3"))
    assert len(raised.value.problems) == 3
    with pytest.raises(CatalogueError, match="more than 4194304 characters"):
        load(catalogue_of(f"default = 'a'\n[models.a]\nprovider = 'offline'\n# {'x' * 4 * 1024 * 1024}"))
    with pytest.raises(CatalogueError, match="cannot be read"):
        load(tmp_path / "absent.toml")


def test_mistakes_of_one_key_and_of_several_together_are_reported_at_once(catalogue_of: Callable[[str], Path]) -> None:
    text = """
        x = 2
        default = "nobody"
        [models.typo]
        provider = "openai"
        model = "m"
        api_key_env = "UNSET_KEY"
        context_windw = 4096
        [models.odd]
        provider = "gemini"
        base_url = 5
        [models.flat]
        provider = "openai"
        model = 5
        base_url = "ftp://h"
        context_window = 0
        fallbacks = ["odd", "table", "typo", "z"]
        [models]
        table = 3
        [instructions]
        globl = "x"
    """
    with pytest.raises(CatalogueError) as raised:
        load(catalogue_of(text))
    assert sorted(problem.partition(": ")[0] for problem in raised.value.problems) == [
        "default",
        "instructions.globl",
        "models.flat.base_url",
        "models.flat.context_window",
        "models.flat.fallbacks",
        "models.flat.model",
        "models.odd.base_url",
        "models.odd.provider",
        "models.table",
        "models.typo.api_key_env",
        "models.typo.context_windw",
        "x",
    ]
    assert sum("'z'" in problem for problem in raised.value.problems) == 1


@pytest.mark.parametrize("text", ["x = 1", "models = 5", "models = {}", "default = 5\n[models]\na = 5"])
def test_a_file_without_any_model_that_can_be_read_is_refused_too(
    catalogue_of: Callable[[str], Path], text: str
) -> None:
    with pytest.raises(CatalogueError):
        load(catalogue_of(text))


@pytest.mark.parametrize("key", ["sk\r\nX-Evil: 1", "sk-Evil-é"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(
    catalogue_of: Callable[[str], Path], key: str
) -> None:
    with pytest.raises(CatalogueError) as raised:
        load(catalogue_of(FULL), {"THE_KEY": key})
    assert "Evil" not in str(raised.value)


WINDOWS = """
default = "stated"
[models.stated]
provider = "openai"
model = "gpt-5-mini"
base_url = "http://127.0.0.1:9000/v1"
context_window = 5000
[models.published]
provider = "openai"
model = "gpt-5-mini"
api_key_env = "K"
[models.elsewhere]
provider = "openai"
model = "openai/gpt-4o"
base_url = "http://127.0.0.1:4000"
[models.nobody]
provider = "openai"
model = "my-own-model"
base_url = "http://127.0.0.1:9000/v1"
"""


def test_a_window_comes_from_the_file_then_what_was_learned_then_what_is_published_then_the_fallback(
    catalogue_of: Callable[[str], Path],
) -> None:
    catalogue = load(catalogue_of(WINDOWS), {"K": "sk"})

    def windows() -> dict[str, tuple[int, str]]:
        models = [catalogue.model(alias) for alias in catalogue.aliases]
        return {model.alias: (model.context_window, model.context_limit_source) for model in models}

    unlearned = {
        "stated": (5000, "catalogue"),
        "published": (400_000, "genai_prices"),
        "elsewhere": (128_000, "genai_prices"),
        "nobody": (8192, "fallback"),
    }
    assert windows() == unlearned
    catalogue.learn({(alias, None): 4096 for alias in catalogue.aliases})
    assert windows() == {
        "stated": (5000, "catalogue"),
        "published": (4096, "learned"),
        "elsewhere": (4096, "learned"),
        "nobody": (4096, "learned"),
    }
    acme = TenantId("acme")
    catalogue.learn({("nobody", acme): 2048, ("stated", acme): 2048})
    assert windows() == unlearned, "what a tenant's turns have learned holds for another"
    assert catalogue.model("nobody", acme).context_window == 2048
    assert catalogue.model("stated", acme).context_window == 5000


def test_prices_are_known_at_a_known_host_only(catalogue_of: Callable[[str], Path]) -> None:
    catalogue = load(catalogue_of(WINDOWS), {"K": "sk"})
    prices = catalogue.model("published").prices
    assert prices is not None
    assert (prices.input_usd or 0) > (prices.cached_input_usd or 0) > 0
    assert (prices.output_usd or 0) > (prices.input_usd or 0)
    assert catalogue.model("elsewhere").prices is None
    assert catalogue.model("nobody").prices is None


PUBLISHED = """
default = "gpt"
[models.gpt]
provider = "openai"
model = "gpt-4o-mini"
api_key_env = "K"
[models.claude]
provider = "anthropic"
model = "claude-haiku-4-5"
api_key_env = "K"
[models.hourly]
provider = "anthropic"
model = "claude-haiku-4-5"
api_key_env = "K"
parameters = { cache_control = { type = "ephemeral", ttl = "1h" } }
[models.tiered]
provider = "anthropic"
model = "claude-sonnet-4-5"
api_key_env = "K"
[models.twice_tiered]
provider = "openai"
base_url = "https://openrouter.ai/api/v1"
model = "qwen/qwen3.7-flash"
"""


def test_the_prices_are_those_that_openai_and_anthropic_publish_cache_writes_and_long_prompts_included(
    catalogue_of: Callable[[str], Path],
) -> None:
    """openai.com/api/pricing and platform.claude.com/docs/en/about-claude/pricing, dollars for a million tokens."""
    catalogue = load(catalogue_of(PUBLISHED), {"K": "sk"})
    assert catalogue.model("gpt").prices == Prices(0.15, 0.6, 0.075)
    assert catalogue.model("claude").prices == Prices(1.0, 5.0, 0.1, 1.25)
    assert catalogue.model("hourly").prices == Prices(1.0, 5.0, 0.1, 2.0)
    tiered = catalogue.model("tiered").prices
    assert tiered is not None
    assert tiered.tiers == (Prices(6.0, 22.5, 0.6, 7.5, above_prompt_tokens=200_000),)
    twice_tiered = catalogue.model("twice_tiered").prices
    assert twice_tiered is not None
    prices = [tier.input_usd or 0 for tier in (twice_tiered, *twice_tiered.tiers)]
    assert prices == sorted(set(prices))
    assert len(prices) == 3


def test_only_thinking_that_is_enabled_has_a_budget(catalogue_of: Callable[[str], Path]) -> None:
    for form, budget in (("enabled", 2000), ("disabled", None), ("adaptive", None)):
        lines = f"parameters = {{ thinking = {{ type = '{form}', budget_tokens = 2000 }} }}\n"
        text = PUBLISHED.replace('model = "claude-haiku-4-5"\n', f'model = "claude-haiku-4-5"\n{lines}', 1)
        model = load(catalogue_of(text), {"K": "sk"}).model("claude")
        assert (model.thinking_budget, model.thinking_tokens(4000)) == (budget, budget or 0)


OF_RESPONSES = ReasoningRule("blocks", "tool_loop", only="reasoning")
REASONING: list[tuple[str, ReasoningRule | None]] = [
    ("", OF_RESPONSES),
    ("api = 'responses'", OF_RESPONSES),
    ("api = 'responses'\nreturn_reasoning = 'never'", None),
    ("api = 'chat_completions'", None),
    ("base_url = 'https://api.deepseek.com'", ReasoningRule("text", "tool_turns")),
    ("base_url = 'https://api.deepseek.com'\nparameters = { thinking = { type = 'disabled' } }", OF_RESPONSES),
    ("base_url = 'https://api.deepseek.com/v1'\nreturn_reasoning = 'never'", None),
    ("base_url = 'https://api.moonshot.ai/v1'", ReasoningRule("text", "tool_turns")),
    ("base_url = 'https://api.moonshot.cn/v1'", ReasoningRule("text", "tool_turns")),
    ("base_url = 'https://europe-west1-aiplatform.googleapis.com/v1beta1'", ReasoningRule("blocks", "tool_loop")),
    ("base_url = 'https://generativelanguage.googleapis.com/v1beta/openai'", ReasoningRule("blocks", "tool_loop")),
    ("base_url = 'https://generativelanguage.googleapis.com/v1beta/openai'\nreturn_reasoning = 'never'", None),
    ("base_url = 'https://openrouter.ai/api/v1'", ReasoningRule("blocks", "tool_turns")),
    ("base_url = 'https://openrouter.ai/api/v1'\nreturn_reasoning = 'never'", None),
    ("base_url = 'https://api.groq.com/openai/v1'", OF_RESPONSES),
    ("base_url = 'http://127.0.0.1:9'\nreturn_reasoning = 'tool_loop'", ReasoningRule("text", "tool_loop")),
    ("provider = 'anthropic'", None),
    ("provider = 'anthropic'\nparameters = { thinking = { type = 'disabled' } }", None),
    (
        "provider = 'anthropic'\nparameters = { thinking = { type = 'enabled', budget_tokens = 2000 } }",
        ReasoningRule("blocks", "tool_loop"),
    ),
]


@pytest.mark.parametrize(("lines", "rule"), REASONING)
def test_reasoning_goes_back_where_the_file_or_the_makers_own_host_wants_it(
    catalogue_of: Callable[[str], Path], lines: str, rule: ReasoningRule | None
) -> None:
    provider = "" if "provider" in lines else "provider = 'openai'\n"
    text = f"default = 'm'\n[models.m]\n{provider}model = 'kimi-k2.5'\napi_key_env = 'K'\n{lines}\n"
    assert load(catalogue_of(text), {"K": "sk"}).model("m").reasoning_rule == rule


async def test_the_key_that_the_file_names_reaches_the_provider(catalogue_of: Callable[[str], Path]) -> None:
    body = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}
    async with serving(Answer(body)) as server:
        text = FULL.replace("http://127.0.0.1:9000/v1", server.base_url)
        catalogue = load(catalogue_of(text), {"THE_KEY": " sk-1\n"})
        request = CompletionRequest(messages=[{"role": "user", "content": "x"}], max_output_tokens=9)
        await catalogue.provider("main").complete(request)
        await catalogue.aclose()
    assert [seen.headers["authorization"] for seen in server.seen] == ["Bearer sk-1"]


async def test_an_anthropic_alias_speaks_its_wire_and_has_a_published_window_and_prices(
    catalogue_of: Callable[[str], Path],
) -> None:
    text = "default = 'c'\n[models.c]\nprovider = 'anthropic'\nmodel = 'claude-sonnet-4-5'\napi_key_env = 'K'\n"
    model = load(catalogue_of(text), {"K": "sk"}).model("c")
    assert (model.provider, model.context_limit_source) == ("anthropic", "genai_prices")
    assert model.context_window >= 200_000
    assert model.prices is not None
    body = {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"}
    async with serving(Answer(body)) as server:
        there = load(catalogue_of(f"{text}base_url = '{server.base_url}'"), {"K": "sk"})
        request = CompletionRequest(messages=[{"role": "user", "content": "x"}], max_output_tokens=9)
        assert (await there.provider("c").complete(request)).text == "hi"
        await there.aclose()
    assert [seen.headers["x-api-key"] for seen in server.seen] == ["sk"]


def documented_catalogues() -> list[str]:
    document = (Path(__file__).parents[2] / "docs" / "providers.md").read_text(encoding="utf-8")
    return re.findall(r"```toml\n(.*?)```", document, re.DOTALL)


@pytest.mark.parametrize("text", documented_catalogues())
def test_every_catalogue_of_the_documentation_loads(catalogue_of: Callable[[str], Path], text: str) -> None:
    names: list[str] = re.findall(r'api_key_env = "(\w+)"', text)
    catalogue = load(catalogue_of(text), dict.fromkeys(names, "key"))
    model = catalogue.model(catalogue.default)
    assert model.is_language_model
    assert model.context_limit_source != "fallback"


def test_the_documentation_has_a_catalogue_for_each_kind_of_server() -> None:
    assert len(documented_catalogues()) == 15
