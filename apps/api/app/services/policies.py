"""The presets and the fields of a policy, as clients read them and as they give them."""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.errors import located
from app.domain.types import JsonObject
from app.engine.policy.design_names import DESIGN_NAMES, read_given
from app.engine.policy.fields import FIELDS, policy_values
from app.engine.policy.presets import PRESETS, preset_policy
from app.services.runtime import Runtime


def list_policies(rt: Runtime) -> JsonObject:
    """Every preset with its values and its design's names, and every field with what it takes. `guarded` is as deployed
    here."""
    values = {name: policy_values(preset_policy(name, rt.guarded)) for name in PRESETS}
    return {
        "default": rt.guarded.preset,
        "presets": [
            {"name": name, "description": preset.description, "policy": values[name], "names": _names_of(name)}
            for name, preset in PRESETS.items()
        ],
        "fields": [
            {
                "name": name,
                "takes": field.takes,
                "value_schema": field.kind.schema,
                "meaning": field.meaning,
                "defaults": {preset: policy[name] for preset, policy in values.items()},
            }
            for name, field in FIELDS.items()
        ],
    }


def given_policy(rt: Runtime, overrides: Mapping[str, object]) -> JsonObject:
    """A client's overrides as they are stored: in our names and units, the summarizer by its alias.

    Raises `InvalidRequest` as `read_given`, at the place in the body.
    """
    with located("body"):
        given = read_given(overrides)
    if given.get("summary_model"):
        given["summary_model"] = _alias_of(rt, given["summary_model"])
    return given


def _names_of(design: str) -> list[JsonObject]:
    return [
        {
            "spellings": list(name.spellings),
            "fields": list(name.fields),
            "published": name.published,
            "unit": name.unit,
        }
        for name in DESIGN_NAMES
        if name.design == design
    ]


def _alias_of(rt: Runtime, named: str) -> str:
    """The alias that a summarizer's name means; the name itself where it means none, or more than one."""
    model = named.rpartition("/")[2]
    for alias in (named, model):
        if alias in rt.catalogue.aliases:
            return alias
    having = [alias for alias in rt.catalogue.aliases if rt.catalogue.model(alias).model in (named, model)]
    return having[0] if len(having) == 1 else named
