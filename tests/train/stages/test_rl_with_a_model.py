"""Steps of reinforcement learning with a real, tiny model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.train.batch import Sample, SampleUnit
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.train.stages.rl import RlStage
from fieldcraft.types import (
    Trajectory,
)
from rl_parts import TASKS, TOKENIZER, LengthReward
from training_parts import (
    Chatty,
    FixedTool,
    assert_same,
    chatty_engine,
    make_trainer,
    plain_logprobs_of,
    rl_stage,
    step,
    weights,
)

# -- with a real model --------------------------------------------------------------------------


class Same(StatelessReward):
    name = "same"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [1.0] * len(group)


def real_stage(folder: Path, reward: Any, **settings: Any) -> RlStage:
    trainer = make_trainer(folder)
    given = {
        "type": "rl",
        "steps": 9,
        "questions_per_step": 2,
        "group_size": 4,
        "optim": {"lr": 1e-2},
    }
    dialect: BaseDialect = Chatty(TOKENIZER, "")
    return rl_stage(
        settings=Rl.model_validate(given | settings),
        tasks=TASKS,
        env=ToolEnvironment(
            dialect, [FixedTool("found {}".format)], BudgetConfig(max_turn_tokens=8)
        ),
        engine=chatty_engine(trainer),
        rubric=Rubric([(reward, 1.0)]),
        trainer=trainer,
        reference=None,
        seed=0,
    )


@pytest.mark.parametrize("cap", [None, 2.0])
def test_a_step_on_policy_has_ratio_one_and_moves_the_policy(
    tmp_path: Path, cap: float | None
) -> None:
    rl = real_stage(tmp_path, LengthReward(), sampler_is_cap=cap)
    for number in range(2):
        before = weights(rl.trainer.model)
        row = step(rl, number)
        assert row["ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert row["sampler_logp_diff"] < 1e-4
        assert row["grad_norm"] > 0
        after = weights(rl.trainer.model)
        assert any((before[name] != after[name]).any() for name in before)


def test_entropies_and_ratios_of_tokens_are_kept(tmp_path: Path) -> None:
    """With two epochs the weights have changed before the second one, so its ratios are not 1."""
    rl = real_stage(tmp_path, LengthReward(), epochs=2, temperature=1.0)
    found: list[Sequence[TrainingRollout]] = []
    rl.record_rollouts = found.append
    before = {name: value.clone() for name, value in rl.trainer.model.state_dict().items()}
    step(rl, 0)
    [[rollout, *_]] = found
    assert rollout.ratios is not None
    assert rollout.entropies is not None
    assert rollout.advantages is not None
    rl.trainer.model.load_state_dict(before)
    ids = rollout.trajectory.ids
    with torch.no_grad():
        rl.trainer.model.eval()
        logp = rl.trainer.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    trained = [place for place, advantage in enumerate(rollout.advantages) if advantage]
    assert trained
    others = [place for place in range(len(rollout.ratios)) if place not in trained]
    assert all(rollout.ratios[place] == rollout.entropies[place] == 0 for place in others)
    assert any(abs(rollout.ratios[place] - 1) > 1e-3 for place in trained)
    apart = [rollout.entropies[place] - float(entropy[place - 1]) for place in trained]
    assert 1e-5 < max(map(abs, apart)) < 0.5  # the second epoch's are close to the first's

    once = real_stage(tmp_path, LengthReward(), temperature=1.0)
    once.record_rollouts = found.append
    step(once, 0)
    first = found[-1][0]
    assert first.entropies is not None
    exact = [float(entropy[place - 1]) for place in trained]
    assert [first.entropies[place] for place in trained] == pytest.approx(exact, abs=1e-4)


def test_equal_rewards_leave_the_weights_bit_for_bit(tmp_path: Path) -> None:
    rl = real_stage(tmp_path, Same())
    before = weights(rl.trainer.model)
    row = step(rl, 0)
    assert_same(before, weights(rl.trainer.model))
    assert row["no_signal_group_rate"] == 1


def test_what_is_rewarded_becomes_more_likely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rl = real_stage(tmp_path, LengthReward())
    rl.trainer.optim = rl.trainer.optim.model_copy(update={"lr": 1e-4})
    seen: list[Sample] = []
    train = rl.trainer.step

    def keep(units: Sequence[SampleUnit], *given: Any) -> StepMetrics:
        seen.extend(sample for unit in units for sample in unit)
        return train(units, *given)

    monkeypatch.setattr(rl.trainer, "step", keep)
    step(rl, 0)
    gained = 0.0
    for sample in seen:
        spoken = sample.weight[1:] > 0
        now = plain_logprobs_of(rl.trainer.model, sample.ids.tolist()).numpy()
        change = now[spoken] - sample.sampled_logp[1:][spoken]
        gained += float(np.dot(change, sample.advantage[1:][spoken]))
    assert gained > 0
