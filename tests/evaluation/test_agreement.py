"""Agreement of a grader with people, computed by hand, and its intervals."""

import asyncio
from math import sqrt
from random import Random

import pytest

from fieldcraft.data.labelled_answers import LabelledAnswer
from fieldcraft.evaluation.agreement import (
    Agreement,
    compute_kappa_interval,
    measure_agreement,
    measure_grader,
)
from fieldcraft.evaluation.intervals import wilson_interval
from fieldcraft.types import Task

# 20 accepted by both, 5 by the grader, 10 by people, 15 by neither
PAIRS = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15


def test_agreement_by_hand():
    found = Agreement.count(PAIRS)
    assert (found.n, found.accuracy, found.precision) == (50, 0.7, 0.8)
    assert found.recall == pytest.approx(2 / 3)
    assert found.chance == pytest.approx(0.5)  # .5 x .6 + .5 x .4
    assert found.kappa == pytest.approx(0.4)
    nothing = Agreement.count([(False, False)] * 3)
    assert (nothing.precision, nothing.recall, nothing.kappa) == (None, None, None)


def test_the_interval_of_independent_answers_is_that_of_the_large_sample():
    """Fleiss, Cohen and Everitt (1969) give a standard error of 0.1283 for these counts."""
    low, high = compute_kappa_interval(PAIRS, range(50))
    p_o, p_e, kappa = 0.7, 0.5, 0.4
    cells = {(1, 1): 0.4, (1, 0): 0.1, (0, 1): 0.2, (0, 0): 0.3}
    grader, people = {1: 0.5, 0: 0.5}, {1: 0.6, 0: 0.4}
    a = sum(cells[i, i] * (1 - (grader[i] + people[i]) * (1 - kappa)) ** 2 for i in (0, 1))
    b = (1 - kappa) ** 2 * sum(
        cells[i, j] * (people[i] + grader[j]) ** 2 for i, j in ((0, 1), (1, 0))
    )
    c = (kappa - p_e * (1 - kappa)) ** 2
    error = sqrt((a + b - c) / 50) / (1 - p_e)
    assert (low + high) / 2 == pytest.approx(0.4)
    assert (high - low) / 2 == pytest.approx(2.042 * error, rel=0.05)
    assert p_o - p_e == pytest.approx(0.2)


def test_repeated_answers_to_one_question_are_worth_no_more():
    """Three copies of each answer give the interval of one copy."""
    three = measure_agreement(PAIRS * 3, [*range(50)] * 3)
    assert three["n"] == 150
    once = compute_kappa_interval(PAIRS, range(50))
    assert three["kappa_ci95"] == pytest.approx(once, rel=1e-6)
    width = three["accuracy_ci95"][1] - three["accuracy_ci95"][0]
    narrow, wide = wilson_interval(0.7, 150), wilson_interval(0.7, 40)
    assert narrow[1] - narrow[0] < width < wide[1] - wide[0]


def test_an_interval_covers_the_kappa_of_the_population():
    """Of 200 samples of 60 answers, the 95 % interval covers kappa 0.6 in about 190."""
    rng, covered = Random(0), 0
    for _ in range(200):
        people = [rng.random() < 0.5 for _ in range(60)]
        pairs = [(p if rng.random() < 0.8 else not p, p) for p in people]
        low, high = compute_kappa_interval(pairs, range(60))
        covered += low <= 0.6 <= high
    assert 182 <= covered <= 199


def test_a_perfect_judge_has_an_interval_too():
    pairs = [(True, True)] * 10 + [(False, False)] * 10
    low, high = compute_kappa_interval(pairs, range(20))
    assert high == 1.0
    assert low == pytest.approx(2 * wilson_interval(1.0, 20)[0] - 1)  # chance is a half


@pytest.mark.parametrize(
    ("pairs", "clusters"), [([(True, True)] * 5, range(5)), ([(True, False), (True, True)], "aa")]
)
def test_without_a_kappa_or_questions_there_is_no_interval(pairs, clusters):
    assert compute_kappa_interval(pairs, list(clusters)) is None


def test_a_grader_is_measured_by_source():
    """Ties and answers without a grade are left out."""
    scores = {"a": 1.0, "b": 0.0, "c": None, "d": 0.5, "e": 2 / 3}

    async def grade(trajectory):
        return scores[trajectory.answer]

    answers = [
        LabelledAnswer(Task(a, "Q", ()), a, accepted, source)
        for a, accepted, source in (
            *(("a", True, "x"), ("b", True, "x"), ("c", True, "x")),
            *(("d", False, "y"), ("e", True, "y")),
        )
    ]
    found = asyncio.run(measure_grader(grade, answers))
    assert {name: (e["n"], e["accuracy"], e["not_graded"]) for name, e in found.items()} == {
        "x": (2, 0.5, 1),
        "y": (1, 1.0, 1),
        "all": (3, pytest.approx(2 / 3), 2),
    }
    alone = asyncio.run(measure_grader(grade, answers[2:3]))
    assert alone == {"x": {"n": 0, "not_graded": 1}}
