"""A tiny model learns games in text from a recipe, sampled in turns and while it is trained."""

from pathlib import Path

import pytest
from learning import learn, rises

from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.types import Status

GAME = {"name": "text", "env": "games_parts:Partners", "games": 8}


def test_the_reward_of_a_game_rises(tmp_path: Path) -> None:
    rows = learn(tmp_path, GAME)
    rises(rows)
    evaluated = list(read_trajectories(tmp_path / "run" / "evaluations" / "rl.jsonl"))
    assert [t.status for t in evaluated] == [Status.ANSWERED] * 4
    assert {t.correct for t in evaluated} == {"environment"}


def test_so_it_does_while_it_is_sampled(tmp_path: Path) -> None:
    rows = learn(tmp_path, GAME, **{"async": {"max_staleness": 1}})
    rises(rows)
    assert max(row["staleness_max"] for row in rows) == 1


@pytest.mark.slow
def test_with_any_seed(tmp_path: Path) -> None:
    for seed in range(3):
        begin, end = rises(learn(tmp_path / str(seed), GAME, seed))
        print(f"seed {seed}: {begin:.2f} to {end:.2f}")
