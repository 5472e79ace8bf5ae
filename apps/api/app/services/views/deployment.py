"""What clients and load balancers read about a deployment: its readiness, models, policies and presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from app.db.database import record_of
from app.db.schema import SchemaState, may_take_turns, schema_state
from app.domain.errors import DatabaseUnavailable, NotFound
from app.domain.frozen import described, frozen, values_of
from app.domain.prices import Prices
from app.domain.types import JsonObject, TenantId
from app.engine.policy.design_names import DESIGN_NAMES
from app.engine.policy.fields import MEANINGS, policy_values
from app.engine.policy.policy import PRESETS, preset_policy
from app.services.policies import OVERRIDES
from app.services.runtime import Runtime


@frozen
class Readiness:
    """`migrations` is None when the database does not answer."""

    database: Literal["ok", "read_only", "unavailable"]
    migrations: SchemaState | None

    @property
    def ready(self) -> bool:
        """Whether a load balancer should send requests here."""
        return self.database == "ok" and self.migrations is not None and self.migrations.can_be_served


async def readiness(rt: Runtime) -> Readiness:
    """Queries the database. Never raises when it is unavailable, or does not answer in time."""
    try:
        async with rt.database.promptly():
            read_only = await rt.database.is_read_only()
            async with rt.database.autocommit() as tx:
                state, may_take = await schema_state(tx), await may_take_turns(tx)
        return Readiness("read_only" if read_only else "ok" if may_take else "unavailable", state)
    except DatabaseUnavailable:
        return Readiness("unavailable", None)


@frozen
class ListedAlias:
    """`context_window` is in tokens; `is_language_model` is false for the built-in offline responder."""

    alias: str
    provider: str
    model: str
    is_language_model: bool
    context_window: int
    context_window_source: Literal["catalogue", "learned", "genai_prices", "fallback"]
    encoding: str
    fallbacks: tuple[str, ...]
    prices: Prices | None
    calibration_ratio: float = described("Factor for token estimates; 1 until enough calls were counted.")


def list_models(rt: Runtime, tenant_id: TenantId) -> JsonObject:
    """Every alias with window, prices and the tenant's calibration (`items`), and as vendors list models (`data`)."""
    models = [rt.catalogue.model(alias, tenant_id) for alias in rt.catalogue.aliases]
    items = [
        record_of(
            ListedAlias,
            values_of(model),
            context_window_source=model.context_limit_source,
            calibration_ratio=rt.calibrations.ratio(tenant_id, model.alias, model.encoding),
        )
        for model in models
    ]
    listed = [listed_model(rt, model.alias) for model in models]
    return {"default": rt.catalogue.default, "items": items, "next_cursor": None, "object": "list", "data": listed}


def listed_model(rt: Runtime, alias: str) -> JsonObject:
    """An alias as OpenAI and Anthropic list a model. Raises `NotFound`."""
    if alias not in rt.catalogue.aliases:
        raise NotFound("model")
    openai = {"object": "model", "created": 0, "owned_by": rt.catalogue.model(alias).provider}
    anthropic = {"type": "model", "created_at": "1970-01-01T00:00:00Z", "display_name": alias}
    return {"id": alias, **openai, **anthropic}


@frozen
class PolicyField:
    """A field of a policy: the values that it takes, what it does, and its value in each preset."""

    name: str
    takes: str
    value_schema: JsonObject = described("`takes` as JSON Schema, as far as that can express it.")
    meaning: str
    defaults: JsonObject


@frozen
class ListedName:
    """A setting as the project of a design spells it; null is a value that the project does not publish."""

    spellings: Sequence[str]
    fields: Sequence[str]
    published: Any
    unit: str


@frozen
class ListedPreset:
    """A design by name, with the value of every field."""

    name: str
    description: str
    policy: JsonObject
    names: Sequence[ListedName] = described("The design's own settings, and the policy fields that they set.")


def list_policies(rt: Runtime) -> JsonObject:
    """Every preset with its values and its design's names, and every field with the values that it takes. The values of
    `guarded` are those of this deployment."""
    schemas = value_schemas()
    values = {name: policy_values(preset_policy(name, rt.guarded)) for name in PRESETS}
    return {
        "default": rt.guarded.preset,
        "presets": [
            ListedPreset(name, preset.description, values[name], _names_of(name)) for name, preset in PRESETS.items()
        ],
        "fields": [
            PolicyField(
                name=name,
                takes=_takes(schemas[name]),
                value_schema=schemas[name],
                meaning=meaning,
                defaults={preset: policy[name] for preset, policy in values.items()},
            )
            for name, meaning in MEANINGS.items()
        ],
    }


def value_schemas() -> dict[str, JsonObject]:
    """The JSON Schema of the values that each field takes, without references to other schemas."""
    document = OVERRIDES.model_json_schema()
    return {name: _schema(document["properties"][name], document.get("$defs", {})) for name in MEANINGS}


def _schema(schema: JsonObject, shared: Mapping[str, JsonObject]) -> JsonObject:
    """The schema without titles, defaults and references. A value that may be null has two types."""
    if "$ref" in schema:
        schema = shared[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        value = _schema(schema["anyOf"][0], shared)
        return value | {"type": [value["type"], "null"]}
    plain: JsonObject = {"type": schema["type"]}
    plain |= {name: value for name, value in schema.items() if name not in ("title", "description", "default")}
    if "properties" in plain:
        plain["properties"] = {name: _schema(part, shared) for name, part in plain["properties"].items()}
    return plain


def _takes(schema: JsonObject) -> str:
    match schema:
        case {"type": [kind, "null"]}:
            words = f"{_takes(schema | {'type': kind})}, or null"
        case {"type": "boolean"}:
            words = "true or false"
        case {"type": "integer", "minimum": least}:
            words = f"a whole number of at least {least}" if least else "a whole number"
        case {"exclusiveMinimum": least, "maximum": most}:
            words = f"a number above {least} and at most {most}"
        case {"type": "number", "minimum": least, "maximum": most}:
            words = f"a number of {least} to {most}"
        case {"properties": parts}:
            words = f"an object of {', '.join(cast('JsonObject', parts))}"
        case {"items": {"enum": choices}}:
            words = f"{', '.join(cast('Sequence[str]', choices))} in an order"
        case {"enum": [one, other]}:
            words = f"{one} or {other}"
        case {"enum": choices}:
            words = f"one of {', '.join(cast('Sequence[str]', choices))}"
        case {"maxLength": most}:
            words = f"a text of at most {most} characters"
        case _:
            words = "an alias, or empty"
    return words


def _names_of(design: str) -> list[ListedName]:
    return [record_of(ListedName, values_of(name)) for name in DESIGN_NAMES if name.design == design]
