"""Comparison of two models on the same questions, computed by hand."""

import random
from fractions import Fraction
from itertools import chain, product
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.evaluation.comparison import (
    compare_consecutive,
    compare_models,
    compare_over_seeds,
    compare_with_first,
    fisher_test,
    sign_flip_test,
)
from fieldcraft.types import Author, CallOutcome, CallRecord, Segment, Task, Trajectory, UserError


def made(name, em, calls=0, *, tokens=10, seconds=1.0, refused=0, **meta):
    outcomes = [CallOutcome.OK] * calls + [CallOutcome.REFUSED] * refused
    return Trajectory(
        Task(name, "?", ("a",), meta),
        segments=[Segment(Author.PROMPT, [0] * 7, ""), Segment(Author.POLICY, [0] * tokens, "")],
        calls=[CallRecord("search", {"query": str(i)}, "", o, 0.0) for i, o in enumerate(outcomes)],
        rewards={"em": em},
        seconds=seconds,
    )


# name: (baseline's verdict and calls, the model's)
QUESTIONS = {
    "right and fewer": ((1.0, 3), (1.0, 1)),
    "wrong and fewer": ((0.0, 2), (0.0, 0)),
    "right and more": ((1.0, 0), (1.0, 1)),
    "the same": ((0.0, 1), (0.0, 1)),
    "gained with fewer": ((0.0, 2), (1.0, 1)),
    "gained with as many": ((0.0, 1), (1.0, 1)),
    "gained with more": ((0.0, 1), (1.0, 3)),
    "lost with fewer": ((1.0, 1), (0.0, 0)),
    "not graded here": ((None, 5), (1.0, 0)),
    "not graded there": ((1.0, 5), (None, 0)),
}


def sides():
    baseline = [made(q, *b, tokens=20, seconds=2.0) for q, (b, _) in QUESTIONS.items()]
    model = [made(q, *m, tokens=14, refused=4) for q, (_, m) in QUESTIONS.items()]
    return baseline, model


def test_behaviours_by_hand():
    found = compare_models(*sides())
    # 3.5 - 1.5 of 10 is 0.2; half = 1.959964 / 10 * sqrt(5 - 10 * 0.04) = 0.420365
    assert found.pop("em_difference_ci95") == pytest.approx([-0.220365, 0.620365], abs=1e-6)
    assert found == {
        "n": 8,
        "ungradable": 2,
        "gained": 3,
        "lost": 1,
        "em_difference": 2 / 8,
        "p_value": 10 / 16,  # 2 (C(4, 0) + C(4, 1)) / 2^4
        "more_efficient": 2 / 8,
        "less_efficient": 1 / 8,
        "same_behaviour": 1 / 8,
        "more_accurate": 3 / 8,
        "less_accurate": 1 / 8,
        "more_accurate_and_efficient": 1 / 8,
        "calls_saved_mean": (11 - 8) / 8,  # refused calls were not executed
        "acting_cost_saved_mean": (11 - 8) / 8,  # each call costs 1
        "tokens_saved_mean": 6.0,
        "seconds_saved_mean": 1.0,
    }


def test_pairs_are_of_the_same_question_if_only_one_file_has_its_split():
    """The questions are the same, and their splits were written into the file between two runs."""
    splits = {"a": "leading", "b": "other", "c": "leading"}
    baseline = [made(name, 0.0, split=split) for name, split in splits.items()]
    model = [made(name, float(name == "a")) for name in splits]
    assert compare_models(baseline, model, "leading")["n"] == 2
    assert compare_models(baseline, model, "leading")["gained"] == 1
    swapped = [made("a", 1.0, split="other"), made("b", 0.0, split="leading")]
    found = compare_models([baseline[0], baseline[1]], swapped, "leading")
    assert (found["n"], found["gained"]) == (1, 1)


def test_the_other_way_round_mirrors():
    one, other = compare_models(*sides()), compare_models(*reversed(sides()))
    assert (one["gained"], one["lost"]) == (other["lost"], other["gained"])
    assert one["more_efficient"] == other["less_efficient"]
    assert one["p_value"] == other["p_value"]
    for key in ("em_difference", "calls_saved_mean", "tokens_saved_mean", "seconds_saved_mean"):
        assert one[key] == -other[key]


def test_one_split_leads():
    baseline = [made("a", 0.0, split="train"), made("b", 0.0, split="heldout")]
    model = [made("a", 1.0, split="train"), made("b", 0.0, split="heldout")]
    led = compare_models(baseline, model, "heldout")
    assert (led["n"], led["gained"]) == (1, 0)
    every = compare_models(baseline, model)
    assert (every["n"], every["gained"]) == (2, 1)
    [entry] = compare_consecutive({"x": baseline, "y": model}, "train")
    assert (entry["n"], entry["gained"]) == (1, 1)


