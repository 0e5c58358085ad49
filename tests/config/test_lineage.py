"""Models that were trained with a tool: decided by the training stages, not by the models'
names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fieldcraft.config.recipe import sort_by_run_order, was_trained_with_tools
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.evaluating import select_tools

MEETS = ("base", "workflow", "sft2", "rl2")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], [False, False, True, True]),
        (["stages.base.dataset=demonstrations"], [True, True, True, True]),
        (["stages.sft2.dataset=base"], [False, False, False, True]),  # it rolls out with the search
        (["stages.sft2.dataset=base", "stages.rl2.start_from=base"], [False, False, False, True]),
    ],
)
def test_a_model_has_met_what_its_stages_showed(overrides: list[str], expected: list[bool]) -> None:
    recipe = load_recipe("smoke", overrides)
    assert [was_trained_with_tools(recipe, name) for name in MEETS] == expected


def test_a_first_model_has_met_none() -> None:
    """It has had no stage; a user's first model is the evaluation 'base'."""
    recipe = load_recipe("smoke", [])
    stages = {"sft2": recipe.stages["sft2"]}
    own = recipe.model_copy(update={"model": Path("model"), "stages": stages})
    assert not was_trained_with_tools(own, "base")
    assert was_trained_with_tools(own, "sft2")


@pytest.mark.parametrize(("data", "tools"), [("base", []), ("demonstrations", ["search"])])
def test_a_stage_called_base_is_evaluated_with_what_it_knows(data: str, tools: list[str]) -> None:
    context: Any = SimpleNamespace(
        recipe=load_recipe("smoke", [f"stages.base.dataset={data}"]), tools=["search"]
    )
    assert select_tools(context, "base") == tools


def test_stages_and_evaluations_have_one_order() -> None:
    """The order is the evaluations' order; a stage without one follows the stages before it."""
    assert sort_by_run_order(["a", "b", "c"], ["base", "flow", "b"]) == [
        "base",
        "flow",
        "a",
        "b",
        "c",
    ]
    assert sort_by_run_order(["a", "b"], ["a", "flow", "b"]) == ["a", "flow", "b"]
    assert sort_by_run_order(["a"], []) == ["a"]
