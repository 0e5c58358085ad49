"""A run that is killed repeatedly ends with the numbers of an uninterrupted one."""

import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fieldcraft.engine.threads import ThreadCounts
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus
from fieldcraft.records.training_rollouts import ROLLOUTS_FOLDER, read_training_rollouts
from fieldcraft.runs.context import open_run_context

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
    steps: 5
    batch_size: 4
    checkpoint_every: 2
    evaluate: false
    optim: {lr: 5.0e-3, warmup_steps: 1, schedule: linear}
  rl:
    type: rl
    observations: real
    steps: 4
    questions_per_step: 3
    group_size: 3
    checkpoint_every: 2
    algorithm: ppo # its critic and OTC's counts have to go on as well
    minibatches: 2
    rewards: {em: 1.0, otc-grpo: 1.0}
    entropy_coef: 0.01 # so that steps train, whatever this model is rewarded for
    kl_coef: 0.1
    optim: {lr: 1.0e-3}
evaluation: {splits: {heldout: 8, train: 2, known: 2}, periodic: {every: 3, questions: 4}}
"""
FOLDING = """
name: tiny
device: cpu
instruction: ""
world: {name: trails}
tiny_model: {layers: 2, width: 32, heads: 2}
search: {top_k: 1}
budget:
  max_calls: 12
  max_turn_tokens: 32
  max_observation_tokens: 64
  max_context_tokens: 240
  fold: {trigger_tokens: 60, max_folds: 8, prompt: ""}
stages:
  base:
    type: sft
    dataset: folded
    max_examples: 600
    steps: 60
    batch_size: 8
    checkpoint_every: 40
    evaluate: false
    optim: {lr: 1.0e-2, warmup_steps: 5, schedule: linear}
  rl:
    type: rl
    steps: 4
    questions_per_step: 3
    group_size: 3
    checkpoint_every: 2
    entropy_coef: 0.01 # so that steps train, whatever this model is rewarded for
    optim: {lr: 1.0e-3}
