"""Environment whose rollouts a function of a test returns."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.types import Task, Trajectory


@dataclass(frozen=True)
class FunctionEnvironment:
    """Open environment that returns what `answer` returns for a task and a key."""

    answer: Callable[[Task, str], Awaitable[Trajectory]]
    budget: BudgetConfig = field(default_factory=BudgetConfig)

    async def run(self, task: Task, policy: None, key: str) -> Trajectory:
        return await self.answer(task, key)
