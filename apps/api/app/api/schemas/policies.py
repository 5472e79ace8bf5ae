"""Presets and the fields of a policy."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class DesignNameOut(BaseModel):
    """A setting as a design's project spells it; null stands for a value that it does not publish."""

    spellings: list[str]
    fields: list[str]
    published: Any
    unit: str


class PresetOut(BaseModel):
    """A design by name, with the value of every field."""

    name: str
    description: str
    policy: dict[str, Any]
    names: list[DesignNameOut] = Field(description="The design's own configuration, and the fields that it becomes.")


class PolicyFieldOut(BaseModel):
    """A field of a policy: what it takes, what it does, and its value by preset."""

    name: str
    takes: str
    value_schema: dict[str, Any] = Field(description="The same as JSON Schema, as far as that can say it.")
    meaning: str
    defaults: dict[str, Any]


class PolicyList(BaseModel):
    default: str
    presets: list[PresetOut]
    fields: list[PolicyFieldOut]
