"""Grading of a task: by the reward that it names, or by what it has to be graded by."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fieldcraft.config.names import AUTO
from fieldcraft.records.meta import GRADED_BY
from fieldcraft.types import VERDICT, Task

JUDGE, MATH = "judge", "math"
# Rewards that compare with no gold answer, and what of a task's `meta` they grade by.
GRADES_BY: Mapping[str, str] = MappingProxyType(
    {"unit_tests": "unit_tests", "stdin_tests": "stdin_tests", "toolrl_exact": "calls"}
)


def grader_of(task: Task) -> str:
    """Return the reward that a task names in its metadata; without one, that of its tests or wanted
    calls, exact match where it has gold answers, and a judge where it has nothing."""
    if named := task.meta.get(GRADED_BY):
        return str(named)
    for name, key in GRADES_BY.items():
        if key in task.meta:
            return name
    return VERDICT if task.answers else JUDGE


def recorded_as(reward: str, task: Task) -> str:
    """Return the name under which a score is kept: that of the reward and, of AUTO, that of the
    grader."""
    return grader_of(task) if reward == AUTO else reward
