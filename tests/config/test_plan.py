"""The plan of a run: one list that everything reads."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from fieldcraft.config.names import import_object
from fieldcraft.config.plan import (
    EVALUATION_KINDS,
    EXTENSION_STEPS,
    FILTER_DEMONSTRATIONS,
    WRITE_FILTERED,
    StepKind,
    list_evaluations,
    list_stages_before,
    plan_steps,
)
from fieldcraft.config.recipe import Recipe
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.setup import Check

WITH_ALL = ("evaluation.teachers=[lone]", "select={closed_book_model: start}")


def steps_of(recipe: Recipe) -> list[str]:
    """Return the steps after the preparation, as `kind name<-model`."""
    steps = plan_steps(recipe)
    start = [step.kind for step in steps].index(StepKind.EXAMPLES) + 1
    return [f"{s.kind} {s.name}<-{s.model}" for s in steps[start:]]


def test_workflows_and_teachers_follow_the_first_model_of_the_run() -> None:
    assert steps_of(load_recipe("smoke", [*WITH_ALL, "closed_book={samples: 4}"])) == [
        "train base<-start",
        "closed book <-base",
        "evaluate base<-base",
        "workflow workflow<-base",
        "teacher lone<-base",
        "train sft2<-base",
        "evaluate sft2<-sft2",
        "select <-start",
        "train rl2<-sft2",
        "evaluate rl2<-rl2",
    ]


def test_a_model_of_the_user_is_evaluated_before_training() -> None:
    recipe = load_recipe("smoke", [*WITH_ALL, "closed_book={samples: 4}"])
    assert steps_of(recipe.model_copy(update={"model": Path("m")}))[:5] == [
        "closed book <-start",
        "evaluate base<-start",
        "workflow workflow<-start",
        "teacher lone<-start",
        "train base<-start",
    ]


def test_a_stage_starts_from_the_last_one_or_from_the_one_that_it_names() -> None:
    changed = ["stages.rl2.start_from=base", "stages.sft2.evaluate=false"]
    trained = [step for step in steps_of(load_recipe("smoke", changed)) if "train" in step]
    assert trained == ["train base<-start", "train sft2<-base", "train rl2<-base"]
    assert "sft2" not in list_evaluations(load_recipe("smoke", changed))


@pytest.mark.parametrize(
    ("recipe", "overrides", "kinds"),
    [
        ("autocoa-data", ["model=."], ["knowledge", "data", "collect"]),
        ("autocoa-data", [], ["data", "collect"]),
        ("smoke", ["stages={}", "select={closed_book_model: start}"], ["first model", "data"]),
        ("smoke", ["stages={}", "select={solver: start}"], ["first model", "tools"]),
        ("smoke", ["stages={}"], []),  # such as for `fieldcraft world`
    ],
)
def test_a_run_without_stages_prepares_what_it_uses(
    recipe: str, overrides: Sequence[str], kinds: list[str]
) -> None:
    steps = [step.kind.value for step in plan_steps(load_recipe(recipe, overrides))]
    assert steps == ([*kinds, "select"] if "first model" in kinds else kinds)


def test_a_given_model_is_evaluated_without_stages() -> None:
    recipe = load_recipe("smoke", ["stages={}", "model=.", "evaluation.teachers=[lone]"])
    assert list_evaluations(recipe) == ["base", "workflow", "lone"]
    assert plan_steps(recipe)[0].kind is StepKind.FIRST_MODEL


def test_stages_before_a_step() -> None:
    recipe = load_recipe("smoke", WITH_ALL)
    assert list_stages_before(recipe, EVALUATION_KINDS, "workflow") == ["base"]
    assert list_stages_before(recipe, EVALUATION_KINDS, "sft2") == ["base", "sft2"]
    assert list_stages_before(recipe, {StepKind.SELECT}) == ["base", "sft2"]


def test_every_function_of_an_extension_exists() -> None:
    paths = [FILTER_DEMONSTRATIONS, WRITE_FILTERED]
    paths += [step.run for step in EXTENSION_STEPS.values()]
    assert all(map(callable, map(import_object, paths)))
    checks = [check for step in EXTENSION_STEPS.values() for check in import_object(step.checks)]
    assert {type(check) for check in checks} == {Check}
