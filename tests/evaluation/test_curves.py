"""The charts of training and the progress of a run: their numbers, by hand."""

import re
from itertools import pairwise

import pytest

from fieldcraft.evaluation.charts import draw_accuracy_against_calls, separate_overlaps
from fieldcraft.evaluation.curves import (
    DESKTOP_LAYOUT,
    draw_learning_curves,
    draw_run_overview,
    lay_out_spans,
    make_overview_legend,
    read_points,
)


def entry(em, calls, *, optimum=1.5):
    return {
        "em": em,
        "em_ci95": [em - 0.05, min(1.0, em + 0.05)],
        "calls_mean": calls,
        "calls_optimal_mean": optimum,
    }


def rl_rows(first, last, calls):
    """Return eleven steps from one exact match to another; held-out questions at steps 0 and 10."""
    rows = [
        {
            "step": step,
            "reward_mean": 0.5,
            "em": first + (last - first) * step / 10,
            "calls_mean": calls,
            "calls_optimal_mean": 1.2,
            "kl_ref": 0.01 * step,
            "clip_fraction": 0.001 * step,
        }
        for step in range(11)
    ]
    rows[0] |= {"eval/em": 0.6, "eval/calls_mean": 1.9}
    rows[10] |= {"eval/em": 0.9, "eval/calls_mean": 1.7}
    return rows


CURVES = {
    "sft": [{"step": step, "loss": 1.0} for step in range(5)],
    "rl1": rl_rows(0.5, 0.9, 2.0),
    "rl2": rl_rows(0.9, 0.95, 1.6),
}
EVALS = {"sft": entry(0.6, 1.8), "rl1": entry(0.9, 2.0), "rl2": entry(0.95, 1.6)}
ORDER = ["sft", "rl1", "rl2"]
SLOTS = {name: slot for slot, name in enumerate(ORDER)}


def values(chart, name, y):
    """Return (x value, y value) of a line's points, as the page reports them."""
    [part] = [p for p in chart.points if p["name"] == name and p["y"] == y]
    return [tuple(point[2:]) for point in part["points"]]


def places(chart, name, y):
    [part] = [p for p in chart.points if p["name"] == name and p["y"] == y]
    return [tuple(point[:2]) for point in part["points"]]


# -- the course of the run -----------------------------------------------------------------------


def test_stages_are_one_after_the_other_along_the_steps():
    starts = {"sft": None, "rl1": "sft", "rl2": "sft"}
    spans = lay_out_spans(CURVES, EVALS, ORDER, starts, DESKTOP_LAYOUT)
    width = 22 / 14  # an evaluated point, of 22 steps
    assert [span.name for span in spans] == ORDER
    assert [span.start for span in spans] == pytest.approx([-width, 0, 11])
    assert [span.end for span in spans] == pytest.approx([0, 11, 22])
    assert [len(span.rows) for span in spans] == [0, 11, 11]
    assert [span.starts_from for span in spans] == ["", "", "sft"]  # rl2 continues sft, not rl1


def test_the_first_picture_has_rollouts_heldout_points_and_evaluations():
    for chart in draw_run_overview(CURVES, EVALS, ORDER, {}, SLOTS):
        rollouts = values(chart, "rl1, training rollouts", "exact match")
        assert rollouts[0] == (0, 0.5)
        assert rollouts[5] == (5, 0.7)
        assert rollouts[10] == (10, 0.9)
        assert values(chart, "rl2, held out", "exact match") == [(0, 0.6), (10, 0.9)]
        assert values(chart, "rl2, held out", "calls per question") == [(0, 1.9), (10, 1.7)]
        evaluated = [p["points"][0][2:] for p in chart.points if p["name"] == "evaluation"]
        assert evaluated == [
            *(["sft", 0.6], ["sft", 1.8], ["rl1", 0.9]),
            *(["rl1", 2], ["rl2", 0.95], ["rl2", 1.6]),
        ]
        assert ">rl1</text>" in chart.svg
        assert ">100 %</text>" in chart.svg
        assert ">60 %</text>" in chart.svg  # next to the point of sft
        assert ">20</text>" in chart.svg  # a tick on the axis of steps


def test_the_places_of_values_are_those_of_the_drawing():
    chart, _ = draw_run_overview(CURVES, EVALS, ORDER, {}, SLOTS)
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', chart.svg).groups())
    assert (width, height) == pytest.approx((11.6 * 72, 4.6 * 72))
    line = places(chart, "rl1, training rollouts", "exact match")
    steps = [right[0] - left[0] for left, right in pairwise(line)]
    assert steps == pytest.approx([steps[0]] * 10, abs=0.11)
    assert line[0][1] > line[10][1]  # larger values have smaller y coordinates in an SVG
    # rl2 starts where eleven steps of rl1 end
    first = places(chart, "rl2, training rollouts", "exact match")[0][0]
    assert first == pytest.approx(line[0][0] + 11 * steps[0], abs=1)
    # the drawn path of rl1 starts at the reported point
    drawn = [tuple(map(float, found)) for found in re.findall(r"M ([\d.]+) ([\d.]+) ", chart.svg)]
    assert min(abs(x - line[0][0]) + abs(y - line[0][1]) for x, y in drawn) < 0.3


