"""Collapse detection: a collapsing run stops with a likely cause, a noisy healthy run continues."""

import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bandit import bandit, letters
from fieldcraft.config.rl import Rl
from fieldcraft.records.metrics import METRICS
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.train.collapse_detector import CollapseDetector
from fieldcraft.train.model import load_model
from fieldcraft.train.saving import list_checkpoint_steps
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.train.stages.rl import RlStage, make_collapse_detector
from fieldcraft.types import Trajectory, UserError
from training_parts import Steps, make_trainer, run_stage, step

WATCH = CollapseDetector(score_key="em", threshold=0.5, max_grad_norm=1.0)
HEALTHY: StepMetrics = {
    "em": 0.8,
    "reward_mean": 0.8,
    "correct_logp_mean": -0.1,
    "entropy": 0.3,
    "ratio_mean": 1.0,
    "sampler_logp_diff": 0.001,
    "grad_norm": 0.4,
    "policy_tokens_mean": 100.0,
    "calls_mean": 1.5,
    "tool_failure_rate": 0.0,
}
FALL = 60  # first step in which exact match falls


def series(
    steps: int = 120, seed: int = 0, **changes: Callable[[int], float | None]
) -> list[StepMetrics]:
    """Return rows with values within a fifth of HEALTHY, except for `changes` by step."""
    rng = random.Random(seed)
    rows = []
    for number in range(steps):
        row: StepMetrics = {key: value * rng.uniform(0.8, 1.2) for key, value in HEALTHY.items()}
        row["ratio_mean"] = rng.uniform(0.99, 1.01)
        row |= {key: change(number) for key, change in changes.items()}
        rows.append({"step": number, **row})
    return rows


def falling(step: int) -> float:
    """Return an exact match that is lost within 20 steps from step FALL on."""
    return 0.8 * min(1.0, max(0.0, 1 - (step - FALL) / 20))


def stopped(rows: Sequence[StepMetrics]) -> int | None:
    """Return the number of rows at which the detector stops, or None if it does not."""
    return next((n for n in range(1, len(rows) + 1) if WATCH.detect(rows[:n])), None)


# -- no collapse --------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [0.02, 0.1, 0.3, 0.8])
@pytest.mark.parametrize("rollouts", [4, 16, 160])
def test_noise_is_no_collapse(right: float, rollouts: int) -> None:
    rng = random.Random(f"{right}{rollouts}")
    scores = [sum(rng.random() < right for _ in range(rollouts)) / rollouts for _ in range(250)]
    rows = series(250, em=scores.__getitem__)
    assert [n for n in range(10, 251, 10) if WATCH.detect(rows[:n])] == []


def test_what_moves_while_right_answers_stay_is_no_collapse() -> None:
    """Entropy and calls fall while rollouts and likelihood grow: the policy becomes confident."""
    rows = series(
        entropy=lambda step: 0.3 * 0.9**step,
        policy_tokens_mean=lambda step: 100.0 + 10 * step,
        calls_mean=lambda step: 1.5 * 0.9**step,
        correct_logp_mean=lambda step: -0.1 * 0.9**step,
        grad_norm=lambda step: 0.0 if step % 2 else 9.0,
    )
    assert stopped(rows) is None


def test_a_dip_that_ends_is_no_collapse() -> None:
    assert stopped(series(em=lambda step: 0.1 if 60 <= step < 68 else 0.8)) is None


def test_a_score_that_never_rose_has_nothing_to_lose() -> None:
    assert stopped(series(em=lambda step: 0.09 if step < 60 else 0.0)) is None


# -- collapse and its cause ---------------------------------------------------------------------


