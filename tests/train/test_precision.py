"""Sampler and trainer compute in the same type."""

from pathlib import Path

import numpy as np
import torch

from checkpoints import write_tiny_checkpoint
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import Events
from fieldcraft.runs.context import Context
from fieldcraft.runs.folder import RunFolder
from fieldcraft.runs.inputs import make_inputs
from fieldcraft.runs.training import StageMaterial
from fieldcraft.train.batch import Unit, to_sample
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Author
from training_parts import chatty_engine, chatty_rollouts, make_trainer

# Measured for this model: 1e-7 in the mean where both multiply in bfloat16, and 0.012 where the
# sampler does it in float32. Other processors may round a batch and a single token differently, so
# the bound is nearer to the second.
BOUND = 0.004


def engine_of_a_stage(trainer: Trainer, folder: Path, autocast: bool) -> LocalEngine:
    """As a run makes it, with `chatty_engine`'s ends of a turn."""
    recipe = load_recipe("smoke", [f"stages.rl2.optim.autocast={str(autocast).lower()}"])
    device = torch.device("cpu")
    context = Context(
        recipe, RunFolder(folder, recipe), make_inputs(recipe), device, None, Events([])
    )
    chatty_engine(trainer)
    start = write_tiny_checkpoint(folder / "start", "qwen3")
    return StageMaterial(context, "rl2", start).engine(trainer.model)


def gap(engine: LocalEngine, trainer: Trainer) -> float:
    """Between the log-probabilities that were sampled and those that the trainer computes."""
    done = chatty_rollouts(engine, 1.0)
    units: list[Unit] = [(to_sample(t, {Author.POLICY}, 1.0),) for t in done]
    trainer.fill_logprobs(units, "old_logp", 1.0)
    gaps = [(s.old_logp - s.sampled_logp)[s.weight > 0] for (s,) in units]
    return float(np.abs(np.concatenate(gaps)).mean())


def test_under_autocast_the_sampler_rounds_as_the_trainer_does(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "model", autocast=True)
    found = gap(engine_of_a_stage(trainer, tmp_path, True), trainer)
    other = gap(engine_of_a_stage(trainer, tmp_path, False), trainer)
    assert found < BOUND < other


def test_without_autocast_nothing_is_rounded(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "model")
    assert gap(engine_of_a_stage(trainer, tmp_path, False), trainer) < 1e-4
