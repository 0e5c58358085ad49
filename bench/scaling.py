"""Simulate the scaling of reinforcement learning of a 7B model from 2 to 512 H200 GPUs.

    python bench/scaling.py [--gpus 2 --gpus 512 ...] [--staleness 0 ...] [--seed 0 ...]
        [--keys-at GPUS]

The scheduler is the real one, and durations are modelled; the formulas are in
docs/lab-notes/scaling.md. In synchronous runs, all GPUs first sample and then train. With
`max_staleness`, they are split into trainers and engines so that the formula's step is shortest.
Then keys are changed one at a time, for one number of GPUs with the last `--staleness`. The default
arguments are small and take a minute.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated

import typer

from simulation.durations import (
    H200,
    DeviceSplit,
    ForwardPasses,
    ModelShape,
    RolloutLoad,
    Roofline,
    TrainingCost,
    estimate_broadcast_seconds,
    estimate_sampling_seconds,
    find_best_split,
)
from simulation.pipeline import PipelineModel, SimulationResult, simulate
from simulation.workload import LogNormal, RolloutWorkload

# Qwen2.5-7B in bfloat16: 7.1 billion parameters after the embedding; the keys and the values of a
# token have 28 layers x 4 heads x 128 numbers each.
SEVEN = ModelShape(
    7_070_000_000,
    layers=28,
    hidden_size=3584,
    dtype_bytes=2,
    kv_bytes_per_token=2 * 28 * 4 * 128 * 2,
)
PASSES = ForwardPasses(
    trained_models=1, frozen_models=1, checkpointing=True
)  # the policy recomputes log-probabilities
MICRO_TOKENS = 16_384
# An agent that searches and reads; the longest of a thousand rollouts has ten times the median.
AGENT = RolloutWorkload(
    prompt_tokens=500,
    turn_tokens=LogNormal(median=400, p99=4000, maximum=8192),
    mean_calls=4.0,
    max_calls=16,
    observation_tokens=600,
    tool_latency=LogNormal(median=1.0, p99=20.0, maximum=300.0),
)
# Mean of thousands of rollouts of AGENT, and the longest of a hundred.
MEAN = RolloutLoad(
    1, policy_tokens=3100.0, mean_tokens=5900.0, max_policy_tokens=14_000.0, max_tool_seconds=38.0
)
HEADS = (
    *("max_staleness", "GPUs", "trainers + engines", "s/step", "rollouts/s (from, to)"),
    *("of linear", "trainers wait", "dropped"),
)
GROWS = 1.5  # minimum speedup with twice as many GPUs for growing throughput


@dataclass(frozen=True, slots=True)
class Setting:
    """Simulated recipe keys. `engines` is a factor on the number from the formula."""

    gpus: int
    questions: int
    group: int
    staleness: int
    calls: int = 1024  # budget.max_concurrent_calls
    rows: int = 256  # per engine
    engines: float = 1.0


KEYS: dict[str, Callable[[Setting], Setting]] = {
    "async.max_staleness x 2": lambda s: replace(s, staleness=2 * s.staleness or 1),
    "questions x 2": lambda s: replace(s, questions=2 * s.questions),
    "group x 2": lambda s: replace(s, group=2 * s.group),
    "rows per engine x 2": lambda s: replace(s, rows=2 * s.rows),
    "budget.max_concurrent_calls x 4": lambda s: replace(s, calls=4 * s.calls),
    "budget.max_concurrent_calls=64": lambda s: replace(s, calls=64),
    "cluster.engines x 1.25, fewer trainers": lambda s: replace(s, engines=1.25),
    "cluster.engines x 0.8, more trainers": lambda s: replace(s, engines=0.8),
}


@cache
def split(setting: Setting) -> DeviceSplit:
    """Return the split into trainers and engines; in synchronous runs all GPUs are both."""
    if setting.staleness == 0:
        return DeviceSplit(setting.gpus, setting.gpus, 0.0)
    step = replace(MEAN, count=setting.questions * setting.group)
    speed = Roofline(SEVEN, H200)

    def training(trainers: int) -> float:
        of = TrainingCost(H200, trainers, MICRO_TOKENS)
        return of.step_seconds(SEVEN, step.total_tokens, step.mean_tokens, PASSES)

    def sampled(engines: int) -> float:
        return estimate_sampling_seconds(speed, engines, setting.rows, step, setting.staleness)

    found = find_best_split(setting.gpus, 1, training, sampled)
    assert found is not None
    engines = min(max(round(found.engines * setting.engines), 1), setting.gpus - 1)
    return DeviceSplit(setting.gpus - engines, engines, found.seconds)


def simulated(setting: Setting, steps: int, seed: int) -> SimulationResult:
    chosen = split(setting)
    trainers = TrainingCost(H200, chosen.trainers, MICRO_TOKENS)

    def learn(tokens: int, rollouts: int) -> float:
        return trainers.step_seconds(SEVEN, tokens, tokens / max(rollouts, 1), PASSES)

    return simulate(
        PipelineModel(
            workload=AGENT,
            speeds=[Roofline(SEVEN, H200)] * chosen.engines,
            learn_seconds=learn,
            questions=setting.questions,
            group=setting.group,
            max_staleness=setting.staleness,
            rows=setting.rows,
            concurrent_calls=setting.calls,
            publish_seconds=estimate_broadcast_seconds(
                SEVEN, H200, chosen.trainers, chosen.engines
            ),
            steps=steps + 1 + setting.staleness,
            seed=seed,
        )
    )


def row(setting: Setting, runs: Sequence[SimulationResult], first: float) -> str:
    """Return a row of means over seeds, with the slowest and fastest seed. `first` is the rate per
    GPU with the fewest GPUs."""
    places, rates = split(setting), [run.rollouts_per_second for run in runs]
    counted = [step for run in runs for step in run.measured_steps]
    dropped = sum(step.dropped for step in counted)
    trained = sum(step.rollouts for step in counted)
    together = f"{places.trainers} + {places.engines}"
    cells = (
        setting.staleness,
        setting.gpus,
        together if setting.staleness else f"{setting.gpus}, synchronous",
        f"{sum(run.seconds for run in runs) / len(counted):.1f}",
        f"{statistics.mean(rates):.2f} ({min(rates):.2f}, {max(rates):.2f})",
        f"{statistics.mean(rates) / setting.gpus / first:.2f}",
        f"{statistics.mean(run.wait_share for run in runs):.2f}",
        f"{dropped / (dropped + trained):.3f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def growth_ends(rates: dict[int, float]) -> int:
    """Return the number of GPUs up to which doubling them gives at least a GROWS-fold rate."""
    gpus = sorted(rates)
    last = gpus[0]
    for few, many in itertools.pairwise(gpus):
        if rates[many] / rates[few] < GROWS ** math.log2(many / few):
            break
        last = many
    return last


def change_keys(setting: Setting, steps: int, seeds: Sequence[int]) -> None:
    """Print a table with the effect of each key, and the best key."""
    usual = statistics.mean(simulated(setting, steps, seed).rollouts_per_second for seed in seeds)
    print(f"\n{setting.gpus} GPUs, max_staleness {setting.staleness}: {usual:.2f} rollouts/s")
    print("\n| key | trainers + engines | rollouts/s (from, to) | ratio |\n|---|---|---|---|")
    worth = {}
    for name, change in KEYS.items():
        other = change(setting)
        rates = [simulated(other, steps, seed).rollouts_per_second for seed in seeds]
        worth[name] = statistics.mean(rates) / usual
        print(
            f"| {name} | {split(other).trainers} + {split(other).engines}"
            f" | {statistics.mean(rates):.2f} ({min(rates):.2f}, {max(rates):.2f})"
            f" | {worth[name]:.2f} |",
            flush=True,
        )
    best = max(worth, key=worth.__getitem__)
    print(f"\nThe best change: {best}, {worth[best]:.2f} times as many rollouts per second.")


def main(
    gpus: Annotated[list[int], typer.Option(min=2)] = [2, 8, 32],  # noqa: B006
    staleness: Annotated[list[int], typer.Option(min=0)] = [0, 1, 4],  # noqa: B006
    seed: Annotated[list[int], typer.Option()] = [0],  # noqa: B006
    questions: int = 8,
    group: int = 8,
    steps: int = 3,
    keys_at: int | None = None,
) -> None:
    print(f"{questions * group} rollouts per step, {len(seed)} seeds\n")
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    rates: dict[str, dict[int, float]] = {}
    began = time.perf_counter()
    for most in staleness:
        of = rates.setdefault(f"max_staleness {most}" if most else "synchronous", {})
        for n in sorted(gpus):
            setting = Setting(n, questions, group, most)
            runs = [simulated(setting, steps, number) for number in seed]
            of[n] = statistics.mean(run.rollouts_per_second for run in runs)
            print(row(setting, runs, of[min(gpus)] / min(gpus)), flush=True)
    print()
    for name, of in rates.items():
        print(f"{name}: throughput grows up to {growth_ends(of)} GPUs")
    change_keys(Setting(keys_at or max(gpus), questions, group, staleness[-1]), steps, seed)
    print(f"{time.perf_counter() - began:.0f} s on this machine")


if __name__ == "__main__":
    typer.run(main)
