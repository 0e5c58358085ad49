"""Suites of benchmarks: the command `benchmarks`, and parts of the commands eval and compare."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from fieldcraft.cli.app import advise_options, app, require_new_file
from fieldcraft.config.sections import JudgeConfig
from fieldcraft.evaluation.benchmarks import Suite, find_suite, load_benchmarks, load_suites
from fieldcraft.evaluation.suite_report import (
    RESULT_FILE,
    build_benchmarks_table,
    build_comparison_table,
    build_suite_table,
    compare_results,
)
from fieldcraft.records.files import require_writable, write_json
from fieldcraft.records.reading import read_json
from fieldcraft.terminal.console import CleanConsole, print_line
from fieldcraft.terminal.progress import TerminalReporter
from fieldcraft.types import UserError

_RESULT_ADVICE = "give a folder or a file that 'fieldcraft eval --suite' has written"
AgentLoader = Callable[[], Mapping[str, Any]]


@app.command()
def benchmarks() -> None:
    """List the benchmarks and suites that `eval` knows by name."""
    console = CleanConsole()
    table = Table.grid(padding=(0, 2))
    for name, suite in load_suites().items():
        text = f"{suite.title} ({suite.source}): {', '.join(suite.benchmarks)}"
        table.add_row(Text(name, "bold"), Text(text))
    console.print(table, "")
    table = Table.grid(padding=(0, 2))
    for name, benchmark in load_benchmarks().items():
        size = "" if benchmark.size is None else f"{benchmark.size} questions, "
        details = f"{size}graded by {benchmark.graded_by}; {benchmark.origin}; {benchmark.licence}"
        notes = f"; {benchmark.note}" if benchmark.note else ""
        table.add_row(Text(name, "bold"), Text(details + notes))
    console.print(table)


def choose_suite(
    name: str | None, selected: Sequence[str], python: Path | None, max_left_out: float | None
) -> Suite:
    """Return a suite, or its `selected` benchmarks, without torch. `python` is the interpreter of
    the environments of benchmarks; `max_left_out` the maximum share of unreadable records, instead
    of those of the benchmarks. Raises UserError for an unknown suite or benchmark."""
    suite = find_suite(name, [*selected])
    if max_left_out is not None:
        suite = suite.with_max_left_out(max_left_out)
    if python is None:
        return suite
    if shutil.which(python) is None:
        raise UserError(
            f"--python {python} is not a working Python interpreter: give the path of the one that"
            " has the package of the benchmark, such as /envs/bfcl/bin/python."
        )
    return suite.with_python(python)


def require_used_options(suite: Suite, options: Mapping[str, object]) -> None:
    """Raise UserError for options about questions and tools if all benchmarks are environments,
    which have their own."""
    given = [name for name, value in options.items() if value]
    if given and all(benchmark.environment for benchmark in suite.benchmarks.values()):
        raise UserError(
            f"the benchmarks have their own questions and tools: leave out {' and '.join(given)}."
        )


def evaluate_suite(
    title: str,
    suite: Suite,
    folder: Path | None,
    limit: int | None,
    sampling: Mapping[str, Any],
    judge_settings: JudgeConfig,
    load_agents: AgentLoader,
    out: Path | None,
) -> None:
    """Evaluate agents on a suite and print its tables. All questions are read before an agent is
    loaded. Exits with status 2 if benchmarks have no data."""
    from fieldcraft.runs.build import open_judge
    from fieldcraft.runs.event_loop import run_async
    from fieldcraft.runs.suites import SuiteEvaluation, find_rules, read_suite

    rules, ungradable = find_rules(suite, judge_settings.model)
    data, missing = read_suite(suite, folder, limit)
    _exit_with([*ungradable, *map(_advise_option, missing)])
    judge = run_async(open_judge(judge_settings, None if out is None else out / "judge.sqlite"))
    evaluation = SuiteEvaluation(
        title,
        suite,
        data,
        rules,
        sampling,
        judge,
        judge_settings if judge else None,
        out,
    )
    console = CleanConsole()
    result = evaluation.run(load_agents(), TerminalReporter(console))
    console.print(build_suite_table(result), build_benchmarks_table(result))
    for benchmark_name, read in data.items():
        licence = suite.benchmarks[benchmark_name].licence
        print_line(f"{benchmark_name}: {read.file.source}{f' ({licence})' if licence else ''}")
        for line in read.warnings:
            print_line(f"  {line}")
    if out is not None:
        print_line(out / RESULT_FILE)


def _advise_option(error: UserError) -> str:
    """Return the sentence of an error about a file, with the option that allows it."""
    try:
        with advise_options():
            raise error
    except UserError as advised:
        return str(advised)


def _exit_with(errors: Sequence[str]) -> None:
    for error in dict.fromkeys(errors):  # benchmarks of one environment have the same
        print_line(f"fieldcraft: {error}", file=sys.stderr)
    if errors:
        raise typer.Exit(2)


def are_suite_results(paths: Sequence[Path]) -> bool:
    """Return whether paths are results of suites. Raises UserError for a mixture with runs."""
    found = [path.suffix == ".json" or (path / RESULT_FILE).exists() for path in paths]
    if any(found) and not all(found):
        other = paths[found.index(False)]
        raise UserError(
            f"{other} has no result of a suite, as the others have: compare results of suites with"
            " each other."
        )
    return all(found)


def compare_suite_results(paths: Sequence[Path], out: Path | None) -> None:
    """Print a comparison of all models in the results of suites with the first one."""
    if out is not None:
        require_new_file(out)
        require_writable(out.parent)
    results: dict[str, dict[str, Any]] = {}
    for path in paths:
        file = path / RESULT_FILE if path.is_dir() else path
        found = read_json(file, dict[str, Any], _RESULT_ADVICE)
        if not {"suite", "benchmarks", "models"} <= found.keys():
            raise UserError(f"{file} is not the result of a suite: {_RESULT_ADVICE}.")
        if str(path) in results:
            raise UserError(f"{path} is given twice: give two results.")
        results[str(path)] = found
    if sum(len(result["models"]) for result in results.values()) < 2:
        raise UserError("there is nothing to compare with: give two results or more.")
    comparisons = compare_results(results)
    if not comparisons:
        raise UserError("the results have no benchmark in common: evaluate the same suite.")
    CleanConsole().print(build_comparison_table(comparisons))
    if out is not None:
        write_json(out, comparisons)
        print_line(out)
