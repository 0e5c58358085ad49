"""Environments of others: the protocol of a recipe's `environment`, and its bounds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Protocol

from fieldcraft.config.environment import ENVIRONMENT_REWARD
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.envs.defects import describe_defect
from fieldcraft.records.costs import CostModel
from fieldcraft.rewards.rubric import MAX_REWARD
from fieldcraft.rollout.turns import Policy
from fieldcraft.types import Status, Task, Trajectory, UserError


class EnvironmentRunner(Protocol):
    """A runner of rollouts: a call runs one rollout of a task. `key` names it: with the policy's
    seed it fixes every random choice. Many run side by side in one event loop."""

    async def __call__(self, task: Task, policy: Policy, key: str) -> Trajectory:
        """Run a rollout, and return its trajectory.

        Its segments are in the order in which the policy read and wrote them. What the policy
        wrote has the author POLICY, with ids, log-probabilities and versions as the engine gave
        them; what the environment wrote has the author PROMPT or TOOL, and holds special tokens
        only where a chat template puts them. The environment's own reward is
        `rewards["environment"]`.

        An exception ends this rollout alone; a UserError ends the run.
        """
        ...


class Environment(Protocol):
    """An environment of others, made from the settings of the recipe."""

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return the tasks to train on, and at most `heldout` others to test on. Without any, a
        recipe has to name them (`tasks` or `world`)."""
        ...

    def start(
        self, dialect: BaseDialect, budget: BudgetConfig
    ) -> AbstractAsyncContextManager[EnvironmentRunner]:
        """Return a context with what plays the rollouts of a stage or an evaluation: entered before
        the first one, and exited after the last. Servers and processes that all rollouts share
        belong in here.

        `dialect` is bound to the tokenizer of the model, and knows its chat template. Raises
        UserError where something that it needs is missing.
        """
        ...


@asynccontextmanager
async def isolate_failures(
    environment: Environment,
    dialect: BaseDialect,
    budget: BudgetConfig,
    tool_costs: Mapping[str, float] = MappingProxyType({}),
) -> AsyncIterator[EnvironmentRunner]:
    """Yield the environment's `EnvironmentRunner`, whose exceptions end one rollout and not the
    run. Calls have the costs that `tool_costs` gives their tools."""
    costs = CostModel(tool_costs, budget.token_cost)
    async with environment.start(dialect, budget) as runner:

        async def run_guarded(task: Task, policy: Policy, key: str) -> Trajectory:
            try:
                trajectory = await runner(task, policy, key)
                costs.price(trajectory)
                return trajectory
            except UserError:
                raise
            except Exception as error:  # noqa: BLE001 - a bad rollout is data
                return Trajectory(task, status=Status.ERROR, error=describe_defect(error))

        yield run_guarded


class EnvironmentContractError(Exception):
    """Failure of an environment that did what none may do."""


def set_environment_reward(trajectory: Trajectory, reward: float) -> None:
    """Check the reward that the environment gave, and keep it. Raises EnvironmentContractError for
    what is no reward."""
    if not abs(reward) <= MAX_REWARD:
        raise EnvironmentContractError(f"its reward is {reward:g}, and the limit is {MAX_REWARD:g}")
    trajectory.rewards[ENVIRONMENT_REWARD] = reward
