"""Selection of the reward that grades a task: the one it names, or one that fits its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fieldcraft.config.components import AUTO_VERDICT, RUBRIC
from fieldcraft.records.meta import GRADED_BY_KEY
from fieldcraft.types import DEFAULT_VERDICT_REWARD, Task

JUDGE, MATH = "judge", "math"
UNREFERENCED_GRADERS = (JUDGE, RUBRIC)  # rewards that a question without a gold answer may name
# Rewards that use no gold answer, and the key of a task's `meta` that they grade by.
GRADED_BY_META: Mapping[str, str] = MappingProxyType(
    {"unit_tests": "unit_tests", "stdin_tests": "stdin_tests", "toolrl_exact": "calls"}
)


def resolve_grader(task: Task) -> str:
    """Return the reward that a task names in its metadata. By default, return the reward for its
    tests or expected calls, exact match if it has gold answers, and otherwise a judge."""
    if explicit := task.meta.get(GRADED_BY_KEY):
        return str(explicit)
    for name, key in GRADED_BY_META.items():
        if key in task.meta:
            return name
    return DEFAULT_VERDICT_REWARD if task.answers else JUDGE


def resolve_reward_name(reward: str, task: Task) -> str:
    """Return the name under which a score is recorded: the name of the reward or, for AUTO_VERDICT,
    of the task's grader."""
    return resolve_grader(task) if reward == AUTO_VERDICT else reward
