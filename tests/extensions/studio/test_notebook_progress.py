"""Progress of a run in the output of a notebook."""

import json
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.extensions.studio.notebook_progress import MAX_CHARTS, NotebookReporter
from fieldcraft.records.events import (
    EvaluationCompleted,
    JobsCompleted,
    LogMessage,
    PhaseEnded,
    PhaseStarted,
    StepCompleted,
    TrajectoryCompleted,
)
from fieldcraft.terminal.notebook_display import NotebookDisplay
from fieldcraft.types import Task, Trajectory


class Page(NotebookDisplay):
    """Output that keeps what it shows."""

    def __init__(self) -> None:
        super().__init__(None)
        self.pages: list[str] = []
        self.text = ""

    def show(self, html: str, text: str) -> None:
        self.pages.append(html)
        self.text = text


class Time:
    """Clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def reporter(page: Page, time: Time) -> NotebookReporter:
    return NotebookReporter(page, clock=time)


def row(step: int, **metrics: Any) -> dict[str, Any]:
    return {"step": step, "reward_mean": 0.5, "em": step / 10, "tokens": 5, **metrics}


def test_the_output_exists_before_the_run(reporter: NotebookReporter, page: Page) -> None:
    assert len(page.pages) == 1


def test_a_stage_has_a_bar_figures_and_curves(
    reporter: NotebookReporter, page: Page, time: Time, tmp_path: Path
) -> None:
    reporter(PhaseStarted("rl", 4, "steps"))
    for step in range(3):
        time.seconds += 1
        reporter(StepCompleted("rl", row(step), tmp_path / "metrics.jsonl"))
    assert '<progress value="3" max="4"></progress></td><td>3/4 steps' in page.pages[-1]
    assert "EM 0.200" in page.pages[-1]
    assert "<title>Exact match</title>" in page.pages[-1]
    assert page.text == "rl  3/4"
    # em is 0, 0.1 and 0.2 of 1.05, the top of the axis of a percentage, 94 pixels high
    assert 'points="46.0,114.0 ' in page.pages[-1]
    assert f",{114 - 0.2 / 1.05 * 94:.1f}" in page.pages[-1]


def test_updates_are_at_most_two_a_second(
    reporter: NotebookReporter, page: Page, time: Time, tmp_path: Path
) -> None:
    reporter(PhaseStarted("rl", 40, "steps"))
    before = len(page.pages)
    for step in range(10):
        time.seconds += 0.125
        reporter(StepCompleted("rl", row(step), tmp_path / "metrics.jsonl"))
    assert len(page.pages) - before == 2
    assert "8/40 steps" in page.pages[-1]
    reporter(PhaseEnded("rl"))
    assert "10/40 steps" in page.pages[-1]


def test_a_resumed_stage_shows_its_earlier_steps(
    reporter: NotebookReporter, page: Page, tmp_path: Path
) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(f"{json.dumps(row(step))}\n" for step in range(6)))
    reporter(PhaseStarted("rl", 6, "steps"))
    reporter(StepCompleted("rl", row(5), file))
    assert [r["step"] for r in reporter.curves["rl"]] == [0, 1, 2, 3, 4, 5]


def test_evaluations_jobs_and_messages_are_text(
    reporter: NotebookReporter, page: Page, time: Time
) -> None:
    reporter(PhaseStarted("rl: evaluation", 2, "questions"))
    time.seconds += 1
    done = Trajectory(Task("1", "Q", ("A",)), rewards={"em": 1.0})
    reporter(TrajectoryCompleted("rl: evaluation", done))
    assert '1/2 questions</td><td style="text-align:left">EM 1.000' in page.pages[-1]
    reporter(PhaseEnded("rl: evaluation"))
    reporter(TrajectoryCompleted("rl: evaluation", done))  # a late one
    assert reporter.phases["rl: evaluation"].done == 1
    summary = {"em": 1.0, "em_ci95": [0.3, 1.0], "calls_mean": 1.0}
    summary |= {"calls_optimal_mean": None, "known": None}
    reporter(EvaluationCompleted("<i>rl</i>", summary))
    assert "&lt;i&gt;rl&lt;/i&gt;  EM 1.000 [0.300, 1.000]  calls 1.00" in page.pages[-1]
    reporter(PhaseStarted("collect", 5, "jobs"))
    time.seconds += 1
    reporter(JobsCompleted("collect", 3, "3 <kept>"))
    assert '3/5 jobs</td><td style="text-align:left">3 &lt;kept&gt;' in page.pages[-1]
    reporter(LogMessage("<script>"))
    assert "&lt;script&gt;" in page.pages[-1]
    assert "<script>" not in page.pages[-1]


def test_an_output_is_small(
    reporter: NotebookReporter, page: Page, time: Time, tmp_path: Path
) -> None:
    keys = ("em", "calls_mean", "policy_tokens_mean", "entropy", "no_signal_group_rate")
    reporter(PhaseStarted("rl", 5000, "steps"))
    for step in range(5000):
        metrics = dict.fromkeys(keys, step * 7919 % 100 / 100)
        reporter.curves.setdefault("rl", []).append(row(step, **metrics))
    for number in range(50):
        reporter(LogMessage("m" * 10_000 if number else ""))
    assert page.pages[-1].count("<svg") <= MAX_CHARTS
    assert len(page.pages[-1]) < 150_000
