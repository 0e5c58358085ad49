"""A workflow that is told when it was wrong, reflects and tries again (Reflexion)."""

from __future__ import annotations

from dataclasses import replace

from fieldcraft.agents.react import think_and_look_up
from fieldcraft.agents.turns import conclude, prompt, write
from fieldcraft.envs.environment import Budget, ToolEnvironment
from fieldcraft.rewards.answers import is_right
from fieldcraft.rollout.loop import Policy, session_of
from fieldcraft.types import Status, Task, Trajectory

TRIALS = 3
WRONG = "{question} The answer {answer} was wrong. What went wrong?"
AGAIN = "{question} {reflection}"


async def reflexion(task: Task, policy: Policy, env: ToolEnvironment, key: str) -> Trajectory:
    """ReAct, up to three times (Reflexion, arXiv 2303.11366): an evaluator that knows the gold
    answers says whether the answer was wrong; the model then writes what went wrong, and its next
    trial begins with that. The gold answers give it more than any other row of a table has.

    One trajectory holds all trials, so that every call and token counts; every trial may spend the
    whole budget, and the last one's answer is the answer.
    """
    trajectory = Trajectory(task)
    async with session_of(trajectory, policy.engine, key) as session:
        question = task.question
        for trial in range(TRIALS):
            allowed = replace(env, budget=_extended(env.budget, trajectory))
            first_turn = len(trajectory.policy_texts)
            trajectory.status, trajectory.answer = Status.NO_ANSWER, None
            prompt(trajectory, question, allowed)
            await think_and_look_up(trajectory, policy, allowed, session, key)
            conclude(trajectory, env.dialect, first_turn)
            answer = trajectory.answer or ""
            if trial == TRIALS - 1 or is_right(answer, task.answers):
                break
            prompt(trajectory, WRONG.format(question=task.question, answer=answer), allowed)
            await write(trajectory, policy, allowed, session, key, ("\n",))
            reflection = trajectory.policy_texts[-1].strip()
            question = AGAIN.format(question=task.question, reflection=reflection)
    return trajectory


def _extended(budget: Budget, trajectory: Trajectory) -> Budget:
    """A whole budget more than what the trajectory has spent."""
    return replace(
        budget,
        max_calls=budget.max_calls + len(trajectory.calls),
        total_tokens=budget.total_tokens + len(trajectory.ids),
    )