def test_the_marks_of_the_picture_are_explained():
    assert list(make_overview_legend(CURVES, EVALS, ORDER)) == [
        *("sampled", "heldout", "evaluated", "optimum", "optimum-training"),
    ]
    plain = {"sft": {**entry(0.6, 1.8), "calls_optimal_mean": None}}
    assert list(make_overview_legend({}, plain, ["sft"])) == ["evaluated"]


def test_a_run_without_reinforcement_learning_has_its_stages_as_points():
    supervised = {"sft1": entry(0.2, 1.0), "sft2": entry(0.6, 1.8)}
    slots = {"sft1": 0, "sft2": 1}
    chart, _ = draw_run_overview({"sft1": CURVES["sft"]}, supervised, ["sft1", "sft2"], {}, slots)
    assert [p["points"][0][2:] for p in chart.points if p["y"] == "exact match"] == [
        ["sft1", 0.2],
        ["sft2", 0.6],
    ]
    assert ">sft2</text>" in chart.svg
    assert "steps of reinforcement learning" not in chart.svg


def test_nothing_to_show_is_no_picture():
    assert draw_run_overview({"sft": CURVES["sft"]}, {}, ["sft"], {}, SLOTS) == []
    ungraded = {**entry(0.5, 1.0), "em": None, "em_ci95": None}
    assert draw_run_overview({}, {"sft": ungraded}, ["sft"], {}, SLOTS) == []


def test_a_stage_that_was_stopped_before_its_evaluation_is_drawn():
    chart, _ = draw_run_overview({"rl1": CURVES["rl1"]}, {}, ["rl1"], {}, {"rl1": 0})
    assert len(values(chart, "rl1, training rollouts", "calls per question")) == 11


# -- one chart per metric ------------------------------------------------------------------------


def test_learning_curves_tell_their_values_and_have_ticks():
    charts = {chart.title: chart for chart in draw_learning_curves(CURVES, SLOTS)}
    assert values(charts["KL"], "rl1", "kl")[10] == (10, 0.1)
    assert values(charts["Clipped"], "rl2", "clipped")[5] == (5, 0.005)
    exact, calls = charts["Exact match"], charts["Number of calls"]
    assert values(exact, "rl1, held out", "exact match") == [(0, 0.6), (10, 0.9)]
    assert values(calls, "rl2, held out", "number of calls") == [(0, 1.9), (10, 1.7)]
    assert values(charts["Supervised loss"], "sft", "supervised loss") == [(i, 1) for i in range(5)]
    for tick in ("0", "5", "10", "0.2", "0.8"):
        assert f">{tick}</text>" in exact.svg


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.0), (2.1, 4.9), (3.0, 31.0), (0.001, 9.0), (1e-6, 1e5), (2.0, 2.001)]
)
def test_ticks_of_losses_are_plain_numbers(low, high):
    rows = [{"step": step, "loss": low + (high - low) * step / 4} for step in range(5)]
    [chart] = draw_learning_curves({"sft": rows}, {"sft": 0})
    assert "mathdefault" not in chart.svg
    assert "$" not in chart.svg
    labels = re.findall(r">([^<>]+)</text>", chart.svg)
    ticks = [float(text) for text in labels[labels.index("step") + 1 : -1]]
    assert 1 <= len(ticks) <= 12
    assert all(low / 10 <= tick <= 10 * high for tick in ticks)


def test_long_stages_are_thinned_to_means():
    rows = [{"step": step, "grad_norm": float(step % 2)} for step in range(4_800)]
    [chart] = draw_learning_curves({"sft": rows}, {"sft": 0})
    found = values(chart, "sft", "gradient norm")
    assert len(found) == 480
    assert found[0] == (4.5, 0.5)  # steps 0 to 9


def test_what_is_not_a_finite_number_is_not_drawn():
    rows = [{"em": None}, {"em": float("nan")}, {"step": 7, "em": 0.5}, {}]
    assert read_points(rows, "em") == [(7.0, 0.5)]


# -- points that would hide each other -----------------------------------------------------------


def test_points_of_equal_value_are_put_side_by_side():
    points = [(1.0, 0.9), (1.01, 0.91), (2.0, 0.9), (1.0, 0.2), (0.99, 0.9)]
    # the first, second and last are within reach of the first: 1 - 0.1, 1 and 1 + 0.1
    assert separate_overlaps(points, (0.1, 0.05)) == pytest.approx([0.9, 1.01, 2.0, 1.0, 1.1])
    assert separate_overlaps([(1.0, 0.5), (1.0, 0.5)], (0.1, 0.05)) == pytest.approx([0.95, 1.05])


def test_equal_stages_can_be_told_apart_in_the_chart():
    evals = {"sft": entry(0.9, 1.5), "rl1": entry(0.9, 1.5), "rl2": entry(0.9, 1.5)}
    chart = draw_accuracy_against_calls(evals, ORDER, SLOTS)
    points = [part["points"][0] for part in chart.points]
    assert [point[2:] for point in points] == [[1.5, 0.9]] * 3  # the values are unchanged
    across = [point[0] for point in points]
    assert min(across[1] - across[0], across[2] - across[1]) > 5  # SVG units; a mark is 6 wide