def ramp(start: int, before: float, after: float) -> Callable[[int], float]:
    return lambda step: before if step < start else after


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, "no other metric left its range earlier"),
        ({"entropy": lambda s: 0.3 * 0.8 ** max(0, s - 40)}, "entropy fell from 0."),
        ({"entropy": lambda s: 0.3 + 0.1 * max(0, s - 50)}, "entropy rose from 0.3 to"),
        ({"grad_norm": ramp(55, 0.4, 40.0)}, "gradient norm rose from 0.4 to 40"),
        (
            {"policy_tokens_mean": ramp(70, 100, 600)},
            "length in policy tokens rose from 100 to 600",
        ),
        ({"policy_tokens_mean": ramp(70, 100, 3)}, "length in policy tokens fell from 100 to 3"),
        ({"calls_mean": ramp(62, 1.5, 0)}, "number of calls fell from 1.5 to 0"),
        ({"calls_mean": ramp(62, 1.5, 4)}, "number of calls rose from 1.5 to 4"),
        (
            {"correct_logp_mean": lambda s: -0.1 * 1.05 ** max(0, s - 40)},
            "log-probability of correct answers fell from -0.",
        ),
        ({"ratio_mean": ramp(60, 1.0, 1.4)}, "policy ratio rose from 1 to 1.4"),
        ({"ratio_mean": ramp(60, 1.0, 0.6)}, "policy ratio fell from 1 to 0.6"),
        ({"sampler_logp_diff": ramp(60, 0.001, 0.5)}, "gap between sampler and trainer rose"),
        ({"tool_failure_rate": ramp(60, 0.0, 0.8)}, "failed tool calls rose from 0 to 0.8"),
    ],
)
def test_the_cause_is_what_left_its_range(changes: Any, names: str) -> None:
    rows = series(em=falling, **changes)
    end = stopped(rows)
    assert end is not None
    assert FALL + 15 < end < FALL + 35
    collapse = WATCH.detect(rows[:end])
    assert collapse is not None
    sentence = collapse.format_message("rl", "kept")
    assert sentence.startswith(
        f"stage 'rl' has collapsed at step {end - 1}: exact match has fallen"
    )
    assert names in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


def test_the_first_to_leave_is_named_and_not_what_followed() -> None:
    rows = series(
        em=falling,
        correct_logp_mean=ramp(61, -0.1, -2.0),
        grad_norm=ramp(66, 0.4, 90.0),
        entropy=ramp(70, 0.3, 5.0),
        calls_mean=ramp(72, 1.5, 0.0),
    )
    collapse = WATCH.detect(rows)
    assert collapse is not None
    assert collapse.first_departure is not None
    assert collapse.first_departure.metric.key == "correct_logp_mean"
    assert 61 <= collapse.first_departure.step <= 63


def test_of_signals_in_the_same_step_the_cause_is_named_before_its_effects() -> None:
    causes = [
        *("failed tool calls", "gap between sampler and trainer", "log-ratio to the sampler"),
        *("policy ratio", "gradient norm", "log-probability of correct answers", "entropy"),
        *("length in policy tokens", "number of calls"),
    ]
    changed = {metric.title.lower(): key for key, metric in METRICS.items() if metric.signals}
    for first, title in enumerate(causes):
        sizes = {changed[name]: -99.0 if "log-p" in name else 9e3 for name in causes[first:]}
        usual = {key: HEALTHY.get(key, 0.01) for key in sizes}
        changes = {key: ramp(60, usual[key], size) for key, size in sizes.items()}
        collapse = WATCH.detect(series(em=falling, **changes))
        assert collapse is not None
        assert collapse.first_departure is not None
        assert collapse.first_departure.metric.title.lower() == title


def test_every_signal_is_a_metric_of_a_step() -> None:
    row = step(bandit(), 0)
    assert {metric.key for metric in METRICS.values() if metric.signals} <= row.keys()
    # 14 of 48 rollouts of an untrained model are correct: one of 14 letters a token
    assert row["correct_logp_mean"] == pytest.approx(-2.5, abs=0.2)


def test_a_collapse_from_the_first_steps_on_is_seen() -> None:
    rows = series(40, em=lambda step: (0.95, 0.9, 0.4)[step] if step < 3 else 0.0)
    assert stopped(rows) is not None


