"""Teachers that show how to answer: a model that is told to, a team of models, or a world."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fieldcraft.agents.chat import Chat
from fieldcraft.agents.prompted import Attempt, End, Prompted
from fieldcraft.agents.team import Seated
from fieldcraft.data.contrast import contrast
from fieldcraft.data.steps_io import StepPair
from fieldcraft.types import Step, Task
from fieldcraft.worlds import base

OF_A_TEAM = "a team shows no pairs"


class Way(StrEnum):
    """Manner in which a question is tried: AutoCoA's chain of thought and chain of action."""

    COT = "cot"  # without tools
    COA = "coa"  # with tools


class Teacher(Protocol):
    """Teacher that tries questions."""

    async def attempt(self, task: Task, way: Way, key: str) -> Attempt:
        """Try a question once; the same key gives the same random choices."""
        ...

    def pairs(
        self, task: Task, thinking: Sequence[Attempt], acting: Sequence[Attempt]
    ) -> list[StepPair] | str:
        """Return the contrastive pairs of a question that was tried both ways, or why there are
        none."""
        ...


@dataclass(frozen=True)
class ChatTeacher:
    """A model told in words how to think and how to act."""

    chat: Chat
    ways: dict[Way, Prompted]

    async def attempt(self, task: Task, way: Way, key: str) -> Attempt:
        return await self.ways[way].attempt(task, key)

    def pairs(
        self, task: Task, thinking: Sequence[Attempt], acting: Sequence[Attempt]
    ) -> list[StepPair] | str:
        found = contrast(task, thinking, acting)
        return found if isinstance(found, str) else [found]


@dataclass(frozen=True)
class Oracle:
    """The oracle of a world: with tools it answers as well as can be, without them it guesses."""

    oracle: base.Oracle
    seed: int

    async def attempt(self, task: Task, way: Way, key: str) -> Attempt:
        if way is Way.COT:
            steps = self.oracle.guess(task, random.Random(key))
        else:
            steps = self.oracle.demonstration(task)
        return Attempt(tuple(steps), End.ANSWERED)

    def pairs(
        self, task: Task, thinking: Sequence[Attempt], acting: Sequence[Attempt]
    ) -> list[StepPair]:
        """Return a pair for every decision on the way, which the world knows without any try."""
        rng = random.Random(f"decisions:{self.seed}:{task.id}")
        return [
            StepPair(task, decision.before, decision.chosen, decision.rejected)
            for decision in self.oracle.decisions(task, rng)
        ]


@dataclass(frozen=True)
class TeamTeacher:
    """A team of models. It always has its tools, so no question is tried both ways."""

    seated: Seated

    async def attempt(self, task: Task, way: Way, key: str) -> Attempt:
        return await self.seated.attempt(task, key)

    def pairs(self, task: Task, thinking: Sequence[Attempt], acting: Sequence[Attempt]) -> str:
        return OF_A_TEAM


@dataclass(frozen=True)
class ScriptedTeam:
    """The team of a world, which makes mistakes and repairs them."""

    chain: Callable[[Task, random.Random], list[Step]]

    async def attempt(self, task: Task, way: Way, key: str) -> Attempt:
        return Attempt(tuple(self.chain(task, random.Random(key))), End.ANSWERED)

    def pairs(self, task: Task, thinking: Sequence[Attempt], acting: Sequence[Attempt]) -> str:
        return OF_A_TEAM
