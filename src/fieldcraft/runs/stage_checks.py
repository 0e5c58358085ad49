"""Checks of stages: their remote models, settings, and first examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fieldcraft.config.choices import Filters
from fieldcraft.config.names import import_object
from fieldcraft.config.plan import FILTER_DEMONSTRATIONS
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.dialects.encoding import TrajectoryPair
from fieldcraft.rewards.grading import resolve_reward_name
from fieldcraft.runs.build import (
    make_criteria,
    make_program_runner,
    make_rubric,
    make_verdict_reward,
)
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.setup import EXPENSIVE_GRADERS, CheckContext, CheckReport
from fieldcraft.runs.training import find_stage_class
from fieldcraft.tools.chat_client import open_chat_client
from fieldcraft.types import Dialect, Task, Trajectory

MAX_PREVIEW_EXAMPLES = 200  # examples of a world that are generated; a file is read completely


def check_stage(context: CheckContext, report: CheckReport, name: str) -> None:
    """Check a stage: its remote models must respond, and its type checks its first examples."""
    stage = context.recipe.stages[name]
    for endpoint in stage.endpoints:
        run_async(open_chat_client(endpoint, cache=None))
    data = PreviewStageData(context, report)
    for error in find_stage_class(stage).check(stage, name, data, report.notes):
        report.error(error)
    if isinstance(stage, Rl):
        recipe = context.recipe  # instantiating the rubric checks every reward
        runner, call_cost = make_program_runner(recipe), recipe.max_call_cost
        criteria = make_criteria(recipe, context.judge) if recipe.rubric else None
        verdict_name = recipe.verdict_reward
        make_rubric(stage, recipe.budget, context.judge, verdict_name, runner, call_cost, criteria)
        if not report.notes:
            report.note(f"rewards: {', '.join(sorted(stage.reward_names)) or 'none'}")


@dataclass(frozen=True)
class PreviewStageData:
    """Examples (`train.stages.base.StageData`) for inspection: a world generates only the first
    examples of a data set; user-provided files are read completely."""

    context: CheckContext
    report: CheckReport

    @property
    def recipe(self) -> Recipe:
        return self.context.recipe

    @property
    def dialect(self) -> Dialect:
        return self.context.dialect

    def load_trajectories(self, data: str, count: int | None) -> Sequence[Trajectory]:
        data_source = self.context.data_source
        found = data_source.encoded(data, self._limit_count(count), self.context.encoder)
        self.report.note(*data_source.notes)
        if self.recipe.has_task_files:  # answers of a world are correct
            graders = Counter(
                resolve_reward_name(self.recipe.verdict_reward, t.task) for t in found
            )
            for name in filter(graders.__getitem__, EXPENSIVE_GRADERS):
                is_deferred = name in data_source.deferred_graders
                treatment = (
                    f"graded by {name} in the run"
                    if is_deferred
                    else "trusted, because they cannot be graded"
                )
                self.report.note(f"{graders[name]} are {treatment}")
        return found

    def load_filtered(self, data: str, count: int | None, filters: Filters) -> Sequence[Trajectory]:
        data_source = self.context.data_source
        demonstrations = data_source.demonstrations(data, self._limit_count(count))
        self.report.note(*data_source.notes)
        verdict_reward = data_source.verdict_reward or make_verdict_reward(self.recipe)
        result = import_object(FILTER_DEMONSTRATIONS)(
            self.recipe, demonstrations, filters, self.dialect, verdict_reward
        )
        for stage in result.stages:
            dropped = sum(stage.dropped.values())
            self.report.note(f"{dropped} of {stage.before} left out by {stage.name}")
        return (
            data_source.encode_filtered(data, result.accepted, self.context.encoder)
            if result.accepted
            else []
        )

    def load_pairs(self, data: str, count: int | None) -> Sequence[TrajectoryPair]:
        data_source = self.context.data_source
        found = data_source.pairs(data, self._limit_count(count), self.context.encoder)
        self.report.note(*data_source.notes)
        return found

    def load_training_tasks(self) -> Sequence[Task]:
        return self.context.data_source.train_tasks()[: self._limit_count(None)]

    def render_plan(self, task: Task) -> str:
        return self.context.data_source.plan(task, self.dialect)

    def _limit_count(self, count: int | None) -> int | None:
        if self.recipe.has_task_files:
            return count
        return min(count or MAX_PREVIEW_EXAMPLES, MAX_PREVIEW_EXAMPLES)
