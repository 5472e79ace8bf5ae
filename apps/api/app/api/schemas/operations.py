"""What balancers ask."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class HealthOut(BaseModel):
    status: Literal["ok"]


class ReadyOut(BaseModel):
    """`migrations` is null when the database does not answer; `behind` wants `plimsoll migrate`.

    `read_only` is a database that refuses to write, as a standby does until it is the primary."""

    status: Literal["ready", "not_ready", "draining"]
    database: Literal["ok", "read_only", "unavailable"]
    migrations: Literal["current", "behind", "ahead", "empty"] | None
