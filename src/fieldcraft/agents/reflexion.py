"""A workflow that is told when it was wrong, reflects and tries again (Reflexion)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fieldcraft.agents.react import think_and_look_up
from fieldcraft.agents.turns import conclude
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.rewards.verdict import grade
from fieldcraft.rollout.turns import Conversation, Policy, converse
from fieldcraft.types import Reward, Status, Task, Trajectory

TRIALS = 3
WRONG = "{question} The answer {answer} was wrong. What went wrong?"
AGAIN = "{question} {reflection}"


async def reflexion(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """Run ReAct up to three times (Reflexion, arXiv 2303.11366). The environment's `correct`, which
    knows the gold answers, says whether the answer was wrong. The model then writes what went
    wrong, and its next trial begins with that. So it has more information than any other row of a
    table.

    One trajectory holds all trials, so every call and token counts. Each trial may use the whole
    budget. The answer is that of the last trial.
    """
    return await converse(task, policy, env, key, partial(_try_and_reflect, env.correct))


async def _try_and_reflect(correct: Reward, conversation: Conversation) -> None:
    trajectory = conversation.trajectory
    task, trial = trajectory.task, conversation
    for left in reversed(range(TRIALS)):
        first_turn = len(trajectory.policy_texts)
        await think_and_look_up(trial)
        conclude(trial, first_turn)
        if left == 0 or not await _is_wrong(trajectory, correct):
            return
        answer = trajectory.answer or ""
        trial.ask(WRONG.format(question=task.question, answer=answer))
        await trial.write(stop=("\n",))
        reflection = trajectory.policy_texts[-1].strip()
        trial = _with_whole_budget(conversation)
        trajectory.status, trajectory.answer = Status.NO_ANSWER, None
        trial.ask(AGAIN.format(question=task.question, reflection=reflection))


async def _is_wrong(trajectory: Trajectory, correct: Reward) -> bool:
    """Tell whether the answer so far is wrong, by its verdict; what cannot be graded is not known
    to be wrong."""
    seen = replace(trajectory, rewards={})
    await grade(correct, [seen])
    return seen.right is False


def _with_whole_budget(conversation: Conversation) -> Conversation:
    """Return the conversation with a new budget on top of what the trajectory has used."""
    trajectory, budget = conversation.trajectory, conversation.episode.budget
    more = {
        "max_calls": budget.max_calls + len(trajectory.calls),
        "total_tokens": budget.total_tokens + len(trajectory.ids),
    }
    episode = replace(conversation.episode, budget=budget.model_copy(update=more))
    return replace(conversation, episode=episode)
