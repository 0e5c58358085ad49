"""Teachers that answer questions: a prompted model, a team of models, or the oracle of a world."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fieldcraft.data.contrastive_pairs import make_pair
from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.data.world import WorldOracle
from fieldcraft.extensions.agents.chat_models import ChatModel
from fieldcraft.extensions.agents.react_agent import AgentAttempt, AttemptStatus, PromptedAgent
from fieldcraft.extensions.agents.team import TeamAgent
from fieldcraft.types import DemoStep, Task

TEAM_HAS_NO_PAIRS = "a team shows no pairs"


class AnswerMode(StrEnum):
    """Manner in which a question is answered: AutoCoA's chain of thought or chain of action."""

    COT = "cot"  # without tools
    COA = "coa"  # with tools


class DemonstrationTeacher(Protocol):
    """Protocol of a teacher that answers questions."""

    async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
        """Attempt a question once; the same key gives the same random choices."""
        ...

    def make_pairs(
        self, task: Task, thinking: Sequence[AgentAttempt], acting: Sequence[AgentAttempt]
    ) -> list[ContrastivePair] | str:
        """Return the contrastive pairs of a question that was attempted in both modes, or the
        reason why there are none."""
        ...


@dataclass(frozen=True)
class ChatTeacher:
    """Model that is prompted to think and to act."""

    chat: ChatModel
    agents_by_mode: dict[AnswerMode, PromptedAgent]

    async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
        return await self.agents_by_mode[mode].attempt(task, key)

    def make_pairs(
        self, task: Task, thinking: Sequence[AgentAttempt], acting: Sequence[AgentAttempt]
    ) -> list[ContrastivePair] | str:
        found = make_pair(task, thinking, acting)
        return found if isinstance(found, str) else [found]


@dataclass(frozen=True)
class OracleTeacher:
    """Oracle of a world: with tools it answers optimally, without tools it guesses."""

    oracle: WorldOracle
    seed: int

    async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
        if mode is AnswerMode.COT:
            steps = self.oracle.guess(task, random.Random(key))
        else:
            steps = self.oracle.demonstration(task)
        return AgentAttempt(tuple(steps), AttemptStatus.ANSWERED)

    def make_pairs(
        self, task: Task, thinking: Sequence[AgentAttempt], acting: Sequence[AgentAttempt]
    ) -> list[ContrastivePair]:
        """Return a pair for each decision of the path, which the world knows without attempts."""
        rng = random.Random(f"decisions:{self.seed}:{task.id}")
        return [
            ContrastivePair(task, decision.before, decision.chosen, decision.rejected)
            for decision in self.oracle.decisions(task, rng)
        ]


@dataclass(frozen=True)
class TeamTeacher:
    """Team of models. It always has its tools, so no question is attempted in both modes."""

    agent: TeamAgent

    async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
        return await self.agent.attempt(task, key)

    def make_pairs(
        self, task: Task, thinking: Sequence[AgentAttempt], acting: Sequence[AgentAttempt]
    ) -> str:
        return TEAM_HAS_NO_PAIRS


@dataclass(frozen=True)
class ScriptedTeamTeacher:
    """Scripted team of a world, which makes errors and repairs them."""

    demonstrate: Callable[[Task, random.Random], list[DemoStep]]

    async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
        return AgentAttempt(
            tuple(self.demonstrate(task, random.Random(key))), AttemptStatus.ANSWERED
        )

    def make_pairs(
        self, task: Task, thinking: Sequence[AgentAttempt], acting: Sequence[AgentAttempt]
    ) -> str:
        return TEAM_HAS_NO_PAIRS
