"""Simulated training in a table over seeds, with values computed by hand."""

from typing import Any

import pytest
from rich.console import Console

from fieldcraft.evaluation.results import build_report_tables
from fieldcraft.evaluation.seed_table import aggregate_seeds
from fieldcraft.evaluation.simulated_training import (
    measure_saved_calls,
    pool_fidelity,
    summarise_simulated_rows,
    trace_learning,
)
from fieldcraft.types import Trajectory
from report_parts import trajectory
from seeds_parts import STAGES, recipe, report

REAL = {"type": "rl", "start_from": "sft", "steps": 3, "optim": {"lr": 0.1}}
ROWS = {"SFT": "sft", "RL": "rl2", "Real": "real"}
SETTINGS = recipe(
    stages=STAGES | {"real": REAL},
    table_rows=ROWS,
    comparisons={"worth": ["Real", "RL"], "gain": ["SFT", "RL"]},
    evaluation={"splits": {"heldout": 4}, "periodic": {"every": 1, "questions": 2}},
)


COSTS = {"seconds": 1.0, "policy_tokens_mean": 20.0}


def judged(n: int, rate: float, **bands: tuple[int, float]) -> dict[str, Any]:
    found: dict[str, Any] = {"fidelity/n": n, "fidelity/supports_answer": rate}
    for name, (count, share) in bands.items():
        found |= {f"fidelity/{name}/n": count, f"fidelity/{name}/supports_answer": share}
    return {**COSTS, "rollouts": 8, "calls_mean": 2.0, **found}


def trained(calls: float, em: float) -> dict[str, Any]:
    return {**COSTS, "rollouts": 10, "calls_mean": calls, "eval/em": em}


SIMULATED = [
    [judged(10, 0.5, never=(8, 0.375), known=(2, 1.0)), judged(30, 0.1, never=(30, 0.1))],
    [
        judged(0, 0.0) | {"eval/em": 0.25},
        {**COSTS, "rollouts": 8, "calls_mean": 0.0, "fidelity/n": 0},
    ],
]
CURVES = {
    "rl1": SIMULATED,
    "rl2": [[trained(1.0, 0.25), trained(2.0, 0.5)], [trained(1.0, 0.0), trained(3.0, 1.0)]],
    "real": [
        [trained(1.0, 0.25), trained(1.5, 0.75), trained(2.0, 0.5)],
        [trained(1.0, 0.25), trained(1.0, 0.5), trained(1.0, 0.75)],
    ],
}


def reports(*ems: float) -> dict[int, dict[str, Any]]:
    """Return a report for each exact match of the row `RL`; that of all others is 0.5."""
    found = {seed: report(0.5) for seed in range(len(ems))}
    for seed, em in enumerate(ems):
        evals = found[seed]["evals"]
        evals |= {"real": evals["sft"], "rl2": evals["rl2"] | {"em": em}}
    return found


def read_evaluation(seed: int, name: str) -> list[Trajectory]:
    """Return three questions, of which the first is of another split, and of the others one is
    correct with seed 0 and none with seed 1; a fourth one is not asked during training."""
    verdicts = [True, seed == 0, False, True]
    return [
        trajectory(str(i), correct=right, split="heldout" if i else "known")
        for i, right in enumerate(verdicts)
    ]


def test_rates_are_pooled_over_calls_not_steps() -> None:
    assert pool_fidelity([step for seed in SIMULATED for step in seed]) == {
        "all": {"n": 40, "supports_answer": pytest.approx((10 * 0.5 + 30 * 0.1) / 40)},
        "never": {"n": 38, "supports_answer": pytest.approx((8 * 0.375 + 30 * 0.1) / 38)},
        "known": {"n": 2, "supports_answer": 1.0},
    }
    assert pool_fidelity([]) == {}
    assert pool_fidelity([{"fidelity/n": 3, "fidelity/supports_answer": None}]) == {}


