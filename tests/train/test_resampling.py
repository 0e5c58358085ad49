"""Resampling on correct rollouts: sizes, shares, and a preference for clean rollouts."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from fieldcraft.train.sampler import compute_penalty, resample_on_correct
from fieldcraft.types import CallOutcome, CallRecord, Task, Trajectory
from rl_parts import MIXED, RIGHT, SEARCH, WRONG, stage
from training_parts import step

TASK = Task("q", "Who?", ("Kalo",))
FAILED, OK = CallOutcome.FAILED, CallOutcome.OK


def done(correct: bool, *outcomes: CallOutcome, well_formed: bool = True) -> Trajectory:
    calls = [CallRecord("python", {}, "", outcome, 0.0) for outcome in outcomes]
    return Trajectory(TASK, calls=calls, well_formed=well_formed, rewards={"em": float(correct)})


@pytest.mark.parametrize(
    ("trajectory", "expected"),
    [
        (done(True), 0.5),
        (done(True, OK), 0.0),
        (done(True, FAILED, OK), 0.5),
        (done(True, FAILED, CallOutcome.MALFORMED, OK, OK), 0.5),
        (done(True, FAILED, well_formed=False), 2.0),
    ],
)
def test_penalty_counts_failed_calls_and_broken_grammar(
    trajectory: Trajectory, expected: float
) -> None:
    assert compute_penalty(trajectory) == expected


def test_the_share_of_wrong_rollouts_is_kept() -> None:
    group = [done(i < 10, OK) for i in range(16)]
    resampled = resample_on_correct(group, 8, random.Random(0))
    assert len(resampled) == 8
    assert sum(t.is_correct is True for t in resampled) == 5
    assert [group.index(t) for t in resampled] == sorted(group.index(t) for t in resampled)


@pytest.mark.parametrize("rights", [0, 16])
def test_a_group_of_one_kind_is_cut_to_size(rights: int) -> None:
    group = [done(i < rights, OK) for i in range(16)]
    assert len(resample_on_correct(group, 8, random.Random(0))) == 8


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("rare", [True, False])
def test_the_only_rollout_of_its_kind_is_kept(rare: bool, size: int) -> None:
    group = [done((i == 3) is rare, OK) for i in range(2 * size)]
    resampled = resample_on_correct(group, size, random.Random(0))
    assert len(resampled) == size
    assert [t for t in resampled if t.is_correct is rare] == [group[3]]


def test_clean_rollouts_are_preferred_among_right_ones() -> None:
    """Weights are 1 / 0.1 and 1 / 0.6: of one place for two rollouts, the clean one gets 6 in 7."""
    clean, repaired = done(True, OK), done(True, FAILED, OK)
    rng = random.Random(0)
    taken = Counter(resample_on_correct([clean, repaired], 1, rng)[0] is clean for _ in range(7000))
    assert taken[True] / 7000 == pytest.approx(6 / 7, abs=0.015)


def test_rollouts_without_a_grade_are_dropped_first() -> None:
    """14 correct, one wrong and one that failed: the wrong one stays whatever is drawn."""
    graded = [replace(done(i != 3, OK), reward=float(i != 3)) for i in range(15)]
    rl, _, _ = stage(MIXED, group_size=8, oversample_factor=2)
    for seed in range(50):
        kept = rl.sampler.downsample([*graded, Trajectory(TASK)], random.Random(seed))
        assert len(kept) == 8
        assert graded[3] in kept
    few = [*graded[:5], *(Trajectory(TASK) for _ in range(11))]
    assert len(rl.sampler.downsample(few, random.Random(0))) == 8


def test_a_stage_trains_on_as_many_as_the_group_has() -> None:
    """Four rollouts of each question are sampled; a correct and a wrong one are trained on."""
    scripts = {f"{q}/{g}": [RIGHT] if g % 2 else [WRONG] for q in range(2) for g in range(4)}
    rl, trainer, _ = stage(scripts, oversample_factor=2, loss_aggregation="token")
    row = step(rl, 0)
    assert row["em"] == 0.5
    assert len(trainer.samples) == 4
    rows = [stage(scripts, oversample_factor=2)[0] for _ in range(2)]
    assert step(rows[0], 3) == pytest.approx(step(rows[1], 3))


def test_without_oversampling_nothing_is_dropped() -> None:
    rl, trainer, _ = stage({**MIXED, "0/0": [SEARCH, RIGHT]}, loss_aggregation="token")
    step(rl, 0)
    assert len(trainer.samples) == 2  # the group of equal rewards is left out
