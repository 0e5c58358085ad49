"""Environment `harbor`: a policy works in the terminal of a task, whose tests give the reward."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from fieldcraft.concurrency import ConcurrencyLimiter
from fieldcraft.config.components import ComponentKind
from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.environments.base import (
    EnvironmentContractError,
    EnvironmentRunner,
    set_environment_reward,
)
from fieldcraft.environments.guards import describe_defect
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.tool_session import ToolSession
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.harbor_tasks import HarborTask, read_tasks
from fieldcraft.extensions.external_envs.harbor_verifier import run_tests
from fieldcraft.extensions.sandbox.backends.factory import parse_backend
from fieldcraft.extensions.sandbox.terminals.base import Terminal, TerminalBackend, TerminalError
from fieldcraft.extensions.sandbox.terminals.containers import ContainerTerminals
from fieldcraft.extensions.sandbox.terminals.local import LocalTerminals
from fieldcraft.extensions.sandbox.terminals.tool import TOOL_NAME, make_bash_tool
from fieldcraft.records.paths import expand_home
from fieldcraft.records.waits import report_wait
from fieldcraft.tools.base import Isolation
from fieldcraft.types import Status, Task, Trajectory, UserError

_BACKENDS = {"local": LocalTerminals, "container": ContainerTerminals}
_LOCAL_BACKEND = "local"
_THIS = "the environment harbor"
_INSTRUCTION = """\
Complete the task below in a terminal, with the tool bash. Look at the files first, and check your \
work. The files that you leave are graded, not your words. When nothing is left to do, say so \
without calling a tool.

Task:"""
_CALL_MARGIN_SECONDS = 60.0  # the terminal itself ends a command at its time limit


class HarborEnvironment:
    """Environment of task folders in the format of Harbor.

    Each rollout has its own terminal, with the files of the task. The policy calls the tool `bash`
    until it answers, or until the task's time for the agent is over. Then the tests of the task
    run in the same terminal, and the reward that they write is the reward `environment`. At the end
    the terminal is removed, with all its files and processes.

    Args:
        tasks: folder with the folders of the tasks, or the folder of one task.
        backend: where terminals run: `local`, our own sandbox, or `container`; or a mapping with
            `name` and the settings of the backend.
        max_concurrent: maximum number of terminals that are open at the same time.

    Raises UserError for a folder without tasks, for an incomplete or malformed task, and for a task
    that the backend cannot run.
    """

    def __init__(
        self,
        tasks: str,
        backend: str | dict[str, Any] = _LOCAL_BACKEND,
        max_concurrent: PositiveInt = 16,
    ) -> None:
        self._tasks = read_tasks(Path(expand_home(tasks)))
        self._backend = _open_backend(backend)
        self._limiter = ConcurrencyLimiter(max_concurrent)
        for task in self._tasks.values():
            self._backend.check_image(task.image)

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return (training tasks, held-out tasks); the last tasks, at most half, are held out."""
        found = [Task(name, task.instruction, ()) for name, task in self._tasks.items()]
        first = len(found) - min(len(found) // 2, heldout)
        return found[:first], found[first:]

    def describe_isolation(self) -> Isolation:
        """Return what separates the terminals from the machine."""
        return self._backend.describe_isolation()

    @asynccontextmanager
    async def start(
        self, dialect: BaseDialect, budget: BudgetConfig
    ) -> AsyncIterator[EnvironmentRunner]:
        """Open the terminal of a first task, and yield the runner. Raises UserError if this machine
        cannot open terminals."""
        first = next(iter(self._tasks.values()))
        try:
            async with self._backend.open_terminal(first.image):
                pass
        except TerminalError as error:
            raise UserError(f"the terminal of {first.folder} cannot be opened: {error}") from error
        environment = ToolEnvironment(_instruct(dialect), (), budget)
        yield HarborRunner(self._tasks, self._backend, self._limiter, environment)


def _instruct(dialect: BaseDialect) -> BaseDialect:
    """Return the dialect with an instruction for tasks, unless the recipe has one. Raises UserError
    for a dialect whose tags cannot call the tool."""
    if dialect.callable_tools and TOOL_NAME not in dialect.callable_tools:
        raise UserError(
            f"the dialect '{dialect.name}' cannot call the tool {TOOL_NAME} of the environment"
            " 'harbor': set dialect: auto, or hermes for a model without a chat template."
        )
    if dialect.instruction is not None or dialect.callable_tools:
        return dialect
    return replace(dialect, instruction=_INSTRUCTION)


def _open_backend(backend: str | Mapping[str, Any]) -> TerminalBackend:
    """Open a backend by name. Raises UserError for an unknown name and wrong settings."""
    name, settings = parse_backend(backend, _THIS)
    if name not in _BACKENDS:
        raise UserError(f"'backend' of {_THIS} is '{name}': write one of {', '.join(_BACKENDS)}.")
    kind = ComponentKind.SANDBOX_BACKEND
    opened: TerminalBackend = instantiate(kind, name, _BACKENDS[name], settings, {})
    return opened


@dataclass(frozen=True)
class HarborRunner:
    """Runner of the rollouts of a stage."""

    tasks: Mapping[str, HarborTask]
    backend: TerminalBackend
    limiter: ConcurrencyLimiter
    environment: ToolEnvironment  # without tools

    async def __call__(self, task: Task, policy: Policy, key: str) -> Trajectory:
        """Run a rollout.

        If the agent's time is over, the status is TRUNCATED, and the tests run. If the terminal or
        the tests fail, the status is ERROR, with the cause. Raises UserError for a question that is
        none of the tasks.
        """
        if task.id not in self.tasks:
            raise UserError(
                f"'{task.id}' is no task of the environment 'harbor', which runs the folders of"
                " environment.tasks: remove other questions."
            )
        harbor_task = self.tasks[task.id]
        trajectory = Trajectory(task)
        try:
            async with AsyncExitStack() as stack:
                with report_wait("a rollout", f"one of {self.limiter.max_concurrent} terminals"):
                    await stack.enter_async_context(self.limiter.slot())
                opened = self.backend.open_terminal(harbor_task.image)
                terminal = await stack.enter_async_context(opened)
                await self._run_agent(terminal, harbor_task, trajectory, policy, key)
                if trajectory.status is not Status.ERROR:
                    set_environment_reward(trajectory, await run_tests(terminal, harbor_task))
        except (EnvironmentContractError, TerminalError) as error:
            trajectory.status, trajectory.error = Status.ERROR, describe_defect(error)
        return trajectory

    async def _run_agent(
        self,
        terminal: Terminal,
        task: HarborTask,
        trajectory: Trajectory,
        policy: Policy,
        key: str,
    ) -> None:
        seconds = self.environment.budget.call_timeout_seconds
        tool = make_bash_tool(terminal, seconds)
        changes = {"call_timeout_seconds": seconds + _CALL_MARGIN_SECONDS}
        budget = self.environment.budget.model_copy(update=changes)
        environment = self.environment.with_changes(tools=[tool], budget=budget)
        try:
            async with asyncio.timeout(task.agent_seconds):
                await environment.continue_rollout(trajectory, policy, key, _prepare_nothing)
        except TimeoutError:
            trajectory.status, trajectory.well_formed = Status.TRUNCATED, False


async def _prepare_nothing(session: ToolSession) -> None:
    """Prepare nothing: the terminal is new."""
