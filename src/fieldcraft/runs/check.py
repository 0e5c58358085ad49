"""Checks of all that would go wrong with a recipe, before anything is trained.

Some of it would stop a run loudly, though perhaps only hours later; the rest would let it
continue and learn nothing. Nothing is written but a temporary folder.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path

from fieldcraft.config.collection import TEACHER
from fieldcraft.config.filters import Filters
from fieldcraft.config.names import BUILT_IN, Kind
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.stages import Stage
from fieldcraft.dialects.naming import offered_with
from fieldcraft.endpoints.opening import open_endpoint
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.rewards.grading import GRADES_BY, JUDGE, recorded_as
from fieldcraft.rollout.environments import opened
from fieldcraft.runs.budget_check import budget_problems, position_problems
from fieldcraft.runs.build import (
    make_correct,
    make_environment_of_others,
    make_rubric,
    make_runner,
    open_judge,
)
from fieldcraft.runs.closed_book import closed_book_problems
from fieldcraft.runs.engines import engine_problems
from fieldcraft.runs.evaluating import find_workflow
from fieldcraft.runs.examples import DataOfRun, read_back
from fieldcraft.runs.filtering import filter_shown, refuse_bad_filters
from fieldcraft.runs.inputs import make_inputs
from fieldcraft.runs.loop import run_async
from fieldcraft.runs.memory import disk_problems, memory_problems
from fieldcraft.runs.right_answers import answer_notes
from fieldcraft.runs.setup import ASKED, Setup
from fieldcraft.runs.teachers import model_problems, teacher_problems
from fieldcraft.runs.tracking import tracker_problems
from fieldcraft.runs.training import stage_type
from fieldcraft.train.stages.base import Pair
from fieldcraft.types import VERDICT, Dialect, Task, Trajectory, UserError

EXAMPLES = 200  # of a world's data set that are made and looked at; all of a file's are
PROMPTED = ("prompted-react", "prompted-reflexion")  # workflows in which the model calls tools
SEARCHING = BUILT_IN[Kind.WORKFLOW].keys() - {*PROMPTED}  # and those in which code searches
ESTIMATED = ("memory", "disk")  # checks that compare with an estimate
Report = Callable[[str, Sequence[str], Sequence[str]], None]


def check_recipe(
    recipe: Recipe, out: Path, report: Report, examine: Callable[[DataOfRun], None] | None = None
) -> list[str]:
    """Look at everything a run would need.

    Args:
        recipe: the settings, which give it something to do, see `refuse_idle`.
        out: a folder on the disk that the run will write to.
        report: called after every check with its name, notes, and problems.
        examine: called with what examples can be taken from, once that is found.

    Returns:
        The problems, each one sentence; none means that nothing was found.
    """
    problems: list[str] = []

    def look(name: str, check: Callable[[list[str]], Iterator[str]]) -> bool:
        notes: list[str] = []
        found: list[str] = []
        try:
            found += check(notes)
        except UserError as error:
            found.append(str(error))
        report(name, notes, found)
        problems.extend(found)
        return not found

    with tempfile.TemporaryDirectory() as draft:
        setup = Setup(recipe, Path(draft))
        sound = [look("device", setup.find_device), look("questions", setup.find_questions)]
        sound += [look("tools", setup.find_tools)]
        if recipe.trackers:
            look("trackers", partial(tracker_problems, recipe))
        asks_itself = recipe.collect is None and not recipe.environment.of_others
        if examine is not None and all(sound) and not asks_itself:
            look("examples", partial(show_examples, setup, None, examine))
        if recipe.collect is not None:
            if sound[1]:
                look("right answers", partial(answer_notes, setup))
            look("teacher", partial(teacher_problems, recipe))
            if recipe.collect.filters:
                look("filters", partial(filter_problems, recipe.collect.filters))
            return problems
        if recipe.evaluation.teachers:
            look("teachers", partial(teacher_problems, recipe))
        if recipe.select is not None and recipe.select.toolless == TEACHER:
            look("teacher", partial(model_problems, recipe.teacher))
        if recipe.model is None and (not sound[1] or recipe.asks_files):
            return problems  # the model is made from the world
        has_model = look("model", setup.find_model)
        sound += [has_model, look("judge", setup.find_judge)]
        if has_model:
            parts = (recipe, setup.shapes, setup.dialect.tokenizer, setup.draft)
            look("engine", partial(engine_problems, *parts))
        if has_model:
            look("weights", setup.find_weights)
        if examine is not None and all(sound) and asks_itself:
            look("examples", partial(show_examples, setup, setup.dialect, examine))
        if all(sound):
            if recipe.environment.of_others:
                look("environment", partial(environment_problems, setup))
            else:
                look("dialect", partial(dialect_problems, setup))
                look("gold answers", partial(gold_problems, setup))
                look("right answers", partial(answer_notes, setup))
                look("closed book", partial(closed_book_problems, setup))
                look("budget", partial(budget_problems, setup))
                look("workflows", partial(workflow_problems, recipe))
            for name, stage in recipe.stages.items():
                look(f"stage {name}", partial(stage_problems, setup, name, stage))
            if not recipe.cluster.trainers:  # the estimate is of one process
                look("memory", partial(memory_problems, setup))
            look("disk", partial(disk_problems, setup, out))
    return problems


def show_examples(
    setup: Setup, dialect: Dialect | None, examine: Callable[[DataOfRun], None], notes: list[str]
) -> Iterator[str]:
    """Let `examine` look at the data. Other than in the checks, programs are run and a judge is
    asked."""
    recipe, inputs = setup.recipe, make_inputs(setup.recipe).reduced()
    inputs.correct = make_correct(recipe, run_async(open_judge(recipe.judge, cache=None)))
    examine(DataOfRun(recipe, inputs, inputs.correct, setup.schemas, dialect))
    notes.append("as above")
    yield from ()


def refuse_unsound(recipe: Recipe) -> None:
    """Check the files and settings of a run before it begins, and so before its folder is made.
    What is only estimated refuses no run. Raises Unsound, a UserError, with all problems."""
    found: list[str] = []

    def report(name: str, notes: Sequence[str], problems: Sequence[str]) -> None:
        found.extend([] if name in ESTIMATED else problems)

    check_recipe(recipe, Path.cwd(), report)
    if found:
        raise Unsound(found)


class Unsound(UserError):
    """All that is wrong with a recipe, a sentence each; the message is the first."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(problems[0])
        self.problems = list(problems)


