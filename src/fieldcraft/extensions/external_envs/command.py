"""Programs as agents: a harness of any language in a working folder of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.environments.base import EnvironmentContractError, EnvironmentRunner
from fieldcraft.extensions.external_envs.agent_runner import (
    UNREAD_KEYS,
    AgentLimits,
    AgentResult,
    open_agent_runner,
)
from fieldcraft.extensions.external_envs.gateway import API_ROOT
from fieldcraft.extensions.external_envs.guarded_commands import GuardedCommands
from fieldcraft.extensions.sandbox.backends.base import (
    CommandBackend,
    CommandError,
    CommandOutcome,
    CommandRequest,
)
from fieldcraft.extensions.sandbox.backends.factory import (
    LOCAL_BACKEND,
    open_backend,
    parse_backend,
)
from fieldcraft.extensions.sandbox.input_files import read_input_files
from fieldcraft.extensions.sandbox.limits import MachineLimits, SandboxLimits
from fieldcraft.records.paths import expand_home
from fieldcraft.tools.base import Isolation
from fieldcraft.types import Task, UserError

ANSWER_FILE, REWARD_FILE = "answer.txt", "reward.txt"
_THIS = "the environment command"
_MAX_ERROR_CHARS = 200


class CommandEnvironment:
    """Environment whose rollouts run a program that is unaware of training.

    Each rollout has a fresh folder, which is removed at its end. The program's standard input is
    the question, and FIELDCRAFT_TASK is a file with the task as JSON. OPENAI_BASE_URL and
    ANTHROPIC_BASE_URL are addresses of the policy. The answer is the content of `answer.txt` in its
    working folder, or its output. A number in `reward.txt` is the reward `environment`.

    On this machine, the program can change files in its folder only. In a machine of another
    backend, it can call the policy, whatever network the machine has. All processes that it has
    started are killed at the end of the rollout.

    Args:
        run: command line, executed by the shell.
        max_turns: maximum turns of the policy in a rollout; None for budget.max_calls.
        timeout_seconds: time limit of a rollout.
        max_concurrent: maximum number of programs that run at the same time. The default is 32 on
            this machine, otherwise that of the backend.
        share_answers: whether the task's file has the accepted answers, for a program that computes
            its reward. A policy that can read files could then read them as well.
        writable: further files and folders that the program may change; [/] for all. Only for the
            backend `local`.
        files: folder that is copied to the working folder of each rollout.
        backend: where programs run: a name, or a mapping with `name` and the settings of the
            backend.
        limits: limits of all processes of a rollout (`MachineLimits`), by name.

    Raises UserError for a path that does not exist, for settings that the backend does not follow,
    for a backend that cannot be used on this machine or runs no commands, and for `local` if the
    kernel cannot restrict a program to its folder.
    """

    unread_keys = UNREAD_KEYS

    def __init__(
        self,
        run: Annotated[str, Field(min_length=1)],
        max_turns: PositiveInt | None = None,
        timeout_seconds: PositiveFloat = 600.0,
        max_concurrent: PositiveInt | None = None,
        share_answers: bool = False,
        writable: Sequence[str] = (),
        files: str | None = None,
        backend: str | dict[str, Any] = LOCAL_BACKEND,
        limits: dict[str, PositiveInt] | None = None,
    ) -> None:
        self._command_line = run
        self._share_answers = share_answers
        self._files = {} if files is None else read_input_files(Path(expand_home(files)), _THIS)
        self._backend = _open_backend(backend, writable, max_concurrent)
        self._machine_limits = _make_limits(limits or {}, self._backend)
        self._limits = AgentLimits(
            max_turns=max_turns,
            timeout_seconds=timeout_seconds,
            max_concurrent=self._backend.max_concurrent,
        )

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return no tasks: the program answers the questions of the recipe."""
        return (), ()

    def describe_isolation(self) -> Isolation:
        """Return what separates the programs from this machine."""
        return self._backend.describe_isolation()

    def start(
        self, dialect: BaseDialect, budget: BudgetConfig
    ) -> AbstractAsyncContextManager[EnvironmentRunner]:
        """Open the environment. Raises UserError for a model without a chat template."""
        return open_agent_runner("command", self._run_program, self._limits, dialect, budget)

    async def _run_program(self, task: Task, base_url: str) -> AgentResult:
        request = CommandRequest(
            line=self._command_line,
            stdin=task.question.encode(),
            task=_encode_task(task, self._share_answers),
            files=self._files,
            service_url=base_url,
            make_variables=_make_addresses,
            results=(ANSWER_FILE, REWARD_FILE),
            limits=self._machine_limits,
            seconds=self._limits.timeout_seconds,
        )
        try:
            return _parse_result(await self._backend.run_command(request))
        except CommandError as error:
            raise EnvironmentContractError(str(error)) from error


