"""Black-box agents: third-party programs that call a model behind a base_url.

The output of a program is limited, and its processes are terminated.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import secrets
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt

from fieldcraft.config.names import format_short, import_object
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.environments.base import (
    EnvironmentContractError,
    EnvironmentRunner,
    set_environment_reward,
)
from fieldcraft.environments.guards import ToolTimeoutError, run_with_timeout
from fieldcraft.environments.turns import Policy, open_engine_session
from fieldcraft.extensions.external_envs.conversation_renderer import ConversationRenderer
from fieldcraft.extensions.external_envs.conversations import AgentConversation
from fieldcraft.extensions.external_envs.games import call_user_function
from fieldcraft.extensions.external_envs.gateway import create_gateway_app
from fieldcraft.tools.descendants import ProcessDescendants
from fieldcraft.tools.serving import serve_in_loop
from fieldcraft.types import Status, Task, Trajectory, UserError

AgentFunction = Callable[[Task, str], Awaitable[Any]]  # an agent, called with a task and a base_url


class BlackBoxEnvironment:
    """Environment whose rollouts run an agent that is unaware of training.

    Args:
        agent: function agent(task, base_url), as `module:name`. A number that it returns is the
            reward, a text is the answer.
        command: program and arguments in place of `agent`. It reads the task as JSON, and its
            output is the answer. OPENAI_BASE_URL is the address of the model. Processes that it
            has started are killed when it exits.
        max_turns: maximum turns of the policy in a rollout; None for budget.max_calls.
        timeout_seconds: time limit of a rollout.

    Raises UserError unless exactly one of agent and command is given.
    """

    def __init__(
        self,
        agent: str | None = None,
        command: Annotated[list[str], Field(min_length=1)] | None = None,
        max_turns: PositiveInt | None = None,
        timeout_seconds: PositiveFloat = 600.0,
    ) -> None:
        if (agent is None) == (command is None):
            raise UserError("the environment 'blackbox' needs one of agent and command: set one.")
        self.run_agent: AgentFunction = (
            partial(_run_command, command or []) if agent is None else _load_agent(agent)
        )
        self.max_turns, self.timeout_seconds = max_turns, timeout_seconds

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return no tasks: the agent answers the questions of the recipe."""
        return (), ()

    @asynccontextmanager
    async def start(
        self, dialect: BaseDialect, budget: BudgetConfig
    ) -> AsyncIterator[EnvironmentRunner]:
        """Open the environment. Raises UserError for a model without a chat template."""
        if dialect.tokenizer.chat_template is None:
            raise UserError(
                "the environment 'blackbox' needs a model with a chat template: give one, or add"
                " chat_template.jinja to its folder."
            )
        max_turns = self.max_turns or budget.max_calls
        runner = BlackBoxRunner(
            self.run_agent, ConversationRenderer(dialect), budget, max_turns, self.timeout_seconds
        )
        async with serve_in_loop(create_gateway_app(runner.conversations)) as url:
            runner.url = url
            yield runner.run_rollout


@dataclass
class BlackBoxRunner:
    """Runner of the rollouts of a stage."""

    run_agent: AgentFunction
    renderer: ConversationRenderer
    budget: BudgetConfig
    max_turns: int
    timeout_seconds: float
    url: str = ""
    conversations: dict[str, AgentConversation] = field(default_factory=dict)

    async def run_rollout(self, task: Task, policy: Policy, key: str) -> Trajectory:
        """Run one rollout of the agent. The answer is the last message of the policy, unless the
        agent returns another one.

        If the agent fails, the status is ERROR, with the cause. If the budget rejected one of its
        requests, the status is TRUNCATED, and a missing reward is 0.
        """
        trajectory = Trajectory(task)
        async with open_engine_session(trajectory, policy.engine, key) as session:
            conversation = AgentConversation(
                task, policy, self.renderer, self.budget, self.max_turns, session, key
            )
            rollout_id = secrets.token_urlsafe()
            self.conversations[rollout_id] = conversation
            try:
                await self._run_agent(trajectory, conversation, f"{self.url}/{rollout_id}/v1")
            finally:
                del self.conversations[rollout_id]
                await conversation.finish(trajectory)
        if trajectory.status is not Status.ERROR:
            self._finish(trajectory, conversation)
        return trajectory

    async def _run_agent(
        self, trajectory: Trajectory, conversation: AgentConversation, base_url: str
    ) -> None:
        result = await self._call_agent(trajectory.task, conversation, base_url)
        if conversation.failure is not None:
            raise conversation.failure
        match result:
            case bool() | int() | float():
                conversation.reward = float(result)
            case str():
                trajectory.answer = result
            case None:
                pass
            case other:
                raise EnvironmentContractError(
                    f"the agent returned {format_short(other)}, not a reward, an answer or None"
                )

    async def _call_agent(self, task: Task, conversation: AgentConversation, base_url: str) -> Any:
        """Run the agent, and return its result, or None if it failed after a rejected turn."""
        try:
            return await run_with_timeout(self.run_agent(task, base_url), self.timeout_seconds)
        except ToolTimeoutError as error:
            message = f"the agent did not finish within {self.timeout_seconds:g} s"
            raise EnvironmentContractError(message) from error
        except UserError:
            raise
        except Exception:
            if conversation.budget_exhausted or conversation.failure is not None:
                return None
            raise

    def _finish(self, trajectory: Trajectory, conversation: AgentConversation) -> None:
        turns = trajectory.policy_turns
        if trajectory.answer is None and turns:
            trajectory.answer = self.renderer.dialect.turn_end.strip(turns[-1]).strip()
        trajectory.status = Status.ANSWERED if turns else Status.NO_ANSWER
        trajectory.well_formed = bool(turns)
        if conversation.budget_exhausted:
            trajectory.status, trajectory.well_formed = Status.TRUNCATED, False
        if conversation.reward is not None or conversation.budget_exhausted:
            set_environment_reward(trajectory, conversation.reward or 0.0)


