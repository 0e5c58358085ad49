"""Protocols of environments, and failure isolation for external ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeVar

from fieldcraft.config.choices import ENVIRONMENT_REWARD
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.environments.guards import describe_defect
from fieldcraft.environments.turns import Policy
from fieldcraft.records.costs import CostModel
from fieldcraft.rewards.rubric import MAX_REWARD
from fieldcraft.types import Status, Task, Trajectory, UserError

ActorT = TypeVar("ActorT", contravariant=True)


class OpenEnvironment(Protocol[ActorT]):
    """Environment that is open for a stage or an evaluation: `ToolEnvironment`, or an external one
    (`isolate_failures`). Samplers and evaluations know only this protocol. A policy acts in it
    (`ActorT` is `Policy`), or the environment brings its own actor, as a teacher does (None)."""

    @property
    def budget(self) -> BudgetConfig:
        """Budget of each rollout."""
        ...

    async def run(self, task: Task, policy: ActorT, key: str) -> Trajectory:
        """Run a rollout of a task; `key` and the policy's seed determine every random choice. A
        defect of a tool, an environment or an engine ends this trajectory with Status.ERROR and its
        cause; a UserError is raised."""
        ...


class EnvironmentRunner(Protocol):
    """Runner of rollouts in an external environment: each call runs one rollout of a task. `key`
    identifies the rollout; together with the policy's seed it determines every random choice. Many
    calls run concurrently in one event loop."""

    async def __call__(self, task: Task, policy: Policy, key: str) -> Trajectory:
        """Run a rollout and return its trajectory.

        The segments are in the order in which the policy read and wrote them. Segments written by
        the policy have the author POLICY, with the ids, log-probabilities and versions that the
        engine returned. Segments written by the environment have the author PROMPT or TOOL, and
        contain special tokens only where a chat template puts them. The environment's reward is
        `rewards["environment"]`.

        An exception ends only this rollout; a UserError ends the run.
        """
        ...


class Environment(Protocol):
    """External environment, created from the settings of the recipe. Its class may state as
    `calls_tools` that the policy calls tools in the format of the dialect, and as `unread_keys`
    which keys of a recipe have no effect, as in ("instruction", "budget.max_calls")."""

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return the training tasks, and at most `heldout` different tasks for evaluation. If both
        are empty, the recipe must name tasks (`tasks` or `world`)."""
        ...

    def start(
        self, dialect: BaseDialect, budget: BudgetConfig
    ) -> AbstractAsyncContextManager[EnvironmentRunner]:
        """Return a context manager that yields the runner of a stage or an evaluation. It is
        entered before the first rollout and exited after the last one; start servers and processes
        that all rollouts share in it.

        `dialect` is bound to the model's tokenizer and chat template. Raises UserError if a
        requirement is missing.
        """
        ...


@dataclass(frozen=True)
class _IsolatedRunner:
    """Open external environment (`OpenEnvironment`). An exception ends one rollout and not the
    run."""

    runner: EnvironmentRunner
    budget: BudgetConfig
    costs: CostModel

    async def run(self, task: Task, policy: Policy, key: str) -> Trajectory:
        try:
            trajectory = await self.runner(task, policy, key)
            self.costs.price(trajectory)
            return trajectory
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - a bad rollout is data
            return Trajectory(task, status=Status.ERROR, error=describe_defect(error))


@asynccontextmanager
async def isolate_failures(
    environment: Environment,
    dialect: BaseDialect,
    budget: BudgetConfig,
    tool_costs: Mapping[str, float] = MappingProxyType({}),
) -> AsyncIterator[OpenEnvironment[Policy]]:
    """Open an external environment, such that an exception ends one rollout and not the run. Calls
    are priced by `tool_costs`, which maps tool names to costs."""
    async with environment.start(dialect, budget) as runner:
        yield _IsolatedRunner(runner, budget, CostModel(tool_costs, budget.token_cost))


class EnvironmentContractError(Exception):
    """Violation of the environment protocol."""


def set_environment_reward(trajectory: Trajectory, reward: float) -> None:
    """Check the environment's reward and store it in the trajectory. Raises
    EnvironmentContractError if it is not a number within +-MAX_REWARD."""
    if not abs(reward) <= MAX_REWARD:
        raise EnvironmentContractError(f"its reward is {reward:g}, and the limit is {MAX_REWARD:g}")
    trajectory.rewards[ENVIRONMENT_REWARD] = reward
