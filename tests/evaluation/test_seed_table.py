"""The table over seeds: its numbers by hand, and the recipe for which it was made."""

import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fieldcraft.config.plan import get_seed_table_rows
from fieldcraft.evaluation.seed_table import aggregate_seeds, compare_rows
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.evaluation.tables import build_seeds_table, build_training_table
from fieldcraft.extensions.studio.seeds_page import (
    MIN_TRAJECTORIES,
    compute_correct_shares,
    compute_success_rates,
    select_chart_rows,
    select_rival_rows,
    write_seeds_page,
)
from fieldcraft.recipes.files import list_builtin_recipes
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.types import CallOutcome, CallRecord, Task, Trajectory, UserError
from seeds_parts import STAGES, entry, recipe, report, rows
from shipped_recipes import stand_ins

# -- the table ---------------------------------------------------------------------------------


def test_a_row_is_the_mean_over_seeds() -> None:
    table = aggregate_seeds(recipe(), {0: report(0.2), 1: report(0.4)})
    assert (table["schema"], table["recipe"], table["seeds"]) == (1, "small", [0, 1])
    assert table["seconds"] == 200.0
    row = rows(table)["rl2"]
    assert row["n"] == 20
    assert row["em"]["values"] == [0.2, 0.4]
    assert row["em"]["mean"] == pytest.approx(0.3)
    assert (row["em"]["min"], row["em"]["max"]) == (0.2, 0.4)
    assert row["em"]["ci95"][1] == 1.0  # 0.3 + 12.706 * 0.1
    assert row["f1"] == pytest.approx(0.15)
    assert (row["calls_mean"], row["calls_optimal_mean"]) == (1.5, 1.0)
    assert row["tool_productivity"] == 0.5
    assert row["known_no_call_rate"] == pytest.approx(0.3)


def test_seeds_without_a_gradable_answer_do_not_count() -> None:
    ungraded = {"em": None, "n_effective": 0}
    reports = {0: report(0.25), 1: report(0.75), 2: report(0.0)}
    for name in STAGES:
        reports[2]["evals"][name] |= ungraded
    for made in reports.values():
        made["evals"]["rl2"] |= ungraded
    found = rows(aggregate_seeds(recipe(seeds=[0, 1, 2]), reports))
    em = found["sft"]["em"]
    assert (em["mean"], em["min"], em["max"], em["values"]) == (0.5, 0.25, 0.75, [0.25, 0.75, None])
    assert em["ci95"] == [0.0, 1.0]
    nothing = {"mean": None, "ci95": None, "min": None, "max": None}
    assert found["rl2"]["em"] == nothing | {"values": [None] * 3}
    [(_, cells)] = build_seeds_table([found["rl2"]]).rows
    assert cells[:3] == ("not gradable", "", "")


def test_how_far_calls_are_above_the_optimum_is_told_for_each_seed() -> None:
    reports = {0: report(0.2, calls_mean=1.1), 1: report(0.4, calls_mean=1.8)}
    reports[1]["evals"]["sft"]["calls_optimal_mean"] = 2.0
    found = rows(aggregate_seeds(recipe(), reports))["sft"]["calls_over_optimum"]
    assert found["values"] == pytest.approx([0.1, -0.1])
    assert (found["mean"], found["min"]) == pytest.approx((0.0, -0.1))
    assert found["max"] == pytest.approx(0.1)
    for optimum in (None, 0.0):
        reports[1]["evals"]["sft"]["calls_optimal_mean"] = optimum
        assert rows(aggregate_seeds(recipe(), reports))["sft"]["calls_over_optimum"] is None


def step(seconds: float, rollouts: int, calls: float) -> dict[str, float]:
    return {
        **{"seconds": seconds, "rollouts": rollouts, "calls_mean": calls},
        "policy_tokens_mean": 10.0,
    }


CURVES = {  # of two seeds
    "rl1": [[step(1.0, 8, 2.0), step(3.0, 16, 0.5)], [step(2.0, 8, 1.0), step(2.0, 8, 1.0)]],
    "rl2": [[step(10.0, 4, 0.0)], [step(20.0, 8, 2.0)]],
}


