"""The section `async` of a stage of reinforcement learning."""

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config

from fieldcraft import Rl
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.memory_estimate import ModelSizes, estimate_stage_memory
from fieldcraft.types import UserError

KEY = "stages.rl2.async.max_staleness"


def stage(*overrides: str) -> Any:
    return load_recipe("smoke", overrides).stages["rl2"]


def test_stages_take_turns_unless_they_are_told_otherwise() -> None:
    assert stage().asynchronous.max_staleness == 0
    assert stage(f"{KEY}=2").asynchronous.max_staleness == 2


def test_it_is_written_as_it_is_read(tmp_path: Path) -> None:
    recipe = load_recipe("smoke", [f"{KEY}=2"])
    dumped = dump_recipe(recipe)
    assert dumped["stages"]["rl2"]["async"] == {"max_staleness": 2}
    assert "asynchronous" not in dumped["stages"]["rl2"]
    assert dump_recipe(Recipe.model_validate(dumped | {"stages": recipe.stages})) == dumped


def test_python_has_another_word_for_it() -> None:
    given = {"steps": 1, "optim": {"lr": 1e-3}}
    assert Rl(**given, asynchronous={"max_staleness": 3}) == Rl(
        **given, **{"async": {"max_staleness": 3}}
    )


@pytest.mark.parametrize(
    ("overrides", "cap"),
    [
        ([], None),
        ([f"{KEY}=0"], None),
        ([f"{KEY}=1"], 2.0),
        ([f"{KEY}=1", "dtype=bfloat16"], 2.0),
        ([f"{KEY}=1", "stages.rl2.sampler_is_cap=null"], None),
        ([f"{KEY}=1", "stages.rl2.sampler_reject=token"], None),
        ([f"{KEY}=1", "stages.rl2.sampler_is_cap=3"], 3.0),
    ],
)
def test_older_tokens_are_weighed_unless_the_recipe_says_otherwise(
    overrides: list[str], cap: float | None
) -> None:
    assert stage(*overrides).sampler_is_cap == cap


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (f"{KEY}=-1", "'stages.rl2.async.max_staleness' is wrong"),
        (f"{KEY}=1.5", "'stages.rl2.async.max_staleness' is wrong"),
        ("stages.rl2.async.max_stale=1", "unknown key 'stages.rl2.async.max_stale'"),
        ("stages.rl2.asink.max_staleness=1", "unknown key 'stages.rl2.asink'; did you mean"),
        ("stages.sft2.async.max_staleness=1", "unknown key 'stages.sft2.async'"),
    ],
)
def test_mistakes_are_sentences(override: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_recipe("smoke", [override])


def test_memory_holds_training_and_rollouts_at_once() -> None:
    """A synchronous stage needs the larger of the two; here both count, and a copy of the weights.
    Three times as many rollouts are in progress, as far as there are rows."""
    config = Qwen2Config(
        hidden_size=64, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=2
    )

    def peak(*overrides: str) -> int:
        recipe = load_recipe("smoke", ["max_num_seqs=100000", *overrides])
        sizes = ModelSizes(recipe, config, parameters=10**6, trainable_parameters=10**6)
        return estimate_stage_memory(sizes, recipe.stages["rl2"])

    group = ["stages.rl2.group_size=2000"]  # large enough that the caches dominate
    tokens = -(-600 // 32) * 32
    caches = 12 * 2000 * tokens * 2 * 2 * 64 * 4
    assert peak() == peak("stages.rl2.group_size=1")  # in small groups training dominates
    training = peak() - (peak(*group) - caches)
    assert peak(*group, f"{KEY}=2") == peak(*group) + 2 * caches + training + 4 * 10**6
