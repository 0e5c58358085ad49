"""Advice that makes a run fit: the most expensive key, and its value, as computed by hand."""

import re
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config

from fieldcraft.config.recipe import Recipe
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs import check
from fieldcraft.runs.check import check_memory
from fieldcraft.runs.memory import read_free_memory
from fieldcraft.runs.memory_estimate import PROCESS_BYTES, ModelSizes
from fieldcraft.runs.memory_limit import read_memory_limit
from fieldcraft.runs.setup import CheckContext, CheckReport
from fieldcraft.train.output_layer import MAX_CHUNK_LOGITS

PARAMETERS = 1000
SHAPE = {"vocab_size": 10, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2}
MODEL = PROCESS_BYTES + 12 * PARAMETERS  # a parameter and two moments
GRADIENTS = 4 * PARAMETERS
ROW = 608 * 2 * 2 * 2 * 32 * 4  # 600 tokens in blocks of 32: two layers, keys and values, two heads
TOKEN = 4 * 2 * (10 * 64 + 4 * 128) + 3 * 4 * 10  # activations of two layers, and three logits


def memory_errors(monkeypatch: pytest.MonkeyPatch, there: int, recipe: Recipe) -> list[str]:
    """Return the errors of the check of memory, given free bytes."""
    monkeypatch.setattr(check, "read_free_memory", lambda _: there)
    context, report = CheckContext(recipe, Path()), CheckReport()
    context.device = torch.device("cpu")
    context.sizes = ModelSizes(recipe, Qwen2Config(**SHAPE, **HEADS), PARAMETERS, PARAMETERS)
    check_memory(context, report)
    return report.errors


def advice(monkeypatch: pytest.MonkeyPatch, there: int, *overrides: str) -> str:
    """Return the end of the sentence about a recipe with one stage, given free bytes."""
    smoke = load_recipe(
        "smoke", ["stages.rl2.start_from=null", "evaluation.concurrency=1", *overrides]
    )
    recipe = smoke.model_copy(update={"stages": {"rl2": smoke.stages["rl2"]}})
    [problem] = memory_errors(monkeypatch, there, recipe)
    found = re.fullmatch(r".* needs about \S+ GB of memory and cpu has \S+ GB: (.*)\.", problem)
    assert found is not None, problem
    return found[1]


def test_rows_dominate(monkeypatch: pytest.MonkeyPatch) -> None:
    there = MODEL + 20 * ROW + ROW // 2
    hint = advice(monkeypatch, there, "max_num_seqs=64", "stages.rl2.optim.micro_batch_tokens=600")
    assert hint == "set max_num_seqs=20, with which it fits"


def test_tokens_of_a_micro_batch_dominate(monkeypatch: pytest.MonkeyPatch) -> None:
    there = MODEL + GRADIENTS + 3000 * TOKEN + TOKEN - 1
    assert MAX_CHUNK_LOGITS > 8192 * 10
    hint = advice(monkeypatch, there, "max_num_seqs=1", "stages.rl2.optim.micro_batch_tokens=8192")
    assert hint == "set stages.rl2.optim.micro_batch_tokens=3000, with which it fits"


def test_activations_of_one_long_text_dominate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A micro-batch holds at least one text, so fewer tokens do not help."""
    there = MODEL + GRADIENTS + 400 * TOKEN
    hint = advice(monkeypatch, there, "max_num_seqs=1", "stages.rl2.optim.micro_batch_tokens=600")
    assert hint == "set stages.rl2.optim.activation_checkpointing=true, with which it fits"


def test_the_length_dominates_where_all_else_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = 4 * (2 * 64 + 10 * 64 + 4 * 128) + 3 * 4 * 10  # two inputs, and one layer at a time
    there = MODEL + GRADIENTS + 500 * layers
    own = [
        "stages.rl2.optim.micro_batch_tokens=16",
        "stages.rl2.optim.activation_checkpointing=true",
    ]
    hint = advice(monkeypatch, there, "max_num_seqs=1", *own)
    assert hint == "set budget.max_context_tokens=500, with which it fits"


def test_weights_dominate(monkeypatch: pytest.MonkeyPatch) -> None:
    hint = advice(monkeypatch, MODEL - 1)
    assert hint == ("its weights alone need 0.6 GB, so use a smaller model")


def test_several_settings_where_none_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training and sampling both need more memory: each requires its own key."""
    layers = 4 * (2 * 64 + 10 * 64 + 4 * 128) + 3 * 4 * 10  # two inputs, and one layer at a time
    there = MODEL + GRADIENTS + 600 * layers
    assert 5 * ROW < GRADIENTS + 600 * layers < 6 * ROW
    own = ["stages.rl2.optim.micro_batch_tokens=8192", "max_num_seqs=64"]
    hint = advice(monkeypatch, there, *own)
    assert hint == (
        "set stages.rl2.optim.activation_checkpointing=true,"
        " stages.rl2.optim.micro_batch_tokens=600 and max_num_seqs=5, with which it fits"
    )


def test_an_evaluation_has_no_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    smoke = load_recipe("smoke", ["max_num_seqs=64"]).model_copy(update={"stages": {}})
    there = PROCESS_BYTES + 4 * PARAMETERS + 7 * ROW
    [problem] = memory_errors(monkeypatch, there, smoke)
    assert problem.startswith("an evaluation needs about ")
    assert problem.endswith(": set max_num_seqs=7, with which it fits.")


@pytest.mark.parametrize(
    ("listed", "file", "text", "limit"),
    [
        ("0::/a/b", "a/b/memory.max", "1000000", 1_000_000),
        ("0::/a/b", "a/memory.max", "1000000", 1_000_000),
        ("0::/not/shown", "memory.max", "1000000", 1_000_000),
        ("0::/a", "unified/a/memory.max", "1000000", 1_000_000),
        ("4:memory:/a\n0::/", "memory/a/memory.limit_in_bytes", "1000000", 1_000_000),
        ("4:cpu,memory:/", "memory/memory.limit_in_bytes", "1000000", 1_000_000),
        ("0::/a", "a/memory.max", "max", None),
        ("4:memory:/", "memory/memory.limit_in_bytes", "9223372036854771712", None),
        ("3:cpu:/a", "memory/a/memory.limit_in_bytes", "1000000", None),
    ],
)
def test_a_control_group_bounds_the_memory(
    listed: str, file: str, text: str, limit: int | None, tmp_path: Path
) -> None:
    own, place = tmp_path / "own", tmp_path / "groups" / file
    own.write_text(f"{listed}\n")
    place.parent.mkdir(parents=True)
    place.write_text(f"{text}\n")
    physical = read_memory_limit(tmp_path, tmp_path / "nowhere")
    assert read_memory_limit(tmp_path / "groups", own) == (limit or physical)
    assert physical > 1_000_000


def test_the_memory_of_this_machine_is_known() -> None:
    assert read_free_memory(torch.device("cpu")) > 10**8
