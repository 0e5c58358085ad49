"""Progress of a run in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fieldcraft.records.events import (
    EvaluationCompleted,
    Event,
    JobsCompleted,
    LogMessage,
    PhaseEnded,
    PhaseStarted,
    StepCompleted,
    TrajectoryCompleted,
)
from fieldcraft.records.metrics import METRICS, format_accuracy, format_exact_match
from fieldcraft.types import Trajectory

# Width of a bar without its name, figures and steps: the bar, "/", the time, the gaps.
_BAR_COLUMNS = 6 + 1 + 7 + 4
NO_METRICS: Mapping[str, Any] = MappingProxyType({})


def is_live(console: Console) -> bool:
    """Return whether live output is possible. FORCE_COLOR colours a file, but does not make it a
    terminal."""
    return console.is_interactive and console.file.isatty()


@dataclass
class RunningTotals:
    """Running metrics of an evaluation."""

    done: int = 0
    graded: int = 0
    correct: int = 0
    calls: int = 0

    def add(self, trajectory: Trajectory) -> None:
        self.done += 1
        self.calls += trajectory.num_executed_calls
        if trajectory.is_correct is not None:
            self.graded += 1
            self.correct += trajectory.is_correct

    def make_row(self) -> dict[str, float | None]:
        """Return the metrics of the trajectories so far."""
        em = self.correct / self.graded if self.graded else None
        return {"em": em, "calls_mean": self.calls / self.done}


@dataclass
class TerminalReporter:
    """Event handler that shows a bar for every phase, and a line for every evaluation."""

    console: Console
    bars: dict[str, PhaseProgress] = field(default_factory=dict)
    totals: dict[str, RunningTotals] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        match event:
            case PhaseStarted(name, total, unit):
                self.bars[name] = PhaseProgress(name, total, self.console)
                self.bars[name].start()
                if unit == "questions":
                    self.totals[name] = RunningTotals()
            case StepCompleted(name, row):
                self.bars[name].update(row["step"] + 1, row)
            case TrajectoryCompleted(name, trajectory) if name in self.totals:
                totals = self.totals[name]
                totals.add(trajectory)
                self.bars[name].update(totals.done, totals.make_row())
            case JobsCompleted(name, done, figures):
                self.bars[name].update(done, note=figures)
            case PhaseEnded(name):
                self.totals.pop(name, None)
                self.bars.pop(name).stop()
            case EvaluationCompleted(name, summary):
                for line in format_headline(name, summary, _line_width(self.console)):
                    self.console.print(line, highlight=False, soft_wrap=True)
            case LogMessage(text):
                self.console.print(text, style="dim")


def format_headline(name: str, summary: Mapping[str, Any], width: int) -> list[str]:
    """Return an evaluation in one line, or in several of at most `width` characters."""
    em = format_exact_match(summary)
    parts = [em if summary["em"] is None else f"EM {em}"]
    calls = METRICS["calls_mean"].progress.format(summary["calls_mean"])
    optimum = summary["calls_optimal_mean"]
    parts.append(calls if optimum is None else f"{calls} (optimum {optimum:.2f})")
    if known := summary["known"]:
        em = format_accuracy(known["em"], digits=2)
        parts.append(f"known: EM {em}, no call {known['no_call_rate']:.2f}")
    lines = [f"{name:>9}"]
    for part in parts:
        if len(f"{lines[-1]}  {part}") > width:
            lines.append(" " * 9)
        lines[-1] += f"  {part}"
    return lines


def format_figures(row: Mapping[str, Any]) -> list[str]:
    """Return the metrics of a row that are shown as progress."""
    return [
        metric.progress.format(row[metric.key])
        for metric in METRICS.values()
        if metric.progress and row.get(metric.key) is not None
    ]


def _line_width(console: Console) -> int:
    """Return the width of a line. In a file it is unlimited, which is easier to search."""
    return console.width if is_live(console) else sys.maxsize


def _fit_figures(figures: Sequence[str], width: int) -> str:
    """Return as many figures as fit into the width."""
    fitting = ""
    for figure in figures:
        longer = f"{fitting}  {figure}" if fitting else figure
        if len(longer) > width:
            break
        fitting = longer
    return fitting


class PhaseProgress:
    """Progress of one stage: a live bar in a terminal, elsewhere a line for each 10 %.

    Call `start`, `update` after every step, and `stop`.
    """

    def __init__(self, name: str, total: int, console: Console) -> None:
        self.name = name
        self.total = total
        self.console = console
        self._live: Progress | None = None
        self._task = TaskID(0)
        self._started = 0.0
        self._first_step: int | None = None
        self._printed_tenth = 0

    def start(self) -> None:
        self._started = time.monotonic()
        if is_live(self.console):
            self._live = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(compact=True),
                console=self.console,
                expand=True,
            )
            self._task = self._live.add_task(escape(self.name), total=self.total, figures="")
            self._live.start()

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, step: int, row: Mapping[str, Any] = NO_METRICS, note: str = "") -> None:
        """Show that `step` steps of the stage are complete, with the metrics of the last one.
        `note` is a text in place of metrics."""
        figures = format_figures(row) + ([note] if note else [])
        if self._live is not None:
            used_columns = len(self.name) + 2 * len(str(self.total)) + _BAR_COLUMNS
            text = escape(_fit_figures(figures, self.console.width - used_columns))
            self._live.update(self._task, completed=step, figures=text)
        else:
            self._print_each_tenth(step, "  ".join(figures))

    def _print_each_tenth(self, step: int, figures: str) -> None:
        if self._first_step is None:  # a resumed stage does not start at 0
            self._first_step, self._started = step, time.monotonic()
        tenth = 10 * step // self.total
        if tenth == self._printed_tenth:
            return
        self._printed_tenth = tenth
        done = step - self._first_step
        elapsed = time.monotonic() - self._started
        remaining = f"  {elapsed / done * (self.total - step):.0f} s left" if done else ""
        line = f"{self.name}  {step}/{self.total}  {figures}{remaining}".rstrip()
        self.console.print(line, highlight=False, soft_wrap=True)