def test_gradients_that_explode_stop_a_run_before_its_score_falls() -> None:
    rows = series(grad_norm=ramp(60, 0.4, 50.0))
    end = stopped(rows)
    assert end == 70
    collapse = WATCH.detect(rows[:end])
    assert collapse is not None
    assert "above 50 for 10 steps, compared to 0.4 before" in collapse.format_message("rl", "")
    # rare spikes are not an explosion, nor are norms that clipping is meant for
    assert stopped(series(grad_norm=lambda step: 500.0 if step % 10 == 0 else 0.4)) is None
    assert stopped(series(grad_norm=ramp(60, 0.01, 5.0))) is None


def test_steps_without_training_have_no_gradient() -> None:
    rows = series(em=falling)
    for row in rows[::2]:
        for key in ("grad_norm", "entropy", "ratio_mean", "sampler_logp_diff"):
            del row[key]
    rows[5]["correct_logp_mean"] = None  # no correct rollouts
    assert stopped(rows) is not None


# -- choice of the checkpoint -------------------------------------------------------------------


def test_the_best_checkpoint_is_from_before_the_fall() -> None:
    rows = series(em=lambda s: min(0.8, 0.01 * s) if s < 90 else 0.0)
    assert (
        WATCH.find_healthiest_checkpoint(rows, [25, 75, 90, 100]) == 75
    )  # at 90 the next steps had already collapsed
    assert WATCH.find_healthiest_checkpoint(rows, [100, 110]) is None
    assert WATCH.find_healthiest_checkpoint(rows, []) is None
    assert WATCH.find_healthiest_checkpoint(rows[:50], [25, 50]) == 50


def test_of_equal_checkpoints_the_newest_is_the_best() -> None:
    assert WATCH.find_healthiest_checkpoint(series(em=lambda _: 0.5), [25, 50, 75]) == 75


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "score"),
    [
        ({}, "em"),
        ({"rewards": {"plus_minus": 1.0}}, "em"),
        ({"rewards": {"otc-grpo": 1.0}}, "em"),
        ({"rewards": {"em": 1.0, "format": 0.1}}, "em"),
        ({"rewards": {"judge": 1.0}}, "reward_mean"),
        ({"rewards": {"f1": 1.0}}, "reward_mean"),
        ({"rewards": {"f1": 1.0, "em": 0.0}}, "reward_mean"),
        ({"rewards": {"cover_em": 1.0, "f1": 1.0}}, "reward_mean"),
    ],
)
def test_what_is_watched(given: dict[str, Any], score: str) -> None:
    stage = {"type": "rl", "steps": 1, "optim": {"lr": 1.0, "max_grad_norm": 0.3}, **given}
    watch = make_collapse_detector(Rl.model_validate(stage))
    assert watch == CollapseDetector(score_key=score, threshold=0.5, max_grad_norm=0.3)
    assert make_collapse_detector(Rl.model_validate({**stage, "collapse_threshold": None})) is None


def test_the_graders_of_the_questions_are_verdicts() -> None:
    """A judge's score is a verdict only if the judge grades the questions."""
    stage = Rl.model_validate({"steps": 1, "optim": {"lr": 1.0}, "rewards": {"judge": 1.0}})
    found = [make_collapse_detector(stage, graders) for graders in ({"em"}, {"math", "judge"})]
    assert [watch and watch.score_key for watch in found] == ["reward_mean", "em"]


# -- in a stage ---------------------------------------------------------------------------------


class Killed(BaseException):
    """Simulated end of the process."""


def scripted(
    folder: Path, rows: Sequence[StepMetrics], dies_in: int | None = None
) -> list[StepMetrics]:
    """Run a stage whose steps return the given rows."""
    stage = Rl(type="rl", steps=len(rows), checkpoint_every=10, optim={"lr": 1.0})

    def step(number: int) -> StepMetrics:
        if number == dies_in:
            raise Killed
        return {**rows[number], "tokens": 1}

    trainer = make_trainer(folder / "start", steps=stage.steps)
    return run_stage(
        Steps(trainer, step, watch=make_collapse_detector(stage)), stage, folder / "rl"
    )


