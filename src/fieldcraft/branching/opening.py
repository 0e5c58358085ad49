"""Opening of a run folder: to a trajectory of it, and to what continues it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldcraft.branching.branch import Sampler
from fieldcraft.branching.kept import Kept
from fieldcraft.evals.run import answer_rubric
from fieldcraft.records.events import Sink, nobody
from fieldcraft.records.rollouts import read_rollouts
from fieldcraft.records.trajectories import to_json
from fieldcraft.rollout.loop import Policy
from fieldcraft.runs.agent import Agent
from fieldcraft.runs.build import open_correct, with_files
from fieldcraft.runs.folder import RunFolder, find_model, find_run
from fieldcraft.runs.trust import require_trust
from fieldcraft.types import Trajectory, UserError


@dataclass(frozen=True)
class Chosen:
    """A trajectory of a run, by the name of its stage and its number there. `training` says that
    it is a rollout that training kept, and else it is of an evaluation."""

    run: RunFolder
    name: str
    number: int
    training: bool
    trajectory: Trajectory

    def agent(self, model: Path | None = None) -> Agent:
        """Return the agent that wrote it, or the one of another model, under the settings of its
        run.

        Raises UserError for what no model of the run wrote, where there is no model, and as
        `require_trust` does.
        """
        run = self.run
        if self.name not in run.recipe.stages and (self.name != "base" or run.recipe.model is None):
            raise UserError(
                f"'{self.name}' is no model that acts by itself, so no rollout can go on from its"
                " trajectories: choose a stage with --stage."
            )
        own = run.model(self.name if self.name in run.recipe.stages else "start")
        _, found = find_model(own if model is None else model)
        require_trust(run, found)
        return Agent(found, with_files(run.recipe, run.files), run.index)

    def folder(self, model: Path | None = None) -> Path:
        """Return the folder of its branches by default."""
        kind = "-training" if self.training else ""
        other = "" if model is None else f"-{model.resolve().name}"
        return self.run.path / "branches" / f"{self.name}{kind}-{self.number}{other}"

    def settings(self, agent: Agent, seed: int, temperature: float) -> dict[str, Any]:
        """Return the settings that all samples in a folder share."""
        record = to_json(self.trajectory).encode(errors="replace")
        model, run = agent.model.resolve(), self.run.path.resolve()
        inside = model.is_relative_to(run)
        return {
            "stage": self.name,
            "training": self.training,
            "trajectory": self.number,
            "digest": hashlib.blake2b(record, digest_size=8).hexdigest(),
            "model": str(model.relative_to(run) if inside else model),
            "seed": seed,
            "temperature": temperature,
        }


def choose(run: Path, stage: str | None, number: int, training: bool = False) -> Chosen:
    """Return the trajectory of a number, as `fieldcraft show` counts them: of an evaluation (the
    last one by default), or of the rollouts that a stage of reinforcement learning has kept.

    Raises UserError where there is none.
    """
    folder = find_run(run)
    found: Iterable[Trajectory]
    if training:
        name = folder.trained(stage)
        found = (kept.trajectory for kept in read_rollouts(folder.stage(name).rollouts))
    else:
        name = folder.evaluated(stage)
        found = folder.evaluation(name).each()
    last = -1
    for last, trajectory in enumerate(found):
        if last == number:
            return Chosen(folder, name, number, training, trajectory)
    raise UserError(f"there is no trajectory {number}: give --trajectory one of 0 to {last}.")


async def open_sampler(
    agent: Agent,
    *,
    samples: int = 32,
    seed: int = 0,
    temperature: float = 1.0,
    kept: Kept | None = None,
    emit: Sink = nobody,
) -> Sampler:
    """Open a sampler of continuations with an agent, in the running event loop: its tools are
    opened.

    Raises UserError for tools that cannot be used.
    """
    return Sampler(
        policy=Policy(engine=agent.engine, temperature=temperature, seed=seed),
        env=await agent.environment(),
        rubric=answer_rubric(None, await open_correct(agent.recipe)),
        samples=samples,
        concurrency=agent.recipe.evaluation.concurrency,
        kept=kept or Kept(),
        emit=emit,
    )
