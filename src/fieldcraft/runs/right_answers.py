"""A critical look at gold answers: what a grader makes of them, and of right answers like them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from fieldcraft.data.gold_forms import Form, form_of, plausible
from fieldcraft.rewards.grading import MATH, recorded_as
from fieldcraft.rewards.verdict import grade
from fieldcraft.runs.build import make_correct
from fieldcraft.runs.loop import run_async
from fieldcraft.runs.setup import ASKED, Setup, Unasked
from fieldcraft.runs.sources import Doubt
from fieldcraft.types import VERDICT, Reward, Task, Trajectory

BY_TEXT = (VERDICT, "cover_em")  # graders that compare words
SAMPLES = 3  # questions whose right answers are tried


def answer_notes(setup: Setup, notes: list[str]) -> Iterator[str]:
    """Note which answers look like more than plain text, with the reward that fits them, and the
    scores of a few plausible right answers. Nothing of it is a problem, since any text may be an
    answer."""
    graders = {task.id: recorded_as(setup.recipe.correct, task) for task in setup.tasks}
    compared = [task for task in setup.tasks if task.answers and graders[task.id] in BY_TEXT]
    forms = defaultdict[Form, list[Task]](list)
    for task in compared:
        if (form := form_of(task.answers[0])) is not None:
            forms[form].append(task)
    for form, tasks in forms.items():
        notes.append(
            Doubt(
                f"{len(tasks)} of {len(compared)} look like {form.name}, such as"
                f" {tasks[0].answers[0]!r} of '{tasks[0].id}': {form.advice}"
            )
        )
    first = [tasks[0] for tasks in forms.values()]
    others = [t for t in setup.tasks if t.answers and graders[t.id] in (*BY_TEXT, MATH)]
    sample = list({task.id: task for task in (*first, *others)}.values())[:SAMPLES]
    if sample:
        correct = make_correct(setup.recipe, *map(Unasked, ASKED))
        notes += [_tried(correct, task, graders[task.id]) for task in sample]
    yield from ()


def _tried(correct: Reward, task: Task, grader: str) -> str:
    """Return the scores of plausible answers to a question."""
    answers = plausible(task.answers[0])
    tried = [Trajectory(task, answer=answer) for answer in answers]
    run_async(grade(correct, tried))
    right = [t.answer or "" for t in tried if t.right]
    wrong = [t.answer or "" for t in tried if not t.right]
    return f"{grader} of {task.answers[0]!r}: 1 for {_listed(right)}; 0 for {_listed(wrong)}"


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(map(repr, texts)) or "none"
