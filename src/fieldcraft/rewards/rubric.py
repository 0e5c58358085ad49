"""Rubric: weighted rewards and the scores that they gave."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any, final

from fieldcraft.config.names import describe_exception, format_short
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.rewards.grading import resolve_reward_name
from fieldcraft.types import DEFAULT_VERDICT_REWARD, Reward, Status, Trajectory, UserError

# Squares of rewards and their sums over a step are finite in float32.
MAX_REWARD = 1e15


class AsyncReward(StatelessReward, ABC):
    """Reward that sends requests to an external service, such as a judge.
    `Rubric.score_async_rewards` scores many trajectories concurrently and stores the scores in
    `Trajectory.rewards`."""

    name: str

    @abstractmethod
    async def score_trajectory(self, trajectory: Trajectory) -> float | None: ...

    @final
    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [t.rewards[resolve_reward_name(self.name, t.task)] for t in group]


@dataclass(frozen=True)
class GradingCounts:
    """Numbers of trajectories of a group that were graded, could not be graded, or ended in an
    error."""

    graded: int
    ungradable: int
    errors: int


class AsyncGroupReward(ABC):
    """Reward of a group that is computed outside the event loop. Its scores are stored in
    `Trajectory.rewards`, where dependent rewards read them."""

    name: str

    @abstractmethod
    async def score_group(self, group: Sequence[Trajectory]) -> list[float | None]: ...

    @final
    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [trajectory.rewards[self.name] for trajectory in group]

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def compute_checked_scores(reward: Reward, group: Sequence[Trajectory]) -> list[float | None]:
    """Score a group with a reward, which may be user-defined. Raises UserError like
    `Rubric.score`."""
    if not group:
        return []
    with _raise_reward_errors(reward):
        scores: Any = reward(group)
    if not isinstance(scores, Sequence) or len(scores) != len(group):
        raise UserError(
            f"the reward '{reward.name}' must return a list with one score for each of the"
            f" {len(group)} rollouts that it receives, not {format_short(scores)}: correct it."
        )
    for score in scores:
        if score is not None and not (isinstance(score, Real) and abs(float(score)) <= MAX_REWARD):
            raise UserError(
                f"the reward '{reward.name}' returned {format_short(score)}, which is not a score:"
                f" return numbers up to {MAX_REWARD:g}, or None if a rollout cannot be graded."
            )
    return [None if score is None else float(score) for score in scores]


@contextmanager
def _raise_reward_errors(reward: Reward) -> Iterator[None]:
    """Convert any exception of the reward to a UserError that names the reward."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the reward '{reward.name}' failed ({describe_exception(error)}): correct it and run"
            " the same command again, which resumes here."
        ) from error


