"""Recordings, each made once for all statements about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeAlias

import pytest

from tests.conftest import servers_of
from tests.presets.conversations import SCENES
from tests.presets.design_service import Design, design_service, reply
from tests.presets.recordings import Recording, record

Recorded: TypeAlias = Callable[[str, str], Recording]


@pytest.fixture(scope="session")
def recorded(postgres_server: str, template_database: str) -> Recorded:
    """Gives the recording of a scene under a preset; the first who asks has it made."""

    @cache
    def of(preset: str, scene: str) -> Recording:
        async def make() -> Recording:
            async with servers_of(postgres_server).lend(template_database) as url:
                return await record(url, preset, SCENES[scene])

        return asyncio.run(make())

    return of


@pytest.fixture(scope="module")
def served(postgres_server: str, template_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Design]:
    with design_service(postgres_server, template_database, tmp_path_factory.mktemp("design")) as served:
        yield served


@pytest.fixture
def design(served: Design) -> Design:
    """One service for the rules of a design, whose model answers in a word; each rule has sessions of its own."""
    served.model.script[:] = [reply()]
    return served
