"""The charts of pages: their numbers, by hand."""

import pytest

from fieldcraft.extensions.studio.charts import (
    draw_accuracy_against_calls,
    draw_calls_by_hops,
    draw_calls_by_stage,
    draw_curves_over_seeds,
    separate_overlaps,
    smooth,
)
from fieldcraft.extensions.studio.training_charts import (
    draw_course,
    draw_learning_curves,
    lay_out_stages,
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


def points(chart, label):
    [series] = [series for series in chart.series if series.label == label]
    return series.points


# -- the course of the run -----------------------------------------------------------------------


def test_stages_are_one_after_the_other_along_the_steps():
    starts = {"sft": None, "rl1": "sft", "rl2": "sft"}
    stages = lay_out_stages(CURVES, EVALS, ORDER, starts, SLOTS)
    spans = [stage.span for stage in stages]
    width = 22 / 14  # an evaluated point, of 22 steps
    assert [span.name for span in spans] == ORDER
    assert [span.start for span in spans] == pytest.approx([-width, 0, 11])
    assert [span.end for span in spans] == pytest.approx([0, 11, 22])
    assert [span.has_steps for span in spans] == [False, True, True]
    assert [len(stage.rows) for stage in stages] == [0, 11, 11]
    assert [span.starts_from for span in spans] == ["", "", "sft"]  # rl2 continues sft, not rl1


def test_the_first_picture_has_rollouts_heldout_points_and_evaluations():
    exact, calls = draw_course(CURVES, EVALS, ORDER, {}, SLOTS)
    rollouts = points(exact, "rl1, training rollouts")
    assert (rollouts[0], rollouts[5], rollouts[10]) == ((0, 0.5), (5, 0.7), (10, 0.9))
    assert points(exact, "rl2, held out") == [(11, 0.6), (21, 0.9)]  # after 11 steps of rl1
    assert points(calls, "rl2, held out") == [(11, 1.9), (21, 1.7)]
    assert points(exact, "sft, evaluation") == [(pytest.approx(-11 / 14), 0.6)]  # in the middle
    assert points(exact, "rl1, evaluation") == [(11, 0.9)]
    assert points(calls, "rl2, evaluation") == [(22, 1.6)]
    whiskers = [series.whiskers for series in exact.series if series.texts]
    assert whiskers == [[EVALS[name]["em_ci95"]] for name in ORDER]
    assert points(calls, "rl1, least calls")[0] == (0, 1.2)
    assert calls.optimum == ("y", 1.5)
    assert exact.optimum is None
    assert exact.group == calls.group


def test_a_run_without_reinforcement_learning_has_its_stages_as_points():
    supervised = {"sft1": entry(0.2, 1.0), "sft2": entry(0.6, 1.8)}
    slots = {"sft1": 0, "sft2": 1}
    chart, _ = draw_course({"sft1": CURVES["sft"]}, supervised, ["sft1", "sft2"], {}, slots)
    assert [series.points for series in chart.series] == [[(-1.5, 0.2)], [(-0.5, 0.6)]]
    assert not any(span.has_steps for span in chart.spans)


def test_nothing_to_show_is_no_picture():
    assert draw_course({"sft": CURVES["sft"]}, {}, ["sft"], {}, SLOTS) == []
    ungraded = {**entry(0.5, 1.0), "em": None, "em_ci95": None}
    assert draw_course({}, {"sft": ungraded}, ["sft"], {}, SLOTS) == []


def test_a_stage_that_was_stopped_before_its_evaluation_is_drawn():
    _, calls = draw_course({"rl1": CURVES["rl1"]}, {}, ["rl1"], {}, {"rl1": 0})
    assert len(points(calls, "rl1, training rollouts")) == 11


def test_curves_over_seeds_show_the_steps_in_which_every_seed_has_the_value():
    known = [{"em": step / 4, "calls_mean": 1.0, "calls_optimal_mean": 0.5} for step in range(5)]
    partly = [dict(row) for row in known]
    del partly[1]["calls_optimal_mean"]
    partly[3]["em"] = None
    exact, calls = draw_curves_over_seeds({"rl1": [known, partly]}, SLOTS)
    assert [step for step, _ in exact.series[0].points] == [0, 1, 2, 4]
    assert [step for step, _ in points(calls, "optimum")] == [0, 2, 3, 4]
    ungraded = [{"em": None, "calls_mean": 1.0} for _ in range(5)]
    [calls] = draw_curves_over_seeds({"rl1": [ungraded]}, SLOTS)
    assert [series.label for series in calls.series] == ["rl1", "rl1"]


# -- one chart per metric ------------------------------------------------------------------------


def test_learning_curves_have_their_values_stage_by_stage():
    charts = {chart.title: chart for chart in draw_learning_curves(CURVES, SLOTS)}
    assert points(charts["KL"], "rl1")[10] == (10 / 11, 0.1)  # all stages have the same width
    assert points(charts["Clipped"], "rl2")[5] == (1 + 5 / 11, 0.005)
    exact, calls = charts["Exact match"], charts["Number of calls"]
    assert points(exact, "rl1, held out") == [(0, 0.6), (10 / 11, 0.9)]
    assert points(calls, "rl2, held out") == [(1, 1.9), (1 + 10 / 11, 1.7)]
    assert [(span.name, span.start, span.end, span.scale) for span in exact.spans] == [
        ("rl1", 0, 1, 11),
        ("rl2", 1, 2, 11),
    ]
    assert exact.x_range == (0, 2 - 1 / 11)
    assert exact.top == 1.05  # a share
    assert calls.top == 2.1
    loss = charts["Supervised loss"]
    assert points(loss, "sft") == [(i / 5, 1) for i in range(5)]
    assert loss.log
    assert loss.top is None


def test_long_stages_are_thinned_to_means():
    rows = [{"step": step, "grad_norm": float(step % 2)} for step in range(4_800)]
    [chart] = draw_learning_curves({"sft": rows}, {"sft": 0})
    found = points(chart, "sft")
    assert len(found) == 480
    assert found[0] == (4.5 / 4_800, 0.5)  # steps 0 to 9
    assert chart.spans[0].scale == 4_800


def test_a_running_mean_has_a_shorter_window_at_the_ends():
    assert smooth([1.0, 2.0, 3.0, 7.0], 3) == [1.5, 2.0, 4.0, 5.0]
    assert smooth([1.0, 2.0], 1) == [1.0, 2.0]


def test_what_is_not_a_finite_number_is_not_drawn():
    rows = [{"em": None}, {"em": float("nan")}, {"step": 7, "em": 0.5}, {}]
    assert read_points(rows, "em") == [(7.0, 0.5)]


# -- outcomes ------------------------------------------------------------------------------------


def test_bars_have_names_and_the_optimum():
    chart = draw_calls_by_stage(
        {"a": entry(0.5, 1.0), "b": entry(0.5, 2.0, optimum=None)}, {"a": 0, "b": 1}
    )
    assert [(series.label, series.points) for series in chart.series] == [
        ("a", [(0, 1.0)]),
        ("b", [(1, 2.0)]),
        ("optimum", [(0, 1.5)]),
    ]
    assert chart.names == [(0, "a"), (1, "b")]
    assert chart.top == 2.2
    hops = {"by_hops": {"1": entry(1.0, 1.0, optimum=None), "3": entry(1.0, 3.0, optimum=None)}}
    chart = draw_calls_by_hops("rl", hops, 0)
    assert [series.points for series in chart.series] == [[(0, 1.0), (1, 3.0)]]
    assert chart.names == [(0, "1"), (1, "3")]


def test_points_of_equal_value_are_put_side_by_side():
    places = [(1.0, 0.9), (1.01, 0.91), (2.0, 0.9), (1.0, 0.2), (0.99, 0.9)]
    # the first, second and last are within reach of the first: 1 - 0.1, 1 and 1 + 0.1
    assert separate_overlaps(places, (0.1, 0.05)) == pytest.approx([0.9, 1.01, 2.0, 1.0, 1.1])
    assert separate_overlaps([(1.0, 0.5), (1.0, 0.5)], (0.1, 0.05)) == pytest.approx([0.95, 1.05])


def test_equal_stages_can_be_told_apart_in_the_chart():
    evals = {"sft": entry(0.9, 1.5), "rl1": entry(0.9, 1.5), "rl2": entry(0.9, 1.5)}
    chart = draw_accuracy_against_calls(evals, ORDER, SLOTS)
    assert [value for _, value in chart.values] == [1.5] * 3  # the values are unchanged
    across = [series.points[0][0] for series in chart.series]
    low, high = chart.x_range
    width = high - low
    assert min(across[1] - across[0], across[2] - across[1]) > 0.02 * width
    assert [place for place, _ in chart.values] == across
