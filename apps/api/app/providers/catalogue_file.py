"""The model catalogue's file: TOML, strictly checked. Every problem is reported by its key, never with its value."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import httpx
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from app.domain.content import is_nested_deeper
from app.domain.errors import OperatorError
from app.providers.wire import MOST_NESTING

_OWN_PARAMETERS = frozenset(
    {
        "model",
        "messages",
        "input",
        "encoding_format",
        "tools",
        "tool_choice",
        "stream",
        "stream_options",
        "system",
        "n",
        "response_format",
        "max_tokens",
        "max_completion_tokens",
    }
)

_ADDRESSES: Mapping[str, str] = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
_MOST_CHARS = 4 * 1024 * 1024
_TOO_DEEP = f"it is nested deeper than {MOST_NESTING} levels"
ProviderName: TypeAlias = Literal["openai", "anthropic", "offline"]
Api: TypeAlias = Literal["chat_completions", "responses"]
MaxTokensField: TypeAlias = Literal["max_completion_tokens", "max_tokens"]
ReturnReasoning: TypeAlias = Literal["never", "signatures", "tool_loop", "tool_turns"]
ThinkTags: TypeAlias = Literal["separate", "opened", "keep"]
"""What `<think>` and `</think>` in an answer mean: a block at its beginning is reasoning; the answer begins within a
block, which the server's template has opened; or they are part of the text."""


Vendor: TypeAlias = Literal["openai", "azure", "openrouter", "xai", "deepseek", "gemini", "moonshot"]
_HOSTS: Mapping[Vendor, str] = {
    "openai": r"api\.openai\.com",
    "azure": r".*\.(?:openai\.azure|cognitiveservices\.azure|services\.ai\.azure)\.com",
    "openrouter": r"openrouter\.ai",
    "xai": r"(?:[\w-]+\.)?api\.x\.ai",
    "deepseek": r"api\.deepseek\.com",
    "gemini": r".*(?:generativelanguage|aiplatform)\.googleapis\.com",
    "moonshot": r"api\.moonshot\.(?:ai|cn)",
}
"""The hosts of those whose servers want or refuse something that others do not."""


Problem: TypeAlias = tuple[str, str]
"""The key that a problem concerns, and what is wrong with it."""


class CatalogueError(OperatorError):
    """The catalogue cannot be used. `problems` has a clause for each problem, which begins with the key concerned."""

    def __init__(self, path: Path | None, problems: list[str]) -> None:
        super().__init__(f"MODELS_FILE {path} cannot be used: {'; '.join(problems)}")
        self.problems = tuple(problems)


def _base_url(value: str) -> str:
    try:
        url = httpx.URL(value)
        url.raw_host.decode().encode("idna")  # as its look-up does: no label may be empty or longer than 63 bytes
        is_whole = url.scheme in {"http", "https"} and url.host and (url.port is None or 1 <= url.port <= 65_535)
        is_address = is_whole and not url.userinfo and not url.fragment
    except (httpx.InvalidURL, UnicodeError):
        is_address = False
    if not is_address:
        raise ValueError("must be an http or https address without user name, password or fragment")
    return value


def _parameters(value: dict[str, Any]) -> dict[str, Any]:
    own = sorted(_OWN_PARAMETERS.intersection(value))
    if own:
        raise ValueError(f"may not set {', '.join(own)}: the service sets that itself")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("must be JSON, which has no dates, no NaN and no infinity") from None
    return value


def _header(value: str) -> str:
    if not value or not all(letter.isascii() and (letter.isalnum() or letter == "-") for letter in value):
        raise ValueError("must be the name of an HTTP header")
    return value


def _storable(value: str) -> str:
    if "\0" in value:
        raise ValueError("has a NUL character, which Postgres does not store")
    return value


