"""The sentence at the top of a report, from hand-written figures."""

from typing import Any

import pytest

from fieldcraft.evaluation.achievement import describe_achievement, describe_partial_run


def entry(em: float | None, calls: float = 1.5, **given: Any) -> dict[str, Any]:
    return {"em": em, "calls_mean": calls, "calls_optimal_mean": None, "known": None} | given


def report(p_value: float = 0.0004, **last: Any) -> dict[str, Any]:
    return {
        "stages": [{"name": name} for name in ("sft", "rl", "evaluation")],
        "evals": {"workflow": entry(0.1), "sft": entry(0.8), "rl": entry(0.87) | last},
        "pairwise": [
            {"baseline": "base", "model": "sft", "p_value": 0.0},
            {"baseline": "sft", "model": "rl", "p_value": p_value},
        ],
    }


def known(rate: float, n: int = 10) -> dict[str, Any]:
    return {"known": {"n": n, "no_call_rate": rate}}


RAISED = "rl raised exact match from 0.800 after sft to 0.870 (p < 0.001); the agent "


@pytest.mark.parametrize(
    ("last", "calls"),
    [
        (known(0.97), "answers 97 % of what it knows without a call."),
        (known(0.05), "calls tools even for what it knows."),
        (known(0.3), "makes 1.50 calls per question."),
        (known(0.97, n=9), "makes 1.50 calls per question."),
        ({"calls_optimal_mean": 0.72}, "makes 1.50 calls per question where 0.72 suffice."),
        ({"calls_mean": 0.0}, "calls no tool."),
        (known(0.0) | {"calls_mean": 0.0}, "calls no tool."),
    ],
)
def test_how_the_agent_calls_tools(last: dict[str, Any], calls: str) -> None:
    assert describe_achievement(report(**last)) == RAISED + calls


@pytest.mark.parametrize(
    ("p_value", "em", "begins"),
    [
        (0.0123, 0.7, "rl lowered exact match from 0.800 after sft to 0.700 (p = 0.012);"),
        (0.05, 0.9, "rl raised exact match from 0.800 after sft to 0.900 (p = 0.050), which may"),
        (1.0, 0.8, "rl left exact match at 0.800, as it was after sft;"),
    ],
)
def test_what_the_last_stage_changed(p_value: float, em: float, begins: str) -> None:
    assert str(describe_achievement(report(p_value, em=em))).startswith(begins)


def test_without_a_comparison_the_rate_is_told_and_without_a_grade_nothing() -> None:
    alone = report() | {"pairwise": []}
    assert str(describe_achievement(alone)).startswith(
        "rl answers 87 % of the questions correctly; the agent"
    )
    untested = report(None)  # type: ignore[arg-type]
    assert describe_achievement(untested) == describe_achievement(alone)
    assert describe_achievement(report() | {"evals": {"rl": entry(None)}}) is None
    assert describe_achievement(report() | {"evals": {}}) is None


def test_what_a_run_that_goes_on_has_achieved_so_far() -> None:
    message = describe_partial_run(["sft", "rl"], {"workflow": entry(0.1), "sft": entry(0.8)})
    assert (
        message
        == "sft answers 80 % of the questions correctly; the agent makes 1.50 calls per question."
    )
    assert describe_partial_run(["sft", "rl"], {"sft": {}}) is None


def row(title: str, em: float | None, no_call: float | None) -> dict[str, Any]:
    return {"title": title, "em": {"mean": em}, "calls_mean": 1.0, "known_no_call_rate": no_call}


def test_over_seeds_the_last_comparison_counts() -> None:
    table: dict[str, Any] = {
        "seeds": [0, 1, 2],
        "rows": [row("SFT", 0.8, 0.9), row("RL", 0.9, 0.95), row("Other", 0.5, None)],
        "comparisons": [{"baseline": "SFT", "model": "RL", "p_value": 0.02}],
    }
    assert describe_achievement(table) == (
        "RL raised exact match from 0.800 after SFT to 0.900 (p = 0.020) on average over 3 seeds;"
        " the agent answers 95 % of what it knows without a call."
    )
    ungraded = [row("Own", None, None)]
    assert describe_achievement(table | {"rows": [*table["rows"], *ungraded]}) == (
        describe_achievement(table)
    )
    assert describe_achievement(table | {"rows": ungraded, "comparisons": []}) is None
    bare = table | {"comparisons": [], "seeds": [4], "rows": [*table["rows"], *ungraded]}
    assert describe_achievement(bare) == (
        "Other answers 50 % of the questions correctly with one seed; the agent makes 1.00"
        " calls per question."
    )
