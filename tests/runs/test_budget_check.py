"""Budgets that exceed a model's or an engine's limit, and the memory of budgets."""

import re
import tempfile
from pathlib import Path

import pytest
from transformers import Qwen2Config

from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.memory_estimate import (
    PROCESS_BYTES,
    ModelSizes,
    estimate_process_memory,
    estimate_run_memory,
    estimate_stage_cache_bytes,
    find_max_text_tokens,
)
from fieldcraft.runs.question_checks import check_positions
from fieldcraft.runs.setup import CheckContext, CheckReport

SMALL = ["world.people=30", "world.variants=2", "tiny_model.layers=2", "tiny_model.width=16"]
SHAPE = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
TOKEN = 2 * 3 * 2 * 8 * 4  # keys and values, 3 layers, 2 heads of 8 floats


def sizes(*overrides: str) -> ModelSizes:
    config = Qwen2Config(**SHAPE, num_hidden_layers=3, max_position_embeddings=2048)
    recipe = load_recipe("smoke", list(overrides))
    return ModelSizes(recipe, config, parameters=0, trainable_parameters=0)


def position_errors(found: ModelSizes) -> list[str]:
    context = CheckContext(found.recipe, Path())
    context.sizes, report = found, CheckReport()
    check_positions(context, report)
    return report.errors


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["evaluation.budget.max_context_tokens=2048"], None),
        (
            ["evaluation.budget.max_context_tokens=4096"],
            "evaluation.budget.max_context_tokens=4096 is more than the 2048 positions of the"
            " model: set evaluation.budget.max_context_tokens=2048 or less.",
        ),
        (
            [
                "evaluation.budget.max_context_tokens=1500",
                "engine={name: local, max_model_len: 1200}",
            ],
            "evaluation.budget.max_context_tokens=1500 is more than engine.max_model_len=1200,"
            " where the engine would end every session: raise engine.max_model_len, or lower"
            " evaluation.budget.max_context_tokens.",
        ),
        (
            ["stages.rl2.budget=[{until: 2}, {max_context_tokens: 4096}]"],
            "stages.rl2.budget.1.max_context_tokens=4096 is more than the 2048 positions of the"
            " model: set stages.rl2.budget.1.max_context_tokens=2048 or less.",
        ),
    ],
)
def test_a_rollout_of_an_evaluation_fits(overrides: list[str], complaint: str | None) -> None:
    assert position_errors(sizes(*overrides)) == ([] if complaint is None else [complaint])


def test_a_rollout_must_not_change_those_beside_it() -> None:
    setup = sizes("evaluation.budget.max_context_tokens=2048")
    setup.config.rope_parameters = {"rope_type": "longrope", "original_max_position_embeddings": 64}
    found = position_errors(setup)
    assert (
        "evaluation.budget.max_context_tokens=2048 is more than the 64 positions of the model,"
        " beyond which its rotary embeddings change for all texts: set"
        " evaluation.budget.max_context_tokens=64 or less."
    ) in found


def test_a_prompt_leaves_room_for_the_turns_of_evaluations() -> None:
    recipe = load_recipe("smoke", [*SMALL, "evaluation.budget.max_turn_tokens=400"])
    [problem] = check_recipe(recipe, Path(tempfile.gettempdir()), lambda *_: None)
    assert problem.endswith(
        "of 400 tokens each within evaluation.budget.max_context_tokens=600: raise it."
    )


def test_a_prompt_leaves_room_for_a_forced_answer() -> None:
    """The reserve counts: 300 tokens for the answer, and the tokens that precede it."""
    own = ["budget.at_limit=answer", "budget.answer_tokens=300", "budget.max_turn_tokens=120"]
    assert check_recipe(load_recipe("smoke", [*SMALL, own[2]]), Path.cwd(), lambda *_: None) == []
    [problem] = check_recipe(load_recipe("smoke", [*SMALL, *own]), Path.cwd(), lambda *_: None)
    match = re.search(r"each, in addition to (\d+) reserved for an answer, within", problem)
    assert match is not None, problem
    assert 300 < int(match[1]) < 400


def test_memory_of_evaluations_with_a_larger_budget() -> None:
    """Keys and values of 256 rollouts of 600 tokens, or 2,048 of evaluations, in blocks of 32.
    Evaluations during a stage use the engine of the stage, which samples 32 x 8 rollouts."""
    own = [
        "evaluation.budget.max_context_tokens=2048",
        "stages.rl2.questions_per_step=32",
        "stages.rl2.group_size=8",
    ]
    setup, during = sizes(*own), sizes(*own, "evaluation.periodic={}")
    assert estimate_run_memory(setup)["an evaluation"] == PROCESS_BYTES + 256 * 2048 * TOKEN
    for found, tokens in ((setup, 608), (during, 2048)):
        stage = found.recipe.stages["rl2"]
        assert estimate_stage_cache_bytes(found, stage, 256) == 256 * tokens * TOKEN
        parts = estimate_process_memory(found, stage, found.recipe.cluster)
        assert parts["process, sampling"]["caches"] == 256 * tokens * TOKEN


def test_memory_of_a_stage_is_that_of_its_largest_budget() -> None:
    own = ["stages.rl2.budget=[{until: 2, max_context_tokens: 1024}, {max_context_tokens: 320}]"]
    setup, larger = sizes(*own), sizes("budget.max_context_tokens=1024")
    stage, sft = (setup.recipe.stages[name] for name in ("rl2", "sft2"))
    assert (find_max_text_tokens(setup.recipe, stage), find_max_text_tokens(setup.recipe, sft)) == (
        1024,
        600,
    )
    assert estimate_stage_cache_bytes(setup, stage, 7) == 7 * 1024 * TOKEN
    for found in (estimate_run_memory(setup), estimate_run_memory(larger)):
        assert found["stage 'rl2'"] == estimate_run_memory(larger)["stage 'rl2'"]