_Text: TypeAlias = Annotated[str, AfterValidator(_storable)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelEntry(_Strict):
    """`[models.ALIAS]`. A field that is None gets its value elsewhere."""

    provider: ProviderName
    model: Annotated[str, Field(min_length=1)] | None = None
    base_url: Annotated[str, AfterValidator(_base_url)] | None = None
    api_key_env: Annotated[str, Field(min_length=1)] | None = None
    api_key_header: Annotated[str, AfterValidator(_header)] | None = None
    context_window: Annotated[int, Field(ge=1, le=2**40)] | None = None
    encoding: Literal["o200k_base", "cl100k_base"] | None = None
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    fallbacks: list[_Text] = Field(default_factory=list[str])
    max_tokens_field: MaxTokensField | None = None
    return_reasoning: ReturnReasoning | None = None
    think_tags: ThinkTags | None = None
    exact_counts: bool = False
    tools: bool | None = None
    prompt_cache_key: bool | None = None
    custom_tools: bool | None = None
    api: Api | None = None
    pass_unknown: bool = False
    parameters: Annotated[dict[str, Any], AfterValidator(_parameters)] = Field(default_factory=dict[str, Any])

    @property
    def address(self) -> str:
        """Its `base_url`, or the vendor's own; empty for the offline responder."""
        return self.base_url or _ADDRESSES.get(self.provider, "")

    @property
    def vendor(self) -> Vendor | None:
        """Whose server is at its address, as far as that makes a difference."""
        host = httpx.URL(self.address).host
        return next((vendor for vendor, hosts in _HOSTS.items() if re.fullmatch(hosts, host)), None)


class Instructions(_Strict):
    """`[instructions]`: system layers 1 to 3. The keys of `modes` and `roles` are the names that a session may use."""

    global_: _Text | None = Field(default=None, alias="global")
    modes: dict[str, _Text] = Field(default_factory=dict[str, str])
    roles: dict[str, _Text] = Field(default_factory=dict[str, str])


class CatalogueEntry(_Strict):
    default: _Text
    models: Annotated[dict[str, ModelEntry], Field(min_length=1)]
    instructions: Instructions = Field(default_factory=Instructions)


BUILT_IN = CatalogueEntry(
    default="offline", models={"offline": ModelEntry(provider="offline", context_window=16_384, encoding="o200k_base")}
)
"""The catalogue of a service without a file."""


def read_catalogue(path: Path | None, environ: Mapping[str, str]) -> CatalogueEntry:
    """Reads and checks the file, or returns the built-in catalogue; `environ` must hold the keys that the file names.

    Raises `CatalogueError` with all problems found.
    """
    if path is None:
        return BUILT_IN
    try:
        with path.open(encoding="utf-8-sig") as file:  # editors may begin a file with a byte order mark
            text = file.read(_MOST_CHARS + 1)  # a device may have no end
        if len(text) > _MOST_CHARS:
            raise CatalogueError(path, [f"it has more than {_MOST_CHARS} characters"])
        parsed = tomllib.loads(text)
    except OSError as error:
        raise CatalogueError(path, [f"it cannot be read ({error.strerror})"]) from error
    except UnicodeDecodeError as error:
        raise CatalogueError(path, ["it is not UTF-8 text"]) from error
    except ValueError as error:  # tomllib's own, and that of an integer with thousands of digits
        raise CatalogueError(path, [f"it is not valid TOML: {error}"]) from error
    except RecursionError as error:
        raise CatalogueError(path, [_TOO_DEEP]) from error
    if is_nested_deeper(parsed, MOST_NESTING):  # what reads and sends it recurses
        raise CatalogueError(path, [_TOO_DEEP])
    problems: list[Problem] = []
    try:
        entry = CatalogueEntry.model_validate(parsed)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
        problems = [_problem(each) for each in wrong]
        entry = _sound_part(parsed, [each["loc"] for each in wrong])
    if entry is not None:
        named = {key for key, _ in problems}
        more = (*_problems_between(entry), *_problems_with_keys(entry, environ))
        problems += [(key, what) for key, what in more if key not in named]
        if not problems:
            return entry
    raise CatalogueError(path, [f"{key}: {what}" for key, what in problems])


def _sound_part(parsed: dict[str, Any], wrong: Sequence[tuple[int | str, ...]]) -> CatalogueEntry | None:
    """The file with something sound in place of each wrong value, so that the rest is checked too. None if it has no
    models. Every alias is kept: another one may fall back to it."""
    if ("models",) in wrong:
        return None
    sound = deepcopy(parsed)
    for place in wrong:
        match place:
            case ("models", alias) | ("models", alias, "provider"):
                sound["models"][alias] = {"provider": "offline"}
            case ("models", alias, "base_url"):
                sound["models"][alias]["base_url"] = "http://localhost"
            case ("models", alias, key, *_):
                sound["models"][alias].pop(key, None)
            case ("default",):
                sound["default"] = next(iter(sound["models"]))
            case _:
                sound.pop(str(place[0]), None)
    return CatalogueEntry.model_validate(sound)


def _problem(error: Any) -> Problem:
    message: str = error["msg"].removeprefix("Value error, ")
    worded = {"extra_forbidden": "there is no such key", "missing": "is missing"}.get(error["type"])
    advice = "; 'openai' is any server of chat completions" if error["loc"][-1] == "provider" and not worded else ""
    return ".".join(map(str, error["loc"])), worded or f"{message[:1].lower()}{message[1:]}{advice}"


def key_of(entry: ModelEntry, environ: Mapping[str, str]) -> str | None:
    """The API key of an alias, None for one that names none."""
    return None if entry.api_key_env is None else environ.get(entry.api_key_env, "").strip()


def _problems_with_keys(entry: CatalogueEntry, environ: Mapping[str, str]) -> Iterator[Problem]:
    for alias, model in entry.models.items():
        key, where = key_of(model, environ), f"models.{alias}.api_key_env"
        if key == "":
            # What has small letters is rather a key that was written in the place of a name.
            name = model.api_key_env if str(model.api_key_env).isupper() else "that it names"
            yield where, f"the environment variable {name} is not set"
        elif key is not None and not (key.isascii() and key.isprintable()):
            yield where, f"{model.api_key_env} holds characters that no HTTP header can carry"


_FOR_OFFLINE = frozenset({"provider", "model", "context_window", "encoding", "timeout_s", "fallbacks"})
_WITHOUT_EFFECT: Mapping[str, Mapping[str, str]] = {
    "anthropic": {
        "max_tokens_field": "",
        "return_reasoning": ", whose own rule is followed",
        "think_tags": ", whose reasoning is a block of its own",
        "prompt_cache_key": ", whose prompts carry breakpoints",
        "custom_tools": ", which has none",
        "api": "",
        "pass_unknown": "",
    },
    "offline": {key: "" for key in ModelEntry.model_fields if key not in _FOR_OFFLINE},
}
"""The keys that have no effect for a provider, and why where that is not obvious."""


def _problems_between(entry: CatalogueEntry) -> Iterator[Problem]:
    """Problems that concern several keys together."""
    if entry.default not in entry.models:
        yield "default", f"there is no model {entry.default!r}, only {', '.join(sorted(entry.models))}"
    for alias, model in entry.models.items():
        where = f"models.{alias}"
        if model.provider != "offline" and model.model is None:
            yield f"{where}.model", "is missing"
        if model.provider != "offline" and model.base_url is None and model.api_key_env is None:
            owner = "OpenAI" if model.provider == "openai" else "Anthropic"
            yield f"{where}.api_key_env", f"is missing, and {owner} needs a key"
        if model.provider == "openai" and model.exact_counts:
            yield f"{where}.exact_counts", "chat completions have no endpoint that counts"
        for key, why in _WITHOUT_EFFECT.get(model.provider, {}).items():
            if getattr(model, key):
                yield f"{where}.{key}", f"means nothing to {model.provider}{why}"
        for fallback in model.fallbacks:
            if fallback == alias:
                yield f"{where}.fallbacks", "a model cannot stand in for itself"
            elif fallback not in entry.models:
                yield f"{where}.fallbacks", f"there is no model {fallback!r}"
