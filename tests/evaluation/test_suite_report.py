"""Averages of suites and comparisons of their results, with numbers computed by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.evaluation.intervals import paired_difference_interval
from fieldcraft.evaluation.suite_report import (
    build_comparison_table,
    build_suite_table,
    collect_answers,
    compare_answers,
    compare_results,
    compute_average,
)
from fieldcraft.types import Task, Trajectory


def answers(*verdicts: list[int | None], cluster: str | None = None) -> dict[str, Any]:
    return {
        f"q{i}": {"cluster": cluster or f"q{i}", "verdicts": given}
        for i, given in enumerate(verdicts)
    }


def result(verdicts: list[list[int | None]], **settings: Any) -> dict[str, Any]:
    benchmark = {"title": "NQ", "fingerprint": "f", "rule": "em/squad-7", "n": len(verdicts)}
    benchmark |= {"sampling": {"temperature": 0, "samples": 1}} | settings
    entry = {"em": 0.5, "em_ci95": [0.4, 0.6], "judge": None, "answers": answers(*verdicts)}
    models = {"m": {"benchmarks": {"nq": entry}, "average": None}}
    return {"suite": "s", "benchmarks": {"nq": benchmark}, "models": models}


def test_verdicts_are_collected_by_question() -> None:
    first, second = Task("a", "A?", ("x",), {"cluster": "c"}), Task("b", "B?", ("x",))
    trajectories = []
    for task, score in ((first, 1.0), (first, 0.0), (second, None)):
        trajectory = Trajectory(task, rewards={"em": score})
        trajectories.append(trajectory)
    assert collect_answers(trajectories) == {
        "a": {"cluster": "c", "verdicts": [1, 0]},
        "b": {"cluster": "b", "verdicts": [None]},
    }


def test_average_and_its_interval() -> None:
    """sqrt(0.03^2 + 0.04^2) / 2 = 0.025 below, sqrt(0.06^2 + 0.08^2) / 2 = 0.05 above."""
    entries = [{"em": 0.5, "em_ci95": [0.47, 0.56]}, {"em": 0.3, "em_ci95": [0.26, 0.38]}]
    found = compute_average(entries)
    assert found is not None
    assert found["mean"] == pytest.approx(0.4)
    assert found["ci95"] == pytest.approx([0.375, 0.45])
    assert compute_average([entries[0], {"em": None, "em_ci95": None}]) is None


def test_answers_are_compared_in_pairs() -> None:
    """Three gains and one loss: of the 16 assignments of signs, 10 have a sum of 2 or more."""
    before, after = answers([0], [0], [0], [1], [1]), answers([1], [1], [1], [0], [1])
    found = compare_answers(before, after)
    assert (found["n"], found["baseline_em"], found["model_em"]) == (5, 0.4, 0.8)
    assert found["difference"] == pytest.approx(0.4)
    assert found["ci95"] == pytest.approx([*paired_difference_interval(0.6, 0.2, 5)])
    assert found["p_value"] == pytest.approx(10 / 16)


def test_samples_of_a_question_are_one_difference() -> None:
    """Changes of 1/4 and 1/2; both have the same sign in 2 of 4 assignments."""
    found = compare_answers(answers([1, 0, 0, 0], [0, 0, 0, 0]), answers([1, 0], [1, 0]))
    assert found["difference"] == pytest.approx((0.25 + 0.5) / 2)
    assert found["p_value"] == pytest.approx(0.5)


def test_questions_of_a_cluster_change_sides_together() -> None:
    before = answers([0], [0], [0], cluster="one")
    assert compare_answers(before, answers([1], [1], [1], cluster="one"))["p_value"] == 1.0


def test_ungradable_answers_are_left_out() -> None:
    assert compare_answers(answers([None], [0]), answers([1], [1]))["n"] == 1
    empty = compare_answers(answers([None]), answers([1]))
    assert (empty["n"], empty["difference"]) == (0, None)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30))
def test_a_comparison_is_antisymmetric(pairs: list[tuple[int, int]]) -> None:
    before, after = (answers(*([side] for side in sides)) for sides in zip(*pairs, strict=True))
    one, other = compare_answers(before, after), compare_answers(after, before)
    assert one["difference"] == pytest.approx(-other["difference"])
    assert one["p_value"] == other["p_value"]
    assert one["ci95"][0] <= one["difference"] + 1e-9
    assert one["ci95"] == pytest.approx([-limit for limit in reversed(other["ci95"])])


def test_results_name_what_differs() -> None:
    same = compare_results({"a": result([[0], [1]]), "b": result([[1], [1]])})
    assert [(row["baseline"], row["model"], row["different"]) for row in same] == [
        ("a: m", "b: m", [])
    ]
    assert same[0]["difference"] == 0.5
    other = result([[1], [1]], rule="em/squad-5", fingerprint="g")
    [row] = compare_results({"a": result([[0], [1]]), "b": other})
    assert row["different"] == ["questions", "grading rule"]
    [row] = compare_results({"a": result([[0], [1]]), "b": result([[1]])})
    assert "difference" not in row  # other questions
    assert build_comparison_table([row]).rows[0][1] == ("", "", "", "", "", "")


def test_the_table_has_a_column_for_each_benchmark() -> None:
    table = build_suite_table(result([[0], [1]]))
    assert list(table.headers) == ["NQ\npass@1"]
    assert table.rows == [("m", ("0.500\n[0.40, 0.60]",))]
