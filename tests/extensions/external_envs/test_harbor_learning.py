"""A tiny model learns tasks of a terminal from a recipe, in our own sandbox."""

from pathlib import Path

import pytest
from harbor_parts import skip_without_terminals
from learning import trained_as_sampled
from letter_tasks import learn_letters

from fieldcraft.records.training_rollouts import read_training_rollouts


@pytest.mark.long
def test_a_recipe_trains_on_task_folders(tmp_path: Path) -> None:
    skip_without_terminals(tmp_path)
    rows = learn_letters(tmp_path, steps=2, group_size=2)
    trained_as_sampled(rows)
    assert [row["status/error"] for row in rows] == [0.0, 0.0]
    rollouts = read_training_rollouts(tmp_path / "run" / "rl" / "rollouts")
    rewards = {rollout.trajectory.rewards["environment"] for rollout in rollouts}
    assert rewards
    assert rewards <= {0.0, 1.0}


@pytest.mark.slow
def test_the_reward_rises_with_any_seed(tmp_path: Path) -> None:
    skip_without_terminals(tmp_path)
    for seed in range(3):
        rewards = [
            row["reward_mean"]
            for row in learn_letters(tmp_path / str(seed), seed, steps=30, group_size=6)
        ]
        begin, end = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
        print(f"seed {seed}: mean reward from {begin:.2f} to {end:.2f}")
        assert end > begin + 0.1, rewards
