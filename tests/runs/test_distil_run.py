"""Runs with a stage of on-policy distillation: the shipped recipe, and refused teachers."""

import json
from pathlib import Path

import pytest

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from cli_parts import TINY
from fieldcraft.config.choices import ToolConfig
from fieldcraft.config.distil import Distil
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.dialects import make_dialect
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus, write_metrics
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.file_inputs import FileData
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.runs.run import run_recipe
from fieldcraft.types import Task, UserError


def problems_of(recipe: Recipe) -> tuple[list[str], dict[str, list[str]]]:
    """Return the errors that `fieldcraft check` finds, and its notes."""
    notes: dict[str, list[str]] = {}
    found = check_recipe(recipe, Path.cwd(), lambda name, note, _: notes.update({name: list(note)}))
    return found, notes


def with_stages(*settings: str, **teachers: str) -> Recipe:
    """Return the smallest recipe about Atlas, with a distillation stage for each teacher."""
    distil = "type: distil, steps: 2, questions_per_step: 2, group_size: 1, evaluate: false,"
    distil += " optim: {lr: 0.001}"
    stages = [f"stages.{name}={{{distil}, {keys}}}" for name, keys in teachers.items()]
    recipe = load_recipe(
        "smoke", [*TINY, "evaluation.workflows=[]", "device=cpu", *settings, *stages]
    )
    left = {k: stage for k, stage in recipe.stages.items() if k not in ("sft2", "rl2")}
    return recipe.model_copy(update={"stages": left})


# -- the recipe -----------------------------------------------------------------------------------


def test_the_recipe_compares_what_differs_in_the_teacher_alone() -> None:
    ours, mini = load_recipe("distil-mini", []), load_recipe("autocoa-mini", [])
    for key in ("dialect", "instruction", "tiny_model", "search", "budget"):
        assert getattr(ours, key) == getattr(mini, key), key
    rl, *others = (ours.stages[name] for name in ("rl", "distil", "distil-full"))
    for other in others:
        assert isinstance(other, Distil)
        assert other.teacher.stage == "rl"
        differ = {"type", "algorithm"}
        assert {k for k in Rl.model_fields if getattr(rl, k) != getattr(other, k)} == differ


# -- a run ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_kind_of_teacher_and_of_kl_in_a_run(tmp_path: Path) -> None:
    recipe = with_stages(
        own="teacher: {privileged: answer}",
        planned="teacher: {privileged: plan}, kl: top-k, top_k: 9",
        other="teacher: {stage: base}, kl: full",
    )
    found, notes = problems_of(recipe)
    assert found == []
    assert notes["stage own"][-1].startswith("the answer is available for ")
    assert notes["stage planned"][-1].startswith("the plan is available for ")
    run_recipe(recipe, tmp_path / "out", EventBus([write_metrics]))
    for name in ("own", "planned", "other"):
        lines = (tmp_path / "out" / name / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert [row["step"] for row in rows] == [0, 1]
        for row in rows:
            assert row["grad_norm"] > 0
            assert abs(row["teacher_kl"]) > 1e-4
            assert 0 <= row["reward_mean"] <= 1


def test_the_plan_of_a_world_is_what_its_oracle_thinks_and_calls() -> None:
    inputs = make_data_source(load_recipe("smoke", list(TINY)))
    task = next(t for t in inputs.train_tasks() if inputs.world.oracle.optimal_calls(t) > 1)
    lines = inputs.plan(task, make_dialect("autocoa", tiny_tokenizer(), "")).split("\n")
    calls = [line for line in lines if line.startswith("<begin_search> ")]
    assert len(calls) >= 2
    assert all(line.endswith(" </end_search>") for line in calls)
    assert not any("result 1" in line or "boxed" in line for line in lines)


def test_the_plan_of_a_question_of_the_user_is_in_its_metadata() -> None:
    tools = (ToolConfig(name="python"),)
    inputs = FileData(Recipe(name="r", stages={}, model=Path("m"), tools=tools))
    dialect = make_dialect("autocoa", tiny_tokenizer(), "")
    assert inputs.plan(Task("t", "?", (), {"plan": "Multiply."}), dialect) == "Multiply."
    with pytest.raises(
        UserError, match=r"^task 't' has no plan .*, or set teacher.privileged: answer\.$"
    ):
        inputs.plan(Task("t", "?", ()), dialect)


# -- teachers that cannot be used -----------------------------------------------------------------


def test_teachers_that_cannot_score_are_found_before_the_run(tmp_path: Path) -> None:
    other = write_tiny_checkpoint(tmp_path / "other", "qwen2")
    tokens, missing, lonely = problems_of(
        with_stages(
            tokens=f"teacher: {{checkpoint: {other}}}",
            missing=f"teacher: {{checkpoint: {tmp_path}}}",
            lonely="teacher: {stage: base}, reward_weight: 1",
            alone="teacher: {stage: base}",
        )
    )[0]
    assert tokens.startswith(f"the model in {other} cannot score the tokens of the model that is")
    assert tokens.endswith("choose a teacher with the same tokenizer.")
    assert missing.startswith(f"{tmp_path} is not a checkpoint")
    assert "an advantage compares rollouts of one question" in lonely


def test_a_teacher_that_is_shown_something_cannot_read_folded_rollouts() -> None:
    recipe = with_stages(
        "budget.fold={trigger_tokens: 150}", distil="teacher: {privileged: answer}"
    )
    assert (
        "stage 'distil' gives its teacher the answer in the first prompt, which later chains of"
        " a folded rollout lack: remove teacher.privileged, or budget.fold."
    ) in problems_of(recipe)[0]


def test_a_teacher_must_come_before_its_student() -> None:
    with pytest.raises(UserError) as error:
        with_stages(distil="teacher: {stage: rl9}")
    assert str(error.value) == (
        "stage 'distil' reads the model of 'rl9', which does not come before it: use one of start,"
        " base, sft2, rl2."
    )
