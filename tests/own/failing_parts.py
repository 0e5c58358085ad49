"""Components that fail during a run, as configured by the tests."""

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import own_parts

import fieldcraft as fc
from fieldcraft.train.stages.rl import RlStage
from fieldcraft.types import Tool

broken_for: set[str] = set()  # ids of tasks whose tool cannot be opened
fails_from = 99  # number of groups that the reward scores before it raises
asked = 0


class Flaky(own_parts.Notes):
    @asynccontextmanager
    async def open(self, task: fc.Task) -> AsyncIterator[Tool]:
        if task.id in broken_for:
            raise OSError(f"no notebook for {task.id}")
        async with super().open(task) as page:
            yield page


@fc.tool
def endless(city: str) -> str:
    """Never answers.

    Args:
        city: its name.
    """
    threading.Event().wait()
    return city


@fc.tool
def huge(city: str) -> str:
    """Answers at length.

    Args:
        city: its name.
    """
    return f"{city} " * (50_000_000 // (len(city) + 1))


endless.name = huge.name = "population"
for _tool in (endless, huge):
    _tool.schema["function"]["name"] = "population"


class Patient(fc.StatelessReward):
    """A reward that differs between rollouts, until it fails."""

    name = "patient"

    def __call__(self, group: Sequence[fc.Trajectory]) -> list[float | None]:
        global asked
        asked += 1
        if asked > fails_from:
            raise KeyError("no such file")
        return [float(place) for place, _ in enumerate(group)]


class Halves(fc.StatelessReward):
    """A reward that accepts every second rollout of a group."""

    name = "half"

    def __call__(self, group: Sequence[fc.Trajectory]) -> list[float | None]:
        return [float(place % 2) for place, _ in enumerate(group)]


class Counted(RlStage):
    """A stage type that reuses the settings of another, and adds a metric."""

    async def step(self, number: int) -> dict[str, Any]:
        return {**await super().step(number), "mine": number}
