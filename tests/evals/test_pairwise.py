"""Two models on the same questions, by hand."""

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.evals.pairwise import against_first, compare, one_after_another, sign_test
from fieldcraft.types import Author, Call, Outcome, Segment, Task, Trajectory


def made(name, em, calls=0, *, tokens=10, seconds=1.0, refused=0, **meta):
    outcomes = [Outcome.OK] * calls + [Outcome.REFUSED] * refused
    return Trajectory(
        Task(name, "?", ("a",), meta),
        segments=[Segment(Author.PROMPT, [0] * 7, ""), Segment(Author.POLICY, [0] * tokens, "")],
        calls=[Call("search", {"query": str(i)}, "", o, 0.0) for i, o in enumerate(outcomes)],
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
    assert compare(*sides()) == {
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
        "calls_saved_mean": (11 - 8) / 8,  # refused calls were not made
        "tokens_saved_mean": 6.0,
        "seconds_saved_mean": 1.0,
    }


def test_the_other_way_round_mirrors():
    one, other = compare(*sides()), compare(*reversed(sides()))
    assert (one["gained"], one["lost"]) == (other["lost"], other["gained"])
    assert one["more_efficient"] == other["less_efficient"]
    assert one["p_value"] == other["p_value"]
    for key in ("em_difference", "calls_saved_mean", "tokens_saved_mean", "seconds_saved_mean"):
        assert one[key] == -other[key]


def test_one_split_leads():
    baseline = [made("a", 0.0, split="train"), made("b", 0.0, split="heldout")]
    model = [made("a", 1.0, split="train"), made("b", 0.0, split="heldout")]
    led = compare(baseline, model, "heldout")
    assert (led["n"], led["gained"]) == (1, 0)
    every = compare(baseline, model)
    assert (every["n"], every["gained"]) == (2, 1)
    [entry] = one_after_another({"x": baseline, "y": model}, "train")
    assert (entry["n"], entry["gained"]) == (1, 1)


def test_other_questions_cannot_be_compared():
    with pytest.raises(ValueError, match="same tasks"):
        compare([made("a", 1.0), made("b", 1.0)], [made("b", 1.0), made("a", 1.0)])
    with pytest.raises(ValueError, match="same tasks"):
        compare([made("a", 1.0)], [])


def test_nothing_gradable():
    found = compare([made("a", None)], [made("a", 1.0)])
    assert (found.pop("n"), found.pop("ungradable")) == (0, 1)
    assert (found.pop("gained"), found.pop("lost")) == (0, 0)
    assert set(found.values()) == {None}


def test_who_is_compared_with_whom():
    parts = {name: [made("a", em)] for name, em in (("x", 0.0), ("y", 1.0), ("z", 1.0))}

    def named(found):
        return [(c["baseline"], c["model"], c["gained"]) for c in found]

    assert named(against_first(parts)) == [("x", "y", 1), ("x", "z", 1)]
    assert named(one_after_another(parts)) == [("x", "y", 1), ("y", "z", 0)]
    assert against_first({"x": parts["x"]}) == one_after_another({}) == []


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
def test_sign_test_by_hand(wins, losses, p):
    assert sign_test(wins, losses) == sign_test(losses, wins) == p


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_sign_test_is_the_binomial_one(wins, losses):
    """The sum of the probabilities of all outcomes that are no likelier than the seen one."""
    n = wins + losses
    ways = sum(comb(n, k) for k in range(n + 1) if comb(n, k) <= comb(n, wins))
    assert sign_test(wins, losses) == pytest.approx(float(Fraction(ways, 2**n)))


def test_many_trials_are_no_overflow():
    assert sign_test(20_000, 20_000) == 1.0
    assert sign_test(30_000, 10_000) == 0.0
    assert 0.04 < sign_test(20_200, 19_800) < 0.05
