"""The reward `math`: equivalence of an answer to a gold answer, by Math-Verify.

Equal texts are correct without parsing. All others are compared by sympy in a separate process with
a limit on CPU time (`worker.py`); a process that exceeds it is replaced.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from fieldcraft.rewards.answers import remove_redundant_space
from fieldcraft.rewards.rubric import AsyncReward
from fieldcraft.tools.killable_pool import KillablePool
from fieldcraft.types import Task, Trajectory, UserError

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


class MathGraderPool:
    """Workers that grade answers concurrently.

    Args:
        workers: maximum number of workers; each is started on demand.
        seconds: CPU time per answer.
    """

    def __init__(self, workers: int, seconds: float) -> None:
        self.seconds = seconds
        self.pool = KillablePool("fieldcraft.extensions.math.worker", workers, seconds)

    def submit(self, golds: list[str], answer: str) -> Future[float | None]:
        """Submit an answer. Its score is 1.0 if it equals one of the gold answers, else 0.0. An
        answer that exceeds the time limit scores 0.0. The score is None if the gold answers cannot
        be parsed or exceed the time limit."""
        return self.pool.submit(lambda: self._grade({"golds": golds, "answer": answer}))

    def _grade(self, question: dict[str, Any]) -> float | None:
        reply = self.pool.request(question)
        if "known" not in reply:
            reply = self.pool.request(question)  # it may have been killed externally
        return float(reply.get("right") is True) if reply.get("known") else None

    def close(self) -> None:
        """Stop all workers."""
        self.pool.close()


@lru_cache
def get_shared_pool(workers: int, seconds: float) -> MathGraderPool:
    """Return the shared pool with these settings, which exists until this process exits. Raises
    UserError if Math-Verify is not installed."""
    if find_spec("math_verify") is None:
        raise UserError(
            "the reward 'math' needs Math-Verify: install it with pip install 'fieldcraft[code]'."
        )
    return MathGraderPool(workers, seconds)
