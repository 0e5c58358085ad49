"""The progress of a run in the terminal."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fieldcraft.records.events import (
    Evaluated,
    Event,
    JobsDone,
    PartEnded,
    PartStarted,
    Said,
    StepDone,
    TrajectoryDone,
)
from fieldcraft.types import Trajectory


@dataclass
class Seen:
    """Running figures of an evaluation."""

    done: int = 0
    graded: int = 0
    right: int = 0
    calls: int = 0

    def add(self, trajectory: Trajectory) -> None:
        self.done += 1
        self.calls += trajectory.executed_calls
        if trajectory.right is not None:
            self.graded += 1
            self.right += trajectory.right


@dataclass
class TerminalSink:
    """The subscriber that shows events: a bar for every part, a line for every evaluation."""

    console: Console
    bars: dict[str, StageProgress] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        match event:
            case PartStarted(part, total, counts):
                self.bars[part] = StageProgress(part, total, self.console)
                self.bars[part].start()
                if counts == "questions":
                    self.seen[part] = Seen()
            case StepDone(part, row):
                self.bars[part].update(
                    row["step"] + 1,
                    em=row.get("em"),
                    calls=row.get("calls_mean"),
                    tokens_per_second=row["tokens_per_second"],
                    loss=row.get("loss"),
                )
            case TrajectoryDone(part, trajectory) if part in self.seen:
                seen = self.seen[part]
                seen.add(trajectory)
                em = seen.right / max(seen.graded, 1)
                self.bars[part].update(seen.done, em=em, calls=seen.calls / seen.done)
            case JobsDone(part, done, figures):
                self.bars[part].update(done, note=figures)
            case PartEnded(part):
                self.seen.pop(part, None)
                self.bars.pop(part).stop()
            case Evaluated(part, summary):
                line = headline(part, summary)
                self.console.print(line, highlight=False, soft_wrap=True)
            case Said(text):
                self.console.print(text, style="dim")


def headline(name: str, summary: dict[str, Any]) -> str:
    """An evaluation in one line."""
    if summary["em"] is None:
        graded = "not gradable"
    else:
        graded = "EM {:.3f} [{:.3f}, {:.3f}]".format(summary["em"], *summary["em_ci95"])
    line = f"{name:>9}  {graded}"
    line += f"  calls {summary['calls_mean']:.2f}"
    if summary["calls_optimal_mean"] is not None:
        line += f" (optimum {summary['calls_optimal_mean']:.2f})"
    if summary["known"]:
        line += f"  known: EM {summary['known']['em']:.2f}, no call "
        line += f"{summary['known']['no_call_rate']:.2f}"
    return line


class StageProgress:
    """The progress of one stage: a live bar in a terminal, a line about every 10 % elsewhere.

    Call `start`, `update` after every step, and `stop`.
    """

    def __init__(self, stage: str, total: int, console: Console) -> None:
        self.stage = stage
        self.total = total
        self.console = console
        self._live: Progress | None = None
        self._task = TaskID(0)
        self._started = 0.0
        self._first: int | None = None
        self._printed = 0

    def start(self) -> None:
        self._started = time.monotonic()
        if self.console.is_terminal:
            self._live = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._task = self._live.add_task(escape(self.stage), total=self.total, figures="")
            self._live.start()

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()

    def update(
        self,
        step: int,
        *,
        em: float | None = None,
        calls: float | None = None,
        tokens_per_second: float | None = None,
        loss: float | None = None,
        note: str = "",
    ) -> None:
        """`step` steps of the stage are complete; figures that do not apply are left out. `note`
        stands for figures of another kind."""
        shown = {
            "EM": None if em is None else f"{em:.3f}",
            "calls": None if calls is None else f"{calls:.2f}",
            "tok/s": None if tokens_per_second is None else f"{tokens_per_second:,.0f}",
            "loss": None if loss is None else f"{loss:.4f}",
        }
        named = [f"{name} {value}" for name, value in shown.items() if value is not None]
        figures = "  ".join([*named, note] if note else named)
        if self._live is not None:
            self._live.update(self._task, completed=step, figures=figures)
        else:
            self._print_tenth(step, figures)

    def _print_tenth(self, step: int, figures: str) -> None:
        if self._first is None:  # a resumed stage does not start at 0
            self._first, self._started = step, time.monotonic()
        tenth = 10 * step // self.total
        if tenth == self._printed:
            return
        self._printed = tenth
        done = step - self._first
        elapsed = time.monotonic() - self._started
        left = f"  {elapsed / done * (self.total - step):.0f} s left" if done else ""
        line = f"{self.stage}  {step}/{self.total}  {figures}{left}".rstrip()
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
