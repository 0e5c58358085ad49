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
        ("budget.answer_tokens=32", ["answer_tokens belongs to at_limit: answer; remove it"]),
        ("budget.at_limit=ask", ["'budget.at_limit'", "'tell'"]),
        ("evaluation.budget=7", ["'evaluation.budget'", "a mapping"]),
    ],
)
def test_a_wrong_budget_is_told_in_one_sentence(override: str, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("smoke", [override])
    for part in parts:
        assert part in str(caught.value)


def test_only_evaluations_may_make_the_policy_answer() -> None:
    own = ["budget.at_limit=answer", "budget.answer_tokens=99", "evaluation.budget.at_limit=tell"]
    recipe = load_recipe("smoke", own)
    assert (recipe.budget.at_limit, recipe.budget.answer_tokens) == ("answer", 99)
    evaluated = recipe.as_evaluated.budget
    assert (evaluated.at_limit, evaluated.answer_tokens) == ("tell", None)


@pytest.mark.parametrize("key", ["fold={at: 100}", "at_limit=answer", "at_limit=end"])
@pytest.mark.parametrize("place", ["budget", "evaluation.budget"])
def test_what_an_environment_of_others_does_not_do(tmp_path: Path, key: str, place: str) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "recipe: mine\nenvironment: {name: blackbox, agent: os.path:join}\n"
        f"world: {{name: atlas}}\nstages: {{}}\nmodel: {tmp_path}\nevaluation: {{workflows: []}}\n"
    )
    name = key.partition("=")[0]
    with pytest.raises(UserError, match=rf"{place}\.{name} does not work in environment"):
        load_recipe(str(recipe), [f"{place}.{key}"])


def test_a_teacher_ends_by_itself() -> None:
    with pytest.raises(UserError, match=r"budget\.at_limit changes nothing with collect"):
        load_recipe("autocoa-data", ["needs=[]", "budget.at_limit=answer"])
