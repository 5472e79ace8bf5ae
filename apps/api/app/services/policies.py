"""Policies as clients set them: converted to our names and units, checked, resolved over the deployment's defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import ErrorDetails, to_json

from app.domain.errors import InvalidRequest, located
from app.domain.frozen import replace
from app.domain.types import JsonObject
from app.engine.policy.design_names import by_given_name, in_our_names, refuse_extremes
from app.engine.policy.fields import MEANINGS, check_allocation, check_combination, check_priority
from app.engine.policy.policy import ContextPolicy, preset_policy

if TYPE_CHECKING:  # the process of an import reads policies, and does without the rest of the service
    from app.services.runtime import Runtime


def _overrides_model() -> type[BaseModel]:
    """A model of the `ContextPolicy` fields that clients may set, each optional and with the type that it has there."""
    types = get_type_hints(ContextPolicy, include_extras=True)
    allocation, regions = types["allocation"], types["context_priority"]
    types["allocation"] = Annotated[allocation, AfterValidator(check_allocation)]
    distinct = Field(json_schema_extra={"uniqueItems": True})
    types["context_priority"] = Annotated[regions, AfterValidator(check_priority), distinct]
    fields: dict[str, Any] = {name: (types[name], None) for name in MEANINGS}
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    return create_model("PolicyOverrides", __config__=strict, **fields)


OVERRIDES = _overrides_model()
_SHOWN_CHARS = 200
"""Longest part of a refused name or value, in characters, that its error quotes."""
_MOST_VALUES = 1_000
"""Most names and values of a client's overrides, which no valid ones have. Reading many blocks the event loop."""
_KEPT_BYTES = 2_048
"""Largest overrides, in bytes of JSON, whose policy is cached; larger ones could fill the memory."""


def resolve_policy(guarded: ContextPolicy, overrides: Mapping[str, object]) -> ContextPolicy:
    """A session's policy: its overrides over the preset that they name, or over `guarded`, the deployment's defaults.
    Raises `InvalidRequest` naming the field that is unknown, impossible, or impossible together with another. Every
    turn resolves its session's policy, so the latest results are cached."""
    written = _written(overrides)
    return _kept(guarded, written) if len(written) <= _KEPT_BYTES else _resolved(guarded, overrides)


def session_policy(
    rt: Runtime, stored: Mapping[str, object], requested: Mapping[str, object] | None = None
) -> ContextPolicy:
    """The deployment's defaults, overridden by the session and then by the request. Raises `InvalidRequest`."""
    overrides = {**stored, **(requested or {})}
    return resolve_policy(rt.guarded, overrides) if overrides else rt.guarded


@lru_cache(512)
def _kept(guarded: ContextPolicy, written: bytes) -> ContextPolicy:
    return _resolved(guarded, json.loads(written))


def _written(overrides: Mapping[str, object]) -> bytes:
    return to_json(overrides, inf_nan_mode="constants")


def _resolved(guarded: ContextPolicy, overrides: Mapping[str, object]) -> ContextPolicy:
    values = read_fields(overrides)
    policy = replace(preset_policy(values.get("preset", guarded.preset), guarded), **values)
    check_combination(policy)
    return policy


def read_fields(overrides: Mapping[str, object]) -> dict[str, Any]:
    """The values in the policy's types. Raises `InvalidRequest` as `resolve_policy`, except for combinations."""
    return {name: _read_field(name, value) for name, value in overrides.items()}


def _read_field(name: str, value: object) -> object:
    try:
        # From JSON: there, strict mode too accepts an array for a tuple and an object for a dataclass.
        read = OVERRIDES.model_validate_json(_written({name: value}))
    except ValidationError as error:
        raise _refused(error.errors(include_url=False, include_input=False)[0]) from error
    return getattr(read, name)


def _refused(fault: ErrorDetails) -> InvalidRequest:
    name, *inner = map(str, fault["loc"])
    if fault["type"] == "extra_forbidden" and not inner:
        return InvalidRequest(f"There is no policy field {name[:_SHOWN_CHARS]!r}.", ("policy", name))
    if fault["type"] == "value_error":
        reason = str(fault["ctx"]["error"]) if "ctx" in fault else fault["msg"]
        return InvalidRequest(f"The policy field {name} {reason}.", ("policy", name))
    place = ".".join((name, *inner))[:_SHOWN_CHARS]
    return InvalidRequest(f"The policy field {place}: {fault['msg']}.", ("policy", name))


def read_given(given: Mapping[str, object]) -> JsonObject:
    """A client's overrides in our names and units, each value checked by itself. Raises `InvalidRequest` naming the
    field as the client did: for an impossible name or value, two names of one field with different values, and a value
    whose effect would be absurd."""
    if _is_large(given):
        raise InvalidRequest(f"A policy has at most {_MOST_VALUES} values.", ("policy",))
    read = in_our_names(given)
    try:
        refuse_extremes(read_fields(read))
    except InvalidRequest as error:
        raise by_given_name(error, given) from error
    return read


def _is_large(given: Mapping[str, object]) -> bool:
    level: list[Mapping[str, object] | list[object]] = [given]
    values = 0
    while level:
        values += sum(map(len, level))
        if values > _MOST_VALUES:
            return True
        below = [value for each in level for value in (each if isinstance(each, list) else each.values())]
        level = [cast("list[object]", value) for value in below if isinstance(value, (dict, list))]
    return False


def given_policy(rt: Runtime, overrides: Mapping[str, object]) -> JsonObject:
    """A client's overrides as they are stored: in our names and units, with the summarizer's alias. Raises
    `InvalidRequest` with the place in the body, as `read_given`, and for an unknown summarizer."""
    with located("body"):
        given = read_given(overrides)
        if given.get("summary_model"):
            given["summary_model"] = _alias_of(rt, given["summary_model"], overrides)
    return given


def _alias_of(rt: Runtime, named: str, given: Mapping[str, object]) -> str:
    """The alias that a summarizer's name stands for. Raises `InvalidRequest` if there is none, or more than one."""
    model = named.rpartition("/")[2]
    for alias in (named, model):
        if alias in rt.catalogue.aliases:
            return alias
    having = [alias for alias in rt.catalogue.aliases if rt.catalogue.model(alias).model in (named, model)]
    if len(having) == 1:
        return having[0]
    known = "more than one model" if having else "no model"
    detail = f"The catalogue has {known} named {named[:_SHOWN_CHARS]!r}; GET /v1/models lists its aliases."
    raise by_given_name(InvalidRequest(detail, ("policy", "summary_model")), given)
