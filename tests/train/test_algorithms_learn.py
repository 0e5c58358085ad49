"""Improvement of exact match by every named algorithm, on a small task with real rollouts."""

from typing import Any

import pytest

from bandit import LIMITS, bandit, settings
from fieldcraft.config.components import BUILTIN_COMPONENTS, ComponentKind
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.rewards.judge import JudgeReward
from fieldcraft.rewards.rollouts import SoftOverlongPenalty
from fieldcraft.rewards.tool_cost import OtcGrpoReward, OtcPpoReward, WeightedSumReward
from fieldcraft.runs.build import make_rubric
from fieldcraft.tools.chat_client import ChatClient
from fieldcraft.train.loop import StepMetrics
from fieldcraft.types import UserError
from training_parts import assert_same, step, weights

STEPS = 20
CASES: dict[str, dict[str, Any]] = {
    name: {"algorithm": name} for name in BUILTIN_COMPONENTS[ComponentKind.ALGORITHM]
} | {
    "dapo": {"algorithm": "dapo", "max_sampling_batches": 2},
    "ppo on the policy's states": {"algorithm": "ppo", "critic": {"backbone": "policy"}},
    "KL in the reward": {"algorithm": "reinforce++", "kl_coef": 0.01},
    "KL and LLDS in the loss": {"kl_coef": 0.01, "llds_coef": 0.2, "minibatches": 4},
    "corrected for the sampler": {
        "sampler_is_level": "sequence",
        "sampler_is_cap": 2.0,
        "sampler_reject": "geometric",
        "sampler_reject_low": 0.99,
        "sampler_reject_high": 1.01,
    },
    "otc-grpo": {"rewards": {"otc-grpo": 1.0}},
    "otc-ppo": {"algorithm": "ppo", "rewards": {"otc-ppo": 1.0}},
}
FAST = {"grpo", "ppo", "dapo", "otc-grpo"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in FAST)) for name in CASES]
)
def test_exact_match_rises(name: str) -> None:
    stage = bandit(**CASES[name])
    rows = [step(stage, number) for number in range(STEPS)]
    right = [row["em"] for row in rows]
    assert right[0] < 0.4
    assert sum(right[-5:]) / 5 > 0.8


def timeless(row: StepMetrics) -> StepMetrics:
    """Remove the entries that depend on a clock."""
    return {name: value for name, value in row.items() if "seconds" not in name}


def test_a_stage_with_a_critic_and_a_memory_goes_on_where_it_was() -> None:
    """Four steps equal two steps, then a new stage with the saved state and two more steps."""
    case = {"algorithm": "ppo", "rewards": {"otc-grpo": 1.0}, "kl_coef": 0.01}
    whole, first, second = bandit(**case), bandit(**case), bandit(seed=0, **case)
    rows = [timeless(step(whole, number)) for number in range(4)]
    for number in range(2):
        step(first, number)
    second.trainer.model.load_state_dict(first.trainer.model.state_dict())
    second.trainer.load_state_dict(first.trainer.state_dict())
    second.load_state_dict(first.state_dict())
    assert [timeless(step(second, number)) for number in (2, 3)] == rows[2:]
    assert_same(weights(whole.trainer.model), weights(second.trainer.model))
    critics: list[Any] = [stage.models.critic for stage in (whole, second)]
    assert_same(weights(critics[0].head), weights(critics[1].head))
    assert whole.state_dict()["rubric"] == second.state_dict()["rubric"]
    assert second.state_dict()["rubric"]["otc-grpo"]["fewest"]


def test_the_ratio_leaves_1_with_the_second_optimiser_step() -> None:
    """Without mini-batches clipping would have no effect."""
    once, often = bandit(optim={"lr": 0.05}), bandit(optim={"lr": 0.05}, minibatches=4)
    assert step(once, 0)["clip_fraction"] == 0
    assert step(often, 0)["clip_fraction"] > 0
    assert often.trainer.done == 1


# -- rewards of a recipe ------------------------------------------------------------------------