# -- dialect and questions ---------------------------------------------------------------------


def dialect_problems(setup: Setup, notes: list[str]) -> Iterator[str]:
    """Check that questions are asked with tools that the recipe has."""
    name, why = setup.chosen.name, setup.chosen.why
    notes.append(f"{name}, because {why} (dialect=)" if why else name)
    names = {schema["function"]["name"] for schema in setup.schemas}
    unknown = ((task.id, {*(offered_with(task) or ())} - names) for task in setup.tasks)
    for identity, tools in filter(itemgetter(1), unknown):
        yield (
            f"the question '{identity}' is asked with the tool '{min(tools)}', which the recipe"
            " does not have: add it to tools."
        )
        return


def gold_problems(setup: Setup, notes: list[str]) -> Iterator[str]:
    """Check that every task has what it is graded by, and that its grader is there. A gold answer,
    written as a policy writes it and read back, must score 1."""
    graders = [recorded_as(setup.recipe.correct, task) for task in setup.tasks]
    counts = Counter(graders)
    if counts.keys() != {VERDICT}:
        notes += [f"{count} graded by {name}" for name, count in counts.most_common()]
    if counts[JUDGE] and setup.judge is None:
        yield (
            f"{counts[JUDGE]} of {len(setup.tasks)} questions are graded by a judge, and there is"
            " none: set judge.url and judge.model, or give the questions accepted answers."
        )
    pairs = zip(setup.tasks, graders, strict=True)
    if bare := [pair for pair in pairs if not _can_be_graded(*pair)]:
        task, grader = bare[0]
        yield (
            f"{len(bare)} of {len(setup.tasks)} questions, such as task '{task.id}', have nothing"
            f" that the reward '{grader}' grades by: set correct=auto, which follows what each has,"
            " or remove them."
        )
    answered = [task for task in setup.tasks if task.answers]
    lost = [task for task in answered if not any(_scores(setup.dialect, task))]
    notes.append(f"{len(answered) - len(lost)} of {len(answered)} score 1")
    if lost:
        yield (
            f"{len(lost)} of {len(answered)} questions cannot be answered right, because their"
            f" gold answers do not survive the dialect '{setup.dialect.name}', such as"
            f" {lost[0].answers[0]!r} of task '{lost[0].id}': remove or rewrite them."
        )


def _can_be_graded(task: Task, grader: str) -> bool:
    """Return whether a task has what a reward grades by; of the user's own rewards nothing is
    known."""
    if grader in GRADES_BY:
        return GRADES_BY[grader] in task.meta
    return bool(task.answers) or grader == JUDGE or grader not in BUILT_IN[Kind.REWARD]


