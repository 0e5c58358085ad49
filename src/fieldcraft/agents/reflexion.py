"""A workflow that is told when it was wrong, reflects and tries again (Reflexion)."""

from __future__ import annotations

from dataclasses import replace

from fieldcraft.agents.react import think_and_look_up
from fieldcraft.agents.turns import conclude
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.rewards.answers import is_right
from fieldcraft.rollout.turns import Conversation, Policy, converse
from fieldcraft.types import Status, Task, Trajectory

TRIALS = 3
WRONG = "{question} The answer {answer} was wrong. What went wrong?"
AGAIN = "{question} {reflection}"


async def reflexion(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """ReAct, up to three times (Reflexion, arXiv 2303.11366). An evaluator that knows the gold
    answers says whether the answer was wrong. The model then writes what went wrong, and its next
    trial begins with that. So it has more information than any other row of a table.

    One trajectory holds all trials, so every call and token counts. Each trial may use the whole
    budget. The answer is that of the last trial.
    """
    return await converse(task, policy, env, key, _try_and_reflect)


async def _try_and_reflect(conversation: Conversation) -> None:
    trajectory = conversation.trajectory
    task, trial = trajectory.task, conversation
    for left in reversed(range(TRIALS)):
        first_turn = len(trajectory.policy_texts)
        await think_and_look_up(trial)
        conclude(trial, first_turn)
        answer = trajectory.answer or ""
        if left == 0 or is_right(answer, task.answers):
            return
        trial.ask(WRONG.format(question=task.question, answer=answer))
        await trial.write(stop=("\n",))
        reflection = trajectory.policy_texts[-1].strip()
        trial = _with_whole_budget(conversation)
        trajectory.status, trajectory.answer = Status.NO_ANSWER, None
        trial.ask(AGAIN.format(question=task.question, reflection=reflection))


def _with_whole_budget(conversation: Conversation) -> Conversation:
    """The conversation with a new budget on top of what the trajectory has used."""
    trajectory, budget = conversation.trajectory, conversation.episode.budget
    more = {
        "max_calls": budget.max_calls + len(trajectory.calls),
        "total_tokens": budget.total_tokens + len(trajectory.ids),
    }
    episode = replace(conversation.episode, budget=budget.model_copy(update=more))
    return replace(conversation, episode=episode)
