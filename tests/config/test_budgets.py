"""Budgets that differ from the recipe's: permitted changes, and the places that they affect."""

from pathlib import Path

import pytest

from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.config.rl import Rl
from fieldcraft.recipes.loading import build_recipe, load_recipe
from fieldcraft.runs.build import make_rubric
from fieldcraft.types import UserError


def test_evaluations_have_a_budget_of_their_own() -> None:
    recipe = load_recipe("smoke", ["evaluation.budget={max_calls: 12, max_context_tokens: 900}"])
    assert (recipe.budget.max_calls, recipe.budget.max_context_tokens) == (4, 600)
    acting = recipe.evaluation_recipe
    assert (acting.budget.max_calls, acting.budget.max_context_tokens) == (12, 900)
    assert acting.budget.max_turn_tokens == recipe.budget.max_turn_tokens
    assert acting.evaluation_recipe == acting
    assert build_recipe(dump_recipe(recipe)) == recipe


def test_a_fold_of_an_evaluation_keeps_what_it_does_not_say() -> None:
    recipe = load_recipe(
        "fold-mini", ["budget.fold.max_folds=3", "evaluation.budget.fold.trigger_tokens=120"]
    )
    fold = recipe.evaluation_recipe.budget.fold
    assert fold is not None
    assert (fold.trigger_tokens, fold.max_folds) == (120, 3)
    unfolded = load_recipe("fold-mini", ["evaluation.budget.fold=null"])
    assert unfolded.evaluation_recipe.budget.fold is None
    assert unfolded.budget.fold is not None


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("evaluation.budget.max_call=2", ["no key 'max_call'", "did you mean 'max_calls'"]),
        (
            "evaluation.budget.call_timeout_seconds=2",
            ["only be set for the whole run", "budget.call_timeout_seconds"],
        ),
        ("evaluation.budget.max_calls=0", ["budget.max_calls", "greater than 0"]),
        (
            "evaluation.budget.fold.trigger_tokens=600",
            ["a chain ends at max_context_tokens=600", "fold.trigger_tokens=600"],
        ),
        ("evaluation.budget.fold={trigger_tokens: 60, att: 60}", ["budget.fold.att: extra inputs"]),
        (
            "budget.answer_tokens=32",
            ["answer_tokens has no effect unless at_limit is answer: remove it"],
        ),
        (
            "budget={at_limit: end, max_refusals: 2}",
            ["max_refusals has no effect unless at_limit is tell: remove it"],
        ),
        ("budget.at_limit=ask", ["'budget.at_limit'", "'tell'"]),
        ("evaluation.budget=7", ["'evaluation.budget'", "a mapping"]),
    ],
)
def test_a_wrong_budget_is_told_in_one_sentence(override: str, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("smoke", [override])
    for part in parts:
        assert part in str(caught.value)


# -- budgets of stages ---------------------------------------------------------------------------

LATER = "stages.rl2.budget=[{until: 2, max_context_tokens: 300}, {until: 5, max_calls: 1}, {}]"


def rl2(*overrides: str) -> tuple[Recipe, Rl]:
    recipe = load_recipe("smoke", list(overrides))
    stage = recipe.stages["rl2"]
    assert isinstance(stage, Rl)
    return recipe, stage


def test_the_budget_of_a_stage_changes_by_step() -> None:
    recipe, stage = rl2(LATER)
    found = [stage.budget_at_step(recipe.budget, number) for number in range(6)]
    assert [limits.max_context_tokens for limits in found] == [300, 300, 600, 600, 600, 600]
    assert [limits.max_calls for limits in found] == [4, 4, 1, 1, 1, 4]
    assert [(p.start_step, p.end_step) for p in stage.budget_periods(recipe.budget)] == [
        (0, 2),
        (2, 5),
        (5, 6),
    ]
    assert build_recipe(dump_recipe(recipe)) == recipe
    assert recipe.stages["sft2"].budget_periods(recipe.budget) == ()


def test_a_stage_may_have_one_budget_of_its_own() -> None:
    recipe, stage = rl2("stages.rl2.budget={max_calls: 2}")
    [period] = stage.budget_periods(recipe.budget)
    assert (period.start_step, period.end_step, period.budget.max_calls) == (0, 6, 2)
    [period] = rl2()[1].budget_periods(recipe.budget)
    assert period.budget == recipe.budget


@pytest.mark.parametrize(
    ("budget", "parts"),
    [
        ("{until: 3, max_calls: 2}", ["rl2.budget", "lasts to its end: remove its `until`"]),
        ("[{max_calls: 2}, {}]", ["rl2.budget", "needs `until`, a number of steps"]),
        ("[{until: 3}, {until: 3}, {}]", ["rl2.budget", "raise its until"]),
        (
            "[{until: 6}, {max_calls: 2}]",
            ["'rl2'", "the stage has only 6 steps"],
        ),
        ("{max_call: 2}", ["no key 'max_call'", "did you mean 'max_calls'"]),
        (
            "{max_concurrent_calls: 2}",
            ["only be set for the whole run", "budget.max_concurrent_calls"],
        ),
        ("{max_context_tokens: 0}", ["'rl2'", "budget.max_context_tokens", "greater than 0"]),
        ("{fold: {trigger_tokens: 90, prompt: So}}", ["'rl2'", "set budget.fold.prompt instead"]),
        ("{answer_tokens: 9}", ["'rl2'", "answer_tokens has no effect unless at_limit is answer"]),
        ("7", ["stages.rl2.budget", "a list"]),
    ],
)
def test_a_wrong_budget_of_a_stage(budget: str, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("smoke", [f"stages.rl2.budget={budget}"])
    for part in parts:
        assert part in str(caught.value)


def test_a_supervised_stage_has_none() -> None:
    with pytest.raises(UserError, match=r"unknown key 'stages\.sft2\.budget'"):
        load_recipe("smoke", ["stages.sft2.budget={max_calls: 2}"])


def test_overlong_is_a_share_of_each_limit() -> None:
    own = ["stages.rl2.overlong_penalty=1", "stages.rl2.overlong_buffer=0.125"]
    recipe, stage = rl2("stages.rl2.budget=[{until: 2, max_context_tokens: 400}, {}]", *own)
    spans = [stage.resolve_overlong_buffer(p.budget) for p in stage.budget_periods(recipe.budget)]
    assert spans == [(400, 50), (600, 75)]
    with pytest.raises(
        UserError, match=r"ends at budget\.max_context_tokens=300, before overlong_l"
    ):
        load_recipe("smoke", [LATER, own[0], "stages.rl2.overlong_limit=500"])
    with pytest.raises(UserError, match=r"below 1 a share of them, as in 0\.2, not 1\.5"):
        load_recipe("smoke", [own[0], "stages.rl2.overlong_buffer=1.5"])


def test_the_smoothing_of_calls_is_that_of_the_largest_limit() -> None:
    recipe, stage = rl2(
        "stages.rl2.budget=[{until: 2, max_calls: 9}, {}]", "stages.rl2.rewards={otc-grpo: 1}"
    )
    [smoothed] = [r for r, w in make_rubric(stage, recipe.budget).rewards if w]
    assert vars(smoothed)["smoothing"] == 9


# -- without a tool to force ----------------------------------------------------------------------


def test_only_evaluations_may_make_the_policy_answer() -> None:
    own = ["budget.at_limit=answer", "budget.answer_tokens=99", "evaluation.budget.at_limit=tell"]
    recipe = load_recipe("smoke", own)
    assert (recipe.budget.at_limit, recipe.budget.answer_tokens) == ("answer", 99)
    evaluated = recipe.evaluation_recipe.budget
    assert (evaluated.at_limit, evaluated.answer_tokens) == ("tell", None)


@pytest.mark.parametrize("key", ["fold={trigger_tokens: 100}", "at_limit=answer", "at_limit=end"])
@pytest.mark.parametrize("place", ["budget", "evaluation.budget"])
def test_what_an_environment_of_others_does_not_do(tmp_path: Path, key: str, place: str) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "name: mine\nenvironment: {name: blackbox, agent: os.path:join}\n"
        f"world: {{name: atlas}}\nstages: {{}}\nmodel: {tmp_path}\nevaluation: {{workflows: []}}\n"
    )
    name = key.partition("=")[0]
    with pytest.raises(UserError, match=rf"{place}\.{name} does not work in environment"):
        load_recipe(str(recipe), [f"{place}.{key}"])


def test_a_teacher_ends_by_itself() -> None:
    with pytest.raises(UserError, match=r"budget\.at_limit has no effect with collect"):
        load_recipe("autocoa-data", ["required_paths=[]", "budget.at_limit=answer"])
    with pytest.raises(UserError, match=r"budget\.max_refusals has no effect with collect"):
        load_recipe("autocoa-data", ["required_paths=[]", "budget.max_refusals=2"])


def test_an_environment_of_others_has_one_budget_in_a_stage(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "name: mine\nenvironment: {name: blackbox, agent: os.path:join}\n"
        f"world: {{name: atlas}}\nmodel: {tmp_path}\nevaluation: {{workflows: []}}\n"
        "stages: {rl: {type: rl, steps: 4, optim: {lr: 1}}}\n"
    )
    load_recipe(str(recipe), ["stages.rl.budget={max_context_tokens: 99}"])
    with pytest.raises(UserError, match=r"is opened once with one: give it a single budget\."):
        load_recipe(str(recipe), ["stages.rl.budget=[{until: 2, max_context_tokens: 99}, {}]"])
    with pytest.raises(UserError, match=r"budget.at_limit of stage 'rl' does not work in env"):
        load_recipe(str(recipe), ["stages.rl.budget={at_limit: end}"])