class Rubric:
    """Weighted sum of rewards. A reward of weight 0 is only recorded. `verdict_name` is the name of
    the verdict reward. A score of AUTO_VERDICT is recorded under the name of the task's grader
    (`resolve_reward_name`).

    Raises UserError for an empty list of rewards, duplicate names, or a weight that is not finite.
    """

    def __init__(
        self, rewards: Sequence[tuple[Reward, float]], verdict_name: str = DEFAULT_VERDICT_REWARD
    ) -> None:
        names = [reward.name for reward, _ in rewards]
        if not names:
            raise UserError("A rubric needs at least one reward.")
        if len(set(names)) < len(names):
            raise UserError(f"The rewards of a rubric need unique names; got {names}.")
        for reward, weight in rewards:
            if not math.isfinite(weight):
                raise UserError(f"The weight of the reward {reward.name} must be a finite number.")
        self.rewards = tuple(rewards)
        self.verdict_name = verdict_name

    @property
    def names(self) -> list[str]:
        return [reward.name for reward, _ in self.rewards]

    def with_reward(self, reward: Reward) -> Rubric:
        """Return a copy of the rubric in which the reward of the same name is replaced."""
        rewards = [(reward if reward.name == r.name else r, weight) for r, weight in self.rewards]
        return Rubric(rewards, self.verdict_name)

    async def score_async_rewards(self, trajectories: Sequence[Trajectory]) -> None:
        """Compute the scores of all asynchronous rewards. Required before `score` if there are
        any."""
        gradable = [t for t in trajectories if t.status is not Status.ERROR]
        await asyncio.gather(*map(self._score_async, gradable))

    async def _score_async(self, trajectory: Trajectory) -> None:
        """Query each reward once, even if it is also the grader of the task."""
        scores: dict[str, float | None] = {}
        for reward, _ in self.rewards:
            name = resolve_reward_name(reward.name, trajectory.task)
            if isinstance(reward, AsyncReward) and name not in scores:
                with _raise_reward_errors(reward):
                    scores[name] = await reward.score_trajectory(trajectory)
        trajectory.rewards |= scores

    async def score(self, group: Sequence[Trajectory]) -> GradingCounts:
        """Fill `rewards` and `reward` of every trajectory of a task's group.

        Trajectories that ended in an error are not graded and not passed to any reward. `reward` is
        also None if a component with a weight is None. Raises UserError if a reward fails or
        returns the wrong number of scores, if a score or the weighted sum is not a number up to
        MAX_REWARD, or if `verdict_name` gives a score outside 0 to 1.
        """
        for trajectory in group:
            trajectory.correct = resolve_reward_name(self.verdict_name, trajectory.task)
        errors = [t for t in group if t.status is Status.ERROR]
        gradable = [t for t in group if t.status is not Status.ERROR]
        for trajectory in errors:
            names = [
                resolve_reward_name(reward.name, trajectory.task) for reward, _ in self.rewards
            ]
            trajectory.rewards = dict.fromkeys(names)
        for reward, _ in self.rewards:
            if isinstance(reward, AsyncGroupReward):
                scores = await reward.score_group(gradable)
            else:
                scores = compute_checked_scores(reward, gradable)
            for trajectory, score in zip(gradable, scores, strict=True):
                trajectory.rewards[resolve_reward_name(reward.name, trajectory.task)] = score
        for trajectory in gradable:
            self._require_valid_verdict(trajectory)
        for trajectory in group:
            trajectory.reward = self._weighted_sum(trajectory)
        graded = sum(t.reward is not None for t in group)
        return GradingCounts(graded, len(gradable) - graded, len(errors))

    def _require_valid_verdict(self, trajectory: Trajectory) -> None:
        score = trajectory.rewards.get(trajectory.correct)
        if score is not None and not 0.0 <= score <= 1.0:
            raise UserError(
                f"the verdict reward '{trajectory.correct}' must give scores from 0 to 1,"
                f" not {score:g}: set verdict_reward= to another reward."
            )

    def _weighted_sum(self, trajectory: Trajectory) -> float | None:
        total = 0.0
        for reward, weight in self.rewards:
            if weight == 0:
                continue
            score = trajectory.rewards[resolve_reward_name(reward.name, trajectory.task)]
            if score is None:
                return None
            total += weight * score
        if not abs(total) <= MAX_REWARD:
            raise UserError(
                f"the weighted sum of the rewards {', '.join(self.names)} is {total:g}, which"
                f" exceeds {MAX_REWARD:g} in magnitude: lower their weights in rewards."
            )
        return total

    def state_dict(self) -> dict[str, Any]:
        return {reward.name: reward.state_dict() for reward, _ in self.rewards}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of the rewards. Raises UserError if it belongs to other rewards."""
        names = {reward.name for reward, _ in self.rewards}
        if state.keys() != names:
            raise UserError(
                f"The saved rewards are {sorted(state)}, the rubric has {sorted(names)}: resume "
                "with the recipe that wrote the checkpoint."
            )
        for reward, _ in self.rewards:
            reward.load_state_dict(state[reward.name])
