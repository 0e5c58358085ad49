"""Selection of a step's questions that are asked while the tools are unavailable."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import floor
from typing import Any

from fieldcraft.config.rl import Rl
from fieldcraft.types import DEFAULT_VERDICT_REWARD, Status, Task, Trajectory


def select_tool_free_questions(
    settings: Rl, seed: int, batch: int, tasks: Sequence[Task]
) -> set[int]:
    """Return the indices, in batch number `batch`, of the questions that are asked without tools.

    Their number is n * `cot_share` of the n questions that `cot_questions` admits, with stochastic
    rounding, so that its expectation is n * `cot_share`.
    """
    known_only = settings.cot_questions == "known"
    eligible = [p for p, task in enumerate(tasks) if not known_only or task.is_known]
    rng = random.Random(f"cot:{seed}:{batch}")
    count = floor(len(eligible) * settings.cot_share + rng.random())
    return set(rng.sample(eligible, min(count, len(eligible))))


def compute_tool_free_metrics(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Return the metrics of a step's rollouts without tools; empty if there are none.

    `tool_free/share` is their share of all rollouts, `tool_free/em` the fraction that is correct,
    and `tool_free/answered` the fraction that ends with an answer; the others wrote a call or ran
    out of tokens.
    """
    tool_free = [t for t in trajectories if t.tool_free]
    if not tool_free:
        return {}
    graded = [t.is_correct for t in tool_free if t.is_correct is not None]
    return {
        "tool_free/share": len(tool_free) / len(trajectories),
        f"tool_free/{DEFAULT_VERDICT_REWARD}": sum(graded) / max(len(graded), 1),
        "tool_free/answered": sum(t.status is Status.ANSWERED for t in tool_free) / len(tool_free),
    }
