"""Measure speed and exact match of synchronous and asynchronous RL with a slow search.

    python bench/async.py RUN [RUN ...] --staleness 0 --staleness 2 [--steps 60] [--picture PNG]

Each RUN is a finished run of `autocoa-mini`. Its stage rl2 is trained again from the model of rl1,
with a local search server whose latency is log-normal, with a median of 0.2 s and a 99th percentile
of 5 s. Complete runs in the folder `--out` are not repeated.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import httpx
import matplotlib as mpl
import numpy as np
import typer
from matplotlib.figure import Figure
from starlette.requests import ClientDisconnect

from fieldcraft.extensions.search.index import SearchIndex
from fieldcraft.extensions.search.server import create_app
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.tools.serving import serve_in_thread

MEDIAN, LONG = 0.2, 5.0  # seconds of a call: median and 99th percentile
NORMAL_99 = 2.326348  # the 99th percentile of the standard normal distribution
SIGMA = math.log(LONG / MEDIAN) / NORMAL_99
STAGE = "rl2"
SLOW = {
    "search.timeout_seconds": 50.0,  # the slowest of 10,000 calls takes 34 s
    "budget.max_concurrent_calls": 1024,
}

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Slow:
    """An ASGI application with a delay before its responses."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.rng = random.Random(0)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(self.rng.lognormvariate(math.log(MEDIAN), SIGMA))
        with suppress(ClientDisconnect):  # of an abandoned rollout
            await self.app(scope, receive, send)


def port_of(folder: Path) -> int:
    """Return the server port that a run expects when it is resumed; 0 for a new run."""
    recipe = folder / "recipe.json"
    if not recipe.exists():
        return 0
    return httpx.URL(json.loads(recipe.read_text())["search"]["url"]).port or 0


def train(run: Path, staleness: int, steps: int, out: Path) -> Path:
    """Train the stage again in a separate process, and return the folder of the run."""
    folder = out / f"{run.name}-staleness-{staleness}"
    if (folder / "evaluations" / f"{STAGE}.json").exists():
        return folder
    recipe = json.loads((run / "recipe.json").read_text())
    stage = recipe["stages"][STAGE]
    stage |= {"start_from": None, "steps": steps, "async": {"max_staleness": staleness}}
    if staleness:
        del (
            stage["sampler_is_cap"],
            stage["sampler_reject"],
        )  # set to the defaults of asynchronous stages
    recipe |= {"model": str((run / "rl1" / "model").resolve()), "stages": {STAGE: stage}}
    recipe["evaluation"] |= {"workflows": [], "splits": {"heldout": 300}, "periodic": None}
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{folder.name}.json"
    file.write_text(json.dumps(recipe))
    app = Slow(create_app(SearchIndex.load(run / "index")))
    with serve_in_thread(app, port_of(folder)) as url:
        settings = [f"{key}={value}" for key, value in {"search.url": url, **SLOW}.items()]
        command = [sys.executable, "-m", "fieldcraft", "run", str(file), "--out", str(folder)]
        subprocess.run([*command, *settings], check=True, stdout=sys.stderr)
    return folder


def measure(folder: Path, rollouts: int) -> dict[str, float]:
    """Return trained rollouts per second, staleness, and exact match on held-out questions of a
    run."""
    rows = MetricsLog(folder / STAGE / "metrics.jsonl").read_rows()
    report = json.loads((folder / "report.json").read_text())
    dropped = sum(row.get("rollouts_dropped", 0) for row in rows)
    trained = len(rows) * rollouts - dropped
    return {
        "seconds": statistics.median(row["seconds"] for row in rows),
        "rate": trained / sum(row["seconds"] for row in rows),
        "staleness": statistics.mean(row.get("staleness_mean", 0.0) for row in rows),
        "dropped": dropped / (dropped + trained),
        "clipped": statistics.mean(row["clip_fraction"] for row in rows),
        "em": report["evals"][STAGE]["em"],
    }


def draw(points: dict[str, list[tuple[float, float]]], picture: Path) -> None:
    """Draw exact match against staleness: a line per run, and their mean."""
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 8}):
        figure = Figure(figsize=(5, 3), layout="constrained", dpi=110)
        axes = figure.subplots()
        for name, of_run in points.items():
            axes.plot(*np.array(sorted(of_run)).T, "o-", alpha=0.5, linewidth=0.8, label=name)
        mean = np.array([sorted(of_run) for of_run in points.values()]).mean(axis=0)
        axes.plot(*mean.T, "k-", linewidth=1.8, label="mean")
        axes.set(xlabel="mean staleness of a token, versions", ylabel="exact match, held-out")
        axes.legend(frameon=False)
        figure.savefig(picture)


def main(
    runs: list[Path],
    staleness: Annotated[list[int], typer.Option()] = [0, 1, 2, 4],  # noqa: B006
    steps: int = 60,
    out: Path = Path("runs/async"),
    picture: Path | None = None,
) -> None:
    for run in runs:
        if not (run / "rl1" / "model").is_dir() or not (run / "index").is_dir():
            raise typer.BadParameter(f"{run} is not a finished run of autocoa-mini.")
    print(
        "| run | max_staleness | s/step | rollouts/s | ratio | staleness | dropped | clipped"
        " | EM |\n|---|---|---|---|---|---|---|---|---|"
    )
    points: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        settings = json.loads((run / "recipe.json").read_text())["stages"][STAGE]
        rollouts = settings["questions_per_step"] * settings["group_size"]
        first = 0.0
        for most in staleness:
            m = measure(train(run, most, steps, out), rollouts)
            first = first or m["rate"]
            points.setdefault(run.name, []).append((m["staleness"], m["em"]))
            print(
                f"| {run.name} | {most} | {m['seconds']:.2f} | {m['rate']:.1f}"
                f" | {m['rate'] / first:.2f} | {m['staleness']:.2f} | {m['dropped']:.3f}"
                f" | {m['clipped']:.3f} | {m['em']:.3f} |",
                flush=True,
            )
    if picture is not None:
        draw(points, picture)


if __name__ == "__main__":
    typer.run(main)
