"""Measure how the time relative to TRL and `generate` changes with length, rollouts and model size.

    pip install trl
    python bench/growth.py runs/growth [--panel sampling] [--figure docs/growth.png] [--threads 1]

Runs bench/train.py and bench/generate.py once per point, each in a process of its own. Points are
stored in RUNS/points.jsonl, and a later call measures only missing ones, so the panels can be
measured by several calls. Both get micro-batches of the same number of tokens in a GRPO step. The
figure has the time of the peer divided by fieldcraft's: above 1, fieldcraft is faster.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import floor, log2
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

SMALL = {"features": 256, "layers": 6, "words": 8192}
MOST_TOKENS = 2**16  # per step or batch
LONG = 2**13  # tokens of a step that is measured once after its first, otherwise twice
SHAPES: Mapping[float, Mapping[str, Any]] = {  # by millions of parameters
    0.5: {"features": 64, "layers": 6, "words": 4096},
    7: SMALL,
    135: {"shape": "smollm2"},
    360: {"shape": "smollm2-360m"},
}


@dataclass(frozen=True, eq=False)
class Point:
    panel: str
    curve: str
    x: float
    script: str
    options: Mapping[str, Any]

    def format_options(self, threads: int) -> list[str]:
        options = {**self.options, "threads": threads}
        return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


def iterate_grpo() -> Iterator[Point]:
    """Yield GRPO steps with 256 shared tokens of the prompt."""
    for group in (2, 8, 64):
        for answer in (64, 256, 1024, 2048, 4096, 8192):
            if group * answer <= MOST_TOKENS:
                longest = 256 + answer
                fitting = 2 ** floor(log2(max(1, 16384 // longest)))  # divides every group
                rows = min(8, group, fitting)
                options = SMALL | {
                    **{"step": "grpo", "groups": 1, "group": group, "prompt": 256},
                    **{"answer": answer, "rows": rows, "micro_tokens": rows * longest},
                    "repeats": _get_repeats(group * answer),
                }
                yield Point("GRPO step", f"group of {group}", answer, "train", options)


def iterate_supervised() -> Iterator[Point]:
    """Yield supervised steps with 16 examples of a quarter to all of the longest length."""
    for rows in (1, 4):
        for longest in (128, 512, 2048, 4096, 8192):
            options = SMALL | {
                **{"step": "sft", "groups": 1, "group": 16, "prompt": longest - 32, "answer": 32},
                **{"shortest": longest // 4, "rows": rows, "micro_tokens": max(4096, longest)},
                "repeats": _get_repeats(16 * longest),
            }
            if rows * longest <= MOST_TOKENS // 2:
                yield Point("supervised step", f"TRL's rows: {rows}", longest, "train", options)


def iterate_sampling() -> Iterator[Point]:
    for rows in (1, 8, 32, 256):
        for context in (256, 1024, 2048, 4096, 8192):
            if rows * context <= MOST_TOKENS:
                repeats = _get_repeats(rows * context)
                options = SMALL | {"rows": rows, "context": context, "repeats": repeats}
                yield Point("sampling", f"rollouts: {rows}", context, "generate", options)


def iterate_turns() -> Iterator[Point]:
    for rows in (1, 8, 32):
        for turns in (1, 2, 4, 8):
            options = SMALL | {"rows": rows, "context": 512, "turns": turns, "repeats": 2}
            yield Point("sampling in turns", f"rollouts: {rows}", turns, "generate", options)


def iterate_sizes() -> Iterator[Point]:
    step = {"groups": 1, "group": 8, "rows": 8, "repeats": 1}
    grpo = {**step, "step": "grpo", "prompt": 160, "answer": 60}
    sft = {**step, "step": "sft", "prompt": 270, "answer": 30, "rows": 4}
    sampling = {"rows": 8, "context": 256, "new": 32, "repeats": 1}
    for millions, shape in SHAPES.items():
        yield Point("model size", "GRPO, group of 8", millions, "train", {**shape, **grpo})
        yield Point("model size", "supervised", millions, "train", {**shape, **sft})
        yield Point("model size", "sampling, 8", millions, "generate", {**shape, **sampling})


PANELS = {
    "GRPO step": (iterate_grpo, "tokens of an answer"),
    "supervised step": (iterate_supervised, "tokens of the longest example"),
    "sampling": (iterate_sampling, "tokens of the context"),
    "sampling in turns": (iterate_turns, "turns of a rollout"),
    "model size": (iterate_sizes, "millions of parameters"),
}


def main(
    runs: Path,
    panel: Annotated[list[str] | None, typer.Option(help="Measure only this panel.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the curves.")] = None,
    threads: int = 1,
) -> None:
    runs.mkdir(parents=True, exist_ok=True)
    file = runs / "points.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    ratios = {}
    if unknown := set(panel or ()) - set(PANELS):
        raise typer.BadParameter(f"no panel '{unknown.pop()}': use one of {', '.join(PANELS)}.")
    for point in (p for name in panel or PANELS for p in PANELS[name][0]()):
        name: dict[str, Any] = {"script": point.script, "options": point.format_options(threads)}
        row = next((row for row in rows if row.items() >= name.items()), None)
        if row is None:
            typer.echo(f"measuring {point.script} {' '.join(name['options'])}", err=True)
            row = name | _measure(point.script, name["options"])
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")
        ratios[point] = _get_ratio(row)
        typer.echo(f"| {point.panel} | {point.curve} | {point.x:g} | {ratios[point]:.2f} |")
    if figure is not None:
        draw(ratios, figure)


def _get_repeats(tokens: int) -> int:
    return 1 if tokens > LONG else 2


def _measure(script: str, options: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        path = str(Path(__file__).parent / f"{script}.py")
        done = subprocess.run(
            [sys.executable, path, *options, f"--record={record}"], capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{script} {' '.join(options)} failed:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(record.read_text())
        return found


def _get_ratio(record: Mapping[str, Any]) -> float:
    seconds = record["seconds"]
    (peer,) = set(seconds) - {"fieldcraft"}
    ratio: float = seconds[peer] / seconds["fieldcraft"]
    return ratio


def draw(ratios: Mapping[Point, float], path: Path) -> None:
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    axes = figure.subplots(2, 3).flat
    for (panel, (_, label)), axis in zip(PANELS.items(), axes, strict=False):
        curves: dict[str, dict[float, float]] = {}
        for point, ratio in ratios.items():
            if point.panel == panel:
                curves.setdefault(point.curve, {})[point.x] = ratio
        for curve, values in curves.items():
            axis.plot(values.keys(), values.values(), "o-", markersize=3, label=curve)
        set_axes(axis, panel, label, sorted({x for values in curves.values() for x in values}))
    axes[5].axis("off")
    figure.savefig(path, dpi=110)


def set_axes(axis: Axes, panel: str, label: str, places: list[float]) -> None:
    axis.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axis.set(title=panel, xlabel=label, ylabel="times as fast", xscale="log", yscale="log")
    axis.xaxis.set_major_locator(FixedLocator(places))
    axis.yaxis.set_major_locator(FixedLocator([0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8]))
    for each in (axis.xaxis, axis.yaxis):
        each.set_minor_locator(NullLocator())
        each.set_major_formatter(ScalarFormatter())
    axis.tick_params(axis="x", labelsize=7)
    axis.legend(fontsize=7)


if __name__ == "__main__":
    typer.run(main)
