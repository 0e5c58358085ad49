"""Trained agents: find one in a run folder or a checkpoint, let it answer, and simulate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fieldcraft.config.sections import Dtype
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.stages import Rl
from fieldcraft.dialects import get_dialect
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.evals.fidelity import Verdicts, judge_by_tool, judge_by_world, summarise_fidelity
from fieldcraft.evals.metrics import exact_match
from fieldcraft.evals.run import answer_rubric, evaluate
from fieldcraft.runs.inputs import AtlasInputs, Inputs, make_inputs
from fieldcraft.runs.run import make_environment, open_search
from fieldcraft.recipes.loading import recipe_of_run
from fieldcraft.rollout.loop import Policy, Simulator, rollout
from fieldcraft.rollout.simulators import PolicySimulator
from fieldcraft.records.files import atomic_folder
from fieldcraft.terminal import StageProgress
from fieldcraft.train.checkpoint import save_weights
from fieldcraft.train.model import load_model, load_tokenizer
from fieldcraft.types import Task, Tool, Trajectory, UserError

Runner = Callable[[Task, str], Coroutine[Any, Any, Trajectory]]


@dataclass(frozen=True)
class Agent:
    """A checkpoint and the settings it acts under: dialect, instruction, budget and search.

    `index` is the folder of its search index; without one and without a server it has no tools.
    `inputs` is what its run was about, None for a bare checkpoint or with another search.
    """

    model: Path
    recipe: Recipe
    index: Path | None
    inputs: Inputs | None = None

    def with_options(self, dialect: str | None, index: Path | None, url: str | None) -> Agent:
        """The same agent with what the user wishes to be different. Raises UserError for two
        searches at once."""
        if index is not None and url is not None:
            raise UserError("there can be one search: give --index or --search-url, not both.")
        recipe = self.recipe
        if dialect is not None:
            recipe = recipe.model_copy(update={"dialect": dialect})
        if index is not None or url is not None:
            recipe = recipe.model_copy(
                update={"search": recipe.search.model_copy(update={"url": url})}
            )
            return replace(self, recipe=recipe, index=index or self.index, inputs=None)
        return replace(self, recipe=recipe)

    def start(self, device: torch.device) -> Runner:
        """Load everything; the result answers a task greedily."""
        engine, env = self.load(device)
        policy = Policy(engine=engine, temperature=0.0)
        return lambda task, key: rollout(task, policy, env, key)

    def load(self, device: torch.device) -> tuple[LocalEngine, ToolEnvironment]:
        """Its weights in an engine, and where it acts."""
        tokenizer = load_tokenizer(self.model)
        r = self.recipe
        dialect = get_dialect(
            r.dialect, tokenizer, r.instruction, template=r.template, system=r.system
        )
        env = make_environment(self.recipe, dialect, self._tools())
        model = load_model(self.model, device).eval()
        return LocalEngine(model, tokenizer, max_rows=self.recipe.max_rows), env

    def _tools(self) -> list[Tool]:
        if self.index is None and self.recipe.search.url is None:
            return []
        return [open_search(self.recipe, self.index or self.model)]  # a server needs no index


def find_agent(path: Path) -> Agent:
    """The agent in RUN (its last finished stage), RUN/STAGE, RUN/STAGE/model or a bare checkpoint.

    Raises UserError where there is none.
    """
    if (path / "recipe.json").exists():
        return _of_run(path, _last_finished(path) / "model")
    if (path / "model" / "config.json").exists():
        path = path / "model"
    if not (path / "config.json").exists():
        raise UserError(
            f"{path} holds no model: give the folder of a run, of one of its stages, or of a"
            " checkpoint."
        )
    run = path.absolute().parents[1]
    if (run / "recipe.json").exists():
        return _of_run(run, path)
    return Agent(path, Recipe(recipe="none", stages={}), None)


def export(path: Path, out: Path, dtype: Dtype) -> None:
    """Write the model of a run, a stage or a checkpoint as a checkpoint of its own, which is new.

    Raises UserError where there is no model.
    """
    folder = find_agent(path).model
    with atomic_folder(out) as draft:
        model = load_model(folder, torch.device("cpu"), dtype)
        save_weights(draft, model, load_tokenizer(folder))


def _of_run(run: Path, model: Path) -> Agent:
    recipe = recipe_of_run(run)
    return Agent(model, recipe, run / "index", make_inputs(recipe))


def _last_finished(run: Path) -> Path:
    stages = [run / name for name in recipe_of_run(run).stages]
    finished = [stage for stage in stages if (stage / "stage.json").exists()]
    if not finished:
        raise UserError(f"{run} has no finished stage yet: let 'fieldcraft run' go on.")
    return finished[-1]


# -- as simulators of their own search -----------------------------------------------------------


def measure_simulator(
    agent: Agent, tasks: Sequence[Task], device: torch.device, name: str, console: Console
) -> dict[str, Any]:
    """How faithfully an agent simulates its search, and what that does to its answers.

    Every question is rolled out once with simulated and once with real observations, sampled alike:
    at the temperature of the run's first simulated stage (1 without one), with the run's seed.
    Raises UserError for an agent without a search.
    """
    engine, env = agent.load(device)
    search = next((tool for tool in env.tools if isinstance(tool, Tool)), None)
    if search is None:
        raise UserError("a simulator is held against a search: give --index or --search-url.")
    temperature = _simulation_temperature(agent.recipe)
    policy = Policy(engine=engine, temperature=temperature, seed=agent.recipe.seed)

    def sampled(kind: str, simulator: Simulator | None) -> list[Trajectory]:
        with StageProgress(f"{name}: {kind}", len(tasks), console) as progress:
            return evaluate(
                tasks,
                lambda task, key: rollout(task, policy, env, key, simulator),
                answer_rubric(),
                agent.recipe.evaluation.concurrency,
                progress,
            )

    dreamt, real = sampled("simulated", PolicySimulator(policy)), sampled("real", None)
    return {
        "n": len(tasks),
        "temperature": temperature,
        "seed": agent.recipe.seed,
        "em_simulated": exact_match(dreamt),
        "em_real": exact_match(real),
        "fidelity": summarise_fidelity(_verdicts(agent, dreamt, search)),
    }


def _verdicts(agent: Agent, dreamt: Sequence[Trajectory], tool: Tool) -> Verdicts:
    """By the run's own world, or by what its search returns."""
    if isinstance(agent.inputs, AtlasInputs):
        return [v for t in dreamt for v in judge_by_world(agent.inputs.world, t)]

    async def by_tool() -> Verdicts:
        return [v for t in dreamt for v in await judge_by_tool(tool, t)]

    return asyncio.run(by_tool())


def _simulation_temperature(recipe: Recipe) -> float:
    stages = [stage for stage in recipe.stages.values() if isinstance(stage, Rl)]
    return next((s.temperature for s in stages if s.observations != "real"), 1.0)