def test_a_stage_stops_and_keeps_the_checkpoint_from_before(tmp_path: Path) -> None:
    rows = series(em=falling)
    with pytest.raises(UserError, match=r"no other metric") as caught:
        scripted(tmp_path, rows)
    newest = stopped(rows)
    assert newest is not None
    assert list_checkpoint_steps(tmp_path / "rl") == [50, newest // 10 * 10]
    assert f"the checkpoint of step 50 precedes the collapse: {tmp_path}/rl/step-000050" in str(
        caught.value
    )
    # repeated: the same sentence, without a step
    with pytest.raises(UserError) as again:
        scripted(tmp_path, rows, dies_in=0)
    assert str(again.value) == str(caught.value)


def test_killed_and_gone_on_it_decides_the_same(tmp_path: Path) -> None:
    rows = series(em=falling)
    with pytest.raises(UserError) as whole:
        scripted(tmp_path / "whole", rows)
    for moment in (3, 25, 61, 69, 75):
        with pytest.raises(Killed):
            scripted(tmp_path / "killed", rows, dies_in=moment)
    with pytest.raises(UserError) as killed:
        scripted(tmp_path / "killed", rows)
    assert str(killed.value) == str(whole.value).replace("/whole/", "/killed/")
    assert list_checkpoint_steps(tmp_path / "killed" / "rl") == list_checkpoint_steps(
        tmp_path / "whole" / "rl"
    )


def test_killed_while_checkpoints_are_deleted(tmp_path: Path) -> None:
    """Half-deleted checkpoints are removed before they could be chosen as the best one."""
    rows = series(em=lambda step: 0.8 if step < 35 else 0.7)
    with pytest.raises(Killed):
        scripted(tmp_path, rows, dies_in=45)
    assert list_checkpoint_steps(tmp_path / "rl") == [30, 40]
    half_deleted = tmp_path / "rl" / "step-000020"
    shutil.copytree(tmp_path / "rl" / "step-000030", half_deleted)
    (half_deleted / "model.safetensors").unlink()
    with pytest.raises(Killed):
        scripted(tmp_path, rows, dies_in=45)
    assert list_checkpoint_steps(tmp_path / "rl") == [30, 40]


def test_without_a_checkpoint_from_before_the_first_model_is_named(tmp_path: Path) -> None:
    rows = series(40, em=lambda step: 0.9 if step < 6 else 0.0)
    with pytest.raises(UserError, match="only the initial model of the stage remains"):
        scripted(tmp_path, rows)


def test_a_healthy_stage_runs_to_its_end(tmp_path: Path) -> None:
    assert len(scripted(tmp_path, series(50))) == 50
    assert list_checkpoint_steps(tmp_path / "rl")[-1] == 50


class Poisoned(ExactMatch):
    """Reward for correct answers for a while, then for wrong ones."""

    name = "poisoned"

    def __init__(self) -> None:
        self.groups = 0

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        right = super().__call__(group)
        self.groups += 1
        return right if self.groups <= 4 * 6 else [1.0 - (score or 0.0) for score in right]


def poisoned_stage() -> RlStage:
    stage = bandit(optim={"lr": 0.02}, steps=60, checkpoint_every=2)
    rubric = Rubric([(ExactMatch(), 0.0), (Poisoned(), 1.0)])
    stage.sampler = replace(stage.sampler, rubric=rubric)
    return stage


def test_a_real_run_with_a_poisoned_reward_stops_and_leaves_a_healthy_model(tmp_path: Path) -> None:
    """There are four questions and 7,000 parameters, and the reward is inverted in step 6."""
    stage = poisoned_stage()
    with pytest.raises(UserError, match=r"log-probability of correct answers fell") as caught:
        run_stage(stage, stage.settings, tmp_path / "rl", letters())
    match = re.search(r"precedes the collapse: (\S+);", str(caught.value))
    assert match
    healthy = bandit()
    loaded = load_model(Path(match[1]), torch.device("cpu"))
    healthy.trainer.model.load_state_dict(loaded.state_dict())
    assert step(healthy, 0)["em"] > 0.6
    assert step(stage, 60)["em"] < 0.1