def _load_agent(name: str) -> AgentFunction:
    """Import an agent by name. Raises UserError if it is not a function (task, base_url)."""
    if ":" not in name:
        raise UserError(f"the agent '{name}' is not a name of the form module:name: correct agent.")
    function: Any = import_object(name)
    if not callable(function) or len(inspect.signature(function).parameters) != 2:
        raise UserError(
            f"'{name}' is not an agent: write a function with the parameters task and base_url."
        )

    async def run_agent(task: Task, base_url: str) -> Any:
        return await call_user_function(partial(function, task, base_url))

    return run_agent


async def _run_command(command: Sequence[str], task: Task, base_url: str) -> str:
    """Run a program that reads the task, and return its output."""
    env = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "none"}
    return await run_program(command, json.dumps(asdict(task)).encode(), env)


# -- programs that perform one rollout ---------------------------------------------------------


MAX_OUTPUT_BYTES = 2**20  # bytes of an answer
_MAX_STDERR_CHARS = 200  # characters of the end of a program's standard error
_CHUNK_BYTES = 2**16
_POLL_SECONDS = 0.02  # seconds between two checks whether it has exited


async def run_program(command: Sequence[str], input_data: bytes, env: Mapping[str, str]) -> str:
    """Run a program with `input_data` as its input, and return its output.

    Processes that it has started are killed when it exits or this call ends. Raises
    EnvironmentContractError if it fails, or prints more than MAX_OUTPUT_BYTES.
    """
    descendants = ProcessDescendants()
    process = await descendants.start(command, env, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    streams = asyncio.gather(
        _read_stdout(process), _read_stderr_tail(process), _write_stdin(process, input_data)
    )
    exit_task = asyncio.ensure_future(_wait_for_exit(process))
    pending: list[asyncio.Future[Any]] = [streams, exit_task]
    try:
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if streams.done():
            streams.result()  # raises the error of a stream
        status = await exit_task
        # its remaining child processes would keep its output open
        await asyncio.to_thread(descendants.kill_group, process.pid)
        output, errors, _ = await streams
    finally:
        descendants.kill_group(process.pid)
        streams.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        # unread output would keep its pipes open, and `Process` itself does not close them
        process._transport.close()  # type: ignore[attr-defined]
    if status:
        error_text = errors.decode(errors="replace").strip()[-_MAX_STDERR_CHARS:]
        raise EnvironmentContractError(f"the agent exited with status {status}: {error_text}")
    return output.decode(errors="replace").strip()


async def _wait_for_exit(process: Process) -> int:
    """Wait for a process, and return its exit status.

    `Process.wait` would also wait for all other processes that hold its pipes.
    """
    while process.returncode is None:
        await asyncio.sleep(_POLL_SECONDS)
    return process.returncode


async def _write_stdin(process: Process, input_data: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it does not have to read its input
        process.stdin.write(input_data)
        await process.stdin.drain()
    process.stdin.close()


async def _read_stdout(process: Process) -> bytes:
    assert process.stdout is not None
    output = bytearray()
    while chunk := await process.stdout.read(_CHUNK_BYTES):
        output += chunk
        if len(output) > MAX_OUTPUT_BYTES:
            raise EnvironmentContractError(f"the agent printed more than {MAX_OUTPUT_BYTES} bytes")
    return bytes(output)


async def _read_stderr_tail(process: Process) -> bytes:
    """Read the standard error of a process, and return its end, with margin for multi-byte
    characters."""
    assert process.stderr is not None
    tail = b""
    while chunk := await process.stderr.read(_CHUNK_BYTES):
        tail = (tail + chunk)[-4 * _MAX_STDERR_CHARS :]
    return tail
