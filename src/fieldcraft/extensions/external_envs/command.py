"""Programs as agents: a harness of any language in a working folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.environments.base import EnvironmentRunner
from fieldcraft.extensions.external_envs.agent_runner import (
    AgentLimits,
    AgentResult,
    open_agent_runner,
)
from fieldcraft.extensions.external_envs.gateway import API_ROOT
from fieldcraft.extensions.external_envs.programs import run_program
from fieldcraft.extensions.external_envs.work_folder import open_work_folder
from fieldcraft.extensions.sandbox.write_guard import make_guarded_command
from fieldcraft.extensions.sandbox.write_guard_checks import describe_guard, explain_missing_guard
from fieldcraft.records.paths import expand_home
from fieldcraft.tools.base import Isolation
from fieldcraft.types import Task, UserError

ANYWHERE = "/"  # writable folder of programs without a guard
SHELL = ("/bin/sh", "-c")


class CommandEnvironment:
    """Environment whose rollouts run a program that is unaware of training.

    Each rollout has a fresh folder, which is removed at its end. The program's standard input is
    the question, and FIELDCRAFT_TASK is a file with the task as JSON. OPENAI_BASE_URL and
    ANTHROPIC_BASE_URL are addresses of the policy. The answer is the content of `answer.txt` in its
    working folder, or its output. A number in `reward.txt` is the reward `environment`.

    The program can change files in its folder only. All processes that it has started are killed at
    the end of the rollout.

    Args:
        run: command line, executed by the shell.
        max_turns: maximum turns of the policy in a rollout; None for budget.max_calls.
        timeout_seconds: time limit of a rollout.
        max_concurrent: maximum number of programs that run at the same time.
        share_answers: whether the task's file has the accepted answers, for a program that computes
            its reward. A policy that can read files could then read them as well.
        writable: further files and folders that the program may change; [/] for all.

    Raises UserError for a path that does not exist, and if the kernel cannot restrict a program to
    its folder, neither by Landlock nor by a mount namespace.
    """

    def __init__(
        self,
        run: Annotated[str, Field(min_length=1)],
        max_turns: PositiveInt | None = None,
        timeout_seconds: PositiveFloat = 600.0,
        max_concurrent: PositiveInt = 32,
        share_answers: bool = False,
        writable: Sequence[str] = (),
    ) -> None:
        self.command_line = run
        self.limits = AgentLimits(
            max_turns=max_turns, timeout_seconds=timeout_seconds, max_concurrent=max_concurrent
        )
        self.share_answers = share_answers
        self.writable = [str(Path(expand_home(path)).absolute()) for path in writable]
        _require_guard(self.writable)

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return no tasks: the program answers the questions of the recipe."""
        return (), ()

    def describe_isolation(self) -> Isolation:
        """Return what keeps the programs from changing other files."""
        if ANYWHERE in self.writable:
            return Isolation("local", (), "on this machine, and nothing restricts them")
        return describe_guard()

    def start(
        self, dialect: BaseDialect, budget: BudgetConfig
    ) -> AbstractAsyncContextManager[EnvironmentRunner]:
        """Open the environment. Raises UserError for a model without a chat template."""
        return open_agent_runner("command", self._run_program, self.limits, dialect, budget)

    async def _run_program(self, task: Task, base_url: str) -> AgentResult:
        async with open_work_folder(task, self.share_answers) as folder:
            command = [*SHELL, self.command_line]
            if ANYWHERE not in self.writable:
                command = make_guarded_command(command, [str(folder.root), *self.writable])
            variables = {**folder.variables, **_make_addresses(base_url)}
            output = await run_program(command, task.question.encode(), variables, folder.work)
            return folder.read_result(output)


def _make_addresses(base_url: str) -> dict[str, str]:
    """Return the variables in which clients look for a model. Those of Anthropic append /v1."""
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": base_url.removesuffix(API_ROOT),
        "ANTHROPIC_API_KEY": "none",
    }


def _require_guard(writable: Sequence[str]) -> None:
    """Raise UserError if programs cannot be restricted to these folders and their own one."""
    for path in writable:
        if not Path(path).exists():
            raise UserError(f"the path {path} of writable does not exist: create or correct it.")
    reason = None if ANYWHERE in writable else explain_missing_guard()
    if reason is not None:
        raise UserError(
            "the environment 'command' cannot keep its programs from changing files outside of"
            f" their folders, because {reason}; or allow it with writable: [{ANYWHERE}]."
        )
