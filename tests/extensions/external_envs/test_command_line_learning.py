"""A policy learns from a recipe through mini-SWE-agent, a coding agent for the command line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from learning import trained_as_sampled
from shell_student import make_recipe

from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.records.events import EventBus, write_metrics
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.run import run_recipe
from fieldcraft.types import CallOutcome, Status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("mini") is None, reason="mini-SWE-agent is not installed"),
]


def learn(folder: Path, seed: int, **stage: Any) -> list[dict[str, Any]]:
    """Train through mini-SWE-agent with a recipe, which must pass `check`; return the metrics."""
    recipe = parse_recipe(make_recipe(folder, seed, **stage))
    assert check_recipe(recipe, folder, lambda *_: None) == []
    run_recipe(recipe, folder / "run", EventBus([write_metrics]))
    rows = (folder / "run" / "rl" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row) for row in rows]


@pytest.mark.parametrize("seed", range(3))
def test_a_policy_learns_through_a_coding_agent(tmp_path: Path, seed: int) -> None:
    rows = learn(tmp_path, seed)
    trained_as_sampled(rows)
    assert [row["status/error"] for row in rows] == [0.0] * len(rows)
    rewards = [row["reward_mean"] for row in rows]
    begin, end = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
    gap = max(row["sampler_logp_diff"] for row in rows if "loss" in row)
    print(f"seed {seed}: mean reward from {begin:.2f} to {end:.2f}, difference {gap:.1e}")
    assert end > begin + 0.1, rewards
    for done in read_trajectories(tmp_path / "run" / "evaluations" / "rl.jsonl"):
        assert done.status in (Status.ANSWERED, Status.TRUNCATED)
        assert {call.tool for call in done.calls} <= {"bash"}
        assert {call.outcome for call in done.calls} <= {CallOutcome.OK}
