"""The same recipe with several seeds: a run for each, side by side, and one table over all."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from fieldcraft.config.recipe import Recipe, dump_recipe, split_titles
from fieldcraft.config.stages import Rl
from fieldcraft.evals.report import write_report
from fieldcraft.evals.seeds import build_table, write_page
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.runs.folder import RunFolder
from fieldcraft.records.files import read_json
from fieldcraft.types import UserError

RUN = (sys.executable, "-m", "fieldcraft", "run")


def sweep(recipe: Recipe, out: Path, console: Console) -> dict[str, Any]:
    """Run every seed that is not done in OUT/seed-N, then write the table, which is also returned.

    Every run is a process of its own, the ordinary command on an ordinary recipe, so it can be gone
    on with, asked and shown like any other. Raises UserError when one of them fails.
    """
    folder = RunFolder(out, dump_recipe(recipe))
    with folder.alone():
        asyncio.run(_run_all(recipe, out, console))
        reports = {seed: read_json(_run_of(out, seed) / "report.json") for seed in recipe.seeds}
        table = build_table(recipe, reports)
        write_report(table, out / "report.json")
        links = {seed: f"seed-{seed}/report.html" for seed in recipe.seeds}
        page = out / "report.html"
        write_page(table, links, _curves(recipe, out), split_titles(recipe), page)
    return table


def _run_of(out: Path, seed: int) -> Path:
    return out / f"seed-{seed}"


def _curves(recipe: Recipe, out: Path) -> dict[str, list[list[dict[str, Any]]]]:
    """The metric rows of every stage of reinforcement learning, of every seed."""
    return {
        name: [
            MetricsLog(_run_of(out, seed) / name / "metrics.jsonl").rows() for seed in recipe.seeds
        ]
        for name, stage in recipe.stages.items()
        if isinstance(stage, Rl)
    }


async def _run_all(recipe: Recipe, out: Path, console: Console) -> None:
    """At most `side_by_side` runs at once; the first that fails ends the others."""
    gate = asyncio.Semaphore(recipe.side_by_side)
    threads = threads_each(recipe.side_by_side)

    async def one(seed: int) -> None:
        async with gate:
            await _run(recipe, seed, _run_of(out, seed), threads, console)

    async with asyncio.TaskGroup() as group:
        for seed in recipe.seeds:
            if not (_run_of(out, seed) / "report.html").exists():  # a run writes it last
                group.create_task(one(seed))


def threads_each(side_by_side: int) -> int:
    """CPU threads for each of several processes: a share of the cores, or of OMP_NUM_THREADS."""
    bound = os.environ.get("OMP_NUM_THREADS", "")
    cores = int(bound) if bound.isdigit() else os.cpu_count() or 1
    return max(1, cores // side_by_side)


async def _run(recipe: Recipe, seed: int, out: Path, threads: int, console: Console) -> None:
    """One seed in a child process, its lines shown with the seed in front.

    However this ends, the child ends too. It is killed: a run survives that at any moment.
    """
    alone = {"seed": seed, "seeds": [], "side_by_side": 1, "rows": {}}
    file = out.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(dump_recipe(recipe) | alone, sort_keys=False), "utf-8")
    process = await asyncio.create_subprocess_exec(
        *(*RUN, str(file), "--out", str(out)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    assert process.stdout is not None
    last = ""
    try:
        async for line in process.stdout:
            if text := line.decode(errors="replace").rstrip():
                last = text
                console.print(Text(f"seed {seed}  {text}"), soft_wrap=True)
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status:
        cause = last.removeprefix("fieldcraft: ")
        if cause == last:  # no mistake of the user's
            how = f"signal {-status}" if status < 0 else f"status {status}"
            cause = f"it ended with {how} after the line '{last}'."
        raise UserError(f"the run of seed {seed} failed: {cause}")
