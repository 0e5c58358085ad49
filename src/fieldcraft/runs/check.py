"""Checks of a recipe before training.

Some errors would stop a run, possibly only after hours; others would let it continue without
learning anything. Checks write only to a temporary folder.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path

from fieldcraft.config.choices import Filters
from fieldcraft.config.components import BUILTIN_COMPONENTS, TRACKERS_MODULE, ComponentKind
from fieldcraft.config.names import import_object
from fieldcraft.config.plan import EXTENSION_STEPS, FILTER_DEMONSTRATIONS, plan_steps
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.stages import Stage
from fieldcraft.config.validation_errors import InvalidRecipeError
from fieldcraft.dialects.encoding import DemonstrationEncoder, TrajectoryPair
from fieldcraft.dialects.tool_names import get_offered_names
from fieldcraft.environments.base import isolate_failures
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.rewards.grading import GRADED_BY_META, JUDGE, resolve_reward_name
from fieldcraft.runs.budget_check import check_budgets, check_positions
from fieldcraft.runs.build import (
    make_external_environment,
    make_program_runner,
    make_rubric,
    make_verdict_reward,
    open_judge,
)
from fieldcraft.runs.closed_book import check_closed_book
from fieldcraft.runs.engines import check_engine
from fieldcraft.runs.evaluating import find_workflow
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.examples import ExampleSource, round_trip_answer
from fieldcraft.runs.gold_answers import check_answer_forms
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.runs.memory import check_disk, check_memory
from fieldcraft.runs.setup import EXPENSIVE_GRADERS, Check, CheckContext
from fieldcraft.runs.training import find_stage_class
from fieldcraft.tools.chat_client import open_chat_client
from fieldcraft.types import DEFAULT_VERDICT_REWARD, Dialect, Task, Trajectory, UserError

MAX_PREVIEW_EXAMPLES = 200  # examples of a world that are generated; a file is read completely
TOOL_CALLING_WORKFLOWS = (
    "prompted-react",
    "prompted-reflexion",
)  # workflows in which the model calls tools
SEARCH_WORKFLOWS = BUILTIN_COMPONENTS[ComponentKind.WORKFLOW].keys() - {
    *TOOL_CALLING_WORKFLOWS
}  # additionally those in which code searches
ESTIMATE_CHECKS = ("memory", "disk")  # checks against an estimate
CheckReporter = Callable[[str, Sequence[str], Sequence[str]], None]


def check_recipe(
    recipe: Recipe,
    out: Path,
    report: CheckReporter,
    examine: Callable[[ExampleSource], None] | None = None,
) -> list[str]:
    """Check everything that a run requires.

    Args:
        recipe: settings with work to do, see `find_missing_work`.
        out: folder on the disk to which the run will write.
        report: callback after every check with its name, notes, and errors.
        examine: callback with the source of examples, once it is available.

    Returns:
        The errors, each one sentence; empty if none was found.
    """
    errors: list[str] = []

    def run_check(name: str, check: Check) -> bool:
        notes: list[str] = []
        found: list[str] = []
        try:
            found += check(notes)
        except UserError as error:
            found.append(str(error))
        report(name, notes, found)
        errors.extend(found)
        return not found

    with tempfile.TemporaryDirectory() as draft:
        context = CheckContext(recipe, Path(draft))
        passed = [
            run_check("device", context.load_device),
            run_check("questions", context.load_questions),
        ]
        passed += [run_check("tools", context.load_tools)]
        if recipe.trackers:
            check_trackers = import_object(f"{TRACKERS_MODULE}:check_trackers")
            run_check("trackers", partial(check_trackers, recipe))
        uses_prompts = recipe.collect is None and not recipe.environment.is_external
        if examine is not None and all(passed) and not uses_prompts:
            run_check("examples", partial(show_examples, context, None, examine))
        if recipe.collect is not None and passed[1]:
            run_check("correct answers", partial(check_answer_forms, context))
        for kind in dict.fromkeys(step.kind for step in plan_steps(recipe)):
            if kind in EXTENSION_STEPS:
                for name, check in import_object(EXTENSION_STEPS[kind].list_checks)(recipe):
                    run_check(name, check)
        if recipe.collect is not None:
            return errors
        if recipe.model is None and (not passed[1] or recipe.has_task_files):
            return errors  # the model is generated from the world
        has_model = run_check("model", context.load_first_model)
        passed += [has_model, run_check("judge", context.load_judge)]
        if has_model:
            engine_arguments = (
                recipe,
                context.meta_model,
                context.dialect.tokenizer,
                context.draft,
            )
            run_check("engine", partial(check_engine, *engine_arguments))
        if has_model:
            run_check("weights", context.check_weights)
        if examine is not None and all(passed) and uses_prompts:
            run_check("examples", partial(show_examples, context, context.dialect, examine))
        if all(passed):
            if recipe.environment.is_external:
                run_check("environment", partial(check_environment, context))
            else:
                run_check("dialect", partial(check_dialect, context))
                run_check("gold answers", partial(check_gold_answers, context))
                run_check("correct answers", partial(check_answer_forms, context))
                run_check("closed book", partial(check_closed_book, context))
                run_check("budget", partial(check_budgets, context))
                run_check("workflows", partial(check_workflows, recipe))
            for name, stage in recipe.stages.items():
                run_check(f"stage {name}", partial(check_stage, context, name, stage))
            if not recipe.cluster.trainers:  # the estimate is for a single process
                run_check("memory", partial(check_memory, context))
            run_check("disk", partial(check_disk, context, out))
    return errors


def show_examples(
    context: CheckContext,
    dialect: Dialect | None,
    examine: Callable[[ExampleSource], None],
    notes: list[str],
) -> Iterator[str]:
    """Pass the data to `examine`. Unlike in the checks, programs are executed and a judge is
    queried."""
    recipe, data_source = context.recipe, make_data_source(context.recipe, is_preview=True)
    data_source.verdict_reward = make_verdict_reward(
        recipe, run_async(open_judge(recipe.judge, cache=None))
    )
    encoder = None if dialect is None else DemonstrationEncoder(dialect, context.schemas)
    examine(ExampleSource(recipe, data_source, data_source.verdict_reward, encoder))
    notes.append("as above")
    yield from ()


def require_checked(recipe: Recipe) -> None:
    """Check the files and settings of a run before its folder is created. Estimates never reject a
    run. Raises InvalidRecipeError with all errors."""
    found: list[str] = []

    def report(name: str, notes: Sequence[str], errors: Sequence[str]) -> None:
        found.extend([] if name in ESTIMATE_CHECKS else errors)

    check_recipe(recipe, Path.cwd(), report)
    if found:
        raise InvalidRecipeError(found)


# -- dialect and questions ---------------------------------------------------------------------


def check_dialect(context: CheckContext, notes: list[str]) -> Iterator[str]:
    """Check that questions only use tools of the recipe."""
    name, reason = context.dialect_choice.name, context.dialect_choice.why
    notes.append(f"{name}, because {reason} (dialect=)" if reason else name)
    names = {schema["function"]["name"] for schema in context.schemas}
    unknown = ((task.id, {*(get_offered_names(task) or ())} - names) for task in context.tasks)
    for identity, tools in filter(itemgetter(1), unknown):
        yield (
            f"the question '{identity}' offers the tool '{min(tools)}', which the recipe"
            " does not have: add it to tools."
        )
        return


def check_gold_answers(context: CheckContext, notes: list[str]) -> Iterator[str]:
    """Check that every task has the data for its grader, and that the grader is available. A gold
    answer that is rendered by the dialect and parsed back must score 1."""
    graders = [resolve_reward_name(context.recipe.verdict_reward, task) for task in context.tasks]
    counts = Counter(graders)
    if counts.keys() != {DEFAULT_VERDICT_REWARD}:
        notes += [f"{count} graded by {name}" for name, count in counts.most_common()]
    if counts[JUDGE] and context.judge is None:
        yield (
            f"{counts[JUDGE]} of {len(context.tasks)} questions are graded by a judge, but none is"
            " configured: set judge.url and judge.model, or give the questions accepted answers."
        )
    pairs = zip(context.tasks, graders, strict=True)
    if ungradable := [pair for pair in pairs if not _is_gradable(*pair)]:
        task, grader = ungradable[0]
        yield (
            f"{len(ungradable)} of {len(context.tasks)} questions, such as task '{task.id}', have"
            f" nothing that the reward '{grader}' grades by: set verdict_reward=auto, which follows"
            " what each has, or remove them."
        )
    answered = [task for task in context.tasks if task.answers]
    unscorable = [task for task in answered if not any(_score_gold_answers(context.dialect, task))]
    notes.append(f"{len(answered) - len(unscorable)} of {len(answered)} score 1")
    if unscorable:
        yield (
            f"{len(unscorable)} of {len(answered)} questions can never be graded correct, because"
            f" their gold answers do not round-trip through the dialect '{context.dialect.name}',"
            f" such as {unscorable[0].answers[0]!r} of task '{unscorable[0].id}': remove or rewrite"
            " them."
        )


def _is_gradable(task: Task, grader: str) -> bool:
    """Return whether a task has the data required by a reward; for user-defined rewards this is
    unknown."""
    if grader in GRADED_BY_META:
        return GRADED_BY_META[grader] in task.meta
    return (
        bool(task.answers)
        or grader == JUDGE
        or grader not in BUILTIN_COMPONENTS[ComponentKind.REWARD]
    )


def _score_gold_answers(dialect: Dialect, task: Task) -> Iterator[bool]:
    for gold in task.answers:
        answered = Trajectory(task, answer=round_trip_answer(dialect, gold))
        yield ExactMatch()([answered]) == [1.0]


def check_environment(context: CheckContext, notes: list[str]) -> Iterator[str]:
    """Check that an external environment opens, and that a rollout fits into the model."""
    recipe = context.recipe
    yield from check_positions(context)
    environment = make_external_environment(recipe)
    assert environment is not None, "only checked if there is one"

    async def open_once() -> None:
        async with isolate_failures(environment, context.dialect, recipe.budget):
            notes.append(recipe.environment.name)

    run_async(open_once())


def check_workflows(recipe: Recipe, notes: list[str]) -> Iterator[str]:
    """Check that every workflow and its tools exist."""
    for name in recipe.evaluation.workflows:
        find_workflow(name)
        if name in SEARCH_WORKFLOWS and not recipe.has_search_tool:
            yield (
                f"the workflow '{name}' searches, and tools has no search: set"
                " evaluation.workflows=[], or add search to tools."
            )
        if name in TOOL_CALLING_WORKFLOWS and not recipe.tools:
            yield (
                f"the workflow '{name}' acts, and there are no tools: set evaluation.workflows=[],"
                " or add tools."
            )
    notes.append(", ".join(recipe.evaluation.workflows) or "none")


# -- stages ------------------------------------------------------------------------------------


def check_stage(context: CheckContext, name: str, stage: Stage, notes: list[str]) -> Iterator[str]:
    """Check a stage: its remote models must respond, and its type checks its first examples."""
    for endpoint in stage.endpoints:
        run_async(open_chat_client(endpoint, cache=None))
    yield from find_stage_class(stage).check(stage, name, PreviewStageData(context, notes), notes)
    if isinstance(stage, Rl):
        recipe = context.recipe  # instantiating the rubric checks every reward
        runner, call_cost = make_program_runner(recipe), recipe.max_call_cost
        make_rubric(stage, recipe.budget, context.judge, recipe.verdict_reward, runner, call_cost)


@dataclass(frozen=True)
class PreviewStageData:
    """Examples (`train.stages.base.StageData`) for inspection: a world generates only the first
    examples of a data set; user-provided files are read completely."""

    context: CheckContext
    notes: list[str]

    @property
    def recipe(self) -> Recipe:
        return self.context.recipe

    @property
    def dialect(self) -> Dialect:
        return self.context.dialect

    def load_trajectories(self, data: str, count: int | None) -> Sequence[Trajectory]:
        data_source = self.context.data_source
        found = data_source.encoded(data, self._limit_count(count), self.context.encoder)
        self.notes.extend(data_source.notes)
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
                self.notes.append(f"{graders[name]} are {treatment}")
        return found

    def load_filtered(self, data: str, count: int | None, filters: Filters) -> Sequence[Trajectory]:
        data_source = self.context.data_source
        demonstrations = data_source.demonstrations(data, self._limit_count(count))
        self.notes.extend(data_source.notes)
        verdict_reward = data_source.verdict_reward or make_verdict_reward(self.recipe)
        result = import_object(FILTER_DEMONSTRATIONS)(
            self.recipe, demonstrations, filters, self.dialect, verdict_reward
        )
        self.notes.extend(
            f"{sum(stage.dropped.values())} of {stage.before} left out by {stage.name}"
            for stage in result.stages
        )
        return (
            data_source.encode_filtered(result.accepted, self.context.encoder)
            if result.accepted
            else []
        )

    def load_pairs(self, data: str, count: int | None) -> Sequence[TrajectoryPair]:
        data_source = self.context.data_source
        found = data_source.pairs(data, self._limit_count(count), self.context.encoder)
        self.notes.extend(data_source.notes)
        return found

    def load_training_tasks(self) -> Sequence[Task]:
        return self.context.data_source.train_tasks()[: self._limit_count(None)]

    def render_plan(self, task: Task) -> str:
        return self.context.data_source.plan(task, self.dialect)

    def _limit_count(self, count: int | None) -> int | None:
        if self.recipe.has_task_files:
            return count
        return min(count or MAX_PREVIEW_EXAMPLES, MAX_PREVIEW_EXAMPLES)
