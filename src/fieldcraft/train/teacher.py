"""The teacher of on-policy distillation: the model whose probabilities are learnt, and its prompt.

A worked example. The student wrote, and the teacher that is shown the answer reads

    PROMPT  <user> who? <assistant>                     POLICY  It is Kalo. <eos>
    PROMPT  <user> who? (.. Kalo) <assistant>           POLICY  It is Kalo. <eos>

Only the prompts differ. So the trained tokens are the same, in the same order, and the teacher's
probability of the first of them stands beside the student's probability of the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fieldcraft.dialects.naming import Names
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.train.batch import Sample, Unit, as_seen
from fieldcraft.train.learning import Reference
from fieldcraft.types import Task, Trajectory, UserError

ANSWER = "{question}\n\n(For reference, the answer is: {answer})"
PLAN = "{question}\n\n(For reference, a way to the answer is:\n{plan})"


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A model that scores what the student wrote. `prompt` makes what it reads in place of the
    student's prompt; None: it reads the same."""

    model: Reference
    prompt: Callable[[Task], list[int]] | None = None

    def seen(self, trajectory: Trajectory, sample: Sample) -> Sample | None:
        """Return the sample of a trajectory as the teacher reads it; None where it reads the
        same."""
        if self.prompt is None or not sample.weight.any():
            return None
        read = np.array(self.prompt(trajectory.task), np.int64)
        written = slice(len(trajectory.segments[0].ids), None)
        ids = np.concatenate([read, sample.ids[written]])
        weight = np.concatenate([np.zeros(len(read), np.float32), sample.weight[written]])
        unknown = np.zeros_like(weight)  # a teacher is asked for its own log-probabilities only
        return Sample(ids, weight, unknown, unknown, unknown, unknown)

    def fill_logprobs(self, units: Sequence[Unit], temperature: float) -> None:
        """Write its log-probabilities of the trained tokens into `teacher_logp`."""
        samples = [sample for unit in units for sample in unit]
        read = [as_seen(sample) for sample in samples]
        self.model.fill_logprobs([(sample,) for sample in read], "teacher_logp", temperature)
        for sample, seen in zip(samples, read, strict=True):
            sample.teacher_logp = sample.spread(seen.teacher_logp[seen.weight > 0])


def shown_question(
    shown: Literal["answer", "plan"], plan: Callable[[Task], str]
) -> Callable[[Task], str]:
    """Return a function from tasks to the question of a teacher that knows more: what it is shown
    follows the question. `plan` finds the plan of a task.

    The function that is returned raises UserError for a task without what is to be shown.
    """
    if shown == "answer":
        return _with_answer
    return lambda task: PLAN.format(question=task.question.strip(), plan=plan(task))


def shown_prompt(
    question: Callable[[Task], str], env: ToolEnvironment
) -> Callable[[Task], list[int]]:
    """Return a function from tasks to the prompt of such a teacher, by the dialect: what it is
    shown is plain text, like the question."""
    return lambda task: env.dialect.prompt(question(task), Names(task, env.schemas).schemas)


def _with_answer(task: Task) -> str:
    if not task.answers:
        raise UserError(
            f"task '{task.id}' has no answer that a teacher could be shown: give it one, or set"
            " teacher.shown: plan."
        )
    return ANSWER.format(question=task.question.strip(), answer=task.answers[0])
