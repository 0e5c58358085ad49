"""Processes that compare mathematical answers: one that takes too long is killed and replaced."""

from __future__ import annotations

from concurrent.futures import Future
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from fieldcraft.tools.killable_pool import KillablePool
from fieldcraft.types import UserError


class MathGraderPool:
    """Workers that are asked side by side.

    Args:
        workers: how many there are at most; each is started when it is needed.
        seconds: of CPU time for one answer.
    """

    def __init__(self, workers: int, seconds: float) -> None:
        self.seconds = seconds
        self.pool = KillablePool("fieldcraft.rewards.math_worker", workers, seconds)

    def submit(self, golds: list[str], answer: str) -> Future[float | None]:
        """Submit an answer: its score is 1.0 if it equals one of the gold answers, else 0.0. An
        answer that takes too long is 0.0, too; gold answers that cannot be read, or take too long,
        are None."""
        return self.pool.submit(lambda: self._grade({"golds": golds, "answer": answer}))

    def _grade(self, question: dict[str, Any]) -> float | None:
        reply = self.pool.request(question)
        if "known" not in reply:
            reply = self.pool.request(question)  # it may have been killed from outside
        return float(reply.get("right") is True) if reply.get("known") else None

    def close(self) -> None:
        """End all workers."""
        self.pool.close()


@lru_cache
def get_shared_pool(workers: int, seconds: float) -> MathGraderPool:
    """Return the one pool with these settings, which lives as long as this process. Raises
    UserError where Math-Verify is not installed."""
    if find_spec("math_verify") is None:
        raise UserError(
            "the reward 'math' needs Math-Verify: install it with pip install 'fieldcraft[code]'."
        )
    return MathGraderPool(workers, seconds)
