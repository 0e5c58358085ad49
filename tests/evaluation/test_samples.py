"""avg@n and pass@k: the unbiased estimate, its interval, and evaluations that sample."""

import random
from dataclasses import replace
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.evaluation.samples import compute_pass_rates, make_pass_rate_rows, pass_at_k
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.evaluation.tables import build_pass_rates_table
from fieldcraft.types import Task, Trajectory


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_mean_over_all_choices_of_k_samples(n: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    drawn = [True] * right + [False] * (n - right)
    assert pass_at_k(n, right, k) == pytest.approx(fmean(map(any, combinations(drawn, k))))


@pytest.mark.parametrize(
    ("n", "right", "k", "rate"),
    [(16, 0, 8, 0), (16, 16, 1, 1), (4, 1, 2, 0.5), (5, 2, 3, 0.9), (2, 1, 2, 1)],
)
def test_pass_at_k_by_hand(n: int, right: int, k: int, rate: float) -> None:
    assert pass_at_k(n, right, k) == pytest.approx(rate)


def test_rates_of_two_questions() -> None:
    found = compute_pass_rates([[True, False, False, False], [False] * 4], ["a", "b"])
    assert found["samples"] == 4
    assert [found["pass_at"][k]["mean"] for k in ("1", "2", "4")] == [0.125, 0.25, 0.5]
    assert all(low < high for low, high in (r["ci95"] for r in found["pass_at"].values()))


def test_more_samples_of_the_same_questions_do_not_narrow_the_interval_of_pass_at_1() -> None:
    """The number of questions limits the precision, regardless of the number of samples."""
    few = compute_pass_rates([[i % 2 == 0] * 2 for i in range(20)], list(map(str, range(20))))
    many = compute_pass_rates([[i % 2 == 0] * 64 for i in range(20)], list(map(str, range(20))))
    assert many["pass_at"]["1"]["ci95"] == pytest.approx(few["pass_at"]["1"]["ci95"])


def test_the_interval_of_avg_at_n_covers() -> None:
    """Each of 30 questions has its own probability; the true mean of the probabilities is 0.5."""
    rng = random.Random(0)
    covered = 0
    for _ in range(300):
        chances = [rng.random() for _ in range(30)]
        drawn = [[rng.random() < p for _ in range(16)] for p in chances]
        low, high = compute_pass_rates(drawn, list(map(str, range(30))))["pass_at"]["1"]["ci95"]
        covered += low <= 0.5 <= high
    assert covered / 300 >= 0.95


def sampled(rights: list[list[int]]) -> list[Trajectory]:
    return [
        Trajectory(Task(str(q), "?", ()), rewards={"em": float(right)}, answer="x")
        for q, samples in enumerate(rights)
        for right in samples
    ]


def test_a_summary_of_several_samples_counts_questions() -> None:
    found = summarise_evaluation(sampled([[1, 0, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]]))
    assert (found["n"], found["n_effective"]) == (12, 3)
    assert found["em"] == found["sampled"]["pass_at"]["1"]["mean"] == pytest.approx(2 / 3)
    assert found["sampled"]["pass_at"]["4"]["mean"] == 1
    assert summarise_evaluation(sampled([[1], [0]]))["sampled"] is None


def test_the_table_shows_every_k() -> None:
    found = {
        "agent": summarise_evaluation(sampled([[1, 0], [0, 0]])),
        "greedy": summarise_evaluation(sampled([[1]])),
    }
    table = build_pass_rates_table(make_pass_rate_rows(found))
    assert table.headers == ["measure", "mean\n[95 %]", "pass@2\n[95 %]"]
    [(name, cells)] = table.rows  # the greedy one has no samples to report
    assert (name, cells[0]) == ("agent", "avg@2")
    assert [cell.split("\n")[0] for cell in cells[1:]] == ["0.250", "0.500"]


def of_source(source: str, rights: list[list[int]]) -> list[Trajectory]:
    return [
        replace(t, task=replace(t.task, id=source + t.task.id, meta={"data_source": source}))
        for t in sampled(rights)
    ]


def test_sources_are_named_by_any_value() -> None:
    mixed = [of_source("x", [[1]])[0] for _ in range(3)]
    for trajectory, source in zip(mixed, (1, "x", ["x", 2]), strict=True):
        trajectory.task.meta["data_source"] = source
    assert list(summarise_evaluation(mixed)["sources"]) == ["1", "['x', 2]", "x"]


def test_sources_with_more_samples_have_their_own_mean_and_count_no_more_in_the_whole() -> None:
    # Of all samples 3/6 are right, of the first ones 1/3; avg@4 of aime is 2/4.
    mixed = of_source("aime24", [[1, 0, 0, 1]]) + of_source("math500", [[0], [0]])
    found = summarise_evaluation(mixed)
    assert (found["em"], found["n"], found["sampled"]) == (pytest.approx(1 / 3), 3, None)
    aime, others = found["sources"]["aime24"], found["sources"]["math500"]
    assert (aime["em"], aime["sampled"]["samples"]) == (0.5, 4)
    assert (others["em"], others["sampled"]) == (0, None)
    rows = [
        (row.part, row.measure, row.rates["1"]["mean"])
        for row in make_pass_rate_rows({"rl": found})
    ]
    assert rows == [
        (None, "pass@1", pytest.approx(1 / 3)), ("aime24", "avg@4", 0.5), ("math500", "pass@1", 0),
    ]  # fmt: skip
    table = build_pass_rates_table(make_pass_rate_rows({"rl": found}))
    assert [cells[0] for _, cells in table.rows] == [
        "pass@1", "avg@4", "pass@1",
    ]  # fmt: skip


def test_splits_may_have_numbers_of_their_own() -> None:
    def of_split(split: str, rights: list[list[int]]) -> list[Trajectory]:
        return [replace(t, task=replace(t.task, meta={"split": split})) for t in sampled(rights)]

    found = summarise_evaluation(
        of_split("aime", [[1, 0]]) + of_split("heldout", [[1], [0], [0]]), "heldout"
    )
    rows = [
        (row.part, row.measure, row.rates["1"]["mean"])
        for row in make_pass_rate_rows({"rl": found})
    ]
    assert rows == [("heldout", "pass@1", pytest.approx(1 / 3)), ("aime", "avg@2", 0.5)]