evaluation: {splits: {heldout: 4, short: 2}, workflows: []}
"""
SECONDS = 120  # after which a run that hangs fails


def run(recipe: str, out: str) -> None:
    """Run `fieldcraft run RECIPE --out OUT` in a separate process."""
    from fieldcraft.cli.main import main
    from fieldcraft.runs import context

    # chosen by a clock, so different in each run
    vars(context)["find_fastest_threads"] = lambda _: ThreadCounts(1, 1)
    sys.stdout = sys.stderr = (Path(out).parent / "output").open("a")
    main(["run", recipe, "--out", out])


def lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def exists(name: str) -> Callable[[Path], bool]:
    return lambda out: (out / name).exists()


def step(stage: str, count: int) -> Callable[[Path], bool]:
    return lambda out: lines(out / stage / "metrics.jsonl") >= count


# The runs are one after another; each lasts long enough that none can be missed.
MOMENTS = [
    exists("recipe.json"),
    exists("start"),  # the first model is being written
    exists("start/model"),
    *(step("base", count) for count in range(1, 6)),
    exists("base/model"),
    *(step("rl", count) for count in range(1, 5)),
    exists("rl/stage.json"),
    exists("evaluations/rl.json"),
    exists("report.json"),
]


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_clocks(v) for k, v in value.items() if "second" not in k}
    return [without_clocks(entry) for entry in value] if isinstance(value, list) else value


def figures(out: Path) -> dict[str, Any]:
    """Return all numbers of a run except the measured times."""
    found = {
        stage: [json.loads(row) for row in (out / stage / "metrics.jsonl").read_text().splitlines()]
        for stage in ("base", "rl")
    }
    report = json.loads((out / "report.json").read_text())
    return without_clocks({**found, "evals": report["evals"], "stages": report["stages"]})


def weights(out: Path, stage: str) -> dict[str, torch.Tensor]:
    return load_file(out / stage / "model" / "model.safetensors")


@pytest.mark.slow
def test_killed_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compare_killed_run(RECIPE, MOMENTS, tmp_path, monkeypatch)
    assert [row["step"] for row in figures(whole)["rl"]] == [0, 1, 2, 3]
    assert all(row["grad_norm"] > 0 for row in figures(whole)["rl"])
    assert any(
        not torch.equal(weights(whole, "base")[name], tensor)
        for name, tensor in weights(whole, "rl").items()
    )


@pytest.mark.slow
def test_killed_while_rollouts_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [step("base", 50), step("rl", 1), step("rl", 3)]
    whole = compare_killed_run(FOLDING, moments, tmp_path, monkeypatch)
    assert all(row["folds_mean"] > 0 for row in figures(whole)["rl"])


@pytest.mark.slow
def test_an_asynchronous_stage_killed_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage's samples depend on time, so its numbers do not repeat. But it finishes, does each
    step once, and trains on no question twice."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = RECIPE.replace("    type: rl\n", "    type: rl\n    async: {max_staleness: 2}\n")
    killed = killed_at([*map(partial(step, "rl"), range(1, 5))], text, tmp_path)
    rows = figures(killed)["rl"]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(row["staleness_max"] <= 2 for row in rows)
    trained_groups = [
        record.trajectory.task.id
        for record in read_training_rollouts(killed / "rl" / ROLLOUTS_FOLDER)
    ]
    assert len(set(trained_groups)) == 4  # the first group of each step
    assert len(trained_groups) > 4


def compare_killed_run(
    text: str,
    moments: Sequence[Callable[[Path], bool]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Return the folder of an uninterrupted run, whose numbers equal those of a run killed at these
    moments."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    whole = killed_at([], text, tmp_path, "whole")
    killed = killed_at(moments, text, tmp_path)

    assert figures(killed) == figures(whole)
    for stage in ("base", "rl"):
        one, other = weights(whole, stage), weights(killed, stage)
        assert one.keys() == other.keys()
        assert [name for name in one if not torch.equal(one[name], other[name])] == []
    # no intermediate steps remain
    assert sorted(path.name for path in killed.rglob("*draft*")) == []
    assert sorted(path.name for path in killed.rglob("step-*")) == []
    return whole


def killed_at(
    moments: Sequence[Callable[[Path], bool]], text: str, tmp_path: Path, name: str = "killed"
) -> Path:
    """Return the folder of a run that was killed at these moments and then finished."""
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(text)
    # A server that has imported everything forks each process, so that a start is fast.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fieldcraft.cli.main", "fieldcraft.runs.run"])

    def start(out: Path) -> Any:
        process = context.Process(target=run, args=(str(recipe), str(out)))
        process.start()
        return process

    killed = tmp_path / name
    for reached in moments:
        process = start(killed)
        deadline = time.monotonic() + SECONDS
        while process.is_alive() and not reached(killed):
            assert time.monotonic() < deadline
            time.sleep(0.0005)
        process.kill()
        process.join()
        assert process.exitcode == -9, (tmp_path / "output").read_text()[-2000:]
    process = start(killed)
    process.join(SECONDS)
    assert process.exitcode == 0, (tmp_path / "output").read_text()[-2000:]
    return killed


def test_a_run_that_goes_on_uses_as_many_threads(tmp_path: Path) -> None:
    """Another number of threads would add floats in another order."""
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    recipe = load_recipe(str(tmp_path / "tiny.yaml"), [])
    before = torch.get_num_threads()

    async def resumed() -> ThreadCounts:
        async with open_run_context(recipe, tmp_path / "run", EventBus()) as context:
            record = f'{{"training": {before + 1}, "sampling": 3}}'
            (tmp_path / "run" / "threads.json").write_text(record)
            context.set_threads(model=None)  # no model is measured
            return context.threads

    assert asyncio.run(resumed()) == ThreadCounts(before + 1, 3)
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)
