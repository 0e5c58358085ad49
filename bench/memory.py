"""Compare measured peak memory of a training step with the estimate of `fieldcraft check`.

    python bench/memory.py [--features 384] [--layers 6] [--words 8192] [--tokens 2048]

Each case runs two optimiser steps in a separate process on the CPU: supervised steps, or steps of
reinforcement learning with a reference model for the KL. The model is a random Qwen2; texts of 512
tokens fill a micro-batch. Products in bfloat16 take minutes on a CPU without instructions for them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from transformers import Qwen2Config, Qwen2ForCausalLM

from fieldcraft.config.recipe import Recipe
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.memory_estimate import ModelSizes, estimate_stage_memory
from fieldcraft.train.batch import Sample, SampleUnit
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.train.losses import CrossEntropyLoss, PolicyGradientLoss
from fieldcraft.train.model import load_model, to_torch_dtype
from fieldcraft.train.trainer import Trainer

LENGTH = 512
SFT, RL = "sft2", "rl2"  # stages of the recipe smoke
CASES = {
    "supervised": (SFT, []),
    "supervised, checkpointing": (SFT, ["stages.sft2.optim.activation_checkpointing=true"]),
    "supervised, bfloat16": (SFT, ["dtype=bfloat16"]),
    "supervised, 8 bit": (SFT, ["stages.sft2.optim.optimizer_state=8bit"]),
    "supervised, bfloat16, 8 bit": (
        SFT,
        ["dtype=bfloat16", "stages.sft2.optim.optimizer_state=8bit"],
    ),
    "supervised, LoRA on bfloat16": (SFT, ["dtype=bfloat16", "lora={rank: 16}"]),
    "reinforcement, KL": (RL, ["stages.rl2.kl_coef=0.01"]),
    "reinforcement, KL, bfloat16": (RL, ["stages.rl2.kl_coef=0.01", "dtype=bfloat16"]),
}


def recipe_of(case: str, tokens: int) -> tuple[Recipe, str]:
    stage, settings = CASES[case]
    sizes = [
        f"stages.{stage}.optim.micro_batch_tokens={tokens}",
        f"budget.max_context_tokens={LENGTH}",
    ]
    return load_recipe("smoke", [*settings, *sizes, "max_num_seqs=1"]), stage


def make_trainer(recipe: Recipe, stage: str, folder: Path) -> Trainer:
    """Make a trainer as a run does."""
    optim, cpu = recipe.stages[stage].optim, torch.device("cpu")
    if recipe.lora is None:
        return Trainer(load_model(folder, cpu), optim, 2, dtype=to_torch_dtype(recipe.dtype))
    model = load_model(folder, cpu, recipe.dtype)
    return Trainer(model, optim, 2, LoraAdapter(model, recipe.lora, 0))


def make_units(tokens: int, words: int) -> list[SampleUnit]:
    rng = np.random.default_rng(0)
    ones = np.ones(LENGTH, np.float32)
    weight = np.where(np.arange(LENGTH) > 0, ones, 0)
    texts = [rng.integers(0, words, LENGTH) for _ in range(tokens // LENGTH)]
    return [(Sample(ids, weight, ones, -ones, -ones, -ones),) for ids in texts]


def measure(case: str, folder: Path, tokens: int) -> None:
    """Print the peak memory of two steps in this process, and the inputs of the estimate."""
    recipe, stage = recipe_of(case, tokens)
    trainer = make_trainer(recipe, stage, folder)
    config = trainer.model.config
    units = make_units(tokens, config.vocab_size)
    if stage == RL:
        model = load_model(folder, torch.device("cpu"), recipe.dtype)
        reference = Trainer(model, recipe.stages[stage].optim, 2)
    for _ in range(2):
        if stage == RL:
            reference.fill_logprobs(units, "ref_logp", 1.0)
            trainer.step(units, PolicyGradientLoss(kl_coef=0.01), 1.0)
        else:
            trainer.step(units, CrossEntropyLoss(), 1.0)
    trained = sum(m.numel() for m in trainer.weights.masters)
    whole = sum(p.numel() for p in trainer.model.parameters())
    # Of this program only: the value of getrusage includes the parent process.
    [high] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    peak = int(high) * 1024
    print(json.dumps({"trained": trained, "parameters": whole, "peak": peak}))


def main(
    features: int = 384,
    layers: int = 6,
    words: int = 8192,
    tokens: int = 2048,
    case: Annotated[str | None, typer.Option(hidden=True)] = None,
    folder: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    torch.set_num_threads(1)
    if case is not None and folder is not None:
        measure(case, folder, tokens)
        return
    config = Qwen2Config(
        vocab_size=words,
        hidden_size=features,
        intermediate_size=3 * features,
        num_hidden_layers=layers,
        num_attention_heads=features // 64,
        num_key_value_heads=max(features // 256, 1),
    )
    print("| step | measured | estimated | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        Qwen2ForCausalLM(config).save_pretrained(place)
        for name in CASES:
            options = ["--tokens", str(tokens), "--case", name, "--folder", place]
            told = subprocess.run(
                [sys.executable, __file__, *options], capture_output=True, text=True, check=True
            )
            found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
            recipe, stage = recipe_of(name, tokens)
            model = ModelSizes(recipe, config, found["parameters"], found["trained"])
            estimate = estimate_stage_memory(model, recipe.stages[stage])
            sizes = f"{found['peak'] / 1e9:.2f} GB | {estimate / 1e9:.2f} GB"
            print(f"| {name} | {sizes} | {estimate / found['peak']:.2f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