def test_what_training_took_is_summed_over_the_stages_behind_a_row(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = aggregate_seeds(recipe(), {0: report(0.2), 1: report(0.4)}, (), CURVES)
    found = rows(table)
    assert found["rl1"]["training"] == {
        **{"seconds": 4.0, "rollouts": (24 + 16) / 2, "calls": (24 + 16) / 2},
        "tokens": 200.0,
    }
    assert found["rl2"]["training"] == {
        **{"seconds": (14 + 24) / 2, "rollouts": 26.0, "calls": (24 + 32) / 2},
        "tokens": 260.0,
    }
    assert found["sft"]["training"] is None
    training_table = build_training_table(table["rows"])
    assert training_table is not None
    Console(width=80).print(training_table)
    assert re.search(r"rl2 +19 +26 +28 +260", capsys.readouterr().out)
    write_seeds_page(table, {}, {}, {}, tmp_path / "report.html")
    assert '<td data-label="Rollouts">26</td>' in (tmp_path / "report.html").read_text("utf-8")


def test_metrics_of_an_earlier_version_have_no_sums() -> None:
    old = [{k: v for k, v in step(1.0, 8, 2.0).items() if k != "rollouts"}]
    table = aggregate_seeds(
        recipe(), {0: report(0.2)}, (), {"rl1": [[step(1.0, 8, 2.0)]], "rl2": [old]}
    )
    assert rows(table)["rl1"]["training"] is not None
    assert rows(table)["rl2"]["training"] is None
    assert build_training_table([rows(table)["rl2"]]) is None


def test_what_some_seeds_do_not_have_is_left_out_of_the_mean() -> None:
    reports = {0: report(0.2, tool_productivity=None, known=None), 1: report(0.4)}
    row = rows(aggregate_seeds(recipe(), reports))["sft"]
    assert row["tool_productivity"] == 0.5
    assert row["known_no_call_rate"] == 0.4
    reports[1] = report(0.4, calls_optimal_mean=None, known=None, tool_productivity=None)
    assert rows(aggregate_seeds(recipe(), {1: reports[1]}))["sft"]["known_no_call_rate"] is None


def test_trajectories_are_pooled_by_calls_in_the_order_of_numbers() -> None:
    ten = {"n": 1, "em": 1.0}
    reports = {0: report(0.0), 1: report(0.0)}
    reports[0]["evals"]["sft"]["by_calls"] = {"10": ten, "2": {"n": 4, "em": 0.25}}
    reports[1]["evals"]["sft"]["by_calls"] = {"2": {"n": 2, "em": 0.5}, "0": {"n": 3, "em": 0.0}}
    found = rows(aggregate_seeds(recipe(), reports))["sft"]["by_calls"]
    assert found == [
        {"calls": 0, "n": 3, "right": 0},
        {"calls": 2, "n": 6, "right": 2},
        {"calls": 10, "n": 1, "right": 1},
    ]
    assert compute_correct_shares(found) == [
        (0, 0.0, True),
        (2, 2 / 3, True),
    ]  # 10 is not displayed, but counts
    assert compute_success_rates(found) == [(0, 0.0, True), (2, 1 / 3, True)]
    many = [
        {"calls": 1, "n": MIN_TRAJECTORIES, "right": 0},
        {"calls": 3, "n": MIN_TRAJECTORIES - 1, "right": 0},
    ]
    assert compute_correct_shares(many) == [(1, 0.0, False), (3, 0.0, True)]


def graded(calls: int, *scores: float | None) -> list[Trajectory]:
    call = CallRecord("search", {}, "", CallOutcome.OK, 0.0)
    return [
        Trajectory(Task(f"{calls}/{i}", "?", ()), calls=[call] * calls, rewards={"em": score})
        for i, score in enumerate(scores)
    ]


def test_rollouts_that_cannot_be_graded_are_not_pooled_as_wrong_or_right() -> None:
    mixed = summarise_evaluation([*graded(0, 1.0, 1.0, 0.0, None, None, None), *graded(1, None)])
    reports = {seed: report(0.0) for seed in (0, 1)}
    for made in reports.values():
        made["evals"]["sft"]["by_calls"] = mixed["by_calls"]
    found = rows(aggregate_seeds(recipe(), reports))["sft"]["by_calls"]
    assert found == [{"calls": 0, "n": 6, "right": 4}]
    assert compute_success_rates(found) == [(0, 2 / 3, True)]


def test_a_group_without_counts_of_an_earlier_version_is_graded_whole_or_not_at_all() -> None:
    made = report(0.0)
    made["evals"]["sft"]["by_calls"] = {"0": {"n": 3, "em": None}, "1": {"n": 4, "em": 0.75}}
    found = rows(aggregate_seeds(recipe(), {0: made}))["sft"]["by_calls"]
    assert found == [{"calls": 1, "n": 4, "right": 3}]


def test_a_row_counts_what_its_model_went_through() -> None:
    found = rows(aggregate_seeds(recipe(), {0: report(0.5)}))
    assert list(found) == ["base", "workflow", *list(STAGES)[1:]]
    assert found["rl2"]["stages"] == ["base", "sft", "rl1", "rl2"]
    assert found["rl2"]["rl_steps"] == {"simulated": 5, "real": 2}
    assert found["rl2"]["seconds"] == 1 + 2 + 4 + 8
    assert found["other"]["stages"] == ["base", "other"]
    assert found["other"]["seconds"] == 1 + 16
    assert found["workflow"]["stages"] == ["base"]
    assert [row["kind"] for row in found.values()] == [
        *("model", "workflow", "supervised", "rl", "rl", "rl")
    ]


def test_a_workflow_in_which_no_model_writes_is_a_program(tmp_path: Path) -> None:
    made = report(0.5)
    made["evals"]["workflow"] |= {"tokens_mean": 0.0}
    table = aggregate_seeds(recipe(table_rows={"No model": "workflow", "Model": "base"}), {0: made})
    row = rows(table)["No model"]
    assert (row["kind"], row["stages"], row["seconds"]) == ("program", [], 0)
    write_seeds_page(table, {}, {}, {}, tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text("utf-8")
    assert "No model<small>no model</small>" in html


def test_teachers_have_rows_of_their_own(tmp_path: Path) -> None:
    teachers = recipe(teacher={"team": "afm"}, evaluation={"teachers": ["team", "lone"]})
    both = report(0.5)
    both["evals"] |= {name: entry(1.0, {}) for name in ("team", "lone")}
    table = aggregate_seeds(teachers, {0: both, 1: both})
    found = rows(table)
    assert list(found)[:4] == ["base", "workflow", "team", "lone"]
    assert [found[name]["kind"] for name in ("team", "lone")] == ["teacher", "teacher"]
    assert found["team"]["stages"] == []
    assert found["team"]["em"]["mean"] == 1.0
    page = tmp_path / "report.html"
    write_seeds_page(table, {0: "a", 1: "b"}, {}, {}, page)
    assert page.read_text().count("a teacher</small>") == 2


@pytest.mark.parametrize("name", list_builtin_recipes())
def test_every_recipe_has_a_table_over_seeds(name: str) -> None:
    needs = stand_ins(name)
    found = load_recipe(name, needs)
    if not found.stages:
        with pytest.raises(UserError, match=r"trains nothing, .* run it with seed=N for each"):
            load_recipe(name, [*needs, "seeds=[0,1]"])
        return
    parts = report(0.5)
    parts["evals"] = {row: entry(0.5, {}) for row in get_seed_table_rows(found).values()}
    parts["stages"] = [{"name": stage, "seconds": 1.0} for stage in found.stages]
    assert len(aggregate_seeds(found, {0: parts})["rows"]) == len(get_seed_table_rows(found))


def test_a_row_has_every_kind_of_question_by_itself() -> None:
    def kinds(far: float) -> dict[str, Any]:
        return {"mixed": entry(0.5, {}), "four_hops": entry(far, {}, calls_mean=3.0, n=4)}

    reports = {seed: report(0.5, splits=kinds(far)) for seed, far in enumerate((0.25, 0.75))}
    row = rows(aggregate_seeds(recipe(), reports))["sft"]
    assert list(row["splits"]) == ["mixed", "four_hops"]
    far = row["splits"]["four_hops"]
    assert (far["n"], far["em"]["values"], far["em"]["mean"]) == (8, [0.25, 0.75], 0.5)
    assert (far["calls_mean"], far["calls_optimal_mean"]) == (3.0, 1.0)
    assert (far["needless_calls_mean"], far["missing_calls_mean"]) == (0.75, 0.25)
    assert far["calls_regret_mean"] == 1.0
    assert far["offloading_rate"] == 0.5
    assert row["calls_regret_mean"] == 1.0
    assert rows(aggregate_seeds(recipe(), {0: report(0.5)}))["sft"]["splits"] == {}


def test_rows_have_the_titles_of_the_recipe() -> None:
    table = aggregate_seeds(recipe(table_rows={"A & B": "rl2", "Model": "base"}), {0: report(0.5)})
    assert [(row["title"], row["name"]) for row in table["rows"]] == [
        ("A & B", "rl2"),
        ("Model", "base"),
    ]


def test_the_charts_compare_react_sft_and_the_rl_that_went_on_from_it() -> None:
    found = aggregate_seeds(recipe(), {0: report(0.5)})["rows"]
    assert [row["name"] for row in select_chart_rows(found)] == ["workflow", "sft", "rl2"]
    only = [row for row in found if row["name"] in ("base", "other")]
    assert select_chart_rows(only) == []


def test_rivals_differ_in_their_last_stage_alone() -> None:
    one = {"type": "rl", "start_from": "sft", "steps": 3, "optim": {"lr": 0.1}}
    stages = STAGES | {"one": one, "two": one, "simulated": one | {"observations": "simulated"}}
    settings = recipe(stages=stages)
    made = report(0.5)
    made["evals"] |= dict.fromkeys(("one", "two", "simulated"), made["evals"]["sft"])
    found = aggregate_seeds(settings, {0: made})["rows"]
    # rl1 also starts at sft, and like `simulated` never uses the real search
    assert [r["name"] for r in select_rival_rows(found)] == ["rl1", "simulated"]
    without = [row for row in found if row["name"] != "rl1"]
    assert [row["name"] for row in select_rival_rows(without)] == ["one", "two"]
    assert select_rival_rows([row for row in without if row["name"] != "two"]) == []


# -- row against row ---------------------------------------------------------------------------


def answers(seed: int, name: str) -> list[Trajectory]:
    """Return ten graded questions: the base model answers none, RL-2 answers 8 plus the seed."""
    right = {"base": 0, "rl2": 8 + seed}[name]
    questions = [(f"{seed}/{i}", {"split": "train" if i == 9 else "heldout"}) for i in range(10)]
    return [
        Trajectory(Task(question, "?", ("a",), meta), rewards={"em": float(i < right)})
        for i, (question, meta) in enumerate(questions)
    ]


def test_rows_are_compared_by_their_titles_on_the_leading_split() -> None:
    settings = recipe(
        table_rows={"Model": "base", "All": "rl2"},
        comparisons={"all of it": ["Model", "All"], "back": ["All", "Model"]},
        evaluation={"splits": {"heldout": 9, "train": 1}},
    )
    found, back = compare_rows(settings, answers)
    assert (found["title"], found["baseline"], found["model"]) == ("all of it", "Model", "All")
    assert (found["n"], found["gained"], found["lost"]) == (18, 17, 0)
    assert found["em_differences"] == pytest.approx([8 / 9, 1.0])
    assert found["p_value"] == 2 / 2**17
    assert back["em_difference"] == -found["em_difference"] == pytest.approx(-17 / 18)
    assert compare_rows(recipe(), answers) == []
