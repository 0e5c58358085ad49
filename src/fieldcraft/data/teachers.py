"""Who shows how to answer: a model that is told to, or the oracle of a world."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fieldcraft.agents.chat import Chat
from fieldcraft.agents.prompted import Attempt, End, Prompted
from fieldcraft.data.contrast import contrast
from fieldcraft.data.steps_io import StepPair
from fieldcraft.types import Answer, Step, Task, Thought
from fieldcraft.worlds.atlas.facts import RELATIONS, Atlas, merge_thoughts, statement


class Way(StrEnum):
    """How a question is tried: AutoCoA's chain of thought and chain of action."""

    COT = "cot"  # without tools
    COA = "coa"  # with tools


class Teacher(Protocol):
    """Tries questions."""

    async def attempt(self, task: Task, way: Way, key: str) -> Attempt:
        """One try; the same key gives the same random choices."""
        ...

    def pairs(
        self, task: Task, thinking: Sequence[Attempt], acting: Sequence[Attempt]
    ) -> list[StepPair] | str:
        """The contrastive pairs of a question that was tried both ways, or why there are none."""
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
    """It has read the whole encyclopedia, but answers as a model should that was taught only some
    of it: without tools it has to guess every other fact."""

    world: Atlas
    seed: int

    async def attempt(self, task: Task, way: Way, key: str) -> Attempt:
        path = tuple(task.meta["path"])
        steps = self._guess(path, key) if way is Way.COT else self.world.demonstration(path)
        return Attempt(tuple(steps), End.ANSWERED)

    def _guess(self, path: tuple[str, ...], key: str) -> list[Step]:
        """The chain of statements, each untaught fact replaced by a name of the right kind."""
        rng, world = random.Random(key), self.world
        thoughts, subject = [], path[0]
        for relation in path[1:]:
            entity = world.entities[subject]
            value = world.facts[subject, relation]
            if entity.region != "taught":
                kind = RELATIONS[entity.kind][relation]
                value = rng.choice([*world.by_kind[kind, "taught"], *world.by_kind[kind, "train"]])
            thoughts.append(Thought(statement(subject, relation, value)))
            subject = value
        return merge_thoughts([*thoughts, Answer(subject)])

    def pairs(
        self, task: Task, thinking: Sequence[Attempt], acting: Sequence[Attempt]
    ) -> list[StepPair]:
        """One for every decision on the way, which the world knows without any try."""
        rng = random.Random(f"decisions:{self.seed}:{task.id}")
        return [
            StepPair(task, decision.before, decision.chosen, decision.rejected)
            for decision in self.world.decisions(tuple(task.meta["path"]), rng)
        ]