def _open_backend(
    backend: str | Mapping[str, Any], writable: Sequence[str], max_concurrent: int | None
) -> CommandBackend:
    name, settings = parse_backend(backend, _THIS)
    if name == LOCAL_BACKEND:
        if settings:
            raise UserError(
                f"the backend '{name}' of {_THIS} has no setting '{next(iter(settings))}': remove"
                " it."
            )
        return GuardedCommands(writable, max_concurrent)
    if writable:
        raise UserError(
            f"'writable' of {_THIS} is a setting of the backend '{LOCAL_BACKEND}': remove it, or"
            f" the backend '{name}'."
        )
    if name == "sandboxfusion":
        raise UserError(
            f"the backend 'sandboxfusion' runs no commands, because its server returns no files"
            f" and cannot call the policy: use local, container or e2b for {_THIS}."
        )
    opened = open_backend(name, settings, SandboxLimits(), max_concurrent, _THIS)
    if not isinstance(opened, CommandBackend):
        raise UserError(
            f"the sandbox backend '{name}' runs no commands: write its methods run_command,"
            f" max_concurrent and command_limits, or use another one for {_THIS}."
        )
    return opened


def _make_limits(limits: Mapping[str, int], backend: CommandBackend) -> MachineLimits:
    """Return the limits of a program. Raises UserError for one that the backend cannot enforce."""
    known = sorted(backend.command_limits)
    for name in limits:
        if name not in known:
            place = backend.describe_isolation().backend
            raise UserError(
                f"the backend '{place}' has no limit '{name}' for a command (its limits:"
                f" {', '.join(known) or 'none'}): correct limits of {_THIS}."
            )
    changes: dict[str, Any] = dict(limits)
    return replace(MachineLimits(), **changes)


def _encode_task(task: Task, share_answers: bool) -> bytes:
    record = asdict(task)
    if not share_answers:
        del record["answers"]
    return json.dumps(record).encode()


def _make_addresses(base_url: str) -> dict[str, str]:
    """Return the variables in which clients look for a model. Those of Anthropic append /v1."""
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": base_url.removesuffix(API_ROOT),
        "ANTHROPIC_API_KEY": "none",
    }


def _parse_result(result: CommandOutcome) -> AgentResult:
    """Return the answer and the reward of a program. Raises EnvironmentContractError if it failed
    or left something else."""
    if result.exit_code:
        error_text = _decode(result.error_tail)[-_MAX_ERROR_CHARS:]
        raise EnvironmentContractError(
            f"the agent exited with status {result.exit_code}: {error_text}"
        )
    texts = {name: _decode(content) for name, content in result.files.items()}
    answer = texts.get(ANSWER_FILE, _decode(result.output) or None)
    reward = texts.get(REWARD_FILE)
    if reward is None:
        return AgentResult(answer)
    try:
        return AgentResult(answer, float(reward))
    except ValueError:
        message = f"{REWARD_FILE} is not a number: {reward[:80]!r}"
        raise EnvironmentContractError(message) from None


def _decode(content: bytes) -> str:
    return content.decode("utf-8-sig", errors="replace").strip()
