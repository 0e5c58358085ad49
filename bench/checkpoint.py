"""Measure the cost of writing the checkpoints of ranks during training.

    python bench/checkpoint.py [--ranks 2] [--features 256] [--layers 4] [--words 4000]
                               [--steps 10] [--every 25] [--rounds 5]

The ranks are local processes that communicate over gloo. Rounds of `steps` steps of supervised
training alternate: without a checkpoint; with a checkpoint that is started before the first step
and written during the steps; and with a checkpoint that is awaited first. A round ends when its
checkpoint is complete. The output has the medians, and the additional training time for a
checkpoint every `every` steps.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import typer
from transformers import Qwen3Config, Qwen3ForCausalLM

from fieldcraft.config.sections import Optim
from fieldcraft.extensions.cluster.sharding.specs import PolicySpec
from fieldcraft.extensions.cluster.sharding.trainer import ShardedTrainer
from fieldcraft.train.batch import Sample, SampleUnit
from fieldcraft.train.losses import CrossEntropyLoss

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from rank_processes import Pool

KINDS = ("none", "concurrent", "awaited")


def write_model(folder: Path, features: int, layers: int, words: int) -> int:
    """Write a random model to a folder, and return its number of parameters."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=words,
        hidden_size=features,
        intermediate_size=3 * features,
        num_hidden_layers=layers,
        num_attention_heads=features // 32,
        num_key_value_heads=features // 64,
        head_dim=32,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=0,
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def make_units(words: int) -> list[SampleUnit]:
    """Return 8 texts of 256 tokens, all of them trained."""
    rng = np.random.default_rng(0)
    ones, zeros = np.ones(256, np.float32), np.zeros(256, np.float32)
    ones[0] = 0
    return [
        (Sample(rng.integers(1, words, 256), ones, zeros, zeros, zeros, zeros),) for _ in range(8)
    ]


def seconds(
    trainer: ShardedTrainer, units: list[SampleUnit], steps: int, kind: str, folder: Path
) -> float:
    """Return the seconds of the steps and the checkpoint, until it is complete."""
    start = time.perf_counter()
    if kind != "none":
        trainer.save(folder, None, {})
    if kind == "awaited":
        trainer.wait_for_saves()
    for _ in range(steps):
        trainer.step(units, CrossEntropyLoss(), 8 * 255.0)
    trainer.wait_for_saves()
    return time.perf_counter() - start


def main(
    ranks: int = 2,
    features: int = 256,
    layers: int = 4,
    words: int = 4000,
    steps: int = 10,
    every: int = 25,
    rounds: int = 5,
) -> None:
    pool = Pool(ranks)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        parameters = write_model(folder / "start", features, layers, words)
        spec = PolicySpec(folder=folder / "start", optim=Optim(lr=1e-5), steps=1)
        with pool.ranks(folder, ranks) as made:
            trainer, units = ShardedTrainer(made, spec), make_units(words)
            trainer.step(units, CrossEntropyLoss(), 8 * 255.0)
            found: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for number in range(rounds):
                for kind in KINDS:
                    target = folder / f"{kind}-{number}"
                    found[kind].append(seconds(trainer, units, steps, kind, target))
            size = sum(f.stat().st_size for f in (folder / "concurrent-0").iterdir())
    pool.close()
    medians = {kind: statistics.median(times) for kind, times in found.items()}
    step = medians["none"] / steps
    print(f"{parameters / 1e6:.1f}M parameters, {ranks} ranks, {size / 1e6:.0f} MB per checkpoint")
    for kind, times in found.items():
        extra = medians[kind] - medians["none"]
        print(
            f"{kind:12} {medians[kind]:7.2f} s for {steps} steps ({min(times):.2f} to"
            f" {max(times):.2f}), {extra:+.2f} s, {100 * extra / (every * step):+.1f} % of"
            f" {every} steps"
        )


if __name__ == "__main__":
    typer.run(main)
