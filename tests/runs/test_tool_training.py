"""A model that was trained with tools in an earlier run is evaluated with tools from the start."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.recipes.exported import read_agent_settings, write_agent_settings
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.files import write_json
from fieldcraft.runs.evaluating import ever_trained_with_tools, is_agent, select_tools


def model_of(run: Path, stage: str, recipe: Recipe) -> Path:
    """Create a stage's model in a run folder, with only the record of its origin."""
    model = run / stage / "model"
    model.mkdir(parents=True)
    write_json(run / "recipe.json", dump_recipe(recipe))
    write_json(model / "config.json", {})
    return model


def begun_with(model: Path) -> Recipe:
    """Return a recipe whose only stage shows no tool."""
    recipe = load_recipe("smoke", [])
    return recipe.model_copy(update={"model": model, "stages": {"more": recipe.stages["base"]}})


@pytest.mark.parametrize(
    ("stage", "expected"), [("start", False), ("base", False), ("sft2", True), ("rl2", True)]
)
def test_a_model_of_a_run_is_what_its_stages_made_it(
    stage: str, expected: bool, tmp_path: Path
) -> None:
    model = model_of(tmp_path / "first", stage, load_recipe("smoke", []))
    assert is_agent(model) == expected
    recipe = begun_with(model)
    assert [ever_trained_with_tools(recipe, name) for name in ("base", "more")] == [expected] * 2
    later = model_of(tmp_path / "second", "more", recipe)  # through several runs
    assert is_agent(later) == expected


@pytest.mark.parametrize("met", [True, False])
def test_an_exported_model_says_it_itself(met: bool, tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {})
    assert not is_agent(tmp_path)  # only weights
    write_agent_settings(tmp_path, load_recipe("smoke", []), None, trained_with_tools=met)
    assert is_agent(tmp_path) == met
    found = read_agent_settings(tmp_path)
    assert found is not None
    assert "met_tools" not in found[0]  # not a key of a recipe


def test_a_model_that_is_gone_is_no_agent(tmp_path: Path) -> None:
    assert not is_agent(tmp_path / "gone")


@pytest.mark.parametrize(("stage", "tools"), [("base", []), ("rl2", ["search"])])
def test_the_row_base_is_of_the_agent_that_a_run_begins_with(
    stage: str, tools: list[str], tmp_path: Path
) -> None:
    model = model_of(tmp_path / "first", stage, load_recipe("smoke", []))
    context: Any = SimpleNamespace(recipe=begun_with(model), tools=["search"])
    assert select_tools(context, "base") == tools
