"""Checks of gold answers: their form, and the scores of plausible correct answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from fieldcraft.data.gold_forms import AnswerForm, detect_form, make_plausible_variants
from fieldcraft.rewards.grading import MATH, resolve_reward_name
from fieldcraft.rewards.verdict import grade_verdicts
from fieldcraft.runs.build import make_verdict_reward
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.setup import EXPENSIVE_GRADERS, CheckContext, PlaceholderReward
from fieldcraft.runs.sources import CheckWarning
from fieldcraft.types import DEFAULT_VERDICT_REWARD, Reward, Task, Trajectory

TEXT_GRADERS = (DEFAULT_VERDICT_REWARD, "cover_em")  # graders that compare texts
SAMPLE_QUESTIONS = 3  # questions whose plausible answers are graded


def check_answer_forms(context: CheckContext, notes: list[str]) -> Iterator[str]:
    """Note which answers look like more than plain text, with a suitable reward, and the scores of
    a few plausible correct answers. None of this is an error, because any text may be an answer."""
    graders = {
        task.id: resolve_reward_name(context.recipe.verdict_reward, task) for task in context.tasks
    }
    compared = [task for task in context.tasks if task.answers and graders[task.id] in TEXT_GRADERS]
    forms = defaultdict[AnswerForm, list[Task]](list)
    for task in compared:
        if (form := detect_form(task.answers[0])) is not None:
            forms[form].append(task)
    for form, tasks in forms.items():
        notes.append(
            CheckWarning(
                f"{len(tasks)} of {len(compared)} look like {form.name}, such as"
                f" {tasks[0].answers[0]!r} of '{tasks[0].id}': {form.advice}"
            )
        )
    first = [tasks[0] for tasks in forms.values()]
    others = [t for t in context.tasks if t.answers and graders[t.id] in (*TEXT_GRADERS, MATH)]
    sample = list({task.id: task for task in (*first, *others)}.values())[:SAMPLE_QUESTIONS]
    if sample:
        verdict_reward = make_verdict_reward(
            context.recipe, *map(PlaceholderReward, EXPENSIVE_GRADERS)
        )
        notes += [
            _score_plausible_answers(verdict_reward, task, graders[task.id]) for task in sample
        ]
    yield from ()


def _score_plausible_answers(verdict_reward: Reward, task: Task, grader: str) -> str:
    """Return the scores of plausible answers to a question."""
    answers = make_plausible_variants(task.answers[0])
    attempts = [Trajectory(task, answer=answer) for answer in answers]
    run_async(grade_verdicts(verdict_reward, attempts))
    correct = [t.answer or "" for t in attempts if t.is_correct]
    wrong = [t.answer or "" for t in attempts if not t.is_correct]
    return (
        f"{grader} of {task.answers[0]!r}: 1 for {_join_reprs(correct)}; 0 for {_join_reprs(wrong)}"
    )


def _join_reprs(texts: Sequence[str]) -> str:
    return ", ".join(map(repr, texts)) or "none"
