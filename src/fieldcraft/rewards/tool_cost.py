"""OTC-PO: rewards for correct answers with few tool calls (arXiv 2504.14870, section 3.3).

Both are r_tool * r_phi; their weight in a rubric is the paper's alpha. r_phi is r_correct, or a sum
of rewards such as r_correct + r_format (appendix D.3). The product matters: a wrong answer is worth
no more than its format, regardless of the number of calls, so avoiding calls gains nothing.

m, the cost of a rollout, is `compute_acting_cost`: the sum of the costs of the executed calls,
including failed ones, and of token_cost / 1000 for each token of the policy. Without prices it is
the number of these calls. Calls over the budget and malformed calls, including calls of unknown
tools, are not executed and return nothing to the policy, so they cost nothing. A stage may also
count calls even if they have prices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from fieldcraft.records.costs import compute_acting_cost
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.types import Reward, Trajectory, UserError

CostMeasure = Callable[[Trajectory], float]
CALL_COUNT: CostMeasure = attrgetter("num_executed_calls")


def compute_tool_reward(cost: float, min_cost: float | None, smoothing: float) -> float:
    """Return r_tool of `cost` = m, where `min_cost` = n is the least cost known to suffice.

    n > 0: sin(f pi / 2n) with f = 2nm / (m + n), that is sin(pi m / (m + n)): 1 at m = n (equation
    6). n = 0 or unknown: cos(m pi / (2m + c)) with c = `smoothing`: 1 at m = 0, one half at m = c
    (equation 5, and 6 with f = m; its case m = n = 0 is cos 0).

    With n > 0, a cost of 0 gives 0 even for a correct answer: n must be lowered first.
    """
    if min_cost:
        return math.sin(math.pi * cost / (cost + min_cost))
    return math.cos(math.pi * cost / (2 * cost + smoothing))


class WeightedSumReward(StatelessReward):
    """r_phi as a weighted sum of rewards; None if one of them cannot grade.

    Raises UserError for a score below 0, because the product with r_tool would then reward calls.
    """

    name = "priced_rewards"

    def __init__(self, components: Sequence[tuple[Reward, float]]) -> None:
        self.components = components

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        scores = [self._scores(reward, group) for reward, _ in self.components]
        weights = [weight for _, weight in self.components]
        return [
            None if None in found else sum(w * s for w, s in zip(weights, found, strict=True))
            for found in zip(*scores, strict=True)
        ]

    def _scores(self, reward: Reward, group: Sequence[Trajectory]) -> list[float | None]:
        scores = reward(group)
        for score in scores:
            if score is not None and score < 0:
                raise UserError(
                    f"priced_rewards names '{reward.name}', which gave {score:g}; its scores are"
                    " multiplied with r_tool, so they must not be below 0: give it a weight in"
                    " rewards instead."
                )
        return scores


class OtcPpoReward(StatelessReward):
    """r_tool without a known optimum: a lower cost is always better.

    Args:
        priced: r_phi; a score of None stays None.
        smoothing: c; the paper uses the limit of calls.
        measure: function that returns m of a rollout.
    """

    name = "otc-ppo"

    def __init__(
        self, priced: Reward, smoothing: float, measure: CostMeasure = compute_acting_cost
    ) -> None:
        self.priced = priced
        self.smoothing = smoothing
        self.measure = measure

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [
            None
            if score is None
            else score * compute_tool_reward(self.measure(t), None, self.smoothing)
            for t, score in zip(group, self.priced(group), strict=True)
        ]


class OtcGrpoReward:
    """r_tool relative to the least cost of any correct rollout of the question during the whole
    run: `min_costs`, by task id, saved in the checkpoint.

    The group updates this cost before it is scored, so that the best rollout so far gets 1 and not
    0. A question without a correct answer so far has no entry and an r_tool of 1: the value of a
    wrong answer for its format, or for being partly correct, must not grow by avoiding calls.

    Args:
        correct: r_correct; a score of 1 is a correct answer.
        smoothing, measure: same as in `OtcPpoReward`.
        priced: r_phi; None: r_correct.
    """

    name = "otc-grpo"

    def __init__(
        self,
        correct: Reward,
        smoothing: float,
        priced: Reward | None = None,
        measure: CostMeasure = compute_acting_cost,
    ) -> None:
        self.correct = correct
        self.priced = priced or correct
        self.smoothing = smoothing
        self.measure = measure
        self.min_costs: dict[str, float] = {}

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        for trajectory, score in zip(group, self.correct(group), strict=True):
            if score == 1:
                cost, task = self.measure(trajectory), trajectory.task.id
                self.min_costs[task] = min(cost, self.min_costs.get(task, cost))
        return [
            None if score is None else score * self._tool_reward(trajectory)
            for trajectory, score in zip(group, self.priced(group), strict=True)
        ]

    def _tool_reward(self, trajectory: Trajectory) -> float:
        min_cost = self.min_costs.get(trajectory.task.id)
        if min_cost is None:
            return 1.0
        return compute_tool_reward(self.measure(trajectory), min_cost, self.smoothing)

    def state_dict(self) -> dict[str, Any]:
        return {"fewest": dict(self.min_costs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.min_costs = dict(state["fewest"])