def test_a_row_gains_over_the_model_before_its_simulated_steps() -> None:
    rows = aggregate_seeds(SETTINGS, reports(0.5, 0.75), (), CURVES)["rows"]
    [entry] = summarise_simulated_rows(SETTINGS, rows, CURVES)
    assert [entry[key] for key in ("title", "start", "steps", "real_steps")] == ["RL", "SFT", 5, 2]
    assert entry["em_gained"] == pytest.approx(0.125)
    assert entry["fidelity"]["all"]["n"] == 40
    rows[0]["em"]["mean"] = None  # nothing was gradable
    [ungraded] = summarise_simulated_rows(SETTINGS, rows, CURVES)
    assert (ungraded["start"], ungraded["em_gained"]) == ("SFT", None)
    [bare] = summarise_simulated_rows(SETTINGS, rows[1:], {})
    assert (bare["start"], bare["em_gained"], bare["fidelity"]) == (None, None, {})


def test_only_real_calls_count() -> None:
    """10 rollouts with 1 and with 2 calls; those of the simulated stage before cost nothing."""
    points = trace_learning(SETTINGS, "rl2", 0, read_evaluation, CURVES)
    assert points == [(0.0, 0.5), (10.0, 0.25), (30.0, 0.5)]
    points = trace_learning(SETTINGS, "rl2", 1, read_evaluation, CURVES)
    assert points == [(0.0, 0.0), (0.0, 0.25), (10.0, 0.0), (40.0, 1.0)]


def test_the_start_is_measured_on_all_questions_of_the_evaluations_during_training() -> None:
    """Each question was answered twice, the first one of the split twice correctly."""

    def read_samples(seed: int, name: str) -> list[Trajectory]:
        return [answer for answer in read_evaluation(seed, name) for _ in range(2)]

    assert trace_learning(SETTINGS, "rl2", 0, read_samples, CURVES)[0] == (0.0, 0.5)


def test_an_evaluation_without_a_gradable_answer_is_no_point() -> None:
    ungraded = [[trained(1.0, 0.25) | {"eval/em": None}, trained(2.0, 0.5)], CURVES["rl2"][1]]
    points = trace_learning(SETTINGS, "rl2", 0, read_evaluation, CURVES | {"rl2": ungraded})
    assert points == [(0.0, 0.5), (30.0, 0.5)]


def test_saved_calls_are_those_until_the_rival_first_has_the_same_exact_match() -> None:
    """With seed 0 the rival starts with the exact match that the other row ends with, 0.5; with
    seed 1 it never has it, 1.0, so that this seed counts in no mean."""
    [entry] = measure_saved_calls(SETTINGS, read_evaluation, CURVES)
    assert entry == {
        **{"title": "worth", "model": "RL", "rival": "Real", "reached": 1},
        **{"em": 0.5, "calls": 30.0, "rival_calls": 0.0},
    }
    better = CURVES | {
        "rl2": [[trained(1.0, 0.75)], [trained(1.0, 0.5)]],
        "real": [CURVES["real"][0], CURVES["real"][1]],
    }
    [entry] = measure_saved_calls(SETTINGS, read_evaluation, better)
    assert entry["reached"] == 2  # 10 + 15 calls, and 10 + 10
    assert (entry["em"], entry["calls"], entry["rival_calls"]) == (0.625, 10.0, 22.5)
    never = CURVES | {"real": [[trained(1.0, 0.0)], [trained(1.0, 0.0)]]}
    none = measure_saved_calls(SETTINGS, lambda seed, name: read_evaluation(1, name), never)
    assert [none[0][key] for key in ("reached", "em", "rival_calls")] == [0, None, None]


def test_without_evaluations_during_training_nothing_is_compared() -> None:
    bare = SETTINGS.model_copy(
        update={"evaluation": SETTINGS.evaluation.model_copy(update={"periodic": None})}
    )
    assert measure_saved_calls(bare, read_evaluation, CURVES) == []


def test_the_terminal_shows_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    saved = measure_saved_calls(SETTINGS, read_evaluation, CURVES)
    table = aggregate_seeds(SETTINGS, reports(0.5, 0.5), (), CURVES, saved)
    for part in build_report_tables(table):
        Console(width=100).print(part)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["RL", "5", "+", "2", "40", "0.200", "+0.000"] in lines
    assert ["knows", "it", "never", "38", "0.158"] in lines
    assert ["RL", "←", "Real", "0.500", "30", "0", "-30", "1"] in lines
