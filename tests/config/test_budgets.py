"""Budgets that differ from the recipe's: what they may change, and where they hold."""

from pathlib import Path

import pytest

from fieldcraft.config.recipe import dump_recipe
from fieldcraft.recipes.loading import build_recipe, load_recipe
from fieldcraft.types import UserError


def test_evaluations_have_a_budget_of_their_own() -> None:
    recipe = load_recipe("smoke", ["evaluation.budget={max_calls: 12, total_tokens: 900}"])
    assert (recipe.budget.max_calls, recipe.budget.total_tokens) == (4, 600)
    acting = recipe.as_evaluated
    assert (acting.budget.max_calls, acting.budget.total_tokens) == (12, 900)
    assert acting.budget.turn_tokens == recipe.budget.turn_tokens
    assert acting.as_evaluated == acting
    assert build_recipe(dump_recipe(recipe)) == recipe


def test_a_fold_of_an_evaluation_keeps_what_it_does_not_say() -> None:
    recipe = load_recipe("fold-mini", ["budget.fold.most=3", "evaluation.budget.fold.at=120"])
    fold = recipe.as_evaluated.budget.fold
    assert fold is not None
    assert (fold.at, fold.most) == (120, 3)
    unfolded = load_recipe("fold-mini", ["evaluation.budget.fold=null"])
    assert unfolded.as_evaluated.budget.fold is None
    assert unfolded.budget.fold is not None


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("evaluation.budget.max_call=2", ["no key 'max_call'", "did you mean 'max_calls'"]),
        ("evaluation.budget.call_seconds=2", ["that of the whole run", "budget.call_seconds"]),
        ("evaluation.budget.max_calls=0", ["budget.max_calls", "greater than 0"]),
        ("evaluation.budget.fold.at=600", ["a chain ends at total_tokens=600", "fold.at=600"]),
        ("evaluation.budget.fold={at: 60, att: 60}", ["budget.fold.att: extra inputs"]),
        ("evaluation.budget=7", ["'evaluation.budget'", "a mapping"]),
    ],
)
def test_a_wrong_budget_is_told_in_one_sentence(override: str, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("smoke", [override])
    for part in parts:
        assert part in str(caught.value)


def test_an_environment_of_others_is_not_folded_in_evaluations_either(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "recipe: mine\nenvironment: {name: blackbox, agent: os.path:join}\n"
        "world: {name: atlas}\nstages: {}\nselect: null\n"
        f"model: {tmp_path}\nevaluation: {{workflows: [], budget: {{fold: {{at: 100}}}}}}\n"
    )
    with pytest.raises(UserError, match=r"evaluation\.budget\.fold does not work in environment"):
        load_recipe(str(recipe), [])
