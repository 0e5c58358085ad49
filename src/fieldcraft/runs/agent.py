"""A trained agent: find one in a run folder or a checkpoint, ask it, grade it, train it further."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sections import Dtype
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.evals.metrics import summarise
from fieldcraft.evals.run import answer_rubric, evaluate
from fieldcraft.records.events import Sink, nobody
from fieldcraft.records.files import atomic_folder
from fieldcraft.rewards.rubric import AskingReward
from fieldcraft.rollout.loop import Policy, rollout
from fieldcraft.runs.build import SEARCH, make_dialect, make_engine, make_environment, open_tools
from fieldcraft.runs.folder import RunFolder, find_run
from fieldcraft.runs.inputs import Inputs, make_inputs
from fieldcraft.train.checkpoint import save_weights
from fieldcraft.train.model import load_model, load_tokenizer
from fieldcraft.types import AnyTool, Task, Trajectory, UserError
from fieldcraft.worlds.base import Verdicts


@dataclass(frozen=True)
class Agent:
    """A checkpoint and the settings it acts under: dialect, instruction, budget and tools.

    `index` is the folder of its search index; without one and without a server it has no search.
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

    async def load(self, device: torch.device) -> tuple[LocalEngine, ToolEnvironment]:
        """Its weights in an engine, and where it acts."""
        tokenizer = load_tokenizer(self.model)
        env = make_environment(
            self.recipe, make_dialect(self.recipe, tokenizer), await self._tools()
        )
        model = load_model(self.model, device).eval()
        return make_engine(self.recipe, model, tokenizer, threads=None), env

    async def trajectory(self, task: Task, device: torch.device) -> Trajectory:
        """The greedy rollout of one question."""
        engine, env = await self.load(device)
        return await rollout(task, Policy(engine=engine, temperature=0.0), env, task.id)

    async def answer(
        self,
        tasks: Sequence[Task],
        device: torch.device,
        judge: AskingReward | None,
        name: str,
        emit: Sink,
    ) -> list[Trajectory]:
        """Answer and grade questions greedily."""
        engine, env = await self.load(device)
        policy = Policy(engine=engine, temperature=0.0)
        return await evaluate(
            tasks,
            lambda task, key: rollout(task, policy, env, key),
            answer_rubric(judge),
            self.recipe.evaluation.concurrency,
            name,
            emit,
        )

    async def _tools(self) -> list[AnyTool]:
        """Those of the recipe; without an index or a server there is no search."""
        recipe = self.recipe
        if self.index is None and recipe.search.url is None:
            others = tuple(tool for tool in recipe.tools if tool.name != SEARCH)
            recipe = recipe.model_copy(update={"tools": others})
        return await open_tools(recipe, self.index or self.model)  # a server needs no index


def find_agent(path: Path) -> Agent:
    """The agent in RUN (its last finished stage), RUN/STAGE, RUN/STAGE/model or a bare checkpoint.

    Raises UserError where there is none.
    """
    if (path / "recipe.json").exists():
        run = find_run(path)
        return _of_run(run, run.stage(_last_finished(run)).model)
    if (path / "model" / "config.json").exists():
        path = path / "model"
    if not (path / "config.json").exists():
        raise UserError(
            f"{path} holds no model: give the folder of a run, of one of its stages, or of a"
            " checkpoint."
        )
    run_path = path.absolute().parents[1]
    if (run_path / "recipe.json").exists():
        return _of_run(find_run(run_path), path)
    return Agent(path, Recipe(recipe="none", stages={}), None)


def export(path: Path, out: Path, dtype: Dtype) -> None:
    """Write the model of a run, a stage or a checkpoint as a checkpoint of its own, which is new.

    Raises UserError where there is no model.
    """
    folder = find_agent(path).model
    with atomic_folder(out) as draft:
        model = load_model(folder, torch.device("cpu"), dtype)
        save_weights(draft, model, load_tokenizer(folder))


def _of_run(run: RunFolder, model: Path) -> Agent:
    return Agent(model, run.recipe, run.index, make_inputs(run.recipe))


def _last_finished(run: RunFolder) -> str:
    finished = run.finished_stages()
    if not finished:
        raise UserError(f"{run.path} has no finished stage yet: let 'fieldcraft run' resume it.")
    return finished[-1]
