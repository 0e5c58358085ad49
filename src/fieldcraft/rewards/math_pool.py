"""Process pool for comparing mathematical answers; a process that exceeds its limit is replaced."""

from __future__ import annotations

from concurrent.futures import Future
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from fieldcraft.tools.killable_pool import KillablePool
from fieldcraft.types import UserError


class MathGraderPool:
    """Workers that grade answers concurrently.

    Args:
        workers: maximum number of workers; each is started on demand.
        seconds: CPU time per answer.
    """

    def __init__(self, workers: int, seconds: float) -> None:
        self.seconds = seconds
        self.pool = KillablePool("fieldcraft.rewards.math_worker", workers, seconds)

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
