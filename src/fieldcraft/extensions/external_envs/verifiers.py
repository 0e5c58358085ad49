"""Tasksets of verifiers, run by verifiers itself in a separate Python interpreter.

A worker process has the taskset. For each turn it calls the route /inference/v1/generate of this
process, which has the engine. The model name in the request identifies the rollout.

Traces of verifiers become trajectories, token for token. A trace is a graph of messages, each with
the tokens that it adds. A path from a root to a leaf is one context of the policy, so it is a
chain. Messages shared by two chains were sampled once, and are trained once: in the second chain
they are part of the prompt.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from fieldcraft.config.interpreters import get_installed_version
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.environments.base import (
    EnvironmentContractError,
    EnvironmentRunner,
    set_environment_reward,
)
from fieldcraft.environments.turns import Policy, open_engine_session
from fieldcraft.extensions.external_envs.generate_api import GenerateRequest, create_generate_app
from fieldcraft.extensions.external_envs.policy_session import PolicySession, SampledTurn
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.extensions.external_envs.worker_process import WorkerProcess
from fieldcraft.sampling import Completion
from fieldcraft.tools.serving import serve_in_loop
from fieldcraft.types import (
    Author,
    CallOutcome,
    CallRecord,
    Segment,
    Status,
    Task,
    Tokenizer,
    Trajectory,
    UserError,
)

WORKER_SCRIPT = Path(__file__).parent / "worker" / "verifiers_worker.py"
SUPPORTED_VERSION = "0.4"
DEFAULT_MAX_TASKS = 1000  # tasks
TraceNode = Mapping[str, Any]


class VerifiersEnvironment:
    """Environment whose rollouts are episodes of a taskset.

    Args:
        taskset: package of the taskset, as named in verifiers.
        python: interpreter that has verifiers and the taskset; None for this one.
        config: verifiers' own section `env`, without the taskset's id.
        renderer: config of the verifiers renderer, such as {name: qwen3}; None for the model's own
            chat template, which does not support tools.
        tasks: maximum number of tasks to read.
        max_turns: turns of a rollout if config does not set them; None for budget.max_calls.
        timeout_seconds: time limit of a rollout.
    """

    unread_keys = (
        *("instruction", "system_prompt", "chat_template_kwargs", "date"),
        *("budget.max_observation_tokens", "budget.call_timeout_seconds"),
        "budget.max_concurrent_calls",
    )

    def __init__(
        self,
        taskset: str,
        python: Path | None = None,
        config: dict[str, Any] | None = None,
        renderer: dict[str, Any] | None = None,
        tasks: PositiveInt = DEFAULT_MAX_TASKS,
        max_turns: PositiveInt | None = None,
        timeout_seconds: PositiveFloat = 600.0,
    ) -> None:
        given = config or {}
        self.env_config = {**given, "taskset": {**given.get("taskset", {}), "id": taskset}}
        self.python = str(python or sys.executable)
        self.renderer_config, self.max_tasks = renderer or {"name": "default"}, tasks
        self.max_turns, self.timeout_seconds = max_turns, timeout_seconds

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return (training tasks, held-out tasks); the last tasks, at most half, are held out.

        Raises UserError if the taskset cannot be read.
        """
        require_verifiers(self.python)
        found = list_taskset_tasks(self.python, json.dumps(self._make_handshake(None, 1)))
        first = len(found) - min(len(found) // 2, heldout)
        return found[:first], found[first:]

    @asynccontextmanager
    async def start(
        self, dialect: BaseDialect, budget: BudgetConfig
    ) -> AsyncIterator[EnvironmentRunner]:
        """Open the taskset. Raises UserError if this fails."""
        require_verifiers(self.python)
        runner = VerifiersRunner(dialect.tokenizer, budget, self.timeout_seconds)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            saved: Any = dialect.tokenizer
            saved.save_pretrained(folder / "tokenizer")
            async with serve_in_loop(create_generate_app(runner.handle_request)) as url:
                client = {
                    "base_url": f"{url}/v1",
                    "api_key_var": "FIELDCRAFT_NO_KEY",
                    "renderer": self.renderer_config,
                    "renderer_model_name": str(folder / "tokenizer"),
                }
                handshake = self._make_handshake(client, self.max_turns or budget.max_calls)
                runner.worker = WorkerProcess(
                    [self.python, str(WORKER_SCRIPT)], handshake, folder / "worker.log"
                )
                await runner.worker.start()
                try:
                    yield runner.run_rollout
                finally:
                    await runner.worker.close()

    def _make_handshake(self, client: Mapping[str, Any] | None, max_turns: int) -> dict[str, Any]:
        return {
            "env": self.env_config,
            "client": client,
            "tasks": self.max_tasks,
            "max_turns": max_turns,
        }


@lru_cache(maxsize=8)  # a run lists them several times, and verifiers takes seconds to start
def list_taskset_tasks(python: str, handshake: str) -> Sequence[Task]:
    """Read the tasks of a taskset with a temporary worker."""
    process = subprocess.run(
        [python, str(WORKER_SCRIPT)],
        input=f"{handshake}\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if not process.stdout:
        error_lines = process.stderr.strip().splitlines() or ["it printed nothing"]
        raise UserError(f"the taskset cannot be read ({error_lines[-1][:200]}): fix this error.")
    return [
        Task(f"{index}", task["prompt"], (), {"index": index, "key": task["key"]})
        for index, task in enumerate(json.loads(process.stdout.splitlines()[0])["tasks"])
    ]


def require_verifiers(python: str) -> None:
    """Raise UserError unless a supported version of verifiers is installed in an interpreter."""
    version = get_installed_version(python, "verifiers", "environment.python")
    if not version.startswith(f"{SUPPORTED_VERSION}."):
        raise UserError(
            f"{python} has {f'verifiers {version}' if version else 'no verifiers'}: run {python} -m"
            f" pip install 'verifiers=={SUPPORTED_VERSION}.*', or set environment.python to"
            " another interpreter."
        )


@dataclass
class VerifiersRunner:
    """Runner of the rollouts of a stage: the worker, and the policy sessions that it uses."""

    tokenizer: Tokenizer
    budget: BudgetConfig
    timeout_seconds: float
    policy_sessions: dict[str, PolicySession] = field(default_factory=dict)
    worker: WorkerProcess = field(init=False)
    start_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def handle_request(self, request: GenerateRequest) -> Completion:
        """Answer a request with the policy session of its rollout."""
        policy_session = self.policy_sessions.get(request.model)
        if policy_session is None:
            raise RequestRejectedError(400, f"the model '{request.model}' does not exist.")
        return await policy_session.generate(request)

    async def run_rollout(self, task: Task, policy: Policy, key: str) -> Trajectory:
        """Run the rollout of one episode. Its reward is the reward of its trace."""
        trajectory = Trajectory(task)
        async with open_engine_session(trajectory, policy.engine, key) as session:
            policy_session = PolicySession(policy, self.tokenizer, self.budget, session, key)
            self.policy_sessions[session] = policy_session
            try:
                episode = await self._run_episode(task, session, policy.temperature)
            finally:
                del self.policy_sessions[session]
                await policy_session.cancel()
            if policy_session.failure is not None:
                raise policy_session.failure
            self._record_episode(trajectory, episode, policy_session)
        return trajectory

    async def _run_episode(self, task: Task, model: str, temperature: float) -> dict[str, Any]:
        if "index" not in task.meta:
            raise UserError(
                f"task '{task.id}' does not belong to the taskset: remove tasks and world from the"
                " recipe."
            )
        request = {"task": task.meta["index"], "model": model, "temperature": temperature}
        async with self.start_lock:
            if not self.worker.is_alive:  # it exited during other rollouts, which report it
                await self.worker.start()
        try:
            async with asyncio.timeout(self.timeout_seconds):
                return await self.worker.send_request(request)
        except TimeoutError as error:
            raise EnvironmentContractError(
                f"the episode did not end within {self.timeout_seconds:g} s"
            ) from error

    def _record_episode(
        self, trajectory: Trajectory, episode: Mapping[str, Any], policy_session: PolicySession
    ) -> None:
        traces = [trace for trace in episode["traces"] if trace["trainable"]]
        reader = TraceReader(policy_session.turns, self.tokenizer)
        for trace in traces:
            reader.append_trace(trajectory, trace)
        errors = [*episode["errors"], *(error for t in traces for error in t["errors"])]
        if policy_session.budget_exhausted:
            trajectory.status = Status.TRUNCATED
        elif errors or not traces:
            raise EnvironmentContractError(errors[-1] if errors else "the episode has no trace")
        else:
            turns = [s for s in trajectory.segments if s.author is Author.POLICY]
            texts = [node["text"] for node in traces[-1]["nodes"] if node["text"]]
            trajectory.status = Status.ANSWERED if turns else Status.NO_ANSWER
            trajectory.answer = texts[-1] if texts else None
            trajectory.well_formed = bool(turns)
        set_environment_reward(
            trajectory, sum(trace["reward"] for trace in traces) / max(len(traces), 1)
        )


# -- conversion of traces to trajectories ------------------------------------------------------


@dataclass(frozen=True)
class TraceReader:
    """Reader of the traces of one rollout. `turns` are the turns that the policy sampled for it."""

    turns: Sequence[SampledTurn]
    tokenizer: Tokenizer

    def append_trace(self, trajectory: Trajectory, trace: Mapping[str, Any]) -> None:
        """Append the chains and the calls of a trace.

        Raises EnvironmentContractError for tokens that the policy did not sample at this position.
        """
        seen: set[int] = set()
        for path in trace["branches"]:
            new = [
                index for index in path if index not in seen and any(trace["nodes"][index]["mask"])
            ]
            if not new:
                continue
            node_indices = path[: path.index(new[-1]) + 1]  # later messages are not needed
            if trajectory.segments:
                trajectory.folds.append(len(trajectory.segments))
            trajectory.segments += self._iter_segments(trace["nodes"], node_indices, seen)
            seen.update(node_indices)
        trajectory.calls += list_calls(trace["nodes"])

    def _iter_segments(
        self, nodes: Sequence[TraceNode], node_indices: Sequence[int], seen: set[int]
    ) -> Iterator[Segment]:
        """Yield the segments of a path. Messages seen before, and those before the first turn, are
        its prompt."""
        tokens = [
            (i, sampled and index not in seen)
            for index in node_indices
            for i, sampled in zip(nodes[index]["ids"], nodes[index]["mask"], strict=True)
        ]
        prefix_ids: list[int] = []
        author = Author.PROMPT
        for sampled, group in groupby(tokens, key=lambda token: token[1]):
            ids = [i for i, _ in group]
            if sampled:
                yield from self._iter_turns(prefix_ids, ids)
                author = Author.TOOL
            else:
                yield Segment(author, ids, self.tokenizer.decode(ids))
            prefix_ids += ids

    def _iter_turns(self, prefix_ids: Sequence[int], ids: Sequence[int]) -> Iterator[Segment]:
        """Yield the turns sampled after `prefix_ids`: one, or several directly after each
        other."""
        start = 0
        while start < len(ids):
            completion = self._find_completion([*prefix_ids, *ids[:start]], ids[start:])
            text = self.tokenizer.decode(completion.ids)
            yield Segment(
                Author.POLICY, completion.ids, text, completion.logprobs, completion.versions
            )
            start += len(completion.ids)

    def _find_completion(self, prefix_ids: Sequence[int], ids: Sequence[int]) -> Any:
        for turn in self.turns:
            length = len(turn.completion.ids)
            if (
                list(turn.prompt_ids) == list(prefix_ids)
                and turn.completion.ids == list(ids[:length])
                and length
            ):
                return turn.completion
        raise EnvironmentContractError(
            "the trace contains tokens that the policy did not sample there"
        )


def list_calls(nodes: Sequence[TraceNode]) -> Iterator[CallRecord]:
    """Yield the calls of the policy that have a result, in the order of the results. Ids of calls
    may repeat in later turns, so a result belongs to the last call before it."""
    answered: set[tuple[int, str]] = set()
    for node in nodes:
        call_id, index = node["result_of"], node["parent"]
        while call_id is not None and index is not None:
            if call_id in nodes[index]["calls"]:
                if nodes[index]["sampled"] and (index, call_id) not in answered:
                    answered.add((index, call_id))
                    tool, arguments = nodes[index]["calls"][call_id]
                    parsed = _parse_arguments(arguments)
                    yield CallRecord(tool, parsed, node["result"], CallOutcome.OK, seconds=0.0)
                break
            index = nodes[index]["parent"]


def _parse_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call; the input of a tool without named ones is `input`."""
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(text), dict):
            return found
    return {"input": text}
