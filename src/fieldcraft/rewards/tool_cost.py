"""OTC-PO: rewards for right answers that took few tool calls (arXiv 2504.14870, section 3.3).

Both are r_tool * r_correct; their weight in a rubric is the paper's alpha. The product matters: a
wrong answer is worth 0 however few calls it took, so nothing is gained by not calling at all.

m, the calls of a rollout, are `Trajectory.executed_calls`: what was run, failed calls included,
because they were paid for. A call over the budget was written but not run, and an attempt that
could not be read as a call ran nothing; neither brought the policy anything that it could have
saved. (A call of a tool that does not exist is malformed too.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.types import Reward, Trajectory


def tool_reward(calls: int, fewest: int | None, smoothing: float) -> float:
    """r_tool of `calls` = m, where `fewest` = n is the least number that is known to suffice.

    n > 0: sin(f pi / 2n) with f = 2nm / (m + n), that is sin(pi m / (m + n)): 1 at m = n
        (equation 6).
    n = 0 or unknown: cos(m pi / (2m + c)) with c = `smoothing`: 1 at m = 0, one half at m = c
        (equation 5, and 6 with f = m; its case m = n = 0 is cos 0).

    With n > 0 no call at all gives 0, right as the answer may be: n has to be lowered first.
    """
    if fewest:
        return math.sin(math.pi * calls / (calls + fewest))
    return math.cos(math.pi * calls / (2 * calls + smoothing))


class OtcPpo(StatelessReward):
    """r_tool without a known optimum: fewer calls are always better.

    Args:
        correct: r_correct; a score of 1 is a right answer, None stays None.
        smoothing: c; the paper takes the limit of calls.
    """

    name = "otc-ppo"

    def __init__(self, correct: Reward, smoothing: float) -> None:
        self.correct = correct
        self.smoothing = smoothing

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [
            None if score is None else score * tool_reward(t.executed_calls, None, self.smoothing)
            for t, score in zip(group, self.correct(group), strict=True)
        ]


class OtcGrpo:
    """r_tool against the fewest calls that any right rollout of the question has needed, in the
    whole run: `fewest`, by task id, which the checkpoint keeps.

    It is lowered by a group before the group is scored, so that the best rollout ever gets 1 and
    not 0. A question that nobody has answered has no entry; then only a partly right answer can
    score, and by OTC-PPO's rule.

    Args: as those of `OtcPpo`.
    """

    name = "otc-grpo"

    def __init__(self, correct: Reward, smoothing: float) -> None:
        self.correct = correct
        self.smoothing = smoothing
        self.fewest: dict[str, int] = {}

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        scores = self.correct(group)
        for trajectory, score in zip(group, scores, strict=True):
            if score == 1:
                calls, task = trajectory.executed_calls, trajectory.task.id
                self.fewest[task] = min(calls, self.fewest.get(task, calls))
        return [
            None if score is None else score * self._tool_reward(trajectory)
            for trajectory, score in zip(group, scores, strict=True)
        ]

    def _tool_reward(self, trajectory: Trajectory) -> float:
        fewest = self.fewest.get(trajectory.task.id)
        return tool_reward(trajectory.executed_calls, fewest, self.smoothing)

    def state_dict(self) -> dict[str, Any]:
        return {"fewest": dict(self.fewest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fewest = dict(state["fewest"])