def _scores(dialect: Dialect, task: Task) -> Iterator[bool]:
    for gold in task.answers:
        answered = Trajectory(task, answer=read_back(dialect, gold))
        yield ExactMatch()([answered]) == [1.0]


def environment_problems(setup: Setup, notes: list[str]) -> Iterator[str]:
    """Check that an environment of others opens, and that a rollout fits into the model."""
    recipe = setup.recipe
    yield from position_problems(setup)
    environment = make_environment_of_others(recipe)
    assert environment is not None, "it is only asked where there is one"

    async def open_once() -> None:
        async with opened(environment, setup.dialect, recipe.budget):
            notes.append(recipe.environment.name)

    run_async(open_once())


def workflow_problems(recipe: Recipe, notes: list[str]) -> Iterator[str]:
    """Check that every workflow is there, and so is what it calls."""
    for name in recipe.evaluation.workflows:
        find_workflow(name)
        if name in SEARCHING and not recipe.offers_search:
            yield (
                f"the workflow '{name}' searches, and tools has no search: set"
                " evaluation.workflows=[], or add search to tools."
            )
        if name in PROMPTED and not recipe.tools:
            yield (
                f"the workflow '{name}' acts, and there are no tools: set evaluation.workflows=[],"
                " or add tools."
            )
    notes.append(", ".join(recipe.evaluation.workflows) or "none")


def filter_problems(filters: Filters, notes: list[str]) -> Iterator[str]:
    """Check that every rule is there, with the files that its settings name."""
    refuse_bad_filters(filters)
    notes.append(", ".join(filters))
    yield from ()


# -- stages ------------------------------------------------------------------------------------


def stage_problems(setup: Setup, name: str, stage: Stage, notes: list[str]) -> Iterator[str]:
    """Check a stage: that its remote models answer, and what its type finds in its first
    examples."""
    for endpoint in stage.endpoints:
        run_async(open_endpoint(endpoint, cache=None))
    yield from stage_type(stage).problems(stage, name, FirstExamples(setup, notes), notes)
    if isinstance(stage, Rl):
        recipe = setup.recipe  # the rubric finds every reward
        runner, call_cost = make_runner(recipe), recipe.highest_call_cost
        make_rubric(stage, recipe.budget, setup.judge, recipe.correct, runner, call_cost)


@dataclass(frozen=True)
class FirstExamples:
    """Examples (`train.stages.base.Data`) for a look: a world makes only the first examples of a
    data set, of the user's files all are read."""

    setup: Setup
    notes: list[str]

    @property
    def recipe(self) -> Recipe:
        return self.setup.recipe

    @property
    def dialect(self) -> Dialect:
        return self.setup.dialect

    def trajectories(self, data: str, count: int | None) -> Sequence[Trajectory]:
        inputs, schemas = self.setup.inputs, self.setup.schemas
        found = inputs.trajectories(data, self._few(count), self.dialect, schemas)
        self.notes.extend(inputs.notes(data, self.dialect, schemas))
        if self.recipe.asks_files:  # a world's are right
            graders = Counter(recorded_as(self.recipe.correct, t.task) for t in found)
            for name in filter(graders.__getitem__, ASKED):
                asked = name in inputs.unasked
                later = (
                    f"graded by {name} in the run" if asked else "trusted, as nothing grades them"
                )
                self.notes.append(f"{graders[name]} are {later}")
        return found

    def filtered(self, data: str, count: int | None, filters: Filters) -> Sequence[Trajectory]:
        inputs, schemas = self.setup.inputs, self.setup.schemas
        shown = inputs.shown(data, self._few(count), self.dialect, schemas)
        self.notes.extend(inputs.notes_of_shown(data))
        correct = inputs.correct or make_correct(self.recipe)
        found = filter_shown(self.recipe, shown, filters, self.dialect, correct)
        self.notes.extend(
            f"{sum(cut.dropped.values())} of {cut.before} left out by {cut.name}"
            for cut in found.cuts
        )
        return inputs.encoded(found.kept, self.dialect, schemas) if found.kept else []

    def pairs(self, data: str, count: int | None) -> Sequence[Pair]:
        inputs, schemas = self.setup.inputs, self.setup.schemas
        found = inputs.pairs(data, self._few(count), self.dialect, schemas)
        self.notes.extend(inputs.notes(data, self.dialect, schemas))
        return found

    def training_questions(self) -> Sequence[Task]:
        return self.setup.inputs.train_tasks()[: self._few(None)]

    def plan(self, task: Task) -> str:
        return self.setup.inputs.plan(task, self.dialect)

    def _few(self, count: int | None) -> int | None:
        if self.recipe.asks_files:
            return count
        return min(count or EXAMPLES, EXAMPLES)
