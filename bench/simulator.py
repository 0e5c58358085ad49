"""Compare the simulator of docs/lab-notes/scaling.md with measured runs.

    python bench/simulator.py runs/async/RUN-staleness-0 runs/async/RUN-staleness-1 [...]

Each folder is a run of bench/async.py, the first with max_staleness 0. The simulator uses the
lengths of the recorded rollouts, the mean number of calls, and the latencies of the server of
bench/async.py, which are sampled with the same seed in each run. The speed of the trainer is
measured in asynchronous runs, from the time in which it does not wait. The speed of the engine is
fitted to the throughput of the synchronous run. So the comparison tests the throughput of the other
runs.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldcraft.records.metrics import MetricsLog
from simulation.pipeline import PipelineModel, simulate
from simulation.workload import LogNormal, RolloutWorkload

STAGE = "rl2"
MAX_CALLS = 3  # that a question of Atlas requires
HALVINGS = 7  # of the search interval of the engine's speed


@dataclass(frozen=True, slots=True)
class Atlas(RolloutWorkload):
    """Rollouts of Atlas, in which each possible call is made with the same probability."""

    def sample_num_calls(self, rng: random.Random) -> int:
        return sum(rng.random() < self.mean_calls / MAX_CALLS for _ in range(MAX_CALLS))


@dataclass(frozen=True, slots=True)
class Server(LogNormal):
    """Latencies of the server of bench/async.py, in the order of its calls."""

    drawn: random.Random = field(default_factory=lambda: random.Random(0))

    def sample(self, rng: random.Random) -> float:
        return super(Server, self).sample(self.drawn)


@dataclass(frozen=True, slots=True)
class Steady:
    """An engine with constant seconds per token of each row, including prefill."""

    token: float

    def decode_seconds(self, rows: int, cached_tokens: float) -> float:
        return rows * self.token

    def prefill_seconds(self, tokens: float) -> float:
        return 0.0


@dataclass(frozen=True)
class Run:
    """Measurements of a run."""

    folder: Path
    rows: Sequence[dict[str, Any]]
    workload: RolloutWorkload
    questions: int
    group: int
    staleness: int

    @property
    def dropped(self) -> int:
        return sum(row.get("rollouts_dropped", 0) for row in self.rows)

    @property
    def rate(self) -> float:
        trained = len(self.rows) * self.questions * self.group - self.dropped
        return trained / sum(row["seconds"] for row in self.rows)


def read_run(folder: Path) -> Run:
    stage = json.loads((folder / "recipe.json").read_text())["stages"][STAGE]
    files = sorted((folder / STAGE / "rollouts").glob("*.jsonl"))
    kept = [
        json.loads(line)["trajectory"] for file in files for line in file.read_text().splitlines()
    ]
    lengths: dict[str, list[int]] = {}
    for rollout in kept:
        for segment in rollout["segments"]:
            lengths.setdefault(segment["author"], []).append(len(segment["ids"]))
    turns = sorted(lengths["policy"])
    rows = MetricsLog(folder / STAGE / "metrics.jsonl").read_rows()
    workload = Atlas(
        prompt_tokens=round(statistics.mean(lengths["prompt"])),
        turn_tokens=LogNormal(statistics.median(turns), turns[int(0.99 * len(turns))], turns[-1]),
        observation_tokens=round(statistics.mean(lengths["tool"])),
        mean_calls=statistics.mean(row["calls_mean"] for row in rows),
    )
    staleness = stage["async"]["max_staleness"]
    return Run(folder, rows, workload, stage["questions_per_step"], stage["group_size"], staleness)


def learning(runs: Sequence[Run]) -> float:
    """Return the seconds of the trainer per token."""
    rows = [row for run in runs for row in run.rows if "trainer_wait_seconds" in row]
    seconds = sum(row["seconds"] - row["trainer_wait_seconds"] for row in rows)
    return float(seconds / sum(row["tokens"] for row in rows))


def predicted(run: Run, token: float, learn: float, seeds: int) -> list[tuple[float, float]]:
    """Return the rollouts per second and the dropped share for each seed. As in a measured run, all
    steps count."""
    found = []
    for seed in range(seeds):
        steps = simulate(
            PipelineModel(
                workload=replace(run.workload, tool_latency=Server(0.2, 5.0, 50.0)),
                speeds=[Steady(token)],
                learn_seconds=lambda tokens, _: tokens * learn,
                questions=run.questions,
                group=run.group,
                max_staleness=run.staleness,
                concurrent_calls=1024,
                steps=len(run.rows),
                seed=seed,
            )
        ).steps
        trained, dropped = (sum(getattr(s, key) for s in steps) for key in ("rollouts", "dropped"))
        found.append((trained / steps[-1].finished, dropped / (trained + dropped)))
    return found


def fitted(run: Run, learn: float, seeds: int) -> float:
    """Return the engine's seconds per token that reproduce the rate of a synchronous run."""
    low, high = 0.0, 0.01
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        rates = [rate for rate, _ in predicted(run, middle, learn, seeds)]
        low, high = (middle, high) if statistics.median(rates) > run.rate else (low, middle)
    return (low + high) / 2


def main(
    folders: Annotated[list[Path], typer.Argument(exists=True, file_okay=False)],
    seeds: int = 20,
) -> None:
    runs = [read_run(folder) for folder in folders]
    if runs[0].staleness or len(runs) < 2:
        raise typer.BadParameter("give a synchronous run first, followed by asynchronous ones.")
    learn = learning(runs[1:])
    token = fitted(runs[0], learn, seeds)
    print(f"The trainer takes {learn * 1e6:.0f} us per token, the engine {token * 1e6:.0f} us.")
    print(
        "\n| max_staleness | calls per rollout | measured, rollouts/s | simulated, median (range)"
        " | ratio | dropped, measured | simulated |\n|---|---|---|---|---|---|---|"
    )
    for run in runs:
        found = predicted(run, token, learn, seeds)
        rates = sorted(rate for rate, _ in found)
        middle = statistics.median(rates)
        lost = run.dropped / (len(run.rows) * run.questions * run.group)
        print(
            f"| {run.staleness} | {run.workload.mean_calls:.2f} | {run.rate:.1f}"
            f" | {middle:.1f} ({rates[0]:.1f} to {rates[-1]:.1f}) | {middle / run.rate:.2f}"
            f" | {lost:.3f} | {statistics.mean(drop for _, drop in found):.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)
