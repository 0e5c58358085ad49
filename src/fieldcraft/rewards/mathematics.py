"""The reward `math`: equivalence of an answer to a gold answer, by Math-Verify.

Equal texts are correct without parsing. All others are compared by sympy in a separate process with
a limit on CPU time (`math_pool.py`).
"""

from __future__ import annotations

import asyncio

from fieldcraft.rewards.answers import remove_redundant_space
from fieldcraft.rewards.math_pool import MathGraderPool, get_shared_pool
from fieldcraft.rewards.rubric import AsyncReward
from fieldcraft.types import Task, Trajectory

NUM_WORKERS = 2


class MathReward(AsyncReward):
    """Reward of 1.0 for an answer equivalent to a gold answer, else 0.0; a missing answer is 0.0.
    None for a task without a gold answer that Math-Verify can parse.

    Args:
        seconds: CPU time per answer; an answer that exceeds it is wrong.
        workers: number of processes that compare concurrently.
    """

    name = "math"

    def __init__(self, seconds: float = 5.0, workers: int = NUM_WORKERS) -> None:
        self._pool: MathGraderPool = get_shared_pool(workers, seconds)

    async def score_trajectory(self, trajectory: Trajectory) -> float | None:
        task, answer = trajectory.task, (trajectory.answer or "").strip()
        if not task.answers:
            return None
        if not answer:
            return 0.0
        if _has_same_text(task, answer):
            return 1.0
        return await asyncio.wrap_future(self._pool.submit(list(task.answers), answer))


def _has_same_text(task: Task, answer: str) -> bool:
    return remove_redundant_space(answer) in map(remove_redundant_space, task.answers)
