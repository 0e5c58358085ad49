"""Tasksets of verifiers, played by verifiers itself in a Python of its own.

A worker process has the taskset. For each of its turns it asks the route /inference/v1/generate of
this process, which has the engine; the name of the model in the request says which rollout asks.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from fieldcraft.config.pythons import version_in
from fieldcraft.config.sections import Limits
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.gateway.generate import GenerateRequest, generate_app
from fieldcraft.gateway.lines import Line
from fieldcraft.gateway.refusals import Refused
from fieldcraft.gateway.serving import serving_here
from fieldcraft.gateway.traces import Reader
from fieldcraft.gateway.worker_process import WorkerProcess
from fieldcraft.rollout.environments import EnvironmentDefect, Play, reward_of
from fieldcraft.rollout.turns import Policy, session_of
from fieldcraft.types import Author, Completion, Status, Task, Tokenizer, Trajectory, UserError

WORKER = Path(__file__).parent / "worker" / "verifiers_worker.py"
SUPPORTED = "0.4"
MOST = 1000  # tasks


class Verifiers:
    """Episodes of a taskset.

    Args:
        taskset: its package, as verifiers names it.
        python: the interpreter that has verifiers and the taskset; None: this one.
        config: verifiers' own section `env`, but for the taskset's id.
        renderer: its config of the renderer, such as {name: qwen3}; None: the model's own chat
            template, with which it has no tools.
        tasks: how many are read at most.
        max_turns: turns of a rollout, if config says nothing; None: budget.max_calls.
        timeout_seconds: of a rollout.
    """

    def __init__(
        self,
        taskset: str,
        python: Path | None = None,
        config: dict[str, Any] | None = None,
        renderer: dict[str, Any] | None = None,
        tasks: PositiveInt = MOST,
        max_turns: PositiveInt | None = None,
        timeout_seconds: PositiveFloat = 600.0,
    ) -> None:
        given = config or {}
        self.env = {**given, "taskset": {**given.get("taskset", {}), "id": taskset}}
        self.python = str(python or sys.executable)
        self.renderer, self.most = renderer or {"name": "default"}, tasks
        self.max_turns, self.seconds = max_turns, timeout_seconds

    def tasks(self, heldout: int) -> tuple[Sequence[Task], Sequence[Task]]:
        """Return the tasks of the taskset; the last ones, at most half of them, are to test on.
        Raises UserError for a taskset that cannot be read."""
        find_verifiers(self.python)
        found = read_tasks(self.python, json.dumps(self._opening(None, 1)))
        first = len(found) - min(len(found) // 2, heldout)
        return found[:first], found[first:]

    @asynccontextmanager
    async def open(self, dialect: BaseDialect, budget: Limits) -> AsyncIterator[Play]:
        """Open the taskset. Raises UserError where the taskset does not open."""
        find_verifiers(self.python)
        house = House(dialect.tokenizer, budget, self.seconds)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            saved: Any = dialect.tokenizer
            saved.save_pretrained(folder / "tokenizer")
            async with serving_here(generate_app(house.ask)) as url:
                client = {
                    "base_url": f"{url}/v1",
                    "api_key_var": "FIELDCRAFT_NO_KEY",
                    "renderer": self.renderer,
                    "renderer_model_name": str(folder / "tokenizer"),
                }
                opening = self._opening(client, self.max_turns or budget.max_calls)
                house.worker = WorkerProcess(
                    [self.python, str(WORKER)], opening, folder / "worker.log"
                )
                await house.worker.start()
                try:
                    yield house.play
                finally:
                    await house.worker.close()

    def _opening(self, client: Mapping[str, Any] | None, max_turns: int) -> dict[str, Any]:
        return {"env": self.env, "client": client, "tasks": self.most, "max_turns": max_turns}


@lru_cache(maxsize=8)  # a run asks for them several times, and verifiers takes seconds to begin
def read_tasks(python: str, opening: str) -> Sequence[Task]:
    """Read the tasks of a taskset, from a worker that only reads them."""
    done = subprocess.run(
        [python, str(WORKER)], input=f"{opening}\n", capture_output=True, text=True, check=False
    )
    if not done.stdout:
        said = done.stderr.strip().splitlines() or ["it printed nothing"]
        raise UserError(f"the taskset cannot be read ({said[-1][:200]}): correct that.")
    return [
        Task(f"{index}", task["prompt"], (), {"index": index, "key": task["key"]})
        for index, task in enumerate(json.loads(done.stdout.splitlines()[0])["tasks"])
    ]


def find_verifiers(python: str) -> None:
    """Find Verifiers. Raises UserError unless a supported version is installed in a Python."""
    found = version_in(python, "verifiers", "environment.python")
    if not found.startswith(f"{SUPPORTED}."):
        raise UserError(
            f"{python} has {f'verifiers {found}' if found else 'no verifiers'}: run {python} -m pip"
            f" install 'verifiers=={SUPPORTED}.*', or give environment.python= of another one."
        )


@dataclass
class House:
    """Common part of the rollouts of a stage: the worker, and the lines on which it asks."""

    tokenizer: Tokenizer
    budget: Limits
    seconds: float
    lines: dict[str, Line] = field(default_factory=dict)
    worker: WorkerProcess = field(init=False)
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, request: GenerateRequest, session: str | None) -> Completion:
        """Answer on the line of a rollout."""
        line = self.lines.get(request.model)
        if line is None:
            raise Refused(400, f"there is no model '{request.model}' here.")
        return await line.ask(request)

    async def play(self, task: Task, policy: Policy, key: str) -> Trajectory:
        """Play the rollout of one episode. Its reward is that of its trace."""
        trajectory = Trajectory(task)
        async with session_of(trajectory, policy.engine, key) as session:
            line = Line(policy, self.tokenizer, self.budget, session, key)
            self.lines[session] = line
            try:
                episode = await self._episode(task, session, policy.temperature)
            finally:
                del self.lines[session]
                await line.hang_up()
            if line.failure is not None:
                raise line.failure
            self._read(trajectory, episode, line)
        return trajectory

    async def _episode(self, task: Task, model: str, temperature: float) -> dict[str, Any]:
        if "index" not in task.meta:
            raise UserError(
                f"task '{task.id}' is none of the taskset's: remove tasks and world from the"
                " recipe."
            )
        request = {"task": task.meta["index"], "model": model, "temperature": temperature}
        async with self.starting:
            if not self.worker.alive:  # it died with other rollouts, which say so
                await self.worker.start()
        try:
            async with asyncio.timeout(self.seconds):
                return await self.worker.ask(request)
        except TimeoutError as error:
            raise EnvironmentDefect(f"the episode did not end within {self.seconds:g} s") from error

    def _read(self, trajectory: Trajectory, episode: Mapping[str, Any], line: Line) -> None:
        traces = [trace for trace in episode["traces"] if trace["trainable"]]
        reader = Reader(line.said, self.tokenizer)
        for trace in traces:
            reader.append(trajectory, trace)
        errors = [*episode["errors"], *(error for t in traces for error in t["errors"])]
        if line.full:
            trajectory.status = Status.TRUNCATED
        elif errors or not traces:
            raise EnvironmentDefect(errors[-1] if errors else "the episode has no trace")
        else:
            turns = [s for s in trajectory.segments if s.author is Author.POLICY]
            said = [node["text"] for node in traces[-1]["nodes"] if node["text"]]
            trajectory.status = Status.ANSWERED if turns else Status.NO_ANSWER
            trajectory.answer = said[-1] if said else None
            trajectory.well_formed = bool(turns)
        reward_of(trajectory, sum(trace["reward"] for trace in traces) / max(len(traces), 1))
