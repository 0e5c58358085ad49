"""Grading of a task: by the reward that it names, or by what it has to be graded by."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fieldcraft.config.names import AUTO_VERDICT
from fieldcraft.records.meta import GRADED_BY_KEY
from fieldcraft.types import DEFAULT_VERDICT_REWARD, Task

JUDGE, MATH = "judge", "math"
# Rewards that compare with no gold answer, and what of a task's `meta` they grade by.
GRADED_BY_META: Mapping[str, str] = MappingProxyType(
    {"unit_tests": "unit_tests", "stdin_tests": "stdin_tests", "toolrl_exact": "calls"}
)


def resolve_grader(task: Task) -> str:
    """Return the reward that a task names in its metadata; without one, that of its tests or wanted
    calls, exact match where it has gold answers, and a judge where it has nothing."""
    if explicit := task.meta.get(GRADED_BY_KEY):
        return str(explicit)
    for name, key in GRADED_BY_META.items():
        if key in task.meta:
            return name
    return DEFAULT_VERDICT_REWARD if task.answers else JUDGE


def resolve_reward_name(reward: str, task: Task) -> str:
    """Return the name under which a score is kept: that of the reward and, of AUTO_VERDICT, that of
    the grader."""
    return resolve_grader(task) if reward == AUTO_VERDICT else reward