def test_other_questions_cannot_be_compared():
    with pytest.raises(
        UserError, match="'baseline' and 'model' have different questions or a diff"
    ):
        compare_models([made("a", 1.0), made("b", 1.0)], [made("b", 1.0), made("a", 1.0)])
    with pytest.raises(UserError, match="'sft' and 'rl' have different questions"):
        compare_with_first({"sft": [made("a", 1.0)], "rl": []})
    with pytest.raises(UserError, match="'x' and 'y' have different questions"):
        compare_over_seeds([([made("a", 1.0)], [made("A", 1.0)])], names=("x", "y"))


def test_nothing_gradable():
    found = compare_models([made("a", None)], [made("a", 1.0)])
    assert (found.pop("n"), found.pop("ungradable")) == (0, 1)
    assert (found.pop("gained"), found.pop("lost")) == (0, 0)
    assert set(found.values()) == {None}


def test_who_is_compared_with_whom():
    parts = {name: [made("a", em)] for name, em in (("x", 0.0), ("y", 1.0), ("z", 1.0))}

    def named(found):
        return [(c["baseline"], c["model"], c["gained"]) for c in found]

    assert named(compare_with_first(parts)) == [("x", "y", 1), ("x", "z", 1)]
    assert named(compare_consecutive(parts)) == [("x", "y", 1), ("y", "z", 0)]
    assert compare_with_first({"x": parts["x"]}) == compare_consecutive({}) == []


# -- the test ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (5, 0, 2 / 32),
        (3, 3, 1.0),
        (8, 1, 20 / 512),
        (10, 2, 2 * (1 + 12 + 66) / 4096),
    ],
)
def test_single_questions_by_hand(wins, losses, p):
    """McNemar's exact test."""
    assert sign_flip_test([1] * wins + [0] * 7 + [-1] * losses) == p
    assert sign_flip_test([-1] * wins + [1] * losses) == p


@given(st.integers(0, 60), st.integers(0, 60))
def test_of_single_questions_it_is_the_binomial_test(wins, losses):
    n, fewer = wins + losses, min(wins, losses)
    ways = 2**n if wins == losses else 2 * sum(comb(n, k) for k in range(fewer + 1))
    found = sign_flip_test([1] * wins + [-1] * losses)
    assert found == pytest.approx(float(Fraction(ways, 2**n)))


def test_clusters_by_hand():
    # 5 gained in one cluster: in either direction, both are equally far from 0
    assert sign_flip_test([5]) == 1.0
    # sums of +-3 +-2 +-1: 6, 4, 2, 0, 0, -2, -4, -6; 3 + 2 - 1 = 4
    assert sign_flip_test([3, 2, -1]) == 4 / 8
    assert sign_flip_test([-3, -2, -1]) == 2 / 8
    assert sign_flip_test([0, 0]) == sign_flip_test([]) == 1.0


@given(st.lists(st.integers(-6, 6), max_size=9))
def test_every_way_to_choose_the_signs_is_counted(sums):
    ways = [sum(s * d for s, d in zip(signs, sums, strict=True)) for signs in signs_of(len(sums))]
    far = sum(abs(way) >= abs(sum(sums)) for way in ways)
    assert sign_flip_test(sums) == pytest.approx(far / len(ways))


def signs_of(count):
    return list(product((1, -1), repeat=count))


def test_many_questions():
    assert sign_flip_test([1, -1] * 2_000) == 1.0
    assert sign_flip_test([1] * 3_000 + [-1] * 1_000) < 1e-200
    assert 0.04 < sign_flip_test([1] * 2_065 + [-1] * 1_935) < 0.05


