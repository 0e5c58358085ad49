"""Runs in which a process is killed at seeded random moments.

They finish with the numbers of a run in one process. Each step is done once, and so each sample is
used once.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from cluster_runs import RECIPE, Running, alike, title

pytestmark = pytest.mark.slow
MANY = ("cluster.trainers=2", "cluster.engines=2")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("ray")
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def run_and_stop(recipe: Path) -> Path:
    """Run in one process without interruption."""
    run = Running(recipe, recipe.parent / "whole")
    assert run.end() == 0, run.text
    return run.out


def wait_for_a_moment(run: Running, stage: str, moment: random.Random) -> None:
    """Wait until some time after a step and before the last one."""
    run.until_step(stage, moment.randint(1, 2))
    time.sleep(moment.uniform(0, 1))


@pytest.mark.parametrize(
    ("kind", "stage"),
    [("EngineActor", "rl"), ("TrainerActor", "base"), ("TrainerActor", "rl")],
)
def test_a_process_may_be_killed(
    kind: str, stage: str, recipe: Path, run_and_stop: Path, tmp_path: Path
) -> None:
    moment = random.Random(f"{kind} {stage}")
    run = Running(recipe, tmp_path / "run", *MANY)
    wait_for_a_moment(run, stage, moment)
    victim = moment.choice(run.until(lambda: run.processes(kind)))
    os.kill(victim, signal.SIGKILL)
    assert run.end() == 0, run.text
    alike(run.out, run_and_stop)
    messages = {
        "EngineActor": "is restarted, and its requests are retried",
        "TrainerActor": "a trainer process crashed; restarting all ranks",
    }
    assert messages[kind] in " ".join(run.output.read_text().split())  # lines are wrapped


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_driver_may_be_killed(
    how: signal.Signals, recipe: Path, run_and_stop: Path, tmp_path: Path
) -> None:
    moment = random.Random(how)
    for stage in ("base", "rl"):
        run = Running(recipe, tmp_path / "run", *MANY)
        wait_for_a_moment(run, stage, moment)
        processes = [*run.processes("EngineActor"), *run.processes("TrainerActor")]
        os.kill(run.process.pid, how)
        assert run.end() == (-how if how == signal.SIGKILL else 130), run.text
        until_gone(processes)
    run = Running(recipe, tmp_path / "run", *MANY)
    assert run.end() == 0, run.text
    alike(run.out, run_and_stop)
    assert "Traceback" not in run.output.read_text()


def until_gone(processes: list[int]) -> None:
    """Wait until all processes of an ended run are gone."""
    for _ in range(600):
        if not any(map(title, processes)):
            return
        time.sleep(0.1)
    raise AssertionError(list(filter(None, map(title, processes))))
