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

from fieldcraft.dialects.tool_names import ToolNameMap
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.train.batch import Sample, SampleUnit, get_teacher_view
from fieldcraft.train.protocols import ReferenceModel
from fieldcraft.types import Task, Trajectory, UserError

ANSWER_TEMPLATE = "{question}\n\n(For reference, the answer is: {answer})"
PLAN_TEMPLATE = "{question}\n\n(For reference, a way to the answer is:\n{plan})"


@dataclass(frozen=True, kw_only=True)
class TeacherScorer:
    """A model that scores what the student wrote. `make_prompt` makes what it reads in place of the
    student's prompt; None: it reads the same."""

    model: ReferenceModel
    make_prompt: Callable[[Task], list[int]] | None = None

    def make_teacher_view(self, trajectory: Trajectory, sample: Sample) -> Sample | None:
        """Return the sample of a trajectory as the teacher reads it; None where it reads the
        same."""
        if self.make_prompt is None or not sample.weight.any():
            return None
        prompt_ids = np.array(self.make_prompt(trajectory.task), np.int64)
        completion = slice(len(trajectory.segments[0].ids), None)
        ids = np.concatenate([prompt_ids, sample.ids[completion]])
        weight = np.concatenate([np.zeros(len(prompt_ids), np.float32), sample.weight[completion]])
        zeros = np.zeros_like(weight)  # a teacher is asked for its own log-probabilities only
        return Sample(ids, weight, zeros, zeros, zeros, zeros)

    def fill_logprobs(self, units: Sequence[SampleUnit], temperature: float) -> None:
        """Write its log-probabilities of the trained tokens into `teacher_logp`."""
        samples = [sample for unit in units for sample in unit]
        views = [get_teacher_view(sample) for sample in samples]
        self.model.fill_logprobs([(sample,) for sample in views], "teacher_logp", temperature)
        for sample, view in zip(samples, views, strict=True):
            sample.teacher_logp = sample.scatter(view.teacher_logp[view.weight > 0])


def make_privileged_question(
    privileged: Literal["answer", "plan"], plan: Callable[[Task], str]
) -> Callable[[Task], str]:
    """Return a function from tasks to the question of a teacher that knows more: what it is shown
    follows the question. `plan` finds the plan of a task.

    The function that is returned raises UserError for a task without what is to be shown.
    """
    if privileged == "answer":
        return _append_answer
    return lambda task: PLAN_TEMPLATE.format(question=task.question.strip(), plan=plan(task))


def make_privileged_prompt(
    question: Callable[[Task], str], env: ToolEnvironment
) -> Callable[[Task], list[int]]:
    """Return a function from tasks to the prompt of such a teacher, by the dialect: what it is
    shown is plain text, like the question."""
    return lambda task: env.dialect.encode_prompt(
        question(task), ToolNameMap(task, env.schemas).schemas
    )


def _append_answer(task: Task) -> str:
    if not task.answers:
        raise UserError(
            f"task '{task.id}' has no answer for the teacher's prompt: add one, or set"
            " teacher.privileged: plan."
        )
    return ANSWER_TEMPLATE.format(question=task.question.strip(), answer=task.answers[0])
