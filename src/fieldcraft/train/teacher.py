"""Teacher of on-policy distillation: the model whose distribution is learned, and its prompt.

Example: the student's rollout, and the input of a teacher that sees the answer:

    PROMPT  <user> who? <assistant>                     POLICY  It is Kalo. <eos>
    PROMPT  <user> who? (.. Kalo) <assistant>           POLICY  It is Kalo. <eos>

Only the prompts differ. So the trained tokens are the same, in the same order, and the
probabilities of teacher and student are aligned token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fieldcraft.dialects.tool_names import ToolNameMap
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.train.batch import Sample, SampleUnit, get_teacher_view
from fieldcraft.train.protocols import ReferenceModel
from fieldcraft.types import Task, Trajectory, UserError

ANSWER_TEMPLATE = "{question}\n\n(For reference, the answer is: {answer})"
PLAN_TEMPLATE = "{question}\n\n(For reference, a way to the answer is:\n{plan})"


@dataclass(frozen=True, kw_only=True)
class TeacherScorer:
    """Scorer of the student's tokens. `make_prompt` creates the teacher's prompt; None: the same
    prompt as the student's."""

    model: ReferenceModel
    make_prompt: Callable[[Task], list[int]] | None = None

    def make_teacher_view(self, trajectory: Trajectory, sample: Sample) -> Sample | None:
        """Return the sample of a trajectory with the teacher's prompt; None if the prompt is the
        same."""
        if self.make_prompt is None or not sample.weight.any():
            return None
        prompt_ids = np.array(self.make_prompt(trajectory.task), np.int64)
        completion = slice(len(trajectory.segments[0].ids), None)
        ids = np.concatenate([prompt_ids, sample.ids[completion]])
        weight = np.concatenate([np.zeros(len(prompt_ids), np.float32), sample.weight[completion]])
        zeros = np.zeros_like(weight)  # a teacher computes only its own log-probabilities
        return Sample(ids, weight, zeros, zeros, zeros, zeros)

    def fill_logprobs(self, units: Sequence[SampleUnit], temperature: float) -> None:
        """Write the teacher's log-probabilities of the trained tokens to `teacher_logp`."""
        samples = [sample for unit in units for sample in unit]
        views = [get_teacher_view(sample) for sample in samples]
        self.model.fill_logprobs([(sample,) for sample in views], "teacher_logp", temperature)
        for sample, view in zip(samples, views, strict=True):
            sample.teacher_logp = sample.scatter(view.teacher_logp[view.weight > 0])


def make_privileged_question(
    privileged: Literal["answer", "plan"], plan: Callable[[Task], str]
) -> Callable[[Task], str]:
    """Return a function from tasks to the question of a privileged teacher: the answer or the plan
    is appended to the question. `plan` returns the plan of a task.

    The returned function raises UserError if a task lacks the privileged information.
    """
    if privileged == "answer":
        return _append_answer
    return lambda task: PLAN_TEMPLATE.format(question=task.question.strip(), plan=plan(task))


def make_privileged_prompt(
    question: Callable[[Task], str], env: ToolEnvironment
) -> Callable[[Task], list[int]]:
    """Return a function from tasks to the prompt of a privileged teacher, encoded by the dialect.
    The privileged information is plain text, like the question."""
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