def test_rewards_take_their_limits_from_the_budget_unless_told() -> None:
    named = make_rubric(settings(rewards={"otc-grpo": 2.0, "otc-ppo": 0.5}), LIMITS)
    made = {reward.name: (reward, weight) for reward, weight in named.rewards}
    assert {name: weight for name, (_, weight) in made.items()} == {
        **{"em": 0, "f1": 0, "cover_em": 0, "format": 0, "auto": 0},
        **{"otc-grpo": 2.0, "otc-ppo": 0.5},
    }
    for kind in (OtcGrpoReward, OtcPpoReward):
        otc = made[kind.name][0]
        assert isinstance(otc, kind)
        assert otc.smoothing == LIMITS.max_calls
        assert otc.priced is made["auto"][0]


def test_without_a_number_otcs_c_is_the_most_that_a_rollout_can_cost() -> None:
    def smoothing(budget: BudgetConfig = LIMITS, **given: Any) -> float:
        stage = settings(rewards={"otc-grpo": 1.0}, **given)
        made = {r.name: r for r, _ in make_rubric(stage, budget, call_cost=3.0).rewards}
        otc = made["otc-grpo"]
        assert isinstance(otc, OtcGrpoReward)
        return otc.smoothing

    assert smoothing() == 3 * LIMITS.max_calls
    assert smoothing(otc_smoothing=0.5) == 0.5
    assert smoothing(otc_counts="calls") == LIMITS.max_calls
    priced = LIMITS.model_copy(update={"token_cost": 10.0, "max_context_tokens": 500})
    assert smoothing(priced) == 3 * LIMITS.max_calls + 5
    with pytest.raises(UserError, match="nothing costs anything"):
        make_rubric(settings(rewards={"otc-grpo": 1.0}), LIMITS, call_cost=0.0)


def test_what_otc_prices_is_recorded_beside_it() -> None:
    stage = settings(rewards={"otc-grpo": 1.0}, priced_rewards={"em": 1.0, "math": 0.5})
    made = {reward.name: (reward, weight) for reward, weight in make_rubric(stage, LIMITS).rewards}
    otc = made["otc-grpo"][0]
    assert isinstance(otc, OtcGrpoReward)
    assert isinstance(otc.priced, WeightedSumReward)
    assert [(r.name, w) for r, w in otc.priced.components] == [("em", 1.0), ("math", 0.5)]
    assert (made["math"][0], made["math"][1]) == (otc.priced.components[1][0], 0.0)


@pytest.mark.parametrize("name", ["answer_format", "repair", "double_check"])
def test_otc_prices_rewards_that_need_the_verdict(name: str) -> None:
    stage = settings(rewards={"otc-grpo": 1.0}, priced_rewards={"correct": 1.0, name: 0.5})
    made = {reward.name: reward for reward, _ in make_rubric(stage, LIMITS).rewards}
    otc = made["otc-grpo"]
    assert isinstance(otc, OtcGrpoReward)
    assert isinstance(otc.priced, WeightedSumReward)
    assert [(r.name, w) for r, w in otc.priced.components] == [("auto", 1.0), (name, 0.5)]
    assert otc.correct is otc.priced.components[0][0]


def test_otc_takes_its_verdict_from_the_reward_that_the_recipe_names() -> None:
    judge = JudgeReward(ChatClient("http://localhost", "judge"), votes=1)
    for name in ("f1", "cover_em", "judge"):
        rubric = make_rubric(settings(rewards={"otc-grpo": 1.0}), LIMITS, judge, name)
        made = {reward.name: (reward, weight) for reward, weight in rubric.rewards}
        otc, weight = made["otc-grpo"]
        assert isinstance(otc, OtcGrpoReward)
        assert (otc.correct, weight) == (made[name][0], 1.0)
        assert made[name][1] == 0.0  # recorded, but not rewarded itself


def test_dapo_punishes_length() -> None:
    [*_, (overlong, weight)] = make_rubric(settings(algorithm="dapo"), LIMITS).rewards
    assert isinstance(overlong, SoftOverlongPenalty)
    assert (overlong.limit, overlong.cache, weight) == (24, 4, 0.5)
    penalised = settings(overlong_penalty=1.0, overlong_limit=20, overlong_buffer=5)
    [*_, (overlong, weight)] = make_rubric(penalised, LIMITS, verdict_name="math").rewards
    assert isinstance(overlong, SoftOverlongPenalty)
    assert (overlong.limit, overlong.cache, weight) == (20, 5, 1.0)
