"""The reward `math`: an answer that means the same as a gold answer, by Math-Verify.

Text that is equal is right without being read. Everything else is compared by sympy in another
process, with a limit of CPU time (`math_pool.py`).
"""

from __future__ import annotations

import asyncio

from fieldcraft.rewards.answers import remove_redundant_space
from fieldcraft.rewards.math_pool import MathGraderPool, get_shared_pool
from fieldcraft.rewards.rubric import AsyncReward
from fieldcraft.types import Task, Trajectory

NUM_WORKERS = 2


class MathReward(AsyncReward):
    """1.0 for an answer equal to a gold answer, else 0.0; no answer is 0.0. None for a task without
    a gold answer that Math-Verify can read.

    Args:
        seconds: of CPU time for one answer; one that takes longer is wrong.
        workers: processes that compare side by side.
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
