"""Equality of sampled and trained tokens and of their log-probabilities."""

import asyncio
from pathlib import Path

import pytest

from checkpoints import Architecture
from fieldcraft.train.batch import to_sample
from fieldcraft.train.losses import PolicyGradientLoss
from fieldcraft.types import Author, Status
from training_parts import (
    CHATTY_ROLLOUTS,
    assert_agree,
    chatty_engine,
    chatty_rollouts,
    make_trainer,
)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_engine_and_trainer_agree(
    tmp_path: Path, architecture: Architecture, temperature: float
) -> None:
    trainer = make_trainer(tmp_path, architecture, lr=1e-2)
    engine = chatty_engine(trainer)
    for _ in range(2):  # before and after a step
        done = chatty_rollouts(engine, temperature)
        authors = [segment.author for t in done for segment in t.segments]
        assert authors.count(Author.TOOL) >= CHATTY_ROLLOUTS
        assert Status.ERROR not in {t.status for t in done}
        ended = [t for t in done if t.segments[-1].ids[-1] < 23]  # by an end-of-turn token
        assert ended
        assert all(to_sample(t, {Author.POLICY}).weight[-1] == 1 for t in ended)
        units = assert_agree(trainer, done, temperature)
        total = sum(float(sample.weight.sum()) for (sample,) in units)
        row = trainer.step(units, PolicyGradientLoss(), total, temperature)
        assert row["ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert row["sampler_logp_diff"] < 1e-4
        assert row["clip_fraction"] == 0
        trainer.done += 1
        asyncio.run(engine.update_weights(trainer.done))
    other = chatty_rollouts(engine, temperature)
    assert [t.ids for t in other] != [t.ids for t in done]  # the steps changed the policy


def test_the_temperature_of_sampling_is_that_of_training(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    done = chatty_rollouts(chatty_engine(trainer), 0.7)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_agree(trainer, done, 1.0)


def test_so_it_is_with_observations_that_the_policy_wrote(tmp_path: Path) -> None:
    """Observations written by the policy are in the context and are not trained."""
    trainer = make_trainer(tmp_path)
    done = chatty_rollouts(chatty_engine(trainer), 1.0, simulated=True)
    authors = [segment.author for t in done for segment in t.segments]
    assert authors.count(Author.SIMULATOR) >= CHATTY_ROLLOUTS
    assert Author.TOOL not in authors
    assert_agree(trainer, done, 1.0)
