"""Algorithms as classes: a per-turn advantage, and the checks of what they return and need."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bandit import bandit, settings
from fieldcraft.config.names import ComponentError
from fieldcraft.config.rl import Rl
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.train.advantages import ScoredRollout, StepBatch
from fieldcraft.train.algorithm import Algorithm, ModelRole, PolicyGradient
from fieldcraft.train.batch import to_samples
from fieldcraft.train.distillation import Distillation
from fieldcraft.train.losses import CrossEntropyLoss, LossFunction
from fieldcraft.train.stages.rl import RlStage
from fieldcraft.train.stages.roles import make_algorithm
from fieldcraft.types import Author, Segment, Task, Trajectory, UserError
from training_parts import step

EXTENDING = Path(__file__).parents[2] / "docs" / "extending.md"
DOCUMENTED = "my_algorithms:LaterTurns"


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provide the module that docs/extending.md shows."""
    [block] = re.findall(r"```python\n(# my_algorithms\.py\n.*?)```", EXTENDING.read_text(), re.S)
    (tmp_path / "my_algorithms.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_algorithms", None)


def rollout(*turns: int, reward: float, fold_after: int | None = None) -> ScoredRollout:
    """Return a rollout whose turns have the given numbers of tokens, with an observation after each
    turn but the last."""
    segments, folds = [Segment(Author.PROMPT, [1, 2], "")], []
    for place, size in enumerate(turns):
        segments.append(Segment(Author.POLICY, [3] * size, "", [-1.0] * size))
        if place == fold_after:
            folds.append(len(segments))
            segments.append(Segment(Author.PROMPT, [1, 2], ""))
        elif place < len(turns) - 1:
            segments.append(Segment(Author.TOOL, [7, 8, 9], ""))
    trajectory = Trajectory(Task("q", "?", ()), segments, folds=folds, reward=reward)
    return ScoredRollout(trajectory, to_samples(trajectory, {Author.POLICY}))


def test_flat_tensors_of_two_rollouts_with_two_turns() -> None:
    batch = StepBatch([[rollout(2, 1, reward=1.0), rollout(1, 3, reward=0.25)]])
    assert batch.reward_R.tolist() == [1.0, 0.25]
    assert batch.group_R.tolist() == [0, 0]
    assert batch.rollout_T.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert batch.turn_T.tolist() == [0, 0, 1, 2, 3, 3, 3]
    assert batch.gather("old_logp").tolist() == [-1.0] * 7
    batch.scatter(torch.arange(7.0), "advantage")
    first, second = (r.samples[0].advantage.tolist() for r in batch.rollouts)
    assert first == [0, 0, 0, 1, 0, 0, 0, 2]
    assert second == [0, 0, 3, 0, 0, 0, 4, 5, 6]


def test_groups_and_chains_have_indices_of_their_own() -> None:
    untrained = ScoredRollout(Trajectory(Task("q", "?", ()), []), ())
    folded = rollout(1, 1, reward=1.0, fold_after=0)
    batch = StepBatch([[folded, untrained], [], [rollout(2, reward=0.0)]])
    assert batch.group_R.tolist() == [0, 0, 2]
    assert batch.rollout_T.tolist() == [0, 0, 2, 2]
    assert batch.turn_T.tolist() == [0, 1, 2, 2]
    assert len(batch.units) == 2


# -- the documented per-turn advantage ------------------------------------------------------------


def per_turn() -> Algorithm:
    return make_algorithm(settings(algorithm=DOCUMENTED))


@pytest.mark.usefixtures("documented")
def test_a_turn_counts_half_as_much_as_the_next_one() -> None:
    """Rewards 1 and 0 have the mean 0.5, so the last turns have 0.5 and -0.5."""
    batch = StepBatch([[rollout(2, 1, reward=1.0), rollout(1, 3, reward=0.0)]])
    advantage_T = per_turn().advantages(batch)
    assert advantage_T.tolist() == [0.25, 0.25, 0.5, -0.25, -0.5, -0.5, -0.5]


@pytest.mark.usefixtures("documented")
def test_its_keys_are_defaults_of_the_stage() -> None:
    s = settings(algorithm=DOCUMENTED)
    assert (s.loss_aggregation, s.advantage_scale) == ("token", "none")
    changed = settings(algorithm=DOCUMENTED, loss_aggregation="constant")
    assert changed.loss_aggregation == "constant"


@pytest.mark.usefixtures("documented")
def test_a_recipe_trains_with_it() -> None:
    stage = bandit(algorithm=DOCUMENTED)
    right = [step(stage, number)["em"] for number in range(20)]
    assert right[0] < 0.4
    assert sum(right[-5:]) / 5 > 0.8


@pytest.mark.usefixtures("documented")
def test_distillation_is_added_to_it() -> None:
    """With half of its weight; the teacher is as certain as the student."""
    stage = {
        "type": "distil",
        "steps": 1,
        "optim": {"lr": 1.0},
        "teacher": {"privileged": "answer"},
        "algorithm": DOCUMENTED,
        "reward_weight": 0.5,
    }
    recipe = parse_recipe({"name": "r", "world": {"name": "atlas"}, "stages": {"distil": stage}})
    s = recipe.stages["distil"]
    assert isinstance(s, Rl)
    algorithm = make_algorithm(s)
    assert isinstance(algorithm, Distillation)
    assert algorithm.roles == {"teacher"}
    batch = StepBatch([[rollout(1, 1, reward=1.0), rollout(1, 1, reward=0.0)]])
    batch.scatter(batch.gather("old_logp"), "teacher_logp")
    assert algorithm.advantages(batch).tolist() == [0.125, 0.25, -0.125, -0.25]


# -- other algorithms, and mistakes ---------------------------------------------------------------


class Imitation(Algorithm):
    """Algorithm without rewards: the likelihood of all rollouts."""

    needs_rewards = False

    def advantages(self, batch: StepBatch) -> Tensor:
        return torch.zeros(len(batch.rollout_T))

    def loss(self) -> LossFunction:
        return CrossEntropyLoss()


class Short(PolicyGradient):
    def advantages(self, batch: StepBatch) -> Tensor:
        return batch.reward_R


class Taught(PolicyGradient):
    roles: frozenset[ModelRole] = frozenset({"teacher"})


class Unfinished(Algorithm):
    def loss(self) -> LossFunction:
        return CrossEntropyLoss()


def test_an_algorithm_has_its_own_loss_and_trains_on_equal_rewards() -> None:
    row = step(bandit(algorithm=f"{__name__}:Imitation", rewards={"em": 0.0, "f1": 0.0}), 0)
    assert row["no_signal_group_rate"] == 1
    assert row["loss"] > 0
    assert "clip_fraction" not in row


def test_a_wrong_number_of_advantages_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"of the shape \[48\] for \d+ tokens: return one for each"):
        step(bandit(algorithm=f"{__name__}:Short", entropy_coef=0.1), 0)


def test_only_a_distil_stage_has_a_teacher() -> None:
    s = settings(algorithm=f"{__name__}:Taught")
    data: Any = None
    [sentence] = RlStage.check(s, "rl", data, [])
    assert sentence.endswith("which needs a teacher: set type: distil.")


def test_an_algorithm_without_advantages_is_refused_before_a_run() -> None:
    with pytest.raises(ComponentError, match="is incomplete: implement advantages"):
        Rl.model_validate({"steps": 1, "optim": {"lr": 1}, "algorithm": f"{__name__}:Unfinished"})
