"""Runs of the same recipe with several seeds, in parallel, and an aggregate table."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from fieldcraft.concurrency import run_concurrently
from fieldcraft.config.recipe import Recipe, dump_recipe, get_split_titles
from fieldcraft.dialects.tool_names import UNSEEN_NAMES, UNSEEN_SPLIT_TITLE
from fieldcraft.evaluation.pages import find_page_writer
from fieldcraft.evaluation.seed_table import aggregate_seeds, compare_rows
from fieldcraft.evaluation.simulated_training import measure_saved_calls
from fieldcraft.records.files import write_json, write_text
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.folder import RunFolder
from fieldcraft.runs.resume import open_run_folder
from fieldcraft.tools.descendants import ProcessDescendants, wait_for_exit
from fieldcraft.types import Trajectory, UserError

SEED_RERUN_ADVICE = "rename the folder of that seed to seed-N.damaged to run it again"
EXIT_TIMEOUT_SECONDS = 40.0  # for a stopped run; removing a container alone may take 30 s
_MAX_LINE_BYTES = 2**16  # a longer line is printed in parts
RUN_COMMAND = (sys.executable, "-m", "fieldcraft", "run")


def run_seeds(recipe: Recipe, out: Path, console: Console) -> dict[str, Any]:
    """Run every unfinished seed in OUT/seed-N, then write the table and return it.

    Every run is a separate process with the ordinary command and an ordinary recipe, so all
    commands can resume, query and show it. Raises UserError if one of them fails.
    """
    with open_run_folder(out, recipe) as folder:
        run_async(_run_missing_seeds(folder, console))
        runs = {seed: folder.seed_run(seed) for seed in recipe.seeds}
        with raise_read_errors(f"a report.json of {out}", SEED_RERUN_ADVICE):
            reports = {seed: run.read_report() for seed, run in runs.items()}
            curves = _read_curves(recipe, list(runs.values()))
            read_evaluation = _make_evaluation_reader(runs)
            table = aggregate_seeds(
                recipe,
                reports,
                compare_rows(recipe, read_evaluation),
                curves,
                measure_saved_calls(recipe, read_evaluation, curves),
            )
        write_json(folder.report_json, table)
        if write_page := find_page_writer("seeds"):
            links = {seed: f"{run.path.name}/report.html" for seed, run in runs.items()}
            titles = {**get_split_titles(recipe), UNSEEN_NAMES: UNSEEN_SPLIT_TITLE}
            write_page(table, links, curves, titles, folder.report_html)
    return table


def _make_evaluation_reader(
    runs: Mapping[int, RunFolder],
) -> Callable[[int, str], list[Trajectory]]:
    """Return a function that returns the trajectories of a seed's evaluation, read once."""

    @cache
    def read_evaluation(seed: int, name: str) -> list[Trajectory]:
        return runs[seed].evaluation(name).read()[0]

    return read_evaluation


def _read_curves(
    recipe: Recipe, runs: Sequence[RunFolder]
) -> dict[str, list[list[dict[str, Any]]]]:
    """Return the metric rows of every reinforcement learning stage, of every seed."""
    return {
        name: [MetricsLog(run.stage(name).metrics).read_rows() for run in runs]
        for name, stage in recipe.stages.items()
        if stage.kind == "rl"
    }


async def _run_missing_seeds(folder: RunFolder, console: Console) -> None:
    """Run at most `parallel_seeds` runs concurrently; the first failure stops the others."""
    recipe = folder.recipe
    threads = divide_threads(recipe.parallel_seeds)

    async def run_seed(seed: int) -> None:
        await _run_seed(recipe, seed, folder.seed_run(seed).path, threads, console)

    missing = [(seed,) for seed in recipe.seeds if not folder.seed_run(seed).is_done]
    await run_concurrently(missing, run_seed, recipe.parallel_seeds)


def divide_threads(processes: int) -> int:
    """Return the number of CPU threads for each of several processes: a share of the cores, or of
    OMP_NUM_THREADS."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    cores = int(limit) if limit.isdigit() else os.cpu_count() or 1
    return max(1, cores // processes)


async def _run_seed(recipe: Recipe, seed: int, out: Path, threads: int, console: Console) -> None:
    """Run one seed in a child process, and print its output lines with the seed as a prefix.

    Neither the child nor a process that it has started outlives this call. If this call is
    cancelled, the child first ends as by Ctrl-C, for at most EXIT_TIMEOUT_SECONDS. Then it is
    killed, which a run survives at any time.
    """
    single_seed_keys = {
        "seed": seed,
        "seeds": [],
        "parallel_seeds": 1,
        "table_rows": {},
        "comparisons": {},
    }
    file = out.with_suffix(".yaml")
    write_text(file, [yaml.safe_dump(dump_recipe(recipe) | single_seed_keys, sort_keys=False)])
    descendants = ProcessDescendants()
    process = await descendants.start(
        (*RUN_COMMAND, str(file), "--out", str(out)),
        {"OMP_NUM_THREADS": str(threads)},
        stdout=PIPE,
        stderr=STDOUT,
    )

    exit_task = asyncio.create_task(_kill_rest_at_exit(process, descendants))
    last = ""
    try:
        async for text in _iterate_lines(process):
            last = text
            console.print(Text(f"seed {seed}  {text}"), soft_wrap=True)
        await asyncio.wait([exit_task])
    finally:
        await _stop(process, exit_task, descendants)
        # unread output would keep its pipe open, and `Process` itself does not close it
        process._transport.close()  # type: ignore[attr-defined]
    status = exit_task.result()
    if status:
        cause = last.removeprefix("fieldcraft: ")
        if cause == last:  # not a user error
            exit_reason = f"signal {-status}" if status < 0 else f"status {status}"
            cause = f"it ended with {exit_reason} after the line '{last}'."
        raise UserError(f"the run of seed {seed} failed: {cause}")


async def _iterate_lines(process: Process) -> AsyncIterator[str]:
    """Yield the lines of a process's output that are not blank."""
    assert process.stdout is not None
    rest = b""
    while chunk := await process.stdout.read(_MAX_LINE_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        for line in lines:
            if text := line.decode(errors="replace").rstrip():
                yield text
    if text := rest.decode(errors="replace").rstrip():
        yield text


async def _kill_rest_at_exit(process: Process, descendants: ProcessDescendants) -> int:
    """Wait for a process and return its exit status. Processes that it has left are killed, because
    they would keep its output open."""
    status = await wait_for_exit(process)
    descendants.kill_group(process.pid)
    return status


async def _stop(
    process: Process, exit_task: asyncio.Task[int], descendants: ProcessDescendants
) -> None:
    """End a process as Ctrl-C does. After EXIT_TIMEOUT_SECONDS, or if this call is cancelled, it
    is killed."""
    try:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait([exit_task], timeout=EXIT_TIMEOUT_SECONDS)
    finally:
        if not exit_task.done():  # which kills the rest itself
            descendants.kill_group(process.pid)
    await asyncio.wait([exit_task])
