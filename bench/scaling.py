"""How reinforcement learning of a 7B model scales from 2 to 512 GPUs, in a simulator.

    python bench/scaling.py [--gpus 2 --gpus 512 ...] [--staleness 0 ...] [--picture PNG]

The scheduler is the real one, and durations are modelled; docs/scaling.md has the formulas. In
turns all GPUs sample, then all train. With `max_staleness` they are split into trainers and engines
by the formula that makes a step shortest. The usual arguments are small, and take a minute.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import numpy as np
import typer
from matplotlib.figure import Figure

from fieldcraft.scaling.costs import Passes, Roofline, Shape, Trainers, publishing
from fieldcraft.scaling.devices import Device, find_device
from fieldcraft.scaling.pipeline import Pipeline, Simulated, simulate
from fieldcraft.scaling.steps import Rollouts, Split, best_split, sampling
from fieldcraft.scaling.workload import Tail, Workload

# Qwen2.5-7B in bfloat16: 7.1 billion parameters behind the embedding, and of a token's keys and
# values 28 layers x 4 heads x 128 numbers, twice.
SEVEN = Shape(7_070_000_000, layers=28, width=3584, bytes=2, token_bytes=2 * 28 * 4 * 128 * 2)
PASSES = Passes(trained=1, read=1, checkpointing=True)  # a policy whose probabilities are anew
MICRO_TOKENS = 16_384
ROWS = 256  # turns that an engine samples at once
# An agent that searches and reads; the longest of a thousand rollouts has ten times the median.
AGENT = Workload(
    prompt=500,
    turn=Tail(median=400, long=4000, most=8192),
    calls=4.0,
    most_calls=16,
    observation=600,
    latency=Tail(median=1.0, long=20.0, most=300.0),
)
# The mean of thousands of rollouts of AGENT, and the longest of a hundred.
MEAN = Rollouts(1, written=3100.0, length=5900.0, longest=14_000.0, waiting=38.0)
HEADS = (
    *("max_staleness", "GPUs", "trainers + engines", "s a step", "rollouts/s"),
    *("of linear", "trainers wait", "dropped"),
)
GROWS = 1.5  # times as fast with twice as many GPUs: throughput still grows


@cache
def split(device: Device, gpus: int, rollouts: int, staleness: int) -> Split:
    """Trainers and engines for so many GPUs; in turns all are both."""
    if staleness == 0:
        return Split(gpus, gpus, 0.0)
    step = replace(MEAN, count=rollouts)
    speed = Roofline(SEVEN, device)

    def training(trainers: int) -> float:
        of = Trainers(device, trainers, MICRO_TOKENS)
        return of.seconds(SEVEN, step.tokens, step.length, PASSES)

    found = best_split(
        gpus, 1, training, lambda engines: sampling(speed, engines, ROWS, step, staleness)
    )
    assert found is not None
    return found


def simulated(
    device: Device, gpus: int, questions: int, group: int, staleness: int, steps: int
) -> Simulated:
    chosen = split(device, gpus, questions * group, staleness)
    trainers = Trainers(device, chosen.trainers, MICRO_TOKENS)

    def learn(tokens: int, rollouts: int) -> float:
        return trainers.seconds(SEVEN, tokens, tokens / max(rollouts, 1), PASSES)

    return simulate(
        Pipeline(
            workload=AGENT,
            speeds=[Roofline(SEVEN, device)] * chosen.engines,
            learn_seconds=learn,
            questions=questions,
            group=group,
            max_staleness=staleness,
            rows=ROWS,
            publish_seconds=publishing(SEVEN, device, chosen.trainers, chosen.engines),
            steps=steps + 1 + staleness,
        )
    )


def growth_ends(rates: dict[int, float]) -> int:
    """The last number of GPUs up to which twice as many are GROWS times as fast or more."""
    gpus = sorted(rates)
    last = gpus[0]
    for few, many in itertools.pairwise(gpus):
        if rates[many] / rates[few] < GROWS ** np.log2(many / few):
            break
        last = many
    return last


def draw(rates: dict[str, dict[int, float]], picture: Path) -> None:
    """Rollouts a second against GPUs, a line for each order."""
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 8}):
        figure = Figure(figsize=(5, 3.2), layout="constrained", dpi=130)
        axes = figure.subplots()
        for name, of in rates.items():
            axes.plot(list(of), list(of.values()), "o-", markersize=3, linewidth=1.2, label=name)
        gpus = sorted(next(iter(rates.values())))
        first = max(of[gpus[0]] for of in rates.values())
        linear = [first * n / gpus[0] for n in gpus]
        axes.plot(gpus, linear, "k:", linewidth=0.8, label="linear")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(gpus, [str(n) for n in gpus])
        axes.set(xlabel="GPUs", ylabel="rollouts trained a second")
        axes.legend(frameon=False)
        figure.savefig(picture)


def main(
    gpus: Annotated[list[int], typer.Option()] = [2, 8, 32],  # noqa: B006
    staleness: Annotated[list[int], typer.Option()] = [0, 1, 4],  # noqa: B006
    questions: int = 8,
    group: int = 8,
    steps: int = 3,
    gpu: str = "h200",
    picture: Path | None = None,
) -> None:
    device = find_device(gpu)
    print(f"{questions * group} rollouts a step, {gpu}\n\n| {' | '.join(HEADS)} |")
    print(f"|{'---|' * len(HEADS)}")
    rates: dict[str, dict[int, float]] = {}
    began = time.perf_counter()
    for most in staleness:
        name = f"max_staleness {most}" if most else "in turns"
        for n in gpus:
            found = simulated(device, n, questions, group, most, steps)
            of = rates.setdefault(name, {})
            of[n] = found.rate
            places = split(device, n, questions * group, most)
            shown = f"{places.trainers} + {places.engines}" if most else f"{n}, in turns"
            dropped = sum(step.dropped for step in found.counted)
            trained = sum(step.rollouts for step in found.counted)
            print(
                f"| {most} | {n} | {shown} | {found.seconds / len(found.counted):.1f}"
                f" | {found.rate:.2f} | {found.rate / of[gpus[0]] * gpus[0] / n:.2f}"
                f" | {found.waiting:.2f} | {dropped / (dropped + trained):.3f} |",
                flush=True,
            )
    print(f"\n{time.perf_counter() - began:.0f} s of this machine")
    for name, of in rates.items():
        print(f"{name}: throughput grows up to {growth_ends(of)} GPUs")
    if picture is not None:
        draw(rates, picture)


if __name__ == "__main__":
    typer.run(main)