def test_questions_of_one_cluster_change_sides_together():
    """Eight of eight gained: certain if independent, no evidence if they are two clusters."""
    before = [made(str(i), 0.0, cluster=i // 4) for i in range(8)]
    after = [made(str(i), 1.0, cluster=i // 4) for i in range(8)]
    together = compare_models(before, after)
    assert together["p_value"] == 2 / 4
    apart = compare_models(
        *([made(t.task.id, t.rewards["em"]) for t in side] for side in (before, after))
    )
    assert apart["p_value"] == 2 / 256
    # 8.5 - 0.5 of 10 is 0.8; half = 1.959964 / 10 * sqrt(9 - 10 * 0.64) = 0.316035
    assert apart["em_difference_ci95"] == pytest.approx([0.483965, 1.0], abs=1e-6)
    # Equivalent to 8 / 4 * (2.365 / 12.706)^2 = 0.069291 questions, so hardly anything is known:
    # 0.569291 - 0.5 of 2.069291 is 0.033486; half = 1.959964 / 2.069291 * sqrt(1.066971) = 0.978372
    assert together["em_difference_ci95"] == pytest.approx([-0.944886, 1.0], abs=1e-5)


def test_where_two_are_equally_good_the_test_says_so_as_often_as_it_should():
    """40 clusters of five, each better on either side with equal probability."""
    rng = random.Random(3)
    clustered = alone = 0
    for _ in range(500):
        chances = [rng.choice((0.2, 0.8)) for _ in range(40)]
        sums = [[rng.choice((0, 1 if rng.random() < c else -1)) for _ in range(5)] for c in chances]
        clustered += sign_flip_test(map(sum, sums)) < 0.05
        alone += sign_flip_test(chain.from_iterable(sums)) < 0.05
    assert 0.02 < clustered / 500 < 0.07
    assert alone / 500 > 0.08


# -- over seeds --------------------------------------------------------------------------------


def seed(*ems):
    return [made(str(i), em, cluster="same" if i < 2 else i) for i, em in enumerate(ems)]


def test_a_row_against_another_over_seeds_by_hand():
    found = compare_over_seeds(
        [
            (seed(0, 0, 1, 0), seed(1, 1, 1, 0)),  # 2 gained, in one cluster
            (seed(0, 1, 1, 0), seed(1, 1, 0, 1)),  # 2 gained, 1 lost, each in a separate cluster
        ]
    )
    assert (found["n"], found["gained"], found["lost"]) == (8, 4, 1)
    assert found["em_differences"] == [0.5, 0.25]
    assert found["em_difference"] == 0.375
    # clusters gained 2, 1, 1 and -1, in sum 3: of 16 ways +-5 has 1 each and +-3 3 each
    assert found["p_value"] == 8 / 16
    # half = 12.706 * (0.25 / sqrt(2)) / sqrt(2) = 1.588, outside the possible range
    assert found["em_difference_ci95"] == [-1.0, 1.0]


def test_labels_of_different_seeds_are_different_clusters():
    once = seed(0, 0), seed(1, 1)
    assert compare_over_seeds([once] * 3)["p_value"] == 2 / 8


def test_seeds_without_a_difference_have_an_interval():
    same = [made(str(i), 1.0) for i in range(49)]
    found = compare_over_seeds([(same, same), (same, same)])
    assert (found["em_difference"], found["p_value"]) == (0.0, 1.0)
    # 1.959964 / 100
    assert found["em_difference_ci95"] == pytest.approx([-0.01959964, 0.01959964])
    assert compare_over_seeds([(same, same)])["em_difference_ci95"] is None


def test_a_seed_without_anything_gradable():
    nothing = [made("0", None)]
    found = compare_over_seeds([(nothing, nothing), (seed(0), seed(1))])
    assert (found["n"], found["em_difference"], found["p_value"]) == (1, None, None)
    found = compare_over_seeds([(nothing, nothing), (nothing, nothing)])
    assert found == {
        **{"n": 0, "gained": 0, "lost": 0, "em_differences": []},
        **{"em_difference": None, "em_difference_ci95": None, "p_value": None},
    }


def test_fisher_by_hand():
    """The lady tasting tea had 3 of 4 cups right: (16 + 1 + 16 + 1) of 70 ways are as rare."""
    assert fisher_test((3, 4), (1, 4)) == pytest.approx(34 / 70)
    assert fisher_test((4, 4), (0, 4)) == pytest.approx(2 / 70)
    assert fisher_test((2, 4), (2, 4)) == 1
    assert fisher_test((0, 4), (0, 9)) == 1
    # 8 of 10 against 1 of 6: ways 6, 90, 225 x 6 ... of C(16, 9) = 11440
    ways = [comb(10, k) * comb(6, 9 - k) for k in range(3, 10)]
    rare = sum(w for w in ways if w <= comb(10, 8) * comb(6, 1))
    assert fisher_test((8, 10), (1, 6)) == pytest.approx(rare / 11440)


@given(st.integers(0, 12), st.integers(0, 12))
def test_fisher_does_not_ask_which_came_first(one, other):
    assert fisher_test((one, 12), (other, 12)) == fisher_test((other, 12), (one, 12))
    assert 0 < fisher_test((one, 12), (other, 12)) <= 1
