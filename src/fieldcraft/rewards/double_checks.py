"""Double checks of AFM's agents: scores of suggested answers, from 1 (wrong) to 4 (right).

A reward and two metrics compare the scores that a model gives with the verdicts on its answers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fieldcraft.dialects.afm_grades import SCORE_PHRASE
from fieldcraft.rewards.answers import StatelessReward, exact_match
from fieldcraft.types import DEFAULT_VERDICT_REWARD, Reward, Trajectory

SCORE_PATTERN = re.compile(SCORE_PHRASE, re.IGNORECASE)
CHECKED_PATTERN = re.compile(
    r"<suggested_answer>((?:(?!<suggested_answer>).)*?)</suggested_answer>"
    rf"(?:(?!<suggested_answer>).)*?{SCORE_PHRASE}",
    re.IGNORECASE | re.DOTALL,
)
LOWEST_SCORE, HIGHEST_SCORE = 1, 4


def read_last_score(trajectory: Trajectory) -> int | None:
    """Return the score of the last double check, or None without an answer or a check."""
    scores = SCORE_PATTERN.findall("".join(trajectory.policy_turns))
    return int(scores[-1]) if scores and trajectory.answer else None


class DoubleCheckReward(StatelessReward):
    """Agreement of the last double check with the verdict: 1 - (p - r_correct)^2, the Brier score
    (1950) subtracted from 1, where p rises from 0 for the score 1 to 1 for the score 4.

    It is highest in expectation if the score follows the chance that the answer is correct. It is 0
    without an answer or a check, so a rollout gains nothing by giving up.

    Args:
        correct: r_correct; a score of None stays None.
    """

    name = "double_check"

    def __init__(self, correct: Reward) -> None:
        self.correct = correct

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [
            None if verdict is None else _score_agreement(read_last_score(trajectory), verdict)
            for trajectory, verdict in zip(group, self.correct(group), strict=True)
        ]


def _score_agreement(score: int | None, verdict: float) -> float:
    if score is None:
        return 0.0
    chance = (score - LOWEST_SCORE) / (HIGHEST_SCORE - LOWEST_SCORE)
    return 1.0 - (chance - verdict) ** 2


def compute_check_auroc(trajectories: Sequence[Trajectory]) -> float | None:
    """Return the chance that the last double check of a correct answer has a higher score than that
    of a wrong one, equal scores counting half (AUROC). None without checked answers of both
    kinds."""
    found = [(read_last_score(t), t.is_correct) for t in trajectories]
    return compute_auroc([(s, v) for s, v in found if s is not None and v is not None])


def compute_suggestion_auroc(trajectories: Sequence[Trajectory]) -> float | None:
    """Return the same for all suggested answers, those that the double check rejected included.
    None if questions are not graded by exact match."""
    if any(trajectory.correct != DEFAULT_VERDICT_REWARD for trajectory in trajectories):
        return None
    return compute_auroc(
        [
            (int(score), exact_match(suggested.strip(), trajectory.task.answers) == 1.0)
            for trajectory in trajectories
            for suggested, score in CHECKED_PATTERN.findall("".join(trajectory.policy_turns))
        ]
    )


def compute_auroc(scored: Sequence[tuple[int, bool]]) -> float | None:
    """Return the area under the ROC curve of (score, verdict) pairs; None if all verdicts are
    equal."""
    right = [score for score, verdict in scored if verdict]
    wrong = [score for score, verdict in scored if not verdict]
    if not right or not wrong:
        return None
    wins = sum((high > low) + (high == low) / 2 for high in right for low in wrong)
    return wins / (len(right) * len(wrong))
