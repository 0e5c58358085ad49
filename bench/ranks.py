"""Compare measured peak memory of a cluster's trainers with the estimate of `fieldcraft plan`.

    python bench/ranks.py [--features 384] [--layers 6] [--words 8192] [--tokens 2048]

Each case runs two optimiser steps on the CPU in separate processes: supervised steps, or steps of
reinforcement learning with a reference model for the KL. Model and texts are the same as in
bench/memory.py. It needs the extra `cluster`.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

import typer
from transformers import Qwen2Config, Qwen2ForCausalLM

from fieldcraft.config.recipe import Recipe
from fieldcraft.extensions.cluster.ranks import HEALTH_GROUP, RayTrainerGroup
from fieldcraft.extensions.cluster.remote import import_ray
from fieldcraft.extensions.cluster.session import open_cluster
from fieldcraft.extensions.cluster.sharding.specs import PolicySpec, ReferenceSpec
from fieldcraft.extensions.cluster.sharding.trainer import ShardedTrainer, make_reference
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.memory_estimate import ModelSizes, estimate_rank_memory
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.train.losses import CrossEntropyLoss, PolicyGradientLoss
from fieldcraft.train.model import make_empty_model
from memory import LENGTH, RL, SFT, make_units

CASES = {
    "supervised": (SFT, []),
    "supervised, checkpointing": (SFT, ["stages.sft2.optim.activation_checkpointing=true"]),
    "supervised, LoRA on bfloat16": (SFT, ["dtype=bfloat16", "lora={rank: 16}"]),
    "reinforcement, KL": (RL, ["stages.rl2.kl_coef=0.01"]),
}
LAYOUTS = ("trainers: 1", "trainers: 2", "trainers: 4", "trainers: 2, context: 2")


def recipe_of(case: str, layout: str, tokens: int) -> tuple[Recipe, str]:
    stage, settings = CASES[case]
    sizes = [
        f"stages.{stage}.optim.micro_batch_tokens={tokens}",
        f"budget.max_context_tokens={LENGTH}",
    ]
    cluster = f"cluster={{{layout}, engines: 1}}"
    return load_recipe("smoke", [*settings, *sizes, cluster, "max_num_seqs=1"]), stage


def train(ranks: RayTrainerGroup, recipe: Recipe, stage: str, folder: Path, tokens: int) -> None:
    """Run two steps, with one micro-batch per trainer."""
    optim = recipe.stages[stage].optim
    spec = PolicySpec(folder=folder, optim=optim, steps=2, dtype=recipe.dtype, lora=recipe.lora)
    trainer = ShardedTrainer(ranks, spec)
    words = make_empty_model(folder).config.vocab_size
    units = make_units(tokens * ranks.world_size, words)
    if stage == SFT:
        for _ in range(2):
            trainer.step(units, CrossEntropyLoss(), 1.0)
        return
    reference = make_reference(ranks, "reference", ReferenceSpec(folder=folder, optim=optim))
    for _ in range(2):
        reference.fill_logprobs(units, "ref_logp", 1.0)
        trainer.step(units, PolicyGradientLoss(kl_coef=0.01), 1.0)


def peak(ranks: RayTrainerGroup) -> int:
    """Return the highest peak memory of the processes, in bytes."""
    actors = ranks._actors
    asked = [
        actor.get_process_id.options(concurrency_group=HEALTH_GROUP).remote() for actor in actors
    ]
    told = [Path(f"/proc/{number}/status").read_text() for number in import_ray().get(asked)]
    return 1024 * max(int(re.findall(r"VmHWM:\s+(\d+) kB", text)[0]) for text in told)


def measure(case: str, layout: str, folder: Path, tokens: int) -> tuple[int, int]:
    """Return the measured and the estimated bytes."""
    recipe, stage = recipe_of(case, layout, tokens)
    with open_cluster(recipe.cluster, "cpu", folder) as session:
        ranks = RayTrainerGroup(session)
        ranks.start()
        train(ranks, recipe, stage, folder, tokens)
        found = peak(ranks)
        asyncio.run(ranks.close())
    model = make_empty_model(folder)
    parameters = model.num_parameters()
    if recipe.lora is not None:
        LoraAdapter(model, recipe.lora, 0)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    sizes = ModelSizes(recipe, model.config, parameters, trained)
    parts = estimate_rank_memory(sizes, recipe.stages[stage], recipe.cluster)
    return found, sum(parts.values())


def main(features: int = 384, layers: int = 6, words: int = 8192, tokens: int = 2048) -> None:
    config = Qwen2Config(
        vocab_size=words,
        hidden_size=features,
        intermediate_size=3 * features,
        num_hidden_layers=layers,
        num_attention_heads=features // 64,
        num_key_value_heads=max(features // 256, 1),
    )
    print("| trainers | step | measured | estimated | ratio |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        Qwen2ForCausalLM(config).save_pretrained(place)
        for layout in LAYOUTS:
            for case in CASES:
                found, estimate = measure(case, layout, Path(place), tokens)
                sizes = f"{found / 1e9:.2f} GB | {estimate / 1e9:.2f} GB"
                print(f"| {layout} | {case} | {sizes} | {estimate / found:.2f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
