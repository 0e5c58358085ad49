"""Steps of a run, as data: what a run executes, reports and compares follows their order."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from fieldcraft.config.names import get_display_name
from fieldcraft.config.recipe import (
    Recipe,
    get_closed_book_model,
    get_first_model,
    trains_on_retrieved,
    uses_tools,
)

START = "start"  # the first model of a run


class StepKind(StrEnum):
    """Kind of a step."""

    FIRST_MODEL = "first model"
    KNOWLEDGE = "knowledge"  # of the first model
    DATA = "data"  # files of questions and passages
    TOOLS = "tools"
    RETRIEVE = "retrieve"  # demonstrations, by the search
    EXAMPLES = "examples"  # page of a few questions and demonstrations
    CLOSED_BOOK = "closed book"
    SELECT = "select"
    TRAIN = "train"
    EVALUATE = "evaluate"
    WORKFLOW = "workflow"  # evaluation of one
    TEACHER = "teacher"  # evaluation of one
    COLLECT = "collect"


EVALUATION_KINDS = {StepKind.EVALUATE, StepKind.WORKFLOW, StepKind.TEACHER}
PREPARATION_KINDS = {
    *(StepKind.FIRST_MODEL, StepKind.KNOWLEDGE, StepKind.DATA, StepKind.TOOLS),
    StepKind.RETRIEVE,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `name` is its stage or evaluation, and `model` the stage whose model it trains or
    samples, or START."""

    kind: StepKind
    name: str = ""
    model: str = START

    @property
    def is_evaluation(self) -> bool:
        return self.kind in EVALUATION_KINDS


class ExtensionStep(NamedTuple):
    """Objects of an extension, each as `module:name`: `run` executes a step in the context of a
    run, and `checks` is a table of checks before the run (`runs.setup.Check`)."""

    run: str
    checks: str


_CURATION = "fieldcraft.extensions.curation"
EXTENSION_STEPS: Mapping[StepKind, ExtensionStep] = {
    StepKind.COLLECT: ExtensionStep(
        f"{_CURATION}.collection:collect_demonstrations",
        f"{_CURATION}.checks:COLLECTION_CHECKS",
    ),
    StepKind.RETRIEVE: ExtensionStep(
        f"{_CURATION}.retrieval:retrieve_demonstrations",
        f"{_CURATION}.retrieval:RETRIEVAL_CHECKS",
    ),
    StepKind.SELECT: ExtensionStep(
        f"{_CURATION}.select:select_questions", f"{_CURATION}.checks:SELECTION_CHECKS"
    ),
    StepKind.TEACHER: ExtensionStep(
        f"{_CURATION}.teacher_evaluation:evaluate_teacher",
        f"{_CURATION}.checks:EVALUATION_CHECKS",
    ),
}
# Functions of an extension that supervised stages with `filters` call.
FILTER_DEMONSTRATIONS = f"{_CURATION}.filtering:filter_demonstrations"
WRITE_FILTERED = f"{_CURATION}.filtering:write_filtered"


def makes_only_data(recipe: Recipe) -> bool:
    """Return whether a run only collects demonstrations, or only selects questions."""
    return recipe.collect is not None or (recipe.select is not None and not recipe.stages)


def plan_steps(recipe: Recipe) -> list[Step]:
    """Return all steps of a run in order, finished ones included. The report is written at the
    end."""
    if makes_only_data(recipe):
        return list(_plan_data(recipe))
    if not recipe.stages and recipe.model is None:
        return []
    prepare = [StepKind.FIRST_MODEL, StepKind.KNOWLEDGE, StepKind.TOOLS]
    prepare += [StepKind.RETRIEVE] * any(map(trains_on_retrieved, recipe.stages.values()))
    return [*map(Step, [*prepare, StepKind.EXAMPLES]), *_plan_stages(recipe)]


def _plan_data(recipe: Recipe) -> Iterator[Step]:
    if recipe.collect is None and recipe.select is not None and recipe.select.sampled_models:
        yield Step(StepKind.FIRST_MODEL)
    if recipe.model is not None:
        yield Step(StepKind.KNOWLEDGE)
    if recipe.collect is not None:
        yield from (Step(StepKind.DATA), Step(StepKind.COLLECT))  # a teacher opens the tools
    else:
        yield Step(StepKind.TOOLS if uses_tools(recipe) else StepKind.DATA)
        yield Step(StepKind.SELECT)


def _plan_stages(recipe: Recipe) -> Iterator[Step]:
    first = START if recipe.model is not None else get_first_model(recipe)
    workflows = map(get_display_name, recipe.evaluation.workflows)
    of_first_model = [
        *(Step(StepKind.WORKFLOW, name, first) for name in workflows),
        *(Step(StepKind.TEACHER, name, first) for name in recipe.evaluation.teachers),
    ]
    closed_book = None if recipe.closed_book is None else get_closed_book_model(recipe)
    if closed_book == START:
        yield Step(StepKind.CLOSED_BOOK)
    if first == START:
        yield Step(StepKind.EVALUATE, "base")
        yield from of_first_model
    is_selected, last = recipe.select is None, START
    for name, stage in recipe.stages.items():
        if stage.kind == "rl" and not is_selected:
            is_selected = True
            yield Step(StepKind.SELECT)
        yield Step(StepKind.TRAIN, name, stage.start_from or last)
        last = name
        if closed_book == name:
            yield Step(StepKind.CLOSED_BOOK, model=name)
        if stage.evaluate:
            yield Step(StepKind.EVALUATE, name, name)
        if first == name:
            yield from of_first_model


def list_evaluations(recipe: Recipe) -> list[str]:
    """Return the names of all evaluations of a run, in the order of the run."""
    names = (step.name for step in plan_steps(recipe) if step.is_evaluation)
    return list(dict.fromkeys(names))  # a stage may be called base, like the given model


def list_stages_before(recipe: Recipe, kinds: Container[StepKind], name: str = "") -> list[str]:
    """Return the stages that a run trains before its first step of given kinds and name."""
    steps = takewhile(lambda s: s.kind not in kinds or s.name != name, plan_steps(recipe))
    return [step.name for step in steps if step.kind is StepKind.TRAIN]


def get_seed_table_rows(recipe: Recipe) -> dict[str, str]:
    """Return the rows of the table over seeds: titles and their evaluations."""
    return recipe.table_rows or {name: name for name in list_evaluations(recipe)}
