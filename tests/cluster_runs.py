"""Small multi-process runs in which processes are killed; for tests."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fieldcraft.records.training_rollouts import ROLLOUTS_FOLDER, read_training_rollouts
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.types import Trajectory

RECIPE = """
name: tiny
device: cpu
instruction: ""
world: {name: atlas, people: 40, variants: 3}
tiny_model: {layers: 2, width: 32, heads: 2}
search: {top_k: 1}
budget: {max_calls: 2, max_turn_tokens: 16, max_context_tokens: 200}
stages:
  base:
    type: sft
    dataset: base
    max_examples: 40
    steps: 4
    batch_size: 4
    checkpoint_every: 2
    evaluate: false
    optim: {lr: 5.0e-3, warmup_steps: 1, schedule: linear}
  rl:
    type: rl
    observations: real
    steps: 5
    questions_per_step: 2
    group_size: 3
    checkpoint_every: 1
    entropy_coef: 0.01 # so that steps train, whatever this model is rewarded for
    kl_coef: 0.1
    optim: {lr: 1.0e-3}
evaluation: {splits: {heldout: 8, train: 2, known: 2}}
"""
STEPS = {"base": 4, "rl": 5}
SECONDS = 900  # deadline after which a hanging run fails


class Running:
    """Monitored run in separate processes."""

    def __init__(self, recipe: Path, out: Path, *overrides: str) -> None:
        self.out = out
        self.output = out.with_suffix(".txt")
        command = [sys.executable, "-m", "fieldcraft", "run", str(recipe), *overrides]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "--out", str(out)],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=output,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    def until(self, there: Callable[[], Any]) -> Any:
        """Return the first true result of `there`. Fails if the run ends before."""
        deadline = time.monotonic() + SECONDS
        while not (found := there()):
            assert self.process.poll() is None, self.text
            if time.monotonic() > deadline:
                self.process.kill()  # its processes end with it
                raise AssertionError(self.text)
            time.sleep(0.01)
        return found

    def until_step(self, stage: str, count: int) -> None:
        self.until(lambda: len(rows(self.out, stage)) >= count)

    def processes(self, kind: str) -> list[int]:
        """Return the Ray processes of the run that execute a class."""
        below = _below(self.process.pid)
        return [process for process in below if title(process).startswith(f"ray::{kind}")]

    def end(self) -> int:
        """Wait for the run and return its exit status."""
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    @property
    def text(self) -> str:
        return self.output.read_text()[-4000:]


def rows(out: Path, stage: str) -> list[dict[str, Any]]:
    path = out / stage / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def alike(out: Path, whole: Path) -> None:
    """Check that two runs completed the steps of each stage, each once and with the same data, and
    have equal metrics."""
    for stage, steps in STEPS.items():
        found, expected = rows(out, stage), rows(whole, stage)
        assert (
            [row["step"] for row in found] == [row["step"] for row in expected] == [*range(steps)]
        )
        for key in ("loss", "grad_norm", "tokens"):
            one, other = ([row[key] for row in found], [row[key] for row in expected])
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5, err_msg=key)
    assert rollouts(out) == rollouts(whole)
    reports = [json.loads((run / "report.json").read_text())["evals"] for run in (out, whole)]
    assert reports[0].keys() == reports[1].keys()
    for name in reports[0]:
        answered = answers(out, name)
        assert answered == answers(whole, name)
        assert len(dict(answered)) == len(answered) > 0  # each question once


def rollouts(out: Path) -> list[tuple[int, str, list[int]]]:
    """Return step, question and tokens of the recorded rollouts."""
    recorded = read_training_rollouts(out / "rl" / ROLLOUTS_FOLDER)
    return [
        (rollout.step, rollout.trajectory.task.id, _tokens(rollout.trajectory))
        for rollout in recorded
    ]


def answers(out: Path, name: str) -> list[tuple[str, list[int]]]:
    """Return question and tokens of an evaluation."""
    found = read_trajectories(out / "evaluations" / f"{name}.jsonl")
    return [(one.task.id, _tokens(one)) for one in found]


def _tokens(trajectory: Trajectory) -> list[int]:
    return [token for segment in trajectory.segments for token in segment.ids]


def _below(root: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has exited
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def title(process: int) -> str:
    """Return the title of a process; "" if it has exited."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
