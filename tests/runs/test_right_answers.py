"""Validation of gold answers by `check`."""

from types import SimpleNamespace

import pytest

from fieldcraft.config.recipe import Recipe
from fieldcraft.runs.question_checks import check_answer_forms
from fieldcraft.runs.setup import CheckReport
from fieldcraft.runs.sources import CheckWarning
from fieldcraft.types import Task


def check_answers(*tasks: Task, correct: str = "auto") -> list[str]:
    recipe = Recipe(name="r", stages={}, verdict_reward=correct)
    report = CheckReport()
    check_answer_forms(SimpleNamespace(recipe=recipe, tasks=list(tasks)), report)
    assert report.errors == []
    return report.notes


@pytest.mark.parametrize(
    ("gold", "words"),
    [
        ("[1, 2]", "1 of 2 look like lists, such as '[1, 2]' of 'a': the whole text is the answer"),
        ("True", "look like truth values"),
        ("-5", "graded_by: math"),
        ("(B)", "look like options"),
        ('{"a": 1}', "stdin_tests"),
    ],
)
def test_what_looks_like_more_than_text_is_named(gold: str, words: str) -> None:
    notes = check_answers(Task("a", "?", (gold,)), Task("b", "?", ("Oslo",)))
    assert [note for note in notes if isinstance(note, CheckWarning) and words in note]


def test_plausible_answers_are_scored() -> None:
    [note] = check_answers(Task("a", "?", ("Oslo",)))
    right, wrong = note.split("; 0 for ")
    assert right.startswith("em of 'Oslo': 1 for 'the Oslo', 'Oslo.'")
    assert "'The answer is Oslo.'" in wrong


def test_mathematics_is_graded_by_its_own_reward() -> None:
    [note] = check_answers(Task("a", "?", ("1234",), {"graded_by": "math"}))
    right, _, _ = note.partition("; 0 for ")
    assert right.startswith("math of '1234'")
    assert "'1,234'" in right
    assert "'1.234e+3'" in right


def test_what_is_graded_by_tests_is_not_compared() -> None:
    assert check_answers(Task("a", "?", (), {"stdin_tests": [{"input": "", "output": ""}]})) == []
