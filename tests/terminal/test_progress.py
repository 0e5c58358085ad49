"""Figures of an evaluation in progress, and of a completed one, without a gradable answer."""

from typing import Any

from fieldcraft.terminal.progress import RunningTotals, format_figures, format_headline
from fieldcraft.types import Task, Trajectory


def test_an_evaluation_without_a_gradable_answer_is_announced() -> None:
    known = {"em": None, "no_call_rate": 0.25}
    summary: dict[str, Any] = {
        "em": None,
        "em_ci95": None,
        "calls_mean": 1.5,
        "calls_optimal_mean": None,
    }
    assert format_headline("sft2", summary | {"known": known}, 120) == [
        "     sft2  not gradable  calls 1.50  known: EM not gradable, no call 0.25"
    ]


def test_progress_shows_no_exact_match_before_an_answer_is_graded() -> None:
    totals = RunningTotals()
    totals.add(Trajectory(Task("", "", ()), rewards={"em": None}))
    assert format_figures(totals.make_row()) == ["calls 0.00"]
    totals.add(Trajectory(Task("", "", ()), rewards={"em": 1.0}))
    assert format_figures(totals.make_row()) == ["EM 1.000", "calls 0.00"]
