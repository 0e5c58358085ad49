"""Progress of a run in a notebook: one output with bars, curves and evaluations."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fieldcraft.extensions.studio.charts import PALETTE_SIZE
from fieldcraft.extensions.studio.svg import draw_svg
from fieldcraft.extensions.studio.training_charts import draw_learning_curves
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
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.terminal.html import escape_text, shorten_text
from fieldcraft.terminal.notebook_display import NotebookDisplay
from fieldcraft.terminal.progress import RunningTotals, format_figures, format_headline

MIN_UPDATE_SECONDS = 0.5
MAX_LOAD = 0.05  # share of the time for drawing
MAX_CHARTS = 6  # the report has all
MAX_MESSAGES, MAX_MESSAGE_CHARACTERS = 8, 400
HEADLINE_CHARACTERS = 200


@dataclass
class NotebookPhase:
    """State of a phase: its bar and figures. `totals` is None for other units than questions."""

    total: int
    unit: str
    done: int = 0
    figures: str = ""
    totals: RunningTotals | None = None


@dataclass
class NotebookReporter:
    """Event handler that shows a run in one output, which it replaces.

    Args:
        display: output of the cell.
        min_seconds: minimum time between two updates during a phase.
        clock: time in seconds.
    """

    display: NotebookDisplay
    min_seconds: float = MIN_UPDATE_SECONDS
    clock: Callable[[], float] = time.monotonic
    phases: dict[str, NotebookPhase] = field(default_factory=dict)
    curves: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    evaluations: dict[str, str] = field(default_factory=dict)
    messages: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_MESSAGES))
    next_update: float = 0.0

    def __post_init__(self) -> None:
        self.update()  # in the thread of the cell, to which the output then belongs

    def __call__(self, event: Event) -> None:
        self._add(event)
        is_frequent = isinstance(event, StepCompleted | TrajectoryCompleted | JobsCompleted)
        if not is_frequent or self.clock() >= self.next_update:
            self.update()

    def _add(self, event: Event) -> None:
        match event:
            case PhaseStarted(name, total, unit):
                totals = RunningTotals() if unit == "questions" else None
                self.phases[name] = NotebookPhase(total, unit, totals=totals)
            case StepCompleted(name, row, file):
                if name not in self.curves:  # a resumed stage has earlier rows
                    self.curves[name] = MetricsLog(file).read_rows()[: row["step"]]
                self.curves[name].append(row)
                self._advance(name, row["step"] + 1, "  ".join(format_figures(row)))
            case TrajectoryCompleted(name, trajectory) if self._find_totals(name) is not None:
                totals = self._find_totals(name)
                assert totals is not None
                totals.add(trajectory)
                self._advance(name, totals.done, "  ".join(format_figures(totals.make_row())))
            case JobsCompleted(name, done, details):
                self._advance(name, done, details)
            case PhaseEnded(name):
                self.phases[name].totals = None
            case EvaluationCompleted(name, summary):
                lines = format_headline(name, summary, HEADLINE_CHARACTERS)
                self.evaluations[name] = "\n".join(lines)
            case LogMessage(text):
                self.messages.append(text)

    def _find_totals(self, name: str) -> RunningTotals | None:
        phase = self.phases.get(name)
        return phase.totals if phase else None

    def _advance(self, name: str, done: int, figures: str) -> None:
        self.phases[name].done = done
        self.phases[name].figures = figures

    def update(self) -> None:
        """Draw the current state."""
        started = self.clock()
        self.display.show(self.render_html(), self.render_text())
        seconds = self.clock() - started
        self.next_update = self.clock() + max(self.min_seconds, seconds / MAX_LOAD)

    def render_text(self) -> str:
        """Return the state of the phases as text."""
        return "\n".join(f"{name}  {p.done}/{p.total}" for name, p in self.phases.items())

    def render_html(self) -> str:
        """Return bars, curves, evaluations and messages."""
        slots = {name: place % PALETTE_SIZE for place, name in enumerate(self.curves)}
        charts = draw_learning_curves(self.curves, slots)[:MAX_CHARTS]
        evaluations = "\n".join(map(escape_text, self.evaluations.values()))
        messages = "<br>".join(
            escape_text(shorten_text(text, MAX_MESSAGE_CHARACTERS)) for text in self.messages
        )
        return (
            f'<div class="fieldcraft"><table>{"".join(map(self._render_bar, self.phases))}</table>'
            f'<div style="display:flex;flex-wrap:wrap">{"".join(map(draw_svg, charts))}</div>'
            f'<pre style="margin:.3em 0">{evaluations}</pre><small>{messages}</small></div>'
        )

    def _render_bar(self, name: str) -> str:
        phase = self.phases[name]
        return (
            f'<tr><td style="text-align:left"><b>{escape_text(name)}</b></td>'
            f'<td><progress value="{phase.done}" max="{max(phase.total, 1)}"></progress></td>'
            f"<td>{phase.done}/{phase.total} {phase.unit}</td>"
            f'<td style="text-align:left">{escape_text(phase.figures)}</td></tr>'
        )
