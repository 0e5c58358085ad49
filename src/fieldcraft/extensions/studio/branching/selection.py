"""Branching from a run folder: selection of a trajectory, and a sampler to continue it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldcraft.environments.turns import Policy
from fieldcraft.evaluation.evaluate import make_verdict_rubric
from fieldcraft.extensions.studio.branching.sample_store import SampleStore
from fieldcraft.extensions.studio.branching.sampler import ContinuationSampler
from fieldcraft.records.events import EventHandler, ignore_event
from fieldcraft.records.training_rollouts import read_training_rollouts
from fieldcraft.records.trajectories import to_json
from fieldcraft.runs.agent import Agent
from fieldcraft.runs.build import attach_world_files, open_verdict_reward
from fieldcraft.runs.folder import RunFolder, find_model, find_run
from fieldcraft.runs.trust import require_trust
from fieldcraft.types import Trajectory, UserError


@dataclass(frozen=True)
class SelectedTrajectory:
    """Trajectory of a run, identified by the name of its stage and its index. `from_training` is
    true for a recorded training rollout, false for an evaluation."""

    run: RunFolder
    name: str
    index: int
    from_training: bool
    trajectory: Trajectory

    def make_agent(self, model: Path | None = None) -> Agent:
        """Return the agent that wrote it, or an agent with another model, with the settings of its
        run.

        Raises UserError if the trajectory was not written by a model of the run or if the model is
        missing, and like `require_trust`.
        """
        run = self.run
        if self.name not in run.recipe.stages and (self.name != "base" or run.recipe.model is None):
            raise UserError(
                f"'{self.name}' is not a model that acts on its own, so its trajectories cannot be"
                " continued: choose a stage with --stage."
            )
        default_model = run.model(self.name if self.name in run.recipe.stages else "start")
        _, model_folder = find_model(default_model if model is None else model)
        require_trust(run, model_folder)
        return Agent(model_folder, attach_world_files(run.recipe, run.files), run.index)

    def get_default_folder(self, model: Path | None = None) -> Path:
        """Return the default folder of its branches."""
        kind = "-training" if self.from_training else ""
        other = "" if model is None else f"-{model.resolve().name}"
        return self.run.path / "branches" / f"{self.name}{kind}-{self.index}{other}"

    def make_sample_settings(self, agent: Agent, seed: int, temperature: float) -> dict[str, Any]:
        """Return the settings shared by all samples in a folder."""
        record = to_json(self.trajectory).encode(errors="replace")
        model, run = agent.model.resolve(), self.run.path.resolve()
        inside = model.is_relative_to(run)
        return {
            "stage": self.name,
            "training": self.from_training,
            "trajectory": self.index,
            "digest": hashlib.blake2b(record, digest_size=8).hexdigest(),
            "model": str(model.relative_to(run) if inside else model),
            "seed": seed,
            "temperature": temperature,
        }


def select_trajectory(
    run: Path, stage: str | None, index: int, from_training: bool = False
) -> SelectedTrajectory:
    """Return the trajectory at an index, as listed by `fieldcraft show`: of an evaluation (by
    default the last one), or of the recorded rollouts of a reinforcement learning stage.

    Raises UserError if it does not exist.
    """
    folder = find_run(run)
    trajectories: Iterable[Trajectory]
    if from_training:
        name = folder.resolve_stage(stage)
        trajectories = (
            rollout.trajectory for rollout in read_training_rollouts(folder.stage(name).rollouts)
        )
    else:
        name = folder.resolve_evaluation(stage)
        trajectories = folder.evaluation(name).iterate()
    last = -1
    for last, trajectory in enumerate(trajectories):
        if last == index:
            return SelectedTrajectory(folder, name, index, from_training, trajectory)
    raise UserError(f"trajectory {index} does not exist: give an --index from 0 to {last}.")


async def open_sampler(
    agent: Agent,
    *,
    samples: int = 32,
    seed: int = 0,
    temperature: float = 1.0,
    store: SampleStore | None = None,
    on_event: EventHandler = ignore_event,
) -> ContinuationSampler:
    """Open a sampler of continuations with an agent, in the running event loop; its tools are
    opened.

    Raises UserError for tools that cannot be used, and for an agent of an external environment,
    whose rollouts cannot be continued.
    """
    env = await agent.open_tool_environment("continued")
    return ContinuationSampler(
        policy=Policy(engine=agent.engine, temperature=temperature, seed=seed),
        env=env,
        rubric=make_verdict_rubric(None, await open_verdict_reward(agent.recipe)),
        samples=samples,
        concurrency=agent.recipe.evaluation.concurrency,
        store=store or SampleStore(),
        on_event=on_event,
    )
