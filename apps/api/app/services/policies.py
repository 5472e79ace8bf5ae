"""The presets and the fields of a policy, as clients read them: made from the engine's own tables."""

from __future__ import annotations

from app.domain.types import JsonObject
from app.engine.policy_fields import FIELDS, policy_values
from app.engine.presets import PRESETS, preset_policy
from app.services.runtime import Runtime


def list_policies(rt: Runtime) -> JsonObject:
    """Every preset with all its values, and every field with what it takes. `guarded` is as deployed here."""
    values = {name: policy_values(preset_policy(name, rt.guarded)) for name in PRESETS}
    return {
        "default": rt.guarded.preset,
        "presets": [
            {"name": name, "description": preset.description, "policy": values[name]}
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
