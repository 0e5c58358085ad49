"""Faulty components, one for every kind of fault."""

import asyncio
from collections.abc import Sequence
from typing import Any

import fieldcraft as fc
from fieldcraft.config.rl import Rl
from fieldcraft.train.stages.rl import RlStage

NUMBER = 3
UNKNOWN_KEY = {"base_line": "group"}


@fc.tool
def population(city: str) -> str:
    """The second tool of this name.

    Args:
        city: its name.
    """
    return city


class SpokenReward:
    """A reward that has only a name."""

    name = "spoken"


class Failing(fc.StatelessReward):
    name = "failing"

    def __call__(self, group: Sequence[fc.Trajectory]) -> list[float | None]:
        raise KeyError("budget")


class Unmakeable(fc.StatelessReward):
    name = "unmakeable"

    def __init__(self) -> None:
        raise ZeroDivisionError("a defect")


def too_few(group: Sequence[fc.Trajectory]) -> list[float | None]:
    return [1.0]


def wordy(group: Sequence[fc.Trajectory]) -> Any:
    return ["good" for _ in group]


def nothing(group: Sequence[fc.Trajectory]) -> Any:
    return None


async def awaited(group: Sequence[fc.Trajectory]) -> list[float | None]:
    await asyncio.sleep(0)
    return [0.0 for _ in group]


class Mute(fc.BaseDialect):
    name = "mute"
    stop_strings = tags = ()
    default_instruction = ""


class HalfWorld(fc.World):
    splits = {"heldout": "All"}  # noqa: RUF012


async def of_one(task: fc.Task) -> None: ...


def blocking(task: Any, policy: Any, env: Any, key: str) -> None: ...


async def forgetful(task: Any, policy: Any, env: Any, key: str) -> None: ...


async def broken(task: Any, policy: Any, env: Any, key: str) -> None:
    raise LookupError("no such page")


async def rl(task: Any, policy: Any, env: Any, key: str) -> None:
    """Run a workflow with the name of a stage."""


async def base(task: Any, policy: Any, env: Any, key: str) -> None:
    """Run a workflow with the name of the first model's row."""


async def ask_first(task: Any, policy: Any, env: Any, key: str) -> None:
    """Run a workflow with the name of another workflow."""


class Unset(fc.TrainingStage):
    """A stage type without settings."""

    @classmethod
    async def create(cls, settings: Any, material: Any) -> "Unset":
        return cls()

    async def step(self, number: int) -> dict[str, Any]:
        return {"tokens": 0}


class Unfinished(fc.TrainingStage):
    Settings = fc.Stage


class WrongSettings(Unset):
    Settings = dict  # type: ignore[assignment]


class OwnRl(RlStage):
    """A stage type that reuses the settings of another."""


class Uncounted(RlStage):
    """A stage type whose metrics lack a required value."""

    Settings = Rl

    async def step(self, number: int) -> dict[str, Any]:
        return {}
