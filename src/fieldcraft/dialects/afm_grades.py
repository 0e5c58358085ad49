"""Grades and scores of AFM's agents: contents of reflections and double checks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fieldcraft.types import Thought, ThoughtRole

CRITERIA = ("information_conflict", "tool_effectiveness", "trajectory_monitoring")
GRADES = ("Good", "Average", "Fair", "Poor")
POOR_GRADE = "Poor"
MIN_PASSING_SCORE = 3  # on the scale from 1 to 4

GRADE_REGEX = re.compile(
    rf"^[ \t]*({'|'.join(CRITERIA)})[ \t]*:[ \t]*({'|'.join(GRADES)})[ \t]*$", re.I | re.M
)
SCORE_PHRASE = r"The score this time is\s*:\s*([1-4])"
SCORE_REGEX = re.compile(rf"\s*{SCORE_PHRASE}\s*", re.I)


def make_reflection(grades: Sequence[str]) -> Thought:
    """Return a reflection with one of GRADES for each of CRITERIA."""
    lines = [f"{name} : {grade}" for name, grade in zip(CRITERIA, grades, strict=True)]
    return Thought("\n".join(lines), ThoughtRole.REFLECT)


def make_double_check(score: int) -> Thought:
    """Return the assessment of a suggested answer: 4 for correct, 3 for minor flaws, 2 for mostly
    wrong, 1 for wrong."""
    return Thought(f"The score this time is:{score}", ThoughtRole.CHECK)


def parse_grades(text: str) -> dict[str, str]:
    """Return the grade of each criterion that a reflection mentions, in lower case."""
    return {name.lower(): grade.lower() for name, grade in GRADE_REGEX.findall(text)}


def parse_score(text: str) -> int | None:
    """Return the score of a double check, None if it contains none from 1 to 4."""
    found = SCORE_REGEX.fullmatch(text)
    return int(found[1]) if found else None
